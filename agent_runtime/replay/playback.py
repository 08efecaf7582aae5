"""A recorded trajectory on the stage: an engine that says recorded messages in their time, and tools that take theirs.

Nothing here reads a wall clock or uses a thread, so that it runs under a virtual clock.
"""

from __future__ import annotations

import statistics
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from agent_runtime.engines.base import (
    CallClosed,
    Delta,
    EngineEvent,
    Generated,
    ProbeResult,
    PromptReady,
    SessionStatistics,
)
from agent_runtime.speculator.predictors import NO_CALL, Guess
from agent_runtime.tools.errors import ToolFailure
from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.messages import AssistantMessage, Message
from agent_runtime.traces.trajectory import RecordedTurn, Trajectory

from .forced import Answers
from .timing import Shares, Timing
from .toolset import RecordedToolset

if TYPE_CHECKING:
    from agent_runtime.decoding.requests import Sampling

PERCENT = 100
"""Thinking is counted in hundredths, so that positions mean the same in every turn."""


class Playback:
    """Plays one trajectory: what engine, tools and guesses know of where it is.

    Args:
        trajectory: What is played.
        toolset: Its tools.
        timing: What things take.
        usual: Seconds a call of a tool takes that the recording doesn't hold, by the tool's name.
        positions: Hundredths of the thinking at which the engine lets others know how far it is.
    """

    def __init__(
        self,
        trajectory: Trajectory,
        toolset: RecordedToolset,
        timing: Timing,
        *,
        usual: Mapping[str, float],
        positions: Sequence[int] = (),
    ) -> None:
        self.trajectory = trajectory
        self.toolset = toolset
        self.timing = timing
        self.positions = tuple(positions)
        self._usual = usual
        self._turn = -1
        self._calls: dict[str, list[int]] = {}
        self._generating = False
        self._slowdown = 0.0

    def turn_after(self, messages: Sequence[Message]) -> int:
        """Return the number of the turn that follows `messages`, and make its calls known to the tools."""
        number = sum(isinstance(message, AssistantMessage) for message in messages)
        if number != self._turn:
            self._turn, self._calls = number, {}
            for index, call in enumerate(self.recorded(number).message.calls):
                if isinstance(call, ToolCall):
                    self._calls.setdefault(self.toolset.canonical(call), []).append(index)
        return number

    def recorded(self, number: int) -> RecordedTurn:
        """Return a turn of the trajectory; after its end an empty one."""
        turns = self.trajectory.turns
        return turns[number] if number < len(turns) else RecordedTurn(message=AssistantMessage(), generation_s=0.0)

    def slow_down(self, seconds: float) -> None:
        """Make the message that is being generated take longer; nothing if none is."""
        if self._generating:
            self._slowdown += seconds

    # --- tools ------------------------------------------------------------------------------------------------

    async def run(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Take a call's time and give its recorded result.

        A call that the turn doesn't make is a wrong guess: it takes what the tool usually takes, and nobody reads it.
        """
        recorded = self.recorded(self._turn)
        known = self._calls.get(self.toolset.canonical(ToolCall(name, arguments)))
        if not known:
            await anyio.sleep(self._usual.get(name, 0.0))
            return ""
        index = known.pop(0) if len(known) > 1 else known[0]  # a call that is made twice has two results
        result = recorded.results[index] if index < len(recorded.results) else None
        await anyio.sleep(self.timing.tool_s(recorded, index))
        if result is None:
            return ""
        if result.failed:
            raise ToolFailure("recorded_failure", result.content)
        return result.content

    # --- the engine -------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def generate(
        self, messages: Sequence[Message], *, sampling: Sampling | None = None, max_tokens: int
    ) -> AsyncIterator[AsyncIterator[EngineEvent]]:
        """Say the recorded message of the turn that follows `messages`, in the time it takes."""
        recorded = self.recorded(self.turn_after(messages))
        async with aclosing(self._events(recorded)) as events:
            yield events

    async def _events(self, recorded: RecordedTurn) -> AsyncGenerator[EngineEvent, None]:
        began, seconds = anyio.current_time(), self.timing.generation_s(recorded)
        self._generating, self._slowdown = True, 0.0
        try:
            yield PromptReady(prompt_tokens=0, reused_tokens=0)
            for share, event in _parts(recorded.message, self.positions):
                await self._until(began + share * seconds)
                yield event
            await self._until(began + seconds)
        finally:
            self._generating = False
        message = recorded.message
        thinking = PERCENT if message.thinking else 0
        yield Generated(
            message=message,
            finish_reason="calls" if message.calls else "stop",
            prompt_tokens=0,
            completion_tokens=0,
            thinking_tokens=thinking,
            forwards=0,
            slowdown_ms=self._slowdown * 1000,
        )

    async def _until(self, planned: float) -> None:
        """Wait until `planned`, and as much longer as probes slow the message down meanwhile."""
        while anyio.current_time() < (until := planned + self._slowdown):  # noqa: ASYNC110 (it may grow meanwhile)
            await anyio.sleep_until(until)

    async def probe(self, messages: Sequence[Message], *, position: int = 0, max_tokens: int) -> ProbeResult:
        """Answer "no call": what was guessed is known already, to `RecordedGuesses`."""
        return ProbeResult(call=None, confidence=0.0, tokens=0, completed=False)

    def suggest(self, messages: Sequence[Message], call: ToolCall) -> None:
        """Do nothing: what is said was recorded."""

    def statistics(self) -> SessionStatistics:
        """Return nothing but zeros: no token is decoded."""
        return SessionStatistics(
            turns=0,
            prompt_tokens=0,
            reused_tokens=0,
            prefilled_tokens=0,
            completion_tokens=0,
            probes=0,
            probe_tokens=0,
            bytes_copied=0,
        )

    async def aclose(self) -> None:
        """Do nothing."""


class RecordedGuesses:
    """A predictor whose answers are known: those that a predictor gave when it was led through the recording.

    Args:
        source: The predictor's name.
        answers: Its answers, by turn.
        playback: What is played.
        probe_s: Seconds that each guess takes; None takes what it took when it was made.
        slowdown: How much longer the agent's message gets by a guess made beside it, as a share of the guess's time.
    """

    def __init__(
        self,
        source: str,
        answers: Mapping[int, Answers],
        playback: Playback,
        *,
        probe_s: float | None = None,
        slowdown: float = 0.0,
    ) -> None:
        self.source = source
        self._answers = answers
        self._playback = playback
        self._probe_s = probe_s
        self._slowdown = slowdown

    async def predict(self, messages: Sequence[Message], *, position: int) -> Guess:
        """Give the answer for this turn and `position` hundredths of its thinking."""
        answers = self._answers.get(self._playback.turn_after(messages), ())
        known = [answer for answer in answers if round(answer.position * PERCENT) <= position]
        if not known:
            return NO_CALL
        seconds = known[-1].seconds if self._probe_s is None else self._probe_s
        if seconds > 0:
            await anyio.sleep(seconds)
            self._playback.slow_down(seconds * self._slowdown)
        return known[-1].guess


def usual_seconds(trajectories: Iterable[Trajectory], timing: Timing) -> dict[str, float]:
    """Return the median of what the calls of each tool take, by the tool's name."""
    samples: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for turn in trajectory.turns:
            for index, call in enumerate(turn.message.calls):
                if isinstance(call, ToolCall):
                    samples.setdefault(call.name, []).append(timing.tool_s(turn, index))
    return {name: statistics.median(sample) for name, sample in samples.items()}


def _parts(message: AssistantMessage, positions: Sequence[int]) -> list[tuple[float, EngineEvent]]:
    """Return what a message streams, each with the share of its time after which it comes."""
    shares = Shares.of(message)
    parts: list[tuple[float, EngineEvent]] = []
    if message.thinking:
        done = 0
        for position in sorted({*positions, PERCENT}):
            end = len(message.thinking) * position // PERCENT
            text, done = message.thinking[done:end], end
            parts.append(
                (shares.thinking * position / PERCENT, Delta(kind="thinking", text=text, tokens=max(position, 1)))
            )
    if message.text:
        parts.append((shares.text, Delta(kind="text", text=message.text, tokens=PERCENT + 1)))
    parts += [(share, CallClosed(call=call)) for share, call in zip(shares.calls, message.calls, strict=True)]
    return parts
