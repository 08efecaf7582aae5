"""Writes runs to a file in any of the formats that can be written."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, TextIO

from .atif_write import write_atif
from .chat import write_chat
from .errors import UnwritableFile
from .otel_file import write_otel
from .own import write_own
from .parquet import write_parquet
from .perfetto import write_perfetto
from .runs import RecordedRun

Writer = Callable[[Iterable[RecordedRun], BinaryIO], None]
"""Writes runs to a file, one in memory at a time where the format allows it."""


def _as_text(write: Callable[[Iterable[RecordedRun], TextIO], None]) -> Writer:
    def write_bytes(runs: Iterable[RecordedRun], file: BinaryIO) -> None:
        text = io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="\n", write_through=False)
        try:
            write(runs, text)
        finally:
            text.detach()  # flushes, and leaves the file open to its owner

    return write_bytes


WRITERS: Mapping[str, Writer] = MappingProxyType(
    {
        "own": _as_text(write_own),
        "atif": _as_text(write_atif),
        "chat": _as_text(write_chat),
        "perfetto": _as_text(write_perfetto),
        "otel": _as_text(write_otel),
        "parquet": write_parquet,
    }
)
"""The formats that can be written, by name."""


def write(runs: Iterable[RecordedRun], path: str | Path, format: str) -> None:
    """Write runs to a file; it is there whole or, where something fails, not at all.

    Args:
        runs: What to write.
        path: The file, which is replaced if it exists.
        format: One of `WRITERS`.

    Raises:
        UnwritableFile: the file can't be written, or no format has that name.
        MissingExtra: the format needs a package that isn't installed.
    """
    path = Path(path)
    writer = _writer(format)
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            writer(runs, file)
        os.replace(part, path)
    except OSError as error:
        raise UnwritableFile(f"can't write {path}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def write_to(file: BinaryIO, runs: Iterable[RecordedRun], format: str) -> None:
    """Write runs to an open file.

    Raises:
        UnwritableFile: no format has that name.
        MissingExtra: the format needs a package that isn't installed.
    """
    _writer(format)(runs, file)


def _writer(format: str) -> Writer:
    if format not in WRITERS:
        raise UnwritableFile(f"no format is called {format!r}: there are {', '.join(WRITERS)}")
    return WRITERS[format]
