"""Tells a file's format from what is in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from . import atif_format, chat, claude_code, codex, own, swe_agent, tau2, tau_bench
from .errors import Broken, UnreadableFile
from .json_stream import JsonStream
from .json_text import loads
from .records import read_records, shape_of
from .source import Source

_LOOKED_AT = 100
"""Records looked at before a file counts as none of the formats."""

_CONTAINERS: dict[bytes, Any] = {b"[": [], b"{": {}}

_SIGNS: tuple[tuple[str, Callable[[dict[str, Any]], bool]], ...] = (
    ("own", own.looks_like),
    ("atif", atif_format.looks_like),
    ("tau2", tau2.looks_like),
    ("tau-bench", tau_bench.looks_like),
    ("swe-agent", swe_agent.looks_like),
    ("claude-code", claude_code.looks_like),
    ("codex", codex.looks_like),
    ("chat", chat.looks_like),
)


def detect(path: str | Path) -> str:
    """Return the name of a file's format.

    Raises:
        UnreadableFile: it can't be read, or is none of the formats.
    """
    source = Source(Path(path))
    for start in _starts(source):
        for name, looks_like in _SIGNS:
            if isinstance(start, dict) and looks_like(start):
                return name
    with source.open() as file:
        if not file.read(1):
            raise UnreadableFile(f"{path} is empty")
    reason = f"; {source.faults[0].record}: {source.faults[0].reason}" if source.faults else ""
    names = ", ".join(name for name, _ in _SIGNS)
    raise UnreadableFile(f"{path} is none of the formats {names}{reason}")


def _starts(source: Source) -> Iterator[Any]:
    """Yield the first records; of an object over many lines, which may be large, its outline as it becomes known."""
    with source.open() as file:
        if shape_of(file) == "documents":
            yield from _outline(source, JsonStream(file))
            return
    yield from islice((record.value for record in read_records(source)), _LOOKED_AT)


def _outline(source: Source, stream: JsonStream) -> Iterator[dict[str, Any]]:
    outline: dict[str, Any] = {}
    try:
        for key in stream.members():
            first = stream.peek()
            if first in _CONTAINERS:
                outline[key] = _CONTAINERS[first]
                yield outline
                stream.skip()
            else:
                outline[key] = loads(stream.take())
                yield outline
    except Broken as broken:
        source.fault("the start", str(broken))
