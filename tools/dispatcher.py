"""The dispatcher: the only one who starts tools, guessed or demanded, in one run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

import anyio
from anyio.abc import TaskGroup

from .errors import DispatcherError, ToolDefinitionError
from .gate import Gate
from .guesses import Guesses
from .limits import GuessLimits
from .shared import PROCESS_LIMITS, SharedLimits
from .statistics import DispatcherStatistics
from .tool import Tool
from .toolset import Toolset, as_tools
from .turn_calls import TurnCalls
from .values import DispatchEvent
from .wiring import AfterCall, Approve, BeforeCall, BeforeWrite, Wiring

__all__ = ["Dispatcher", "TurnCalls"]


class Dispatcher:
    """Starts the tools of one run: guesses where the gate and the limits allow, calls when the agent asks.

    Use it as an async context manager in the task that runs the agent. Leaving it ends every guess and call; no
    task outlives it. A thread of a synchronous tool can't be killed and may run on, holding its slot.

    Args:
        tools: What the agent may do.
        gate: What may be started before the agent asks.
        limits: Bounds of guessing.
        emit: Called with every event, in order, without awaiting.
        zero: `anyio.current_time()` at the run's start; taken on entering if None.
        shared: State shared with other runs of the process.
        run_id: Passed to tools that take a `ToolContext`.
        principal: On whose behalf the run acts.
        before_write: Awaited between a write's `CallStarted` event and the write: make the event durable here.
        before_call: Awaited once per committed call with valid arguments. A read may already be running then.
        after_call: Awaited once per committed call, malformed ones excepted, with its outcome.
        approve: Asked for calls that need approval: True, or False or a reason that the model reads. Without it
            such calls are denied.
        worker_threads: False refuses synchronous tools, e.g. under a virtual clock, which threads don't follow.

    Raises:
        ToolDefinitionError: two tools share a name, or a tool is synchronous and `worker_threads` is False.
    """

    def __init__(
        self,
        tools: Iterable[Tool | Callable[..., Any]],
        *,
        gate: Gate | None = None,
        limits: GuessLimits | None = None,
        emit: Callable[[DispatchEvent], None] = lambda event: None,
        zero: float | None = None,
        shared: SharedLimits | None = None,
        run_id: str = "",
        principal: str = "",
        before_write: BeforeWrite | None = None,
        before_call: BeforeCall | None = None,
        after_call: AfterCall | None = None,
        approve: Approve | None = None,
        worker_threads: bool = True,
    ) -> None:
        toolset = tools if isinstance(tools, Toolset) else as_tools(tools)
        if not worker_threads:
            for item in toolset:
                if not item.is_async:
                    raise ToolDefinitionError(
                        f"tool {item.name!r} is synchronous and would run in a thread, which a virtual clock can't "
                        "move: make it `async def`"
                    )
        self._wiring = Wiring(
            tools=toolset,
            gate=gate or Gate(),
            limits=limits or GuessLimits(),
            shared=PROCESS_LIMITS if shared is None else shared,
            emit=emit,
            run_id=run_id,
            principal=principal,
            before_write=before_write,
            before_call=before_call,
            after_call=after_call,
            approve=approve,
            zero=zero,
        )
        self._guesses = Guesses(self._wiring)
        self._group: TaskGroup | None = None
        self._turn: TurnCalls | None = None

    @property
    def tools(self) -> Toolset:
        """The tools it may start."""
        return self._wiring.tools

    @property
    def gate(self) -> Gate:
        """What may be started before the agent asks."""
        return self._wiring.gate

    async def __aenter__(self) -> Self:
        if self._group is not None:
            raise DispatcherError("a dispatcher serves one run: make a new one")
        if self._wiring.zero is None:
            self._wiring.zero = anyio.current_time()
        self._group = anyio.create_task_group()
        self._wiring.tasks = await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        assert self._group is not None
        self._wiring.tasks = None
        if self._turn is not None:
            self._turn.abandon()
        self._group.cancel_scope.cancel()
        return await self._group.__aexit__(kind, error, traceback)

    def open_turn(self, turn: int) -> TurnCalls:
        """Begin a turn (or begin it again, after its first attempt was abandoned).

        Raises:
            DispatcherError: the dispatcher isn't entered, or the turn before is neither committed nor abandoned.
        """
        if self._wiring.tasks is None:
            raise DispatcherError("the dispatcher isn't running: use it as `async with dispatcher:`")
        if self._turn is not None and not self._turn.is_over:
            raise DispatcherError(f"turn {self._turn.turn} is still open: commit or abandon it first")
        self._turn = TurnCalls(self._wiring, self._guesses, turn)
        return self._turn

    def statistics(self) -> DispatcherStatistics:
        """Return counts of this run so far."""
        guesses = self._guesses
        return DispatcherStatistics(
            proposals=guesses.proposals,
            endings=dict(guesses.endings),
            refusals=dict(guesses.refusals),
            in_flight=guesses.in_flight,
            wasted_calls=guesses.wasted_calls,
            wasted_seconds=guesses.wasted_seconds,
            demanded=self._wiring.demanded,
            executed=dict(self._wiring.executed),
            guessed=dict(guesses.executed),
        )
