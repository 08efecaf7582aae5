"""One file that is being read: where it lies, and what was wrong with it so far."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from .errors import Fault, UnreadableFile

MAX_FAULTS = 1000
"""Faults that are kept; further ones are only counted."""
_LONGEST_REASON = 300
_MAX_IDS = 200_000
"""Ids that are remembered; beyond that many, every id carries its record."""
_UTF8_MARK = b"\xef\xbb\xbf"
_OTHER_FILES = {
    b"\x1f\x8b": "it is compressed (gzip): unpack it first",
    b"\x28\xb5\x2f\xfd": "it is compressed (zstd): unpack it first",
    b"PK\x03\x04": "it is a zip archive: unpack it first",
    b"PAR1": "it is a Parquet file: they are written, not read",
    b"SQLite format 3\x00": "it is a database: name it with --db",
    b"\xff\xfe": "it is UTF-16: convert it to UTF-8 first",
    b"\xfe\xff": "it is UTF-16: convert it to UTF-8 first",
}


class Source:
    """A file to read, with the faults found in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.faults: list[Fault] = []
        self.fault_count = 0
        self._ids: set[int] = set()

    def open(self) -> BinaryIO:
        """Open the file behind its byte order mark.

        Raises:
            UnreadableFile: it can't be opened, or is of a kind that is no JSON.
        """
        try:
            file = self.path.open("rb")
        except OSError as error:
            raise UnreadableFile(f"can't read {self.path}: {error.strerror or error}") from error
        try:
            start = file.read(16)
        except OSError as error:
            file.close()
            raise UnreadableFile(f"can't read {self.path}: {error.strerror or error}") from error
        for magic, reason in _OTHER_FILES.items():
            if start.startswith(magic):
                file.close()
                raise UnreadableFile(f"can't read {self.path}: {reason}")
        file.seek(len(_UTF8_MARK) if start.startswith(_UTF8_MARK) else 0)
        return file

    def fault(self, record: str, reason: str) -> None:
        """Note what is wrong with a record, in one line however the file's own words are written."""
        self.fault_count += 1
        if len(self.faults) < MAX_FAULTS:
            line = " ".join(reason.split())
            line = line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}..."
            self.faults.append(Fault(str(self.path), record, line))

    def unique(self, wanted: str | None, record: str) -> str:
        """Return the wanted id, with its record behind it where the file has had that id before."""
        if wanted is None:
            return record
        number = hash(wanted)  # equal hashes of different ids only make an id longer than it need be
        if number in self._ids or len(self._ids) >= _MAX_IDS:
            return f"{wanted} ({record})"
        self._ids.add(number)
        return wanted
