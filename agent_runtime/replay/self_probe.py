"""A model in speculator mode, led through recordings: probed at shares of each turn's recorded thinking."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import anyio

from agent_runtime.engines.base import Engine, ProbeResult, Session, ToolSchema
from agent_runtime.engines.choose import engine_for
from agent_runtime.speculator.predictors import Guess
from agent_runtime.traces.trajectory import Trajectory

from .forced import Answer, Answers, ForcedTurn
from .toolset import RecordedToolset

POSITIONS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of a turn's recorded thinking at which the model is asked."""


class ForcedSelf:
    """Leads a model through trajectories.

    The model reads the conversation and the recorded thinking up to the position as if it had written it itself. Where
    a turn has no thinking, its visible text before the call stands for it; where it has neither, one probe answers for
    all positions. A model on a server is asked at the turn's start only, since only the local engine can be put into
    the middle of a message.

    Args:
        model: Hub id, local folder or GGUF file, or `openai:NAME@URL` of a server.
        device: `auto`, `cpu` or `cuda`.
        positions: Shares of the thinking, from 0; the first must be 0.
        max_tokens: Tokens after which a probe is cut off.
        engine: Instead of a model of its own.

    Raises:
        UsageError: the model's name or its device can't be used.
    """

    source = "self"

    def __init__(
        self,
        model: str | Path = "",
        *,
        device: str = "auto",
        positions: Sequence[float] = POSITIONS,
        max_tokens: int = 96,
        engine: Engine | None = None,
    ) -> None:
        self._engine = engine_for(model, device=device) if engine is None else engine
        self._owns_engine = engine is None
        self._positions = tuple(positions)
        self._max_tokens = max_tokens
        self._session: Session | None = None

    @property
    def name(self) -> str:
        """The model's name."""
        return self._engine.name

    async def begin(self, trajectory: Trajectory, toolset: RecordedToolset) -> None:
        """Open a conversation with the trajectory's tools; loads the model the first time.

        Raises:
            ModelNotFound: there is no such model.
            ModelUnsupported: it can't run an agent.
        """
        await self._close_session()
        schemas = [
            ToolSchema(name=tool.name, description=tool.description, parameters=tool.parameters)
            for tool in toolset.tools
        ]
        self._session = await self._engine.open(schemas)

    async def answer(self, turn: ForcedTurn) -> Answers:
        """Probe at every position.

        Raises:
            EngineFailed: the template refuses the conversation, or the tools can't be put into a grammar.
        """
        from agent_runtime.engines.session import LocalSession
        from agent_runtime.engines.teacher_forcing import TeacherForcing

        assert self._session is not None
        if not isinstance(self._session, LocalSession):
            began = time.perf_counter()
            result = await self._session.probe(turn.messages, max_tokens=self._max_tokens)
            return (Answer(guess=_guess(result), seconds=time.perf_counter() - began),)
        forcing = TeacherForcing(self._session)
        written = forcing.thinking_ids(turn.message)
        asked: dict[int, Answer] = {}
        answers = []
        for position in self._positions:
            tokens = round(position * len(written))
            if tokens not in asked:
                began = time.perf_counter()
                result = await forcing.probe(turn.messages, written[:tokens], max_tokens=self._max_tokens)
                asked[tokens] = Answer(guess=_guess(result), seconds=time.perf_counter() - began)
            answers.append(replace(asked[tokens], position=position))
        return tuple(answers)

    async def reveal(self, turn: ForcedTurn) -> None:
        """Do nothing: the model's weights don't change."""

    async def aclose(self) -> None:
        """Free the model, unless it was handed in."""
        await self._close_session()
        if self._owns_engine:
            await self._engine.aclose()

    async def _close_session(self) -> None:
        if self._session is not None:
            with anyio.CancelScope(shield=True):
                await self._session.aclose()
            self._session = None


def _guess(result: ProbeResult) -> Guess:
    return Guess(
        call=result.call,
        confidence=result.confidence,
        tokens=result.tokens,
        bytes_copied=result.bytes_copied,
        co_decoded=result.co_decoded,
        completed=result.completed,
    )
