"""`agent bench decode`: the same prompts in every way of decoding, interleaved in one process."""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.to_thread

from agent_runtime.agent import Agent
from agent_runtime.decoding.threads import configure_threads
from agent_runtime.demo.agent import POCKET
from agent_runtime.engines.local import LocalEngine
from agent_runtime.errors import UsageError

from .decode_prompts import Conversation, built_in, recorded_agent, recorded_shop
from .decode_report import DecodeReport, report

if TYPE_CHECKING:
    from .decode_floor import Floor
    from .decode_subject import Subject

SHOP = "shop"
TASKS = 20
MAX_TOKENS = 96
"""Of the answers to the built-in prompts."""

Progress = Callable[[str, int, int], None]
"""Called with what is under way (`recorded` or `decoded`), how many conversations are done, and of how many."""


class DecodeTarget(Protocol):
    """What the command line hands in: a name, and an agent to be opened."""

    @property
    def name(self) -> str:
        """How the target was named."""
        ...

    def open(self) -> AbstractAsyncContextManager[Agent]:
        """Hold the agent open."""
        ...


async def bench_decode(
    target: str | Path | Agent | DecodeTarget = SHOP,
    *,
    tasks: int | Sequence[str] = TASKS,
    seed: int = 0,
    max_tokens: int | None = None,
    model: str | Path | None = None,
    draft_model: str | Path | None = None,
    device: str = "auto",
    threads: int | None = None,
    on_progress: Progress | None = None,
) -> DecodeReport:
    """Decode prompts greedily in every mode and report tokens per second, forward passes and acceptance.

    An agent works on its tasks once, without speculation, and every message of it is decoded again after the messages
    before it. A conversation is decoded in one mode after the other, in an order that rotates from conversation to
    conversation.

    Args:
        target: `shop`, an agent on a local model (or a target of the command line), or a model: its hub id, folder or
            GGUF file.
        tasks: How many of the shop's generated tasks, or of the 20 built-in prompts of a model; or the requests
            themselves, which an agent needs (it works on them with its real tools).
        seed: Seed of the generated tasks.
        max_tokens: Of an answer; None takes the agent's own limit, or 96 for a model.
        model: Instead of the agent's own.
        draft_model: A smaller model with the same tokenizer; None takes the folder `draft` in the model's own.
        device: `auto`, `cuda` or `cpu`.
        threads: torch's threads on a CPU; None leaves one core free.
        on_progress: Called as conversations are done.

    Raises:
        UsageError: the target offers no tasks, or an argument can't be used.
        ModelNotFound: there is no such model.
        ModelUnsupported: the model can't run an agent.
    """
    if (tasks if isinstance(tasks, int) else len(tasks)) < 1:
        raise UsageError("there is nothing to decode: give at least one task")
    used_threads = configure_threads(threads)
    told = on_progress or (lambda what, done, of: None)
    source, conversations = await _conversations(target, tasks, seed, max_tokens, model, device, told)
    if not conversations:
        raise UsageError("no task led to a message of the model, so there is nothing to decode again")
    from .decode_subject import load_subject

    load = partial(load_subject, source, conversations, device=device, draft_model=draft_model)
    subject = await anyio.to_thread.run_sync(load)
    try:
        return await _measured(subject, conversations, used_threads, told)
    finally:
        await anyio.to_thread.run_sync(subject.close)


async def _conversations(
    target: str | Path | Agent | DecodeTarget,
    tasks: int | Sequence[str],
    seed: int,
    max_tokens: int | None,
    model: str | Path | None,
    device: str,
    told: Progress,
) -> tuple[str | Path, list[Conversation]]:
    """Return the model under test and what it is to decode."""
    count = tasks if isinstance(tasks, int) else len(tasks)
    done = 0

    def on_task() -> None:
        nonlocal done
        done += 1
        told("recorded", done, count)

    name = target if isinstance(target, str) else getattr(target, "name", "")
    if name == SHOP and not isinstance(target, Agent):
        source = model or POCKET
        found = await recorded_shop(source, tasks, seed=seed, device=device, on_task=on_task)
    elif isinstance(target, str | Path):
        if model is not None or not isinstance(tasks, int):
            raise UsageError(f"{target} is a model and is measured on built-in prompts: leave model and requests out")
        return target, built_in(tasks, max_tokens=max_tokens or MAX_TOKENS)
    else:
        if isinstance(tasks, int):
            raise UsageError(f"{name} generates no tasks of its own: give a file of them, one per line")
        async with _opened(target) as agent:
            source, agent = _own_model(agent, model, device)
            found = await recorded_agent(agent, tasks, on_task=on_task)
            if model is not None:
                await agent.aclose()
    if max_tokens is not None:
        found = [
            Conversation(prompts=conversation.prompts, tools=conversation.tools, max_tokens=max_tokens)
            for conversation in found
        ]
    return source, found


@asynccontextmanager
async def _opened(target: Agent | DecodeTarget) -> AsyncIterator[Agent]:
    if isinstance(target, Agent):
        yield target
    else:
        async with target.open() as agent:
            yield agent


def _own_model(agent: Agent, model: str | Path | None, device: str) -> tuple[str | Path, Agent]:
    if model is not None:
        return model, agent.replace(model=model, device=device)
    if not isinstance(agent.engine, LocalEngine):
        raise UsageError(f"{agent.name} runs on {agent.engine.name}, not on a local model: give one with --model")
    return agent.engine.model, agent


async def _measured(
    subject: Subject, conversations: Sequence[Conversation], threads: int, told: Progress
) -> DecodeReport:
    from .decode_floor import Floor
    from .decode_measuring import Measuring

    measuring = Measuring(subject)
    await measuring.warm_up(conversations[0])
    context = round(statistics.mean(measuring.prompt_lengths(conversations)))
    floor = Floor(subject.executor, subject.network, context=context)
    floor_s: list[float] = []
    for index, conversation in enumerate(conversations):
        await measuring.take(index, conversation)
        floor_s += await anyio.to_thread.run_sync(_floor_times, floor)
        told("decoded", index + 1, len(conversations))
    return report(
        measuring.measured,
        floor_s=floor_s,
        absent=subject.absent,
        model=subject.model.name,
        executor=subject.executor.name,
        dtype=str(next(subject.network.parameters()).dtype).removeprefix("torch."),
        device=str(next(subject.network.parameters()).device),
        threads=threads,
        conversations=len(conversations),
    )


FLOOR_CALLS = 24
FLOOR_S = 0.5


def _floor_times(floor: Floor) -> list[float]:
    """Return the times of some calls after one that isn't counted."""
    floor.seconds()
    times: list[float] = []
    while not times or (len(times) < FLOOR_CALLS and sum(times) < FLOOR_S):
        times.append(floor.seconds())
    return times
