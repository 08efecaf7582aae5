"""The guesses of one run: their budgets, their executions, and the one ending of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from .context import serves_guess
from .errors import InvalidArguments
from .event_loops import LoopHandle
from .execute import Execution
from .shared import Slot
from .tool import Tool
from .values import Ending, GuessEnded, GuessProposed, GuessStarted, Outcome, Prediction, RefusalReason
from .versions import Write
from .wiring import Wiring

GuessState = Literal["proposed", "running", "ready", "failed", "cancelled"]
"""`proposed` until its tool was called (or for ever, if refused), then `running`, then one of the others."""


class Guess:
    """One proposal and what became of it."""

    def __init__(self, number: int, turn: int, prediction: Prediction, tool: Tool | None) -> None:
        self.number = number
        self.turn = turn
        self.prediction = prediction
        self.index = prediction.index
        """Which call of the turn it guesses."""
        self.tool = tool
        self.schema_hash = tool.schema_hash if tool is not None else ""
        self.valid: dict[str, Any] | None = None
        self.canonical = ""
        self.refusal: RefusalReason | None = None
        self.state: GuessState = "proposed"
        self.execution: Execution | None = None
        self.slot: Slot | None = None
        self.write: Write | None = None
        self.stamp = 0
        self.outdated = False
        self.promoted = False
        """Whether a demanded call waits for it."""
        self.cancel_reason = ""
        self.done = anyio.Event()
        self.ending: Ending | None = None
        self.tool_seconds: float | None = None
        """Set when the tool has really ended."""

    @property
    def started(self) -> bool:
        """Whether the guess was allowed to start: its tool runs, ran, or is about to run."""
        return self.execution is not None

    @property
    def executed(self) -> bool:
        """Whether the tool's function was called."""
        return self.execution is not None and self.execution.started_at is not None

    @property
    def outcome(self) -> Outcome | None:
        """What the execution gave, once it has ended."""
        return self.execution.outcome if self.execution is not None else None

    def is_of(self, tool: Tool, canonical: str) -> bool:
        """Tell whether this is a guess of exactly that call: same tool object, same schema, same arguments."""
        return (
            self.valid is not None
            and self.tool is tool
            and self.schema_hash == tool.schema_hash
            and self.canonical == canonical
        )


