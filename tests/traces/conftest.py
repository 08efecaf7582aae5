"""What the tests of traces share: every store test runs on SQLite and on a real PostgreSQL server.

The server is private to the session; AGENT_RUNTIME_POSTGRES names another (databases are made and dropped on it). Where
none is installed these tests are skipped, unless AGENT_RUNTIME_REQUIRE_POSTGRES=1 forbids that.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from agent_runtime.traces import TraceStore
from agent_runtime.traces.events import RunStarted

Sql = Callable[..., list[tuple[Any, ...]]]

_PROGRAM = Path(__file__).parents[2] / "scripts" / "with_postgres.py"


def _with_postgres() -> ModuleType:
    spec = importlib.util.spec_from_file_location("with_postgres", _PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a PostgreSQL server's database on which other databases can be made."""
    program = _with_postgres()
    if os.environ.get(program.ENVIRONMENT):
        yield os.environ[program.ENVIRONMENT]
        return
    with contextlib.ExitStack() as running:
        try:
            pytest.importorskip("psycopg", reason="psycopg is not installed (the extra `postgres`)")
            # Survival of a power cut is not tested, and costs a disk's patience per commit.
            url = running.enter_context(program.private_server(settings={"fsync": "off"}))
        except (program.NoPostgres, pytest.skip.Exception) as missing:
            if os.environ.get("AGENT_RUNTIME_REQUIRE_POSTGRES", "") in ("", "0"):
                pytest.skip(str(missing))
            pytest.fail(f"AGENT_RUNTIME_REQUIRE_POSTGRES is set, but {missing}")
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def backend(request: pytest.FixtureRequest) -> str:
    """The kind of database; a test for one kind only overrides it."""
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "traces.db"


@pytest.fixture
def where(backend: str, path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """A new, empty database: a path or a URL."""
    if backend == "sqlite":
        yield str(path)
        return
    import psycopg

    url = request.getfixturevalue("postgres_server")
    server, _, _ = url.rpartition("/")
    name = f"test_{os.getpid()}_{abs(hash(request.node.nodeid)):x}"
    with psycopg.connect(_libpq(url), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        yield f"{server}/{name}"
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
def store(where: str) -> Iterator[TraceStore]:
    with TraceStore.open(where) as store:
        yield store


@pytest.fixture
def started() -> RunStarted:
    return RunStarted(at=0.0, agent="shop", model="pocket", task="Where is order 1042?")


@pytest.fixture
def sql(where: str) -> Sql:
    """Run SQL on the database from outside; parameters stand as `?`."""

    def on_file(statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(where)) as connection, connection:
            return connection.execute(statement, parameters).fetchall()

    def on_server(statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(_libpq(where)) as connection:
            cursor = connection.execute(statement.replace("?", "%s"), parameters)
            return cursor.fetchall() if cursor.description else []

    return on_server if "://" in where else on_file


@pytest.fixture
def writing_elsewhere(where: str) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Hold off every other writer, as another process does in the middle of a commit; readers go on."""

    @contextlib.contextmanager
    def hold_file() -> Iterator[None]:
        other = sqlite3.connect(where, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            other.execute("ROLLBACK")
            other.close()

    @contextlib.contextmanager
    def hold_server() -> Iterator[None]:
        import psycopg

        with psycopg.connect(_libpq(where)) as other:
            other.execute("LOCK TABLE runs, events, turns IN EXCLUSIVE MODE")
            yield
            other.rollback()

    return hold_server if "://" in where else hold_file


def _libpq(url: str) -> str:
    """Return SQLAlchemy's URL as the driver itself takes it."""
    return url.replace("postgresql+psycopg://", "postgresql://")
