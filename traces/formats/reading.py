"""Reads trajectories from a file of any of the formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Self

from ..trajectory import Trajectory
from .atif_read import read_atif
from .chat import read_chat
from .claude_code import read_claude_code
from .codex import read_codex
from .detect import detect
from .errors import Fault, UnreadableFile
from .own import read_own
from .runs import RecordedRun, run_of, trajectory_of
from .source import Source
from .swe_agent import read_swe_agent
from .tau2 import read_tau2
from .tau_bench import read_tau_bench

Reader = Callable[[Source], Iterator[Trajectory] | Iterator[RecordedRun] | Iterator[RecordedRun | Trajectory]]
"""Yields the trajectories of a file, or the runs where it holds events, and notes the file's faults."""

AUTO = "auto"

FORMATS: Mapping[str, Reader] = MappingProxyType(
    {
        "own": read_own,
        "chat": read_chat,
        "atif": read_atif,
        "tau-bench": read_tau_bench,
        "tau2": read_tau2,
        "swe-agent": read_swe_agent,
        "claude-code": read_claude_code,
        "codex": read_codex,
    }
)
"""The formats that can be read, by name."""


class Reading(Iterator[Trajectory]):
    """Iterates over the trajectories of a file, one in memory at a time; iterate once.

    What can't be read is left out and becomes a fault. A trajectory that lacks something, such as the result of a call,
    is kept, and is a fault too.
    """

    def __init__(self, path: Path, format: str) -> None:
        self.path = path
        self.format = format
        self.count = 0
        """Trajectories read so far."""
        self._source = Source(path)
        self._read = FORMATS[format](self._source)

    @property
    def faults(self) -> list[Fault]:
        """What was wrong so far: the first thousand."""
        return self._source.faults

    @property
    def fault_count(self) -> int:
        """How many faults there were so far."""
        return self._source.fault_count

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Trajectory:
        """Return the next trajectory.

        Raises:
            UnreadableFile: the file is at its end and nothing of it could be read.
        """
        read = self._next()
        return trajectory_of(read.info, read.events) if isinstance(read, RecordedRun) else read

    def runs(self) -> Iterator[RecordedRun]:
        """Iterate over the same as runs with their events; a file without events gives those that would have been."""
        while True:
            try:
                read = self._next()
            except StopIteration:
                return
            yield read if isinstance(read, RecordedRun) else run_of(read)

    def _next(self) -> Trajectory | RecordedRun:
        try:
            read = next(self._read)
        except StopIteration:
            if self.count == 0:
                raise self._nothing() from None
            raise
        self.count += 1
        return read

    def _nothing(self) -> UnreadableFile:
        if not self.faults:
            return UnreadableFile(f"{self.path} holds no trajectory of the format {self.format}")
        more = f" ({self.fault_count - 1} more faults)" if self.fault_count > 1 else ""
        return UnreadableFile(f"nothing of {self.path} could be read; {self.faults[0].where}{more}")


def read(path: str | Path, format: str = AUTO) -> Reading:
    """Return the trajectories of a file, to be iterated over once.

    Args:
        path: The file.
        format: One of `FORMATS`; `auto` tells from what is in the file.

    Raises:
        UnreadableFile: the file can't be read, is none of the formats, or (while iterating, at its end) held nothing
            that could be read.
    """
    path = Path(path)
    if format == AUTO:
        format = detect(path)
    elif format not in FORMATS:
        raise UnreadableFile(f"no format is called {format!r}: there are {', '.join(FORMATS)}")
    else:
        with Source(path).open():
            pass
    return Reading(path, format)
