"""Teacher forcing: predictors are asked at every recorded turn, and the recorded message goes on whatever they say.

A predictor sees what the agent saw at the start of the turn, and of the turn itself what a stated share of its
recorded thinking holds. Only then is it shown the message.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from agent_runtime.speculator.predictors import Guess, Predictor
from agent_runtime.tools.values import MalformedCall, ToolCall
from agent_runtime.traces.messages import AssistantMessage, Message, ToolMessage, UserMessage
from agent_runtime.traces.trajectory import Trajectory

from .toolset import RecordedToolset

After = Literal["user", "tool", "other"]
"""What a turn follows: a message of the user, results of tools, or anything else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedTurn:
    """A recorded turn as predictors meet it: the conversation before it, and the message that followed."""

    trajectory: Trajectory
    toolset: RecordedToolset
    number: int
    messages: tuple[Message, ...]
    message: AssistantMessage

    @property
    def boundary(self) -> ToolCall | MalformedCall | None:
        """The turn's first call; None where it makes none."""
        return self.message.calls[0] if self.message.calls else None

    @property
    def after(self) -> After:
        """What the turn follows."""
        match self.messages[-1] if self.messages else None:
            case UserMessage():
                return "user"
            case ToolMessage():
                return "tool"
            case _:
                return "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a predictor said in a turn when `position` (0 to 1) of its recorded thinking was written.

    `seconds` is what the guess took on this machine, by the wall clock.
    """

    guess: Guess
    position: float = 0.0
    seconds: float = 0.0


Answers = tuple[Answer, ...]
"""One predictor's answers in one turn, by position; the first is of the turn's start."""


@dataclass(frozen=True, slots=True)
class AnsweredTurn:
    """A turn with the answers of each predictor, by its source."""

    turn: ForcedTurn
    answers: dict[str, Answers] = field(default_factory=dict)


class ForcedPredictor(Protocol):
    """A predictor that can be led through recorded trajectories."""

    @property
    def source(self) -> str:
        """Its name in reports: `self`, `counter`, ..."""
        ...

    async def begin(self, trajectory: Trajectory, toolset: RecordedToolset) -> None:
        """Get ready for a trajectory; forget what the one before taught, unless it may be known."""
        ...

    async def answer(self, turn: ForcedTurn) -> Answers:
        """Guess the turn's first call. The turn's message must not be looked at beyond the positions answered for."""
        ...

    async def reveal(self, turn: ForcedTurn) -> None:
        """Learn what the agent really did, if learning goes on."""
        ...

    async def aclose(self) -> None:
        """Free what it holds."""
        ...


class Forced:
    """Leads any predictor of the runtime through recordings; it is asked once a turn, at its start."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    @property
    def source(self) -> str:
        """The predictor's own name."""
        return self._predictor.source

    async def begin(self, trajectory: Trajectory, toolset: RecordedToolset) -> None:
        """Do nothing: the predictor is told nothing but messages."""

    async def answer(self, turn: ForcedTurn) -> Answers:
        """Ask the predictor."""
        began = time.perf_counter()
        guess = await self._predictor.predict(turn.messages, position=0)
        return (Answer(guess=guess, seconds=time.perf_counter() - began),)

    async def reveal(self, turn: ForcedTurn) -> None:
        """Do nothing."""

    async def aclose(self) -> None:
        """Do nothing."""


def forced_turns(trajectory: Trajectory, toolset: RecordedToolset) -> list[ForcedTurn]:
    """Return the turns of a trajectory with the conversation before each."""
    turns, messages = [], list[Message]()
    for number, recorded in enumerate(trajectory.turns):
        messages += recorded.before
        turns.append(
            ForcedTurn(
                trajectory=trajectory,
                toolset=toolset,
                number=number,
                messages=tuple(messages),
                message=recorded.message,
            )
        )
        messages += [recorded.message, *recorded.tool_messages()]
    return turns


async def teacher_forced(
    trajectories: Sequence[Trajectory], toolsets: Sequence[RecordedToolset], predictors: Sequence[ForcedPredictor]
) -> AsyncIterator[list[AnsweredTurn]]:
    """Lead predictors through trajectories, in order; yield the answered turns of each."""
    for trajectory, toolset in zip(trajectories, toolsets, strict=True):
        for predictor in predictors:
            await predictor.begin(trajectory, toolset)
        answered = []
        for turn in forced_turns(trajectory, toolset):
            answers = {predictor.source: await predictor.answer(turn) for predictor in predictors}
            answered.append(AnsweredTurn(turn, answers))
            for predictor in predictors:
                await predictor.reveal(turn)
        yield answered
