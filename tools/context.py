"""What a tool may know of the call it serves."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

serves_guess: ContextVar[bool] = ContextVar("agent_runtime_serves_guess", default=False)
"""Whether the code that runs serves a guess. Not for tools: for connections, which let no guess ask a person."""


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
