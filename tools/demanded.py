"""One demanded call: from the end of its block in the agent's stream to its one result."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import anyio
from anyio.lowlevel import checkpoint_if_cancelled
from anyio.to_thread import current_default_thread_limiter

from .event_loops import LoopHandle, shared_time
from .execute import Execution, cancelled_outcome
from .failures import error_content
from .guesses import Guess, Guesses, observe
from .shared import Slot, ToolLimits
from .tool import Tool
from .values import CallFinished, CallStarted, MalformedCall, Outcome, OutcomeStatus, ToolCall
from .versions import Write
from .wiring import Wiring


class DemandedCall:
    """Serves one call of the agent, from a joined guess or by running its tool.

    `tool` and `valid` are None where the call can't run; `finish` it at once then.
    """

    def __init__(
        self,
        wiring: Wiring,
        guesses: Guesses,
        *,
        turn: int,
        index: int,
        call: ToolCall | MalformedCall,
        tool: Tool | None,
        valid: dict[str, Any] | None,
    ) -> None:
        self._wiring = wiring
        self._guesses = guesses
        self._turn = turn
        self.index = index
        self.call = call
        self.tool = tool
        self.valid = valid
        self.demanded_at = wiring.now()
        self.joined: Guess | None = None
        self.outcome: Outcome | None = None
        self.done = anyio.Event()
        self.released = anyio.Event()
        """Set once the whole message is complete and the call is approved."""
        self._scope = anyio.CancelScope()
        self._attempts = 0
        self._announced = False  # CallStarted is out, the tool not called yet

    @property
    def is_barrier(self) -> bool:
        """Whether no other call of the turn may run beside this one."""
        return self.tool is not None and self.outcome is None and self.tool.contract.is_barrier

    @property
    def waits_for_commit(self) -> bool:
        """Whether the call may run only once the message is complete: writes, and what a person must approve."""
        if self.tool is None:
            return False
        return not self.tool.contract.is_read or self.tool.contract.requires_approval is not False

    def finish(self, outcome: Outcome, *, guess: int | None = None) -> None:
        """Record the call's result, the first time only."""
        if self.outcome is not None:
            return
        self.outcome = outcome
        name = self.call.name if isinstance(self.call, ToolCall) else ""
        self._wiring.emit(
            CallFinished(
                turn=self._turn, at=self._wiring.now(), index=self.index, tool=name, outcome=outcome, guess=guess
            )
        )
        self.done.set()

    def fail(self, status: OutcomeStatus, kind: str, message: str) -> None:
        """Finish a call whose tool is not run, with an error the model reads."""
        now = self._wiring.now()
        self.finish(Outcome(status, error_content(kind, message), now, now, kind))
        self._scope.cancel()

    def cancel(self) -> None:
        """Finish a call that nobody waits for any more, and stop its tool."""
        self.finish(self._cancelled())
        self._scope.cancel()

    async def serve(self, before: Sequence[DemandedCall]) -> None:
        """Bring the call to its result, after the calls in `before` have theirs."""
        try:
            with self._scope:
                for earlier in before:
                    await earlier.done.wait()
                if self.joined is not None and await self._take_over(self.joined):
                    return
                if self.waits_for_commit:
                    await self.released.wait()
                await self._execute()
        finally:
            self.finish(self._cancelled())

    def _cancelled(self) -> Outcome:
        now = self._wiring.now()
        return cancelled_outcome(self.demanded_at, now, ran=self._attempts > 0 and not self._announced)

    async def _take_over(self, guess: Guess) -> bool:
        """Wait for a guess in flight; return whether its result serves the call. Its failure stays its own."""
        await guess.done.wait()
        end = partial(self._guesses.end, guess, matched=True, matched_name=True, demanded_at=self.demanded_at)
        outcome = guess.outcome
        if guess.state == "ready" and outcome is not None:
            end("joined")
            self.finish(outcome, guess=guess.number)
            return True
        if guess.state == "cancelled":  # only the run's own end stops a joined guess
            end("cancelled", reason="closed")
        else:
            end("failed", reason=outcome.error if outcome is not None else None)
        return False

    async def _execute(self) -> None:
        assert self.tool is not None
        limits = self._wiring.shared.of(self.tool)
        began = shared_time()
        execution = await self._attempt(limits)
        if execution is None:
            return
        failure = execution.failure
        window = self._wiring.limits.back_off + (shared_time() - began)
        if failure is not None and failure.throttled and limits.guessed_within(window):
            # The guesses used up what the service allows: that must not become the agent's problem.
            await limits.drain(self._wiring.limits.drain)
            pause = self._wiring.limits.retry_pause if failure.retry_after is None else failure.retry_after
            await anyio.sleep(min(pause, self._wiring.limits.back_off))
            execution = await self._attempt(limits)
        if execution is not None and execution.outcome is not None:
            self.finish(execution.outcome)

    async def _attempt(self, limits: ToolLimits) -> Execution | None:
        """Run the tool once; None if no slot came free within the tool's timeout (the call is finished then)."""
        tool, wiring = self.tool, self._wiring
        assert tool is not None and self.valid is not None
        contract = tool.contract
        held = _Held()
        with anyio.move_on_after(contract.timeout) as waiting:
            held.slot = await limits.acquire(contract)
            if not tool.is_async:
                try:
                    await held.take_thread()
                except BaseException:
                    held.slot.release()
                    raise
        if waiting.cancelled_caught:
            self.fail("limit", "busy", f"{tool.name} had no free slot within {contract.timeout:g} s")
            return None
        execution = Execution(tool, self.valid, wiring.context(self._turn), now=wiring.now, at_end=held.release)
        try:
            await checkpoint_if_cancelled()
            if not contract.is_read:
                held.write = wiring.shared.versions.begin_write(contract.writes)
            self._attempts += 1
            self._announced = True
            wiring.emit(
                CallStarted(
                    turn=self._turn,
                    at=wiring.now(),
                    index=self.index,
                    tool=tool.name,
                    effect=contract.effect,
                    attempt=self._attempts,
                )
            )
            if wiring.before_write is not None and not contract.is_read:
                await wiring.before_write()
                await checkpoint_if_cancelled()
            self._announced = False
            wiring.executed[tool.name] += 1
            await execution.run()
            if execution.outcome is not None and execution.outcome.status != "ok" and held.write is not None:
                held.write.move()  # the thread of a write that timed out may still be at it
            observe(wiring, tool, execution)
        finally:
            if execution.started_at is None:
                held.release()
            elif execution.outcome is None and held.write is not None:
                held.write.move()
        return execution


class _Held:
    """What one execution holds until its tool has really ended."""

    def __init__(self) -> None:
        self.slot: Slot | None = None
        self.write: Write | None = None
        self._limiter: anyio.CapacityLimiter | None = None
        self._loop = LoopHandle()

    async def take_thread(self) -> None:
        """Wait until the loop's own limit of worker threads allows one more."""
        limiter = current_default_thread_limiter()
        await limiter.acquire_on_behalf_of(self)
        self._limiter = limiter

    def release(self) -> None:
        """Give everything back; called in the tool's thread if it has one."""
        if self.write is not None:
            self.write.end()
        if self.slot is not None:
            self.slot.release()
        if self._limiter is not None:
            self._loop.call(partial(self._limiter.release_on_behalf_of, self))
