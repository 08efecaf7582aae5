"""Runs a command beside a PostgreSQL server of its own, which is gone afterwards.

    python scripts/with_postgres.py COMMAND...

The command finds the server's URL in AGENT_RUNTIME_POSTGRES. The server listens on loopback only, under a password made
for it, and keeps everything in a temporary folder. Root can't run PostgreSQL, so for root it runs as `postgres`.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ENVIRONMENT = "AGENT_RUNTIME_POSTGRES"
ACCOUNTS = ("postgres", "nobody")
ATTEMPTS = 5
"""Another program may take the free port before the server does."""


class NoPostgres(Exception):
    """Raised when PostgreSQL isn't installed, or doesn't start; the message says why."""


def programs() -> Path:
    """Return the folder of the newest PostgreSQL's programs.

    Raises:
        NoPostgres: there is none.
    """
    installed = Path("/usr/lib/postgresql").glob("*/bin/initdb")  # Debian keeps them off the PATH
    versions = sorted((path.parent for path in installed), key=lambda path: float(path.parent.name))
    if versions:
        return versions[-1]
    found = shutil.which("initdb")
    if found is None:
        raise NoPostgres("no PostgreSQL server is installed (Debian: apt-get install postgresql)")
    return Path(found).resolve().parent


@contextlib.contextmanager
def private_server(*, settings: dict[str, str] | None = None) -> Iterator[str]:
    """Start a server in a temporary folder; give the URL of its database `postgres`, and stop it at the end.

    Raises:
        NoPostgres: it isn't installed, or didn't start.
    """
    folder = Path(tempfile.mkdtemp(prefix="agent-runtime-"))
    try:
        with _server(programs(), folder, settings or {}) as url:
            yield url
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _server(binaries: Path, folder: Path, settings: dict[str, str]) -> Iterator[str]:
    account = _account()
    password = secrets.token_hex(16)
    pwfile, data, log = folder / "password", folder / "data", folder / "log"
    pwfile.write_text(password)
    log.touch()
    if account:
        for path in (folder, pwfile, log):
            os.chown(path, account["user"], account["group"])
    choices = ("--username=postgres", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync")
    _check([binaries / "initdb", "--pgdata", data, f"--pwfile={pwfile}", *choices], account, folder)
    pwfile.unlink()
    for attempt in range(ATTEMPTS):
        port = _free_port()
        given = {"port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": folder, **settings}
        options = [word for name, value in given.items() for word in ("-c", f"{name}={value}")]
        with log.open("ab") as output:
            server = subprocess.Popen(
                [binaries / "postgres", "-D", data, *options], stdout=output, stderr=output, cwd=folder, **account
            )
        try:
            if _answers(binaries, port, server):
                yield f"postgresql+psycopg://postgres:{password}@127.0.0.1:{port}/postgres"
                return
        finally:
            server.send_signal(signal.SIGINT)  # "fast shutdown": connections are closed, nothing is waited for
            server.wait(timeout=60)
        if attempt == ATTEMPTS - 1 or "Address already in use" not in log.read_text():
            raise NoPostgres(f"PostgreSQL did not start: {' '.join(log.read_text().split()[-40:])}")


def _account() -> dict[str, Any]:
    """Return what makes a process of root's run as somebody else; nothing for anybody else."""
    if os.geteuid() != 0:
        return {}
    for name in ACCOUNTS:
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise NoPostgres(f"root can't run PostgreSQL, and there is no account {' or '.join(ACCOUNTS)}")


def _check(command: list[Any], account: dict[str, Any], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, **account)
    if done.returncode:
        raise NoPostgres(f"PostgreSQL's {Path(command[0]).name} failed: {' '.join(done.stderr.split())}")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _answers(binaries: Path, port: int, server: subprocess.Popen[bytes]) -> bool:
    """Wait until the server takes connections; False if it ended instead."""
    while server.poll() is None:
        ready = [binaries / "pg_isready", "--quiet", "--host=127.0.0.1", f"--port={port}", "--timeout=30"]
        if subprocess.run(ready, check=False).returncode == 0:
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(timeout=0.05)
    return False


def main() -> int:
    """Run the command and return its exit code."""
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        with private_server() as url:
            return subprocess.run(sys.argv[1:], env={**os.environ, ENVIRONMENT: url}, check=False).returncode
    except NoPostgres as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
