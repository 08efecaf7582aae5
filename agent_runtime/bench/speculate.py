"""`agent bench speculate`: tasks with and without guessing, and what the difference is."""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import anyio

from agent_runtime.agent import Agent
from agent_runtime.demo.agent import POCKET, support_agent
from agent_runtime.demo.shop.backend import ShopBackend
from agent_runtime.demo.shop.judge import Task
from agent_runtime.demo.shop.world import World
from agent_runtime.engines.base import Engine, ToolSchema
from agent_runtime.errors import EngineFailed, RunFailed, UsageError
from agent_runtime.speculator.settings import Speculation
from agent_runtime.traces import TraceStore
from agent_runtime.traces.messages import Message, SystemMessage, UserMessage

from .interleave import Interleaving
from .records import SERIAL, SPECULATIVE, RunRecord
from .report import BenchReport, report
from .stages import AgentStages, Phrasing, ShopStages, Stages, own_tasks, shop_tasks

if TYPE_CHECKING:
    from agent_runtime.decoding.requests import Sampling

SHOP = "shop"
CALIBRATION_TASKS = 8
CALIBRATION_SEED = 1_000_003
"""Added to the seed, so that no task is calibrated on and measured."""
WARM_UP_TOKENS = 16

Latency = float | Literal["generation"] | None
"""Milliseconds that each tool takes, one median T_gen, or the tools' own time."""


class BenchTarget(Protocol):
    """What the command line hands in: a name, and an agent to be opened."""

    @property
    def name(self) -> str:
        """How the target was named."""
        ...

    def open(self) -> AbstractAsyncContextManager[Agent]:
        """Hold the agent open."""
        ...


async def bench_speculate(
    target: str | Agent | BenchTarget = SHOP,
    *,
    tasks: int | Sequence[str] | Sequence[Task] = 20,
    first: int = 0,
    seed: int = 0,
    tool_latency_ms: Latency = None,
    model: str | Path | Engine | None = None,
    device: str = "auto",
    phrasing: Phrasing = "any",
    kinds: Collection[str] | None = None,
    concurrency: int = 1,
    speculation: Speculation | None = None,
    also: Mapping[str, Speculation] | None = None,
    traces: bool | str | Path | TraceStore = False,
    on_records: Callable[[list[RunRecord]], None] | None = None,
) -> BenchReport:
    """Run tasks with and without guessing, interleaved in one process, and report what guessing did.

    Decoding is greedy, so that both modes must say the same. A run that fails counts as not solved, and the next goes
    on. Agents of one's own run every task once per mode, on their real tools.

    Args:
        target: `shop`, an agent, or a target of the command line.
        tasks: How many of the shop's generated tasks; or the requests themselves, which nobody judges; or tasks with
            a check, for the shop.
        first: Number of the first generated task, to go on where another measurement ended.
        seed: Seed of the generated tasks.
        tool_latency_ms: Injected latency; `generation` is one median T_gen, found in a short calibration (shop only);
            None leaves tools their own time.
        model: Instead of the agent's own.
        device: `auto`, `cuda` or `cpu`.
        phrasing: Which phrasings the shop's tasks use.
        kinds: Which kinds of the shop's tasks to generate; None takes all.
        concurrency: Tasks that run together, always in the same mode.
        speculation: How to guess; None takes the agent's own way.
        also: Further modes by name, which run with the others but don't enter the report.
        traces: Where the runs are recorded; nowhere by default.
        on_records: Called with the records of each run (or group of them) as soon as it is measured. A task's runs
            come apart.

    Raises:
        UsageError: the target offers no tasks, or an argument can't be used.
        ModelNotFound: there is no such model.
    """
    _check(tasks, concurrency, tool_latency_ms)
    records: list[RunRecord] = []
    async with AsyncExitStack() as opened:
        agent = await opened.enter_async_context(_open(target, model, device, traces))
        if _is_shop(target):
            latency = await _calibrated(agent, seed) if tool_latency_ms == "generation" else tool_latency_ms
            backend = await opened.enter_async_context(ShopBackend(latency_ms=latency))
            stages: Stages = ShopStages(backend, judged=not _are_requests(tasks))
            todo = _of_shop(tasks, seed=seed, first=first, phrasing=phrasing, kinds=kinds)
        else:
            if tool_latency_ms == "generation":
                raise UsageError("a latency of one generation is measured on the shop only: give milliseconds")
            latency = tool_latency_ms
            stages, todo = AgentStages(agent, latency_ms=latency), _requests_of(target, tasks)
        if speculation is None and agent.speculation is None:
            speculation = Speculation()
        modes: dict[str, bool | Speculation | None] = {SERIAL: False, SPECULATIVE: speculation, **(also or {})}
        agents = {mode: agent.replace(speculation=guessing) for mode, guessing in modes.items()}
        await _warm_up(agent)
        async for group in Interleaving(stages=stages, agents=agents, concurrency=concurrency).run(todo, first=first):
            records += group
            if on_records is not None:
                on_records(group)
    return report(records, tool_latency_ms=latency, concurrency=concurrency)


def _check(tasks: int | Sequence[str] | Sequence[Task], concurrency: int, latency: Latency) -> None:
    if (tasks if isinstance(tasks, int) else len(tasks)) < 1:
        raise UsageError("there is no task to measure: give at least one")
    if concurrency < 1:
        raise UsageError(f"concurrency={concurrency}: give a number of at least 1")
    if latency is not None and latency != "generation" and not (isinstance(latency, float | int) and latency >= 0):
        raise UsageError(f"tool_latency_ms={latency!r}: give milliseconds, at least 0, or 'generation'")


