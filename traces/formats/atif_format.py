"""What the modules for the Agent Trajectory Interchange Format (ATIF) v1.8 share: its models, and the key of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import MissingExtra

if TYPE_CHECKING:
    import atif

SCHEMA_VERSION = "ATIF-v1.8"
OURS = "agent_runtime"
"""The key of every `extra` under which our own data stands."""

IN_THE_STEP = ("text", "thinking", "calls")
"""Fields of `GenerationFinished` that the step of its turn holds."""


def looks_like(record: dict[str, Any]) -> bool:
    """Tell whether an object is a record of this format."""
    version = record.get("schema_version")
    return isinstance(version, str) and version.startswith("ATIF")


def models() -> type[atif.Trajectory]:
    """Return the root model of the format.

    Raises:
        MissingExtra: the package `atif` isn't installed.
    """
    try:
        from atif import Trajectory
    except ImportError as error:
        raise MissingExtra.of("ATIF", "atif", "atif") from error
    return Trajectory


def call_id(turn: int, index: int) -> str:
    """Return the id by which a result names its call; unique within a run."""
    return f"call_{turn}_{index}"
