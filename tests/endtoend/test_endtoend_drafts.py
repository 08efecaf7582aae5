"""The demo's model decodes the same ids with every kind of draft; in bf16 it differs at ties only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from agent_runtime.decoding.drafts.base import DraftKind
from agent_runtime.decoding.requests import Finished, RowRequest, Tokens
from agent_runtime.traces.messages import Message, SystemMessage, UserMessage

from agent_runtime.bench.stages import shop_tasks
from agent_runtime.demo.agent import POCKET, shop_tools
from agent_runtime.demo.shop.backend import ShopBackend
from agent_runtime.demo.shop.instructions import INSTRUCTIONS
from agent_runtime.demo.shop.world import World
from agent_runtime.engines.base import ToolSchema
from agent_runtime.engines.drafting import KINDS
from agent_runtime.engines.local import LocalEngine

pytestmark = pytest.mark.anyio

PROMPTS = 200
TOKENS = 16
DRAFT_MODEL = Path(POCKET) / "draft"
TIE = 0.02
"""Two logits closer than this share of the logits' spread are a tie in bf16, which keeps 8 bits of a number."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def schemas() -> list[ToolSchema]:
    async with ShopBackend(latency_ms=0) as backend:
        backend.add_world("none", World())
        async with backend.client("none") as client:
            return [
                ToolSchema(name=tool.name, description=tool.description, parameters=tool.parameters)
                for tool in shop_tools(client)
            ]


async def prompts(engine: LocalEngine, count: int) -> AsyncIterator[RowRequest]:
    """Every task's request as the session would submit it."""
    session = await engine.open(await schemas())
    for task in shop_tasks(count, seed=71, first=0, phrasing="any", kinds=None):
        messages: list[Message] = [SystemMessage(INSTRUCTIONS), UserMessage(task.request)]
        guessed = await session.probe(messages, max_tokens=64)
        if guessed.call is not None:
            session.suggest(messages, guessed.call)
        turn = await session._rendered(messages)
        yield RowRequest(
            prompt=turn.prompt,
            max_new_tokens=TOKENS,
            stop_ids=session._model.eos_ids,
            owner=session.owner,
            suggestion=turn.suggestion,
            call_grammar=session._call_grammar(),
        )
    await session.aclose()


async def decode(engine: LocalEngine, request: RowRequest, *kinds: DraftKind) -> tuple[list[int], Finished]:
    assert engine._loaded is not None
    ids: list[int] = []
    async for event in engine._loaded.worker.submit(replace(request, drafts=frozenset(kinds))):
        if isinstance(event, Tokens):
            ids += event.ids
        elif isinstance(event, Finished):
            return ids, event
    raise AssertionError("a row ends with Finished")


async def test_two_hundred_prompts_decode_the_same_in_fp32_with_every_kind_of_draft() -> None:
    engine = LocalEngine(POCKET, drafts=KINDS, draft_model=DRAFT_MODEL, layers=(0, 1, 3), draft_tokens=3)
    accepted = dict.fromkeys(KINDS, 0)
    async for request in prompts(engine, PROMPTS):
        plain, _ = await decode(engine, request)
        for kind in KINDS:
            ids, finished = await decode(engine, request, kind)
            assert ids == plain, kind
            accepted[kind] += sum(part.accepted_tokens for part in finished.drafting)
        together, _ = await decode(engine, request, *KINDS)
        assert together == plain
    await engine.aclose()
    assert all(accepted.values()), accepted


async def test_bf16_differs_from_plain_decoding_at_ties_only() -> None:
    engine = LocalEngine(POCKET, dtype="bfloat16", draft_tokens=4)
    exact: Any = None
    differing = 0
    async for request in prompts(engine, 40):
        plain, _ = await decode(engine, request)
        drafted, _ = await decode(engine, request, "lookup", "suffix", "call")
        if plain == drafted:
            continue
        differing += 1
        if exact is None:
            from transformers import AutoModelForCausalLM

            exact = AutoModelForCausalLM.from_pretrained(POCKET, dtype=torch.float32).eval()
        at = next(i for i, (a, b) in enumerate(zip(plain, drafted, strict=False)) if a != b)
        with torch.inference_mode():
            logits = exact(input_ids=torch.tensor([[*request.prompt, *plain[:at]]])).logits[0, -1]
        gap = abs(float(logits[plain[at]] - logits[drafted[at]]))
        assert gap <= TIE * float(logits.max() - logits.min())
    await engine.aclose()
    assert differing < 20
