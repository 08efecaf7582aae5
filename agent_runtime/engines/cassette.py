"""Cassettes: a file that records a model's streams and the results of tools, and plays them again without either."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from agent_runtime.speculator.policy import Policy

from .cassette_file import CassetteWriter, read_cassette
from .cassette_recording import RecordingEngine
from .cassette_replay import ReplayEngine
from .cassette_tape import Tape
from .cassette_tools import on_cassette

if TYPE_CHECKING:
    from agent_runtime.agent import Agent
    from agent_runtime.traces.events import Event

    from .base import Engine


class _TimelessPolicy(Policy):
    """Learns nothing: in a replay neither model nor tools take time, so that no guess would seem worth its start."""

    def for_run(self) -> Policy:
        """Return another that learns nothing."""
        return _TimelessPolicy(self._settings)

    def observe(self, event: Event) -> None:
        """Forget the event."""


class Cassette:
    """Records agents into a file, or plays the file if it is there already.

    Requests are found by what they ask (messages, tools, sampling), so any number of runs may share a cassette, in any
    order and at the same time. Secrets are hashed as the trace store hashes them. When a run asks for something that
    isn't recorded, it ends with `ReplayDiverged`.

    Args:
        path: A cassette to play; or a file that doesn't exist, or is empty, to record.

    Raises:
        CassetteUnusable: the file is no cassette or a damaged one, or can't be written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        found = read_cassette(self.path)
        self._tape = Tape(self.path, *found) if found is not None else None
        self._writer = CassetteWriter(self.path) if found is None else None

    @property
    def playing(self) -> bool:
        """Whether the file was there: then no model and no tool is used."""
        return self._tape is not None

    def attach(self, agent: Agent) -> Agent:
        """Return the same agent with its model and its tools on this cassette.

        Close the given agent, not the returned one, to free the model.
        """
        secrets = {tool.name: tool.secret_arguments for tool in agent.tools if tool.secret_arguments}
        engine: Engine
        if self._tape is not None:
            engine = ReplayEngine(self._tape, {tool.name: tool for tool in agent.tools}, secrets)
        else:
            assert self._writer is not None
            engine = RecordingEngine(self._writer, agent.engine, secrets)
        attached = agent.replace(model=engine, tools=[on_cassette(tool, played=self.playing) for tool in agent.tools])
        if self.playing:
            attached._policy = _TimelessPolicy(agent.speculation)
        return attached

    def close(self) -> None:
        """Close the file; a cassette that is closed records nothing more."""
        if self._writer is not None:
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
