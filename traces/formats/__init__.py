"""Trajectories in the formats of other agents, read and written."""

from __future__ import annotations

from .detect import detect
from .errors import Fault, MissingExtra, UnreadableFile, UnwritableFile
from .importing import import_run
from .otel import emit_spans
from .perfetto import perfetto
from .reading import AUTO, FORMATS, Reader, Reading, read
from .runs import RecordedRun, run_of, trajectory_of
from .writing import WRITERS, Writer, write, write_to

__all__ = [
    "AUTO",
    "FORMATS",
    "WRITERS",
    "Fault",
    "MissingExtra",
    "Reader",
    "Reading",
    "RecordedRun",
    "UnreadableFile",
    "UnwritableFile",
    "Writer",
    "detect",
    "emit_spans",
    "import_run",
    "perfetto",
    "read",
    "run_of",
    "trajectory_of",
    "write",
    "write_to",
]
