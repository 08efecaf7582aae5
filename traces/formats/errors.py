"""Errors and faults of reading and writing trajectories.

TracesError
├── UnreadableFile      nothing of a file could be read
├── UnwritableFile      a file can't be written
└── MissingExtra        a format needs a package that isn't installed
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import TracesError


class UnreadableFile(TracesError):
    """Raised when nothing of a file could be read; the message names the file and its first fault."""

    exit_code = 2


class UnwritableFile(TracesError):
    """Raised when a file can't be written, or not in the format that is asked for."""

    exit_code = 2


class MissingExtra(TracesError):
    """Raised when a format needs a package of an extra that isn't installed."""

    exit_code = 2

    @classmethod
    def of(cls, what: str, package: str, extra: str) -> MissingExtra:
        """Return the error that names the package and the extra that brings it."""
        return cls(f"{what} needs the package {package}: pip install 'agent-runtime[{extra}]'")


class Broken(ValueError):
    """Says what is wrong with one record; readers turn it into a `Fault`. It never leaves this package."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something of a file that could not be read, or not whole."""

    file: str
    record: str
    """Where: `line 17`, `item 3`, `simulation 2`."""
    reason: str

    def __str__(self) -> str:
        return f"{self.file}, {self.where}"

    @property
    def where(self) -> str:
        """The record and the reason, without the file."""
        return f"{self.record}: {self.reason}"
