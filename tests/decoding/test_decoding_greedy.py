"""Greedy rows equal the library's plain decoding, whatever other rows do meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from agent_runtime.decoding.requests import RowRequest, Sampling
from agent_runtime.decoding.worker import ModelWorker

from .conftest import VOCAB, collect, generate_greedy, plain_greedy

pytestmark = pytest.mark.anyio


async def agent_with_probes(worker: ModelWorker, prompt: list[int], count: int, rng: random.Random) -> list[int]:
    """Decode a row while probes join and leave at random tokens; some are cancelled half-way."""
    row = worker.submit(RowRequest(prompt=tuple(prompt), max_new_tokens=count, owner="agent"))
    ids: list[int] = []

    async def probe(position: int, length: int, give_up: bool) -> None:
        suffix = [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 12))]
        request = RowRequest(
            prompt=(*prompt, *ids[:position], *suffix),
            max_new_tokens=length,
            sampling=Sampling(temperature=rng.choice([0.0, 1.0])),
            owner="agent",
            background=True,
        )
        probe_row = worker.submit(request)
        async for _ in probe_row:
            if give_up:
                await probe_row.aclose()

    async with anyio.create_task_group() as group:
        async for event in row:
            ids.extend(getattr(event, "ids", ()))
            if rng.random() < 0.1:
                group.start_soon(probe, rng.randrange(len(ids) + 1), rng.randrange(1, 15), rng.random() < 0.3)
    return ids


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "llama-biased"])
async def test_ids_equal_generate_with_probes_joining_and_leaving(name: str, model_of: Callable[[str], Any]) -> None:
    model, rng = model_of(name), random.Random(name)
    with ModelWorker(model, prefill_chunk=32) as worker:
        assert worker.statistics().executor == "lean"
        for round_ in range(3):
            prompt = [rng.randrange(VOCAB) for _ in range(rng.choice([1, 30, 150]))]
            ids = await agent_with_probes(worker, prompt, 300, rng)
            assert ids == generate_greedy(model, prompt, 300), round_
        assert worker.statistics().bytes_copied > 0


@pytest.mark.parametrize("name", ["gemma3", "gpt2", "mistral-sliding"])
async def test_the_padded_batch_equals_generate_too(name: str, model_of: Callable[[str], Any]) -> None:
    model, rng = model_of(name), random.Random(name)
    with ModelWorker(model, prefill_chunk=32) as worker:
        assert worker.statistics().executor == "hf"
        prompt = [rng.randrange(VOCAB) for _ in range(40)]
        ids = await agent_with_probes(worker, prompt, 120, rng)
        assert ids == generate_greedy(model, prompt, 120)


@pytest.mark.parametrize(
    "name", ["llama", "gemma3", "gpt2", "mistral-sliding", "mamba", "lfm2", "qwen3-next", "falcon-h1"]
)
async def test_every_kind_of_cache_is_reused_only_where_that_is_correct(
    name: str, model_of: Callable[[str], Any]
) -> None:
    model, rng = model_of(name), random.Random(3)
    recurrent = name in {"mamba", "lfm2", "qwen3-next", "falcon-h1"}
    prompt = [rng.randrange(VOCAB) for _ in range(37)]
    with ModelWorker(model, executor="hf", prefill_chunk=16) as worker:
        assert worker.statistics().co_decodes is not recurrent

        async def decode(ids: list[int], count: int, *, background: bool = False) -> Any:
            run = await collect(
                worker, RowRequest(prompt=tuple(ids), max_new_tokens=count, owner="a", background=background)
            )
            assert run.ids == plain_greedy(model, ids, count)
            return run

        first = (await decode(prompt, 5)).ids
        runs: list[Any] = []

        async def keep(*args: Any, **kwargs: Any) -> None:
            runs.append(await decode(*args, **kwargs))

        async with anyio.create_task_group() as group:
            group.start_soon(lambda: keep(prompt + first, 12))
            group.start_soon(lambda: keep([*prompt, *first, 7, 8, 9], 9, background=True))
        for run in runs:
            assert run.ready.reused_tokens >= len(prompt) + len(first) - 1
            assert (run.finished.shared_forwards == 0) == recurrent
        # The template dropped some of what was generated: the text differs after the prompt.
        third = await decode([*prompt, 1, 2, 3, 4], 5)
        assert third.ready.reused_tokens == len(prompt) - (1 if recurrent else 0)


async def test_deterministic_rows_run_in_forwards_of_their_own(qwen3: Any) -> None:
    prompt = tuple(range(50))
    with ModelWorker(qwen3, deterministic=True, prefill_chunk=16) as worker:
        runs: list[Any] = []

        async def one(background: bool) -> None:
            request = RowRequest(prompt=prompt, max_new_tokens=30, owner="a", background=background)
            runs.append(await collect(worker, request))

        alone = await collect(worker, RowRequest(prompt=prompt, max_new_tokens=30, owner="alone"))
        worker.forget("alone")
        async with anyio.create_task_group() as group:
            group.start_soon(one, False)
            group.start_soon(one, True)
        for run in runs:
            assert run.finished.shared_forwards == 0
            assert (run.ids, run.logprobs) == (alone.ids, alone.logprobs)
