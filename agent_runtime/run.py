"""One run of an agent: its conversation, its limits, and everything that is opened for it and closed after it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from agent_runtime.engines.base import Generated, Session
from agent_runtime.errors import LimitExceeded
from agent_runtime.limits import Limits
from agent_runtime.live import LiveEvents
from agent_runtime.result import RunResult, Usage
from agent_runtime.speculator.predictors import NoPredictor
from agent_runtime.speculator.turn import Guessing, Progress
from agent_runtime.traces.events import Event, GenerationFinished, ProbePlacement, RunFinished, RunStatus
from agent_runtime.traces.ledger import ledger
from agent_runtime.traces.messages import Message, ToolMessage

if TYPE_CHECKING:
    from agent_runtime.decoding.requests import Sampling
    from agent_runtime.hooks import Hooks
    from agent_runtime.speculator.policy import Policy
    from agent_runtime.speculator.predictors import Predictor, QuickPredictor
    from agent_runtime.tools import Outcome
    from agent_runtime.tools.dispatcher import Dispatcher, TurnCalls
    from agent_runtime.traces import RunTrace


_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Run:
    """State of one run. The turn loop reads and writes it; nothing else does."""

    session: Session
    dispatcher: Dispatcher
    predictor: Predictor | None
    """Who is asked where the policy finds it worth it."""
    quick: QuickPredictor | None = None
    """Who is asked first, in every turn."""
    policy: Policy
    trace: RunTrace
    live: LiveEvents
    limits: Limits
    sampling: Sampling | None
    hooks: Hooks
    messages: list[Message]
    zero: float
    """anyio.current_time() at the run's start."""
    usage: Usage = field(default_factory=Usage)
    turns: int = 0
    calls: int = 0
    events: list[Event] = field(default_factory=list)

    def now(self) -> float:
        """Return seconds since the run started."""
        return anyio.current_time() - self.zero

    def emit(self, event: Event) -> None:
        """Record an event and show it to whoever watches; never waits."""
        self.trace.append(event)  # first: what can't be recorded fails the run before anyone sees it
        self.usage = self.usage.plus(event)
        self.events.append(event)
        self.policy.observe(event)
        self.live.put(event)
        if self.hooks.on_event is not None:
            self.hooks.on_event(event)

    async def catch_up(self) -> None:
        """Wait for whoever watches or records the run, if they are far behind."""
        await self.live.room()
        await self.trace.drain_if_full()

    def budget(self, turn: int) -> int:
        """Return the tokens that turn number `turn` may generate.

        Raises:
            LimitExceeded: no turn or token is left.
        """
        limits = self.limits
        if turn >= limits.turns:
            raise LimitExceeded("turns", limits.turns)
        tokens = limits.next_turn_tokens(self.usage.completion_tokens)
        if tokens == 0:
            raise LimitExceeded("tokens", limits.tokens or 0)
        self.turns = turn + 1
        return tokens

    def count_call(self) -> None:
        """Count one more call of the model.

        Raises:
            LimitExceeded: it is one too many.
        """
        if self.calls >= self.limits.calls:
            raise LimitExceeded("calls", self.limits.calls)
        self.calls += 1

    def guessing(self, turn: int, calls: TurnCalls, progress: Progress) -> Guessing:
        """Return what the speculator needs to guess during one turn."""
        return Guessing(
            turn=turn,
            messages=tuple(self.messages),
            predictor=self.predictor or NoPredictor(),
            quick=self.quick,
            policy=self.policy,
            calls=calls,
            suggest=self.session.suggest,
            progress=progress,
            emit=self.emit,
            now=self.now,
        )

    def placement(self) -> ProbePlacement | None:
        """Return where the coming turn's first probe runs; None for none."""
        return self.policy.placement() if self.predictor is not None else None

    def learn(self, generated: Generated) -> None:
        """Tell who counts what the agent did in the turn whose message has just ended."""
        if self.quick is None:
            return
        try:
            self.quick.observe(self.messages, generated.message)
        except Exception as error:
            _log.warning("predictor %r failed to learn: %s", self.quick.source, error, exc_info=True)

    def finish_generation(self, turn: int, generated: Generated, *, started: float) -> None:
        """Record that the message of turn `turn`, begun at `started`, is complete."""
        message = generated.message
        self.emit(
            GenerationFinished(
                turn=turn,
                at=self.now(),
                thinking=message.thinking,
                text=message.text,
                calls=message.calls,
                finish_reason=generated.finish_reason,
                prompt_tokens=generated.prompt_tokens,
                completion_tokens=generated.completion_tokens,
                thinking_tokens=generated.thinking_tokens,
                forwards=generated.forwards,
                generation_ms=(self.now() - started) * 1000,
                slowdown_ms=generated.slowdown_ms,
                drafting=generated.drafting,
                verify_ms=generated.verify_ms,
                host_ms=generated.host_ms,
                reused_later=generated.reused_later,
            )
        )

    def add_to_conversation(self, generated: Generated, outcomes: Sequence[Outcome]) -> None:
        """Append the model's message and the results of its calls, in the order of the calls."""
        message = generated.message
        self.messages.append(message)
        for index, (call, outcome) in enumerate(zip(message.calls, outcomes, strict=True)):
            name = getattr(call, "name", "")
            self.messages.append(ToolMessage(name=name, content=outcome.content, index=index))

    def answer(self, generated: Generated) -> str:
        """Return the model's answer.

        Raises:
            LimitExceeded: the answer was cut off by the token limit.
        """
        if generated.finish_reason == "length":
            raise LimitExceeded("tokens in a turn", generated.completion_tokens)
        return generated.message.text

    def finish(self, status: RunStatus, output: str, error: BaseException | None) -> RunResult:
        """Record how the run ended, and return it as a value."""
        wall_ms = self.now() * 1000
        try:
            self.emit(self._ending(status, output, error))
        except Exception as broken:  # a dead recorder or a failing hook must not keep the result from its owner
            if error is None:
                status, error = "failed", broken
            if not self.events or not isinstance(self.events[-1], RunFinished):
                self.events.append(self._ending(status, output, error))
                self.live.put(self.events[-1])
        return RunResult(
            run_id=self.trace.run_id,
            status=status,
            output=output,
            turns=self.turns,
            usage=self.usage,
            ledger=ledger(self.events),
            messages=tuple(self.messages),
            events=tuple(self.events),
            wall_ms=wall_ms,
            error=error,
        )

    def _ending(self, status: RunStatus, output: str, error: BaseException | None) -> RunFinished:
        reason = None if error is None else " ".join(str(error).split()) or type(error).__name__
        return RunFinished(at=self.now(), status=status, output=output, error=reason)
