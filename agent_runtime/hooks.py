"""What an agent's author may attach to a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agent_runtime.tools import Outcome, Tool, ToolCall
from agent_runtime.traces.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Functions that a run calls at stated points. They see demanded calls only, never guesses.

    An exception out of a hook fails the run.
    """

    before_call: Callable[[ToolCall, Tool], Awaitable[None]] | None = None
    """Awaited once before a demanded call is served, by its tool or by a guess."""
    after_call: Callable[[ToolCall, Outcome], Awaitable[None]] | None = None
    """Awaited once after a demanded call has its one result."""
    approve: Callable[[ToolCall, Tool], Awaitable[bool | str]] | None = None
    """Asked for tools with `requires_approval`: True, or False or a reason that the model reads."""
    on_event: Callable[[Event], None] | None = None
    """Called with every event, in order; must return at once."""
