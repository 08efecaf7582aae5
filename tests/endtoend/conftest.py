"""What the end-to-end tests share: a virtual clock, and agents whose model follows a script."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
from agent_runtime.tools import Tool
from trio.testing import MockClock

from agent_runtime import Agent, Event, RunResult, ScriptedEngine, Speculation, tool

BESIDE = Speculation(placement="beside", reprobe=())


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def virtual() -> Callable[[Callable[[], Awaitable[Any]]], Any]:
    """Run an async function under a clock that jumps to the next deadline as soon as everybody waits."""

    def run(function: Callable[[], Awaitable[Any]]) -> Any:
        return trio.run(function, clock=MockClock(autojump_threshold=0))

    return run


def slow_lookup(seconds: float) -> tuple[Tool, list[str]]:
    """Return a read that takes `seconds`, and the list of keys it was asked for."""
    asked: list[str] = []

    @tool(effect="read")
    async def lookup(key: str) -> str:
        """Look a key up.

        Args:
            key: What to look up.
        """
        asked.append(key)
        await anyio.sleep(seconds)
        return f"value of {key}"

    return lookup, asked


def scripted_agent(*turns: Any, tools: Any = (), **settings: Any) -> Agent:
    """Return an agent whose model follows a script and whose runs leave no record."""
    settings.setdefault("speculation", BESIDE)
    settings.setdefault("traces", False)
    return Agent("scripted", ScriptedEngine(list(turns)), instructions="Help.", tools=tools, **settings)


async def watched(agent: Agent, task: str = "go") -> tuple[RunResult, list[Event]]:
    """Run an agent to its end, however it ends; return its result and the events that a watcher saw."""
    async with agent.stream(task) as stream:
        seen = [event async for event in stream]
    return stream.result, seen


@pytest.fixture
def lookup() -> Callable[[float], tuple[Tool, list[str]]]:
    return slow_lookup


@pytest.fixture
def scripted() -> Callable[..., Agent]:
    return scripted_agent


@pytest.fixture
def watch() -> Callable[..., Awaitable[tuple[RunResult, list[Event]]]]:
    return watched


@pytest.fixture(scope="session")
def pocket() -> Path:
    from agent_runtime.demo.agent import POCKET

    if not (POCKET / "model.safetensors").exists():
        pytest.skip("the demo's weights are not there: make pocket")
    return POCKET
