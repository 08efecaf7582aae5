"""The built-in agent: customer support of a small online shop, on the pocket model and a real HTTP backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from agent_runtime.agent import Agent
from agent_runtime.demo.shop.backend import ShopBackend
from agent_runtime.demo.shop.client import EFFECTS, ShopClient
from agent_runtime.demo.shop.demo_world import DEMO_WORLD
from agent_runtime.demo.shop.instructions import INSTRUCTIONS
from agent_runtime.engines.base import Engine
from agent_runtime.limits import Limits
from agent_runtime.speculator.settings import Speculation
from agent_runtime.tools import Tool, tool
from agent_runtime.traces import TraceStore

POCKET = Path(__file__).parent / "pocket"
"""Folder of the model that ships with the package."""

LIMITS = Limits(turns=12, calls=16, turn_tokens=256)


def shop_tools(client: ShopClient) -> list[Tool]:
    """Return the shop's tools under their contracts, for the world that `client` talks to."""
    return [
        tool(
            effect=contract["effect"],
            reads=contract["reads"],
            writes=contract["writes"] if contract["effect"] != "read" else None,
            timeout=30.0,
        )(function)
        for function, contract in zip(client.tools(), EFFECTS.values(), strict=True)
    ]


def support_agent(
    client: ShopClient,
    *,
    model: str | Path | Engine = POCKET,
    device: str = "auto",
    speculation: bool | Speculation = True,
    traces: bool | str | Path | TraceStore = True,
) -> Agent:
    """Return the support agent for the world that `client` talks to."""
    return Agent(
        "shop",
        model,
        instructions=INSTRUCTIONS,
        tools=shop_tools(client),
        speculation=speculation,
        limits=LIMITS,
        traces=traces,
        device=device,
    )


@asynccontextmanager
async def shop_agent(
    *,
    model: str | Path | Engine = POCKET,
    device: str = "auto",
    speculation: bool | Speculation = True,
    traces: bool | str | Path | TraceStore = True,
    latency_ms: float | Mapping[str, float | tuple[float, float]] | None = None,
) -> AsyncIterator[Agent]:
    """Start the demo's shop on the loopback interface and hold its support agent open.

    `latency_ms` is injected by the shop before it answers; None takes its realistic default.
    """
    async with ShopBackend(latency_ms=latency_ms) as backend:
        backend.add_world("demo", DEMO_WORLD)
        async with (
            backend.client("demo") as client,
            support_agent(client, model=model, device=device, speculation=speculation, traces=traces) as agent,
        ):
            yield agent
