"""The file of a cassette: JSON lines that are only ever appended, one per thing that was recorded.

The first line names the format and holds the key of the redactions. A line that was cut off at the file's end, because
the process that wrote it died, is left out; any other line that can't be read makes the file unusable.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from agent_runtime.errors import CassetteUnusable
from agent_runtime.tools.values import canonical_json

from .base import Generated, ProbeResult

VERSION = 1

StreamEvent = (
    tuple[Literal["prompt"], int, int] | tuple[Literal["thinking", "text"], str, int] | tuple[Literal["call"], int]
)
"""An event of a stream: prompt tokens and those re-used; a text and the tokens so far; a call's number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsRecord:
    """The tools that a model was told of, under the name that requests use for them."""

    type: Literal["tools"] = "tools"
    id: str
    tools: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRecord:
    """A request for a message, and the stream that answered it.

    `conversation` stands for tools and messages together. The messages are those of the conversation that it `extends`
    and then `messages`. Without `generated` the stream was broken off, by `error` if there is one; `calls` holds its
    calls then.
    """

    type: Literal["message"] = "message"
    conversation: str
    extends: str | None
    tools: str
    messages: tuple[Mapping[str, Any], ...]
    sampling: Mapping[str, Any] | None
    events: tuple[StreamEvent, ...]
    generated: Generated | None = None
    calls: tuple[Mapping[str, Any], ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRecord:
    """What a probe answered, after so many events of the message's stream."""

    type: Literal["probe"] = "probe"
    conversation: str
    position: int
    after: int
    result: ProbeResult


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """What a tool gave when it was run, for a guess or for a call, in the turn that began with `conversation`."""

    type: Literal["call"] = "call"
    conversation: str
    tool: str
    arguments: Mapping[str, Any]
    ok: bool
    content: str


Record = ToolsRecord | MessageRecord | ProbeRecord | CallRecord

_RECORD: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="type")])


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first line: whose model was recorded, and the key under which secrets were hashed."""

    key: bytes
    model: str


def read_cassette(path: Path) -> tuple[Header, list[Record]] | None:
    """Return what a cassette holds; None where there is no file, or an empty one, to be recorded.

    Raises:
        CassetteUnusable: it is no cassette, a newer version's, or damaged.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CassetteUnusable(f"can't read the cassette {path}: {error.strerror or error}") from None
    if lines == [b""]:
        return None
    lines.pop()  # empty, or what a killed process left of its last line
    if not lines:
        raise _foreign(path)
    header = _header(path, lines[0])
    return header, [_record(path, number, line) for number, line in enumerate(lines[1:], start=2)]


def _header(path: Path, line: bytes) -> Header:
    try:
        value = json.loads(line)
        version, key, model = value["cassette"], bytes.fromhex(value["key"]), str(value["model"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise _foreign(path) from None
    if version != VERSION:
        raise CassetteUnusable(
            f"the cassette {path} has format {version!r} and this version reads {VERSION}: "
            "upgrade agent-runtime, or record a new one under another name"
        )
    return Header(key=key, model=model)


def _foreign(path: Path) -> CassetteUnusable:
    return CassetteUnusable(
        f"{path} is no cassette: its first line isn't one's. To record a new one, name a file that doesn't exist yet"
    )


def _record(path: Path, number: int, line: bytes) -> Record:
    try:
        return _RECORD.validate_json(line)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in problem["loc"][1:])
        raise CassetteUnusable(
            f"line {number} of the cassette {path} can't be read ({place + ': ' if place else ''}{problem['msg']}): "
            "restore the file, or delete it to record anew"
        ) from None


class CassetteWriter:
    """Appends records; the file is made with the first message. May be called from any thread.

    Args:
        path: A file that doesn't exist, or is empty.

    Raises:
        CassetteUnusable: no file can be made there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._file: int | None = None
        self._tools: set[str] = set()
        self._early: list[Record] | None = []
        if not path.parent.is_dir():
            raise CassetteUnusable(f"can't write the cassette {path}: there is no folder {path.parent}")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise CassetteUnusable(f"can't write the cassette {path}: permission denied")

    @property
    def begun(self) -> bool:
        """Whether a message was written: without one a file would hold nothing to replay."""
        return self._early is None

    def write(self, record: Record, *, model: str) -> None:
        """Append a record; tools that are there already are left out, and what comes before a message waits for it.

        Raises:
            CassetteUnusable: it can't be written.
        """
        with self._lock:
            if isinstance(record, ToolsRecord):
                if record.id in self._tools:
                    return
                self._tools.add(record.id)
            if self._early is not None:
                self._early.append(record)
                if not isinstance(record, MessageRecord):
                    return
            records, self._early = self._early or [record], None
            try:
                if self._file is None:
                    # Whoever else records under this name at this moment is noticed: their key is another.
                    flags = os.O_WRONLY | os.O_APPEND | (0 if self.path.exists() else os.O_CREAT | os.O_EXCL)
                    self._file = os.open(self.path, flags, 0o600)
                    header = {"cassette": VERSION, "key": self.key.hex(), "model": model}
                    _append(self._file, canonical_json(header).encode())
                for item in records:
                    _append(self._file, _RECORD.dump_json(item))
            except OSError as error:
                raise CassetteUnusable(f"can't write the cassette {self.path}: {error.strerror or error}") from None

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None


def _append(file: int, line: bytes) -> None:
    left = memoryview(line + b"\n")
    while left:
        left = left[os.write(file, left) :]