class Guesses:
    """Starts guesses within the run's budgets and ends each exactly once."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self.proposals = 0
        self.endings: Counter[Ending] = Counter()
        self.refusals: Counter[RefusalReason] = Counter()
        self.executed: Counter[str] = Counter()
        self.in_flight = 0
        self.wasted_calls = 0
        self.wasted_seconds = 0.0

    def propose(self, turn: int, prediction: Prediction) -> tuple[Guess, RefusalReason | None]:
        """Record a prediction; return it with the reason for which it can't be matched at all, if there is one."""
        tool = self._wiring.tools.get(prediction.call.name)
        guess = Guess(self.proposals, turn, prediction, tool)
        self.proposals += 1
        self._wiring.emit(
            GuessProposed(
                turn=turn,
                at=self._wiring.now(),
                guess=guess.number,
                call=prediction.call,
                confidence=prediction.confidence,
                source=prediction.source,
                index=prediction.index,
            )
        )
        if tool is None:
            return guess, "unknown_tool"
        try:
            guess.valid = tool.validate(prediction.call.arguments)
        except InvalidArguments:
            return guess, "invalid_arguments"
        guess.canonical = tool.canonical_of(guess.valid)
        return guess, None

    def start(self, guess: Guess, *, reserved: int = 0) -> RefusalReason | None:
        """Start the guess's tool, or return why it may not start. Never waits.

        Args:
            guess: What to start.
            reserved: Places that stay free for others.
        """
        tool, wiring, limits = guess.tool, self._wiring, self._wiring.limits
        assert tool is not None and guess.valid is not None
        verdict = wiring.gate.decide(tool)
        if verdict.reason is not None:
            return verdict.reason
        if wiring.tasks is None:
            return "closed"
        contract, versions = tool.contract, wiring.shared.versions
        if versions.being_written(contract.reads) or (not contract.is_read and versions.being_written(contract.writes)):
            return "write_in_flight"
        if self.in_flight >= limits.in_flight - reserved:
            return "in_flight_budget"
        if self.wasted_calls >= limits.wasted_calls:
            return "wasted_calls_budget"
        if self.wasted_seconds >= limits.wasted_seconds:
            return "wasted_seconds_budget"
        slot = wiring.shared.of(tool).try_guess(
            contract, threaded=not tool.is_async, preempt=partial(self._preempt, guess)
        )
        if isinstance(slot, str):
            return slot
        guess.slot = slot
        if not contract.is_read:  # an idempotent write that the agent's author opted in
            guess.write = versions.begin_write(contract.writes)
        guess.stamp = versions.now()
        self.in_flight += 1
        guess.execution = Execution(
            tool,
            guess.valid,
            wiring.context(guess.turn),
            now=wiring.now,
            at_end=partial(self._tool_ended, guess, LoopHandle()),
        )
        wiring.tasks.start_soon(self._run, guess, guess.execution, name=f"guess {guess.number} of {tool.name}")
        return None

    def is_stale(self, guess: Guess) -> Literal["written", "expired", "revoked"] | None:
        """Tell why the guess's result must not serve a call that is demanded now, or None if it may."""
        assert guess.tool is not None and guess.execution is not None
        contract = guess.tool.contract
        if guess.tool.objection is not None:
            return "revoked"
        if guess.outdated or self._wiring.shared.versions.moved_since(guess.stamp, contract.reads):
            return "written"
        started_at = guess.execution.started_at
        if started_at is not None and self._wiring.now() - started_at >= contract.fresh_for:
            return "expired"
        return None

    def promote(self, guess: Guess) -> None:
        """Treat the guess as a demanded call from now on: nothing pre-empts it, its timeout starts again."""
        assert guess.slot is not None and guess.execution is not None
        guess.promoted = True
        guess.slot.promote()
        if guess.executed:
            guess.execution.restart_timeout()

    def end(
        self,
        guess: Guess,
        ending: Ending,
        *,
        reason: str | None = None,
        matched: bool = False,
        matched_name: bool = False,
        demanded_at: float | None = None,
    ) -> None:
        """Record the guess's ending, the first time only, and stop what of it still runs."""
        if guess.ending is not None:
            return
        guess.ending = ending
        self.endings[ending] += 1
        if ending == "refused" and guess.refusal is not None:
            self.refusals[guess.refusal] += 1
        served = ending in ("adopted", "joined")
        spent = self._seconds_so_far(guess)
        lead = self._lead(guess, demanded_at)
        if guess.executed and not served:
            self.wasted_calls += 1
            self.wasted_seconds += guess.tool_seconds or 0.0  # what runs on is added when it ends
        if not served:
            self._stop(guess, reason or ending)
        self._wiring.emit(
            GuessEnded(
                turn=guess.turn,
                at=self._wiring.now(),
                guess=guess.number,
                ending=ending,
                reason=reason,
                tool=guess.prediction.call.name,
                matched=matched,
                matched_name=matched_name,
                executed=guess.executed,
                lead_ms=lead * 1000,
                saved_ms=min(spent, lead) * 1000 if served else 0.0,
                wasted_ms=0.0 if served else spent * 1000,
            )
        )

    def refuse(self, guess: Guess, reason: RefusalReason) -> None:
        """End a proposal that was never started."""
        guess.refusal = reason
        self.end(guess, "refused", reason=reason)

    async def _run(self, guess: Guess, execution: Execution) -> None:
        tool = guess.tool
        assert tool is not None
        try:
            await checkpoint_if_cancelled()
            if execution.cancelled:
                return
            serves_guess.set(True)  # in this task and what it starts
            guess.state = "running"
            self.executed[tool.name] += 1
            self._wiring.executed[tool.name] += 1
            self._wiring.emit(GuessStarted(turn=guess.turn, at=self._wiring.now(), guess=guess.number, tool=tool.name))
            outcome = await execution.run()
            if outcome.status == "ok":
                guess.state = "ready"
            elif outcome.status != "cancelled":
                guess.state = "failed"
                observe(self._wiring, tool, execution)
        finally:
            if guess.state in ("proposed", "running"):
                guess.state = "cancelled"
            if not guess.executed:
                self._tool_ended(guess, None)
            guess.done.set()

    def _stop(self, guess: Guess, reason: str) -> None:
        if guess.execution is not None and guess.execution.outcome is None and not guess.execution.cancelled:
            guess.cancel_reason = reason
            guess.execution.cancel()

    def _preempt(self, guess: Guess) -> None:
        # Another loop's call asks through this loop's queue: the guess may have been joined in the meantime.
        if not guess.promoted:
            self._stop(guess, "preempted")

    def _tool_ended(self, guess: Guess, loop: LoopHandle | None) -> None:
        """Give back what the tool held; called in its thread if it has one."""
        assert guess.slot is not None and guess.tool is not None
        if guess.write is not None:
            versions = self._wiring.shared.versions
            guess.outdated = versions.moved_since(guess.stamp, guess.tool.contract.reads)
            guess.write.end()
            guess.stamp = versions.now()  # its own write doesn't make it stale
        guess.slot.release()
        if loop is None:
            self._count_end(guess)
        else:
            loop.call(partial(self._count_end, guess))

    def _count_end(self, guess: Guess) -> None:
        self.in_flight -= 1
        guess.tool_seconds = self._seconds_so_far(guess)
        if guess.executed and guess.ending is not None and guess.ending not in ("adopted", "joined"):
            self.wasted_seconds += guess.tool_seconds

    def _seconds_so_far(self, guess: Guess) -> float:
        if guess.execution is None or guess.execution.started_at is None:
            return 0.0
        if guess.outcome is not None and guess.state in ("ready", "failed"):
            return guess.outcome.seconds
        if guess.tool_seconds is not None:
            return guess.tool_seconds
        return self._wiring.now() - guess.execution.started_at

    def _lead(self, guess: Guess, demanded_at: float | None) -> float:
        if demanded_at is None or guess.execution is None or guess.execution.started_at is None:
            return 0.0
        return max(0.0, demanded_at - guess.execution.started_at)


def observe(wiring: Wiring, tool: Tool, execution: Execution) -> None:
    """Back off from guessing a tool whose service shows strain."""
    failure = execution.failure
    if failure is not None and failure.strained:
        wiring.shared.of(tool).back_off(max(wiring.limits.back_off, failure.retry_after or 0.0))


def matches(guess: Guess, tool: Tool | None, valid: Mapping[str, Any] | None) -> bool:
    """Tell whether the guess is of exactly this call (`valid` are its validated arguments)."""
    return tool is not None and valid is not None and guess.is_of(tool, tool.canonical_of(valid))
