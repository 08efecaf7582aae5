"""The records of a file: lines of JSON, items of an array, or one object over many lines."""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from ..trajectory import Trajectory
from .errors import Broken
from .json_stream import MAX_VALUE, BrokenOff, JsonStream
from .json_text import loads
from .source import Source

_SNIFFED_LINES = 20
_SNIFFED_BYTES = 64
_LONGEST_SNIFFED = 8 << 20


@dataclass(frozen=True, slots=True)
class Record:
    """One record, with its place in the file."""

    place: str
    value: Any


Convert = Callable[[Any, str], Trajectory]
"""Makes a trajectory of a record's value and place; raises `Broken` where it can't."""


def convert(source: Source, records: Iterator[Record], conversion: Convert) -> Iterator[Trajectory]:
    """Yield what becomes of each record; those that can't be converted become faults."""
    for record in records:
        try:
            trajectory = conversion(record.value, record.place)
        except Broken as broken:
            source.fault(record.place, str(broken))
            continue
        yield trajectory


def read_records(source: Source) -> Iterator[Record]:
    """Yield the records of a file, one in memory at a time; broken ones become faults of the source.

    Raises:
        UnreadableFile: the file can't be opened.
    """
    with source.open() as file:
        shape = shape_of(file)
        if shape == "lines":
            yield from _lines(source, file)
        elif shape == "array":
            stream = JsonStream(file)
            whole = yield from read_items(source, stream, "item")
            if whole and stream.peek():
                source.fault("the end", "something follows the array; it was left out")
        else:
            yield from _documents(source, JsonStream(file))


def read_items(source: Source, stream: JsonStream, name: str) -> Generator[Record, None, bool]:
    """Enter the array that follows in a stream and yield its items as records called `name` and a number from 1.

    Returns whether the array was whole.
    """
    place = f"{name} 1"
    try:
        for number in stream.items():
            place = f"{name} {number + 1}"
            try:
                raw = stream.take()
            except BrokenOff:
                raise
            except Broken as broken:
                source.fault(place, str(broken))
                continue
            yield from _record(source, place, raw)
    except BrokenOff as broken:
        source.fault(place, str(broken))
        return False
    return True


def shape_of(file: BinaryIO) -> str:
    """Tell how a file's records lie: `lines`, `array` or `documents`; the file is left at its start.

    Records in lines can be told apart where one of them is broken. What has no whole object in one of the first lines,
    also since that is long, counts as documents, which is right for it too.
    """
    start = file.tell()
    shape = "documents"
    for number in range(_SNIFFED_LINES):
        opening = file.read(_SNIFFED_BYTES)
        if number == 0 and opening.lstrip()[:1] == b"[":
            shape = "array"
            break
        file.seek(-len(opening), io.SEEK_CUR)
        line = file.readline(_LONGEST_SNIFFED)
        if not line:
            break
        if line[:1] == b"{" and line[-_SNIFFED_BYTES:].rstrip().endswith(b"}") and _is_json(line):
            shape = "lines"
            break
    file.seek(start)
    return shape


def _is_json(line: bytes) -> bool:
    try:
        loads(line)
    except Broken:
        return False
    return True


def _lines(source: Source, file: BinaryIO) -> Iterator[Record]:
    number = 0
    while line := file.readline(MAX_VALUE):
        number += 1
        place = f"line {number}"
        if len(line) == MAX_VALUE and not line.endswith(b"\n"):
            source.fault(place, f"longer than {MAX_VALUE >> 20} MiB")
            while (rest := file.readline(MAX_VALUE)) and not rest.endswith(b"\n"):
                pass
        elif line.strip():
            yield from _record(source, place, line)


def _documents(source: Source, stream: JsonStream) -> Iterator[Record]:
    number = 0
    while stream.peek():
        number += 1
        place = f"document {number}"
        try:
            raw = stream.take()
        except BrokenOff as broken:
            source.fault(place, str(broken))
            return
        except Broken as broken:
            source.fault(place, str(broken))
            continue
        yield from _record(source, place, raw)


def _record(source: Source, place: str, raw: bytes) -> Iterator[Record]:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        source.fault(place, f"no UTF-8 at byte {error.start}: replaced")
        text = raw.decode(errors="replace")
    try:
        value = loads(text)
    except Broken as broken:
        source.fault(place, str(broken))
        return
    yield Record(place, value)
