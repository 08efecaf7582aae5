"""What a tool may know of the call it serves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """Passed to a tool whose first parameter is annotated with it; no part of the schema that the model sees.

    It doesn't tell whether the call is a guess: a tool that behaved differently when guessed would break the
    promise that the model sees the same with guessing on and off.
    """

    run_id: str
    turn: int
    principal: str
    """On whose behalf the run acts; empty where nobody is named."""
