"""The agent's own model as predictor: speculator mode over the agent's prefix cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.messages import Message

from .predictors import Guess


class ProbeAnswer(Protocol):
    """What a probe says; an engine's `ProbeResult` is one."""

    @property
    def call(self) -> ToolCall | None:
        """The guessed call; None for "no call"."""
        ...

    @property
    def confidence(self) -> float:
        """Unmasked probability of the whole answer, in [0, 1]."""
        ...

    @property
    def tokens(self) -> int:
        """Tokens that the probe decoded."""
        ...

    @property
    def bytes_copied(self) -> int:
        """Key/value bytes that the fork copied."""
        ...

    @property
    def co_decoded(self) -> bool:
        """Whether the probe's rows shared forward passes with the agent's."""
        ...

    @property
    def completed(self) -> bool:
        """Whether the answer is whole."""
        ...


class Probing(Protocol):
    """A conversation that can be probed; an engine's `Session` is one."""

    async def probe(self, messages: Sequence[Message], *, position: int = 0, max_tokens: int) -> ProbeAnswer:
        """Ask speculator mode for the next call."""
        ...


class SelfPredictor:
    """Asks the model that runs the agent, in speculator mode.

    Args:
        session: The agent's own conversation, so that its prefix cache serves the probe.
        max_tokens: Tokens after which an answer is cut off.
    """

    source = "self"

    def __init__(self, session: Probing, *, max_tokens: int = 96) -> None:
        self._session = session
        self._max_tokens = max_tokens

    async def predict(self, messages: Sequence[Message], *, position: int) -> Guess:
        """Probe the model at `position` tokens into the turn's generation."""
        answer = await self._session.probe(messages, position=position, max_tokens=self._max_tokens)
        return Guess(
            call=answer.call,
            confidence=answer.confidence,
            tokens=answer.tokens,
            bytes_copied=answer.bytes_copied,
            co_decoded=answer.co_decoded,
            completed=answer.completed,
        )
