"""Trajectories in the formats of other agents, read and written."""

from __future__ import annotations

from .detect import detect
from .errors import Fault, MissingExtra, UnreadableFile
from .reading import AUTO, FORMATS, Reader, Reading, read

__all__ = [
    "AUTO",
    "FORMATS",
    "Fault",
    "MissingExtra",
    "Reader",
    "Reading",
    "UnreadableFile",
    "detect",
    "read",
]
