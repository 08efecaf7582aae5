"""Walks a JSON document of any size, one value in memory at a time.

It only finds where values begin and end; `loads` reads each of them. So a broken value is skipped and the rest goes on,
which a parser of the whole document can't do. (Event parsers also build the path to every value: a hundred kilobytes of
`[` cost them gigabytes.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import BinaryIO

from .errors import Broken
from .json_text import loads

CHUNK = 1 << 20
MAX_VALUE = 32 << 20
"""Bytes of the largest single value that is read; larger ones are skipped."""

_SPACE = re.compile(rb"[ \t\r\n]*+")
_PLAIN = re.compile(rb'[^"{}\[\]]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^"{}\[\]]*+){0,1000}', re.S)
"""Text up to the next bracket outside of strings, to a string that doesn't end here, or some strings further.

The outer group isn't possessive: where a turn of such a group fails midway, Python 3.11.2 (Debian 12's) doesn't go back
to the turn's beginning. And it is bounded, since each of its turns takes memory.
"""
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.S)
_SCALAR = re.compile(rb'[^ \t\r\n,:\[\]{}"]*+')

_OPENING = frozenset(b"[{")
_CLOSING = frozenset(b"]}")
_QUOTE = ord('"')


_CUT_OFF = "cut off in the middle"


class BrokenOff(Broken):
    """Says why the rest of a document can't be read."""


class JsonStream:
    """A cursor in a JSON document.

    Args:
        file: The document, opened for bytes.
        max_value: Bytes of the largest value that `take` returns.
    """

    def __init__(self, file: BinaryIO, max_value: int = MAX_VALUE) -> None:
        self._file = file
        self._max = max_value
        self._buffer = b""
        self._at = 0
        self._ended = False

    def peek(self) -> bytes:
        """Return the next byte that is no white space; empty at the document's end."""
        while True:
            match = _SPACE.match(self._buffer, self._at)
            assert match is not None
            self._at = match.end()
            if self._at < len(self._buffer):
                return self._buffer[self._at : self._at + 1]
            if not self._fill():
                return b""

    def items(self) -> Iterator[int]:
        """Enter an array: iterate over its items' numbers, from 0; the caller takes, skips or enters each.

        Raises:
            BrokenOff: what follows is no array, or the array breaks off.
        """
        yield from self._inside(b"[", b"]")

    def members(self) -> Iterator[str]:
        """Enter an object: iterate over its keys; the caller takes, skips or enters each key's value.

        Raises:
            BrokenOff: what follows is no object, or the object breaks off.
        """
        for _ in self._inside(b"{", b"}"):
            if self.peek() != b'"':
                raise self._unexpected("a key")
            key = str(loads(self.take()))
            self._expect(b":")
            yield key

    def take(self) -> bytes:
        """Return the bytes of the next value, whole.

        Raises:
            Broken: it is too long to be taken, and was skipped.
            BrokenOff: the document ends before the value does, or there is none.
        """
        value = self._value(keep=True)
        if value is None:
            raise Broken(f"longer than {self._max >> 20} MiB")
        return value

    def skip(self) -> None:
        """Go past the next value.

        Raises:
            BrokenOff: the document ends before the value does, or there is none.
        """
        self._value(keep=False)

    def _inside(self, opening: bytes, closing: bytes) -> Iterator[int]:
        self._expect(opening)
        if self.peek() == closing:
            self._at += 1
            return
        number = 0
        while True:
            yield number
            number += 1
            following = self.peek()
            if following == b",":
                self._at += 1
            elif following == closing:
                self._at += 1
                return
            else:
                raise self._unexpected(f"',' or {closing.decode()!r}")

    def _expect(self, byte: bytes) -> None:
        if self.peek() != byte:
            raise self._unexpected(repr(byte.decode()))
        self._at += 1

    def _unexpected(self, wanted: str) -> BrokenOff:
        found = self.peek()
        if not found:
            return BrokenOff(_CUT_OFF)
        return BrokenOff(f"no JSON: {wanted} expected, not {found.decode(errors='replace')!r}")

    def _value(self, *, keep: bool) -> bytes | None:
        first = self.peek()
        if not first:
            raise BrokenOff(_CUT_OFF)
        scan = self._scan(first[0])
        start = self._at
        depth, more = 0, True
        while True:
            end, depth, done = scan(self._at, depth)
            if done:
                value = self._buffer[start:end] if keep and end - start <= self._max else None
                self._at = end
                return value
            if not more:
                raise BrokenOff(_CUT_OFF)
            # The value goes on past the buffer; what was scanned of it stays only if it is to be returned.
            keep = keep and end - start <= self._max
            self._at = start if keep else end
            scanned = end - self._at
            if len(self._buffer) - self._at > 2 * self._max:
                raise BrokenOff(f"a string longer than {2 * self._max >> 20} MiB")
            more = self._fill()
            start, self._at = 0, scanned

    def _scan(self, first: int) -> Callable[[int, int], tuple[int, int, bool]]:
        if first in _OPENING:
            return self._scan_container
        if first == _QUOTE:
            return self._scan_string
        if first in _CLOSING or first in b",:":
            raise self._unexpected("a value")
        return self._scan_scalar

    def _scan_container(self, at: int, depth: int) -> tuple[int, int, bool]:
        """Scan on from `at`; return where it got to, the depth there, and whether the value has ended."""
        buffer, end = self._buffer, len(self._buffer)
        while True:
            match = _PLAIN.match(buffer, at)
            assert match is not None
            before, at = at, match.end()
            if at == end:
                return at, depth, False
            byte = buffer[at]
            if byte == _QUOTE:
                if at > before:
                    continue
                return at, depth, False  # its end is not in the buffer yet
            depth += 1 if byte in _OPENING else -1
            at += 1
            if depth == 0:
                return at, depth, True

    def _scan_string(self, at: int, depth: int) -> tuple[int, int, bool]:
        match = _STRING.match(self._buffer, at)
        return (at, depth, False) if match is None else (match.end(), depth, True)

    def _scan_scalar(self, at: int, depth: int) -> tuple[int, int, bool]:
        match = _SCALAR.match(self._buffer, at)
        assert match is not None
        return match.end(), depth, match.end() < len(self._buffer) or self._ended

    def _fill(self) -> bool:
        """Read on, forgetting what lies before the cursor; tell whether there was more.

        Twice as much is read as is held, so that a long string is scanned from its start only a few times.
        """
        kept = self._buffer[self._at :]
        chunk = self._file.read(max(CHUNK, len(kept)))
        self._ended = not chunk
        self._buffer = kept + chunk
        self._at = 0
        return bool(chunk)
