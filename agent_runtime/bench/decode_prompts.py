"""What decoding is measured on: turns of recorded conversations, or prompts that call tools and edit code."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from agent_runtime.agent import Agent
from agent_runtime.decoding.requests import Sampling
from agent_runtime.demo.agent import LIMITS, support_agent
from agent_runtime.demo.shop.backend import ShopBackend
from agent_runtime.demo.shop.judge import Task
from agent_runtime.demo.shop.world import World
from agent_runtime.engines.base import Engine, ToolSchema
from agent_runtime.engines.local import LocalEngine
from agent_runtime.traces.messages import AssistantMessage, Message, SystemMessage, UserMessage

from .decode_texts import CODE_EDITS, CODE_INSTRUCTIONS, TOOL_INSTRUCTIONS, TOOL_REQUESTS, TOOLS
from .stages import AgentStages, ShopStages, Stages, own_tasks, shop_tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages that a model is to go on from, one prompt after the other; they may call `tools`."""

    prompts: tuple[tuple[Message, ...], ...]
    tools: tuple[ToolSchema, ...] = ()
    max_tokens: int


def turns_of(messages: Sequence[Message]) -> tuple[tuple[Message, ...], ...]:
    """Return what stood before every message of the model."""
    return tuple(tuple(messages[:at]) for at, message in enumerate(messages) if isinstance(message, AssistantMessage))


def built_in(count: int, *, max_tokens: int) -> list[Conversation]:
    """Return up to 20 prompts, those that call tools and those that edit code in turn."""
    made: list[Conversation] = []
    for request, (task, code) in zip(TOOL_REQUESTS, CODE_EDITS, strict=True):
        calling = (SystemMessage(TOOL_INSTRUCTIONS), UserMessage(request))
        editing = (SystemMessage(CODE_INSTRUCTIONS), UserMessage(f"{task}\n\n```python\n{code.strip()}\n```"))
        made += [
            Conversation(prompts=(calling,), tools=TOOLS, max_tokens=max_tokens),
            Conversation(prompts=(editing,), max_tokens=max_tokens),
        ]
    return made[:count]


async def recorded_shop(
    model: str | Path, tasks: int | Sequence[str], *, seed: int, device: str, on_task: Callable[[], None]
) -> list[Conversation]:
    """Let the shop's agent work on tasks once, without speculation of any sort, and return its conversations."""
    todo = (
        shop_tasks(tasks, seed=seed, first=0, phrasing="any", kinds=None)
        if isinstance(tasks, int)
        else own_tasks(tasks)
    )
    async with AsyncExitStack() as opened:
        engine = LocalEngine(model, device=device, drafts="none")
        opened.push_async_callback(engine.aclose)
        backend = await opened.enter_async_context(ShopBackend(latency_ms=0))
        agent = await opened.enter_async_context(_shop_agent(backend, engine))
        return await _recorded(agent, ShopStages(backend, judged=False), todo, LIMITS.turn_tokens, on_task)


async def recorded_agent(agent: Agent, requests: Iterable[str], *, on_task: Callable[[], None]) -> list[Conversation]:
    """Let an agent of one's own work on requests with its real tools, and return its conversations."""
    plain = agent.replace(speculation=False, traces=False, sampling=Sampling())
    stages = AgentStages(plain, latency_ms=None)
    return await _recorded(plain, stages, own_tasks(requests), plain.limits.turn_tokens, on_task)


@asynccontextmanager
async def _shop_agent(backend: ShopBackend, engine: Engine) -> AsyncIterator[Agent]:
    """Hold the support agent open; its runs bring their own worlds, so its own tools lead nowhere."""
    backend.add_world("none", World())
    async with (
        backend.client("none") as client,
        support_agent(client, model=engine, speculation=False, traces=False) as agent,
    ):
        yield agent.replace(sampling=Sampling())


async def _recorded(
    agent: Agent, stages: Stages, tasks: Sequence[Task], max_tokens: int, on_task: Callable[[], None]
) -> list[Conversation]:
    schemas = tuple(
        ToolSchema(name=tool.name, description=tool.description, parameters=tool.parameters) for tool in agent.tools
    )
    conversations: list[Conversation] = []
    for index, task in enumerate(tasks):
        async with stages.stage(index, task) as stage:
            async with agent.replace(tools=stage.tools).stream(task.request) as stream:
                async for _ in stream:
                    pass
            prompts = turns_of(stream.result.messages)
        if prompts:
            conversations.append(Conversation(prompts=prompts, tools=schemas, max_tokens=max_tokens))
        on_task()
    return conversations
