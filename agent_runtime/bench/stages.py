"""Where measured tasks come from, and where each of their runs takes place.

A stage gives a run its tools and says afterwards what came of it. The shop stages every run in a fresh world of one
backend and judges it; an agent of one's own works on its own tools, unjudged.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import anyio

from agent_runtime.agent import Agent
from agent_runtime.demo.agent import shop_tools
from agent_runtime.demo.shop.backend import ShopBackend
from agent_runtime.demo.shop.demo_world import DEMO_WORLD
from agent_runtime.demo.shop.generate import generate
from agent_runtime.demo.shop.judge import Check, Task, judge
from agent_runtime.result import RunResult
from agent_runtime.tools import Tool

from .records import write_text

Phrasing = Literal["any", "train", "heldout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the world says of a run: whether it succeeded and what was written; None where it can't be told."""

    success: bool | None = None
    reason: str = ""
    writes: tuple[str, ...] | None = None
    executed: Mapping[str, int] | None = None
    """Executions by tool, as the tools' own backend counted them."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The place of one run."""

    tools: Sequence[Tool]
    evidence: Callable[[RunResult], Evidence]


class Stages(Protocol):
    """Makes the places of runs."""

    def stage(self, index: int, task: Task) -> AbstractAsyncContextManager[Stage]:
        """Hold a place open for one run of a task."""
        ...


class ShopStages:
    """Stages each run in a fresh world of one backend.

    All runs of a task use a world of the same name, one after the other, because the backend draws its latency by
    world and request.
    """

    def __init__(self, backend: ShopBackend, *, judged: bool = True) -> None:
        self._backend = backend
        self._judged = judged

    @asynccontextmanager
    async def stage(self, index: int, task: Task) -> AsyncIterator[Stage]:
        """Hold a fresh world open for one run of a task."""
        world = f"task-{index}"
        store = self._backend.add_world(world, task.world)

        def evidence(result: RunResult) -> Evidence:
            writes = self._backend.writes(world)
            success: bool | None = None
            reason = ""
            if self._judged:
                verdict = judge(task, store, result.output)
                success, reason = verdict.success and result.status == "done", verdict.reason
                if result.status != "done":
                    reason = f"the run ended as {result.status}"
            return Evidence(
                success=success,
                reason=reason,
                writes=tuple(write_text(write.tool, write.arguments) for write in writes),
                executed=self._backend.calls(world),
            )

        try:
            async with self._backend.client(world) as client:
                yield Stage([_of_world(tool, world) for tool in shop_tools(client)], evidence)
        finally:
            self._backend.remove_world(world)


class AgentStages:
    """An agent's own tools, the same ones for every run; `latency_ms` is injected into them."""

    def __init__(self, agent: Agent, *, latency_ms: float | None) -> None:
        tools = agent.tools
        self._tools = list(tools) if latency_ms is None else [_delayed(tool, latency_ms / 1000) for tool in tools]

    @asynccontextmanager
    async def stage(self, index: int, task: Task) -> AsyncIterator[Stage]:
        """Hand the agent's tools out."""
        yield Stage(self._tools, lambda result: Evidence())


def shop_tasks(count: int, *, seed: int, first: int, phrasing: Phrasing, kinds: Collection[str] | None) -> list[Task]:
    """Return `count` generated tasks of the test split, from number `first`; names and products are unseen."""
    names = None if kinds is None else list(kinds)
    made = generate(seed, "test", first + count, phrasing=phrasing, kinds=names)
    return [Task.from_dict(trajectory) for trajectory in itertools.islice(made, first, None)]


def own_tasks(requests: Iterable[str]) -> list[Task]:
    """Return requests as tasks without a check; in the shop they meet the demo's world."""
    return [Task(f"task-{index}", "own", "own", request, DEMO_WORLD, Check()) for index, request in enumerate(requests)]


def _of_world(tool: Tool, world: str) -> Tool:
    """Return a tool whose resource keys are its world's own: a write to one world makes no other world stale."""

    def own(keys: frozenset[str] | None) -> frozenset[str] | None:
        return None if keys is None else frozenset(f"{world}/{key}" for key in keys)

    contract = tool.contract
    return tool.with_contract(replace(contract, reads=own(contract.reads), writes=own(contract.writes)))


def _delayed(tool: Tool, seconds: float) -> Tool:
    """Return a tool that takes at least `seconds`."""
    function: Callable[..., Any] = tool.function
    if tool.is_async:
        return replace(tool, function=_slow_async(function, seconds))

    @functools.wraps(function)
    def slow(*args: Any, **kwargs: Any) -> Any:
        began = time.monotonic()
        try:
            return function(*args, **kwargs)
        finally:
            time.sleep(max(0.0, began + seconds - time.monotonic()))

    return replace(tool, function=slow)


def _slow_async(function: Callable[..., Awaitable[Any]], seconds: float) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(function)
    async def slow(*args: Any, **kwargs: Any) -> Any:
        until = anyio.current_time() + seconds
        try:
            return await function(*args, **kwargs)
        finally:
            await anyio.sleep_until(until)

    return slow
