"""What guesses the next call: the seam that every predictor fills, and the two that tests use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.messages import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """A predictor's answer: a call with its confidence, or "no call" (`call` None).

    `tokens`, `bytes_copied` and `co_decoded` describe what a model-backed guess cost; they stay 0 elsewhere.
    """

    call: ToolCall | None
    confidence: float
    tokens: int = 0
    bytes_copied: int = 0
    co_decoded: bool = False


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
