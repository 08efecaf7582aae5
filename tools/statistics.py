"""Counts of one dispatcher, for people, reports and tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .values import Ending, RefusalReason


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherStatistics:
    """Counts since the dispatcher was made."""

    proposals: int
    """Predictions that reached the dispatcher."""
    endings: Mapping[Ending, int]
    """Proposals by how they ended; their sum is `proposals` once the dispatcher is closed."""
    refusals: Mapping[RefusalReason, int]
    """Refused proposals by reason."""
    in_flight: int
    """Guessed executions whose tool has not ended, abandoned threads included."""
    wasted_calls: int
    """Guessed executions that served nothing."""
    wasted_seconds: float
    """Tool time of those that have ended, in seconds."""
    demanded: int
    """Calls of the agent, malformed ones included."""
    executed: Mapping[str, int]
    """Executions by tool, guessed and demanded."""
    guessed: Mapping[str, int]
    """Guessed executions by tool."""
