"""What the parts of one run's dispatcher share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup

from .context import ToolContext
from .gate import Gate
from .limits import GuessLimits
from .shared import SharedLimits
from .tool import Tool
from .toolset import Toolset
from .values import DispatchEvent, Outcome, ToolCall

BeforeCall = Callable[[ToolCall, Tool], Awaitable[None]]
AfterCall = Callable[[ToolCall, Outcome], Awaitable[None]]
Approve = Callable[[ToolCall, Tool], Awaitable[bool | str]]
BeforeWrite = Callable[[], Awaitable[None]]


@dataclass(kw_only=True)
class Wiring:
    """The surroundings of one run's calls and guesses."""

    tools: Toolset
    gate: Gate
    limits: GuessLimits
    shared: SharedLimits
    emit: Callable[[DispatchEvent], None]
    run_id: str
    principal: str
    before_write: BeforeWrite | None
    before_call: BeforeCall | None
    after_call: AfterCall | None
    approve: Approve | None
    zero: float | None
    tasks: TaskGroup | None = None
    executed: Counter[str] = field(default_factory=Counter)
    demanded: int = 0

    @property
    def is_open(self) -> bool:
        """Whether tasks may be started."""
        return self.tasks is not None

    def now(self) -> float:
        """Return seconds since the run started."""
        return anyio.current_time() - (self.zero or 0.0)

    def context(self, turn: int) -> ToolContext:
        """Return what a tool may know of a call of that turn."""
        return ToolContext(run_id=self.run_id, turn=turn, principal=self.principal)
