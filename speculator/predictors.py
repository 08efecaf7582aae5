"""What guesses the next call: the seam that every predictor fills, and those that need no model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import anyio
from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.messages import AssistantMessage, Message

from .errors import ScriptExhausted


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """A predictor's answer: a call with its confidence, or "no call" (`call` None).

    `tokens`, `bytes_copied` and `co_decoded` describe what a model-backed guess cost; they stay 0 elsewhere.
    `completed` is False where the answer was cut off: `call` is None then, and says nothing.
    """

    call: ToolCall | None
    confidence: float
    tokens: int = 0
    bytes_copied: int = 0
    co_decoded: bool = False
    completed: bool = True


class Predictor(Protocol):
    """Guesses the first call of the turn that `messages` lead to."""

    @property
    def source(self) -> str:
        """Name of the predictor in predictions and traces."""
        ...

    async def predict(self, messages: Sequence[Message], *, position: int) -> Guess:
        """Guess the call, at `position` tokens into the turn's generation (0 = its start).

        Cancelling the caller cancels the guess. Errors are the predictor's own fault and only end the guess.
        """
        ...


class QuickPredictor(Protocol):
    """Guesses at once, without a model, and learns from what the agent does."""

    @property
    def source(self) -> str:
        """Name of the predictor in predictions and traces."""
        ...

    def guess(self, messages: Sequence[Message], after: Sequence[ToolCall] = ()) -> Guess:
        """Guess the next call of the turn that `messages` lead to and that has made the calls `after` so far.

        `call` is None where it is not sure enough.
        """
        ...

    def observe(self, messages: Sequence[Message], message: AssistantMessage) -> None:
        """Learn from a turn: `messages` led to `message`."""
        ...


NO_CALL = Guess(call=None, confidence=1.0)
"""The guess that the turn makes no call."""


class NoPredictor:
    """Never guesses a call."""

    source = "none"

    async def predict(self, messages: Sequence[Message], *, position: int) -> Guess:
        """Answer "no call" at once."""
        return NO_CALL


class WrongPredictor:
    """Always guesses the same call, with full confidence: for tests of what a miss costs and changes.

    The default names no tool. Give a read tool's call that the agent never makes to have wrong guesses executed.
    """

    source = "wrong"

    def __init__(self, call: ToolCall | None = None) -> None:
        self._guess = Guess(call=call or ToolCall("no_such_tool"), confidence=1.0)

    async def predict(self, messages: Sequence[Message], *, position: int) -> Guess:
        """Answer with the call."""
        return self._guess


class ScriptedPredictor:
    """Answers from a list, in order: a test double.

    Args:
        script: One item per question: a call (confidence 1), a `Guess`, None for "no call", or an error to raise.
        delay: Seconds from each question to its answer, on the event loop's clock.

    Raises:
        ScriptExhausted: it is asked more often than the script has answers.
    """

    source = "scripted"

    def __init__(self, script: Iterable[ToolCall | Guess | Exception | None], *, delay: float = 0.0) -> None:
        self._script = list(script)
        self._delay = delay
        self.asked: list[tuple[tuple[Message, ...], int]] = []
        """Messages and position of every question so far."""

    async def predict(self, messages: Sequence[Message], *, position: int) -> Guess:
        """Answer with the script's next item, after the delay."""
        number = len(self.asked)
        self.asked.append((tuple(messages), position))
        if number >= len(self._script):
            raise ScriptExhausted(f"question {number + 1} has no answer: the script holds {len(self._script)}")
        if self._delay:
            await anyio.sleep(self._delay)
        match self._script[number]:
            case Guess() as guess:
                return guess
            case Exception() as error:
                raise error
            case None:
                return NO_CALL
            case call:
                return Guess(call=call, confidence=1.0)

    def assert_complete(self) -> None:
        """Check that every answer was asked for.

        Raises:
            ScriptExhausted: answers are left.
        """
        if len(self.asked) < len(self._script):
            raise ScriptExhausted(f"{len(self.asked)} of {len(self._script)} answers were asked for")