def _is_shop(target: str | Agent | BenchTarget) -> bool:
    if isinstance(target, str) and target != SHOP:
        raise UsageError(f"the target {target!r} is no agent: give an Agent, or {SHOP!r}")
    return not isinstance(target, Agent) and (target if isinstance(target, str) else target.name) == SHOP


@asynccontextmanager
async def _open(
    target: str | Agent | BenchTarget, model: str | Path | Engine | None, device: str, traces: Any
) -> AsyncIterator[Agent]:
    """Hold the measured agent open: greedy, on its own model or another."""
    async with AsyncExitStack() as opened:
        if isinstance(traces, str | Path) or traces is True:  # one store for all runs
            where = None if traces is True else traces
            traces = await anyio.to_thread.run_sync(TraceStore.open, where)
            opened.callback(traces.close)
        if _is_shop(target):
            agent = await opened.enter_async_context(_shop_agent(model or POCKET, device))
        else:
            agent = target if isinstance(target, Agent) else await opened.enter_async_context(_target(target).open())
            if model is not None or device != "auto":
                agent = await opened.enter_async_context(agent.replace(model=model, device=device))
        yield agent.replace(sampling=_greedy(agent.sampling), traces=traces)


def _target(target: str | Agent | BenchTarget) -> BenchTarget:
    assert not isinstance(target, str | Agent)
    return target


def _greedy(own: Sampling | None) -> Sampling:
    """Return greedy decoding with the agent's own stop strings."""
    from agent_runtime.decoding.requests import Sampling

    return Sampling() if own is None else replace(own, temperature=0.0)


@asynccontextmanager
async def _shop_agent(model: str | Path | Engine, device: str) -> AsyncIterator[Agent]:
    """Hold the support agent open; its runs bring their own worlds, so its own tools lead nowhere."""
    async with ShopBackend(latency_ms=0) as backend:
        backend.add_world("none", World())
        async with backend.client("none") as client, support_agent(client, model=model, device=device) as agent:
            yield agent


async def _warm_up(agent: Agent) -> None:
    """Load the model and read the prompt that all runs begin with, so that the first run isn't the slowest."""
    schemas = [
        ToolSchema(name=tool.name, description=tool.description, parameters=tool.parameters) for tool in agent.tools
    ]
    session = await agent.engine.open(schemas)
    try:
        opening: list[Message] = [SystemMessage(agent.instructions)] if agent.instructions else []
        opening.append(UserMessage("Hello"))
        with suppress(EngineFailed):  # no guesses then, which the figures show
            await session.probe(opening, max_tokens=WARM_UP_TOKENS)
        async with session.generate(opening, sampling=agent.sampling, max_tokens=WARM_UP_TOKENS) as stream:
            async for _ in stream:
                pass
    finally:
        with anyio.CancelScope(shield=True):
            await session.aclose()


async def median_generation_ms(
    *, model: str | Path | Engine | None = None, device: str = "auto", seed: int = 0
) -> float:
    """Return one median T_gen of the shop's agent in milliseconds: of boundaries, without guessing.

    Raises:
        ModelNotFound: there is no such model.
        RunFailed: the model makes no calls.
    """
    async with _open(SHOP, model, device, False) as agent:
        return await _calibrated(agent, seed)


async def _calibrated(agent: Agent, seed: int) -> float:
    await _warm_up(agent)
    tasks = shop_tasks(CALIBRATION_TASKS, seed=seed + CALIBRATION_SEED, first=0, phrasing="any", kinds=None)
    sample: list[float] = []
    async with ShopBackend(latency_ms=0) as backend:  # tools that answer at once don't change T_gen
        runs = Interleaving(stages=ShopStages(backend), agents={SERIAL: agent.replace(speculation=False)})
        async for group in runs.run(tasks):
            for record in group:
                sample += [turn.t_gen_ms for turn in record.ledger.turns if turn.boundary is not None]
    if not sample:
        raise RunFailed(f"{agent.engine.name} made no call in {len(tasks)} tasks, so its T_gen is unknown")
    return statistics.median(sample)


def _are_requests(tasks: int | Sequence[str] | Sequence[Task]) -> bool:
    return not isinstance(tasks, int) and all(isinstance(task, str) for task in tasks)


def _of_shop(
    tasks: int | Sequence[str] | Sequence[Task],
    *,
    seed: int,
    first: int,
    phrasing: Phrasing,
    kinds: Collection[str] | None,
) -> list[Task]:
    if isinstance(tasks, int):
        return shop_tasks(tasks, seed=seed, first=first, phrasing=phrasing, kinds=kinds)
    if _are_requests(tasks):
        return own_tasks(str(task) for task in tasks)
    return [task for task in tasks if isinstance(task, Task)]


def _requests_of(target: str | Agent | BenchTarget, tasks: int | Sequence[str] | Sequence[Task]) -> list[Task]:
    if isinstance(tasks, int) or not _are_requests(tasks):
        name = target if isinstance(target, str) else target.name
        raise UsageError(
            f"{name} generates no tasks of its own: give a file of them, one per line "
            f"(from Python: a list of texts); only {SHOP!r} generates tasks"
        )
    return own_tasks(str(task) for task in tasks)
