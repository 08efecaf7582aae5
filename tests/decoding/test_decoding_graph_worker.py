"""A model worker on the graph executor says what it says on any other."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from agent_runtime.decoding.drafts.lookup import LookupDraft
from agent_runtime.decoding.drafts.model import ModelDraft
from agent_runtime.decoding.graphs import GraphExecutor
from agent_runtime.decoding.requests import RowRequest, Sampling
from agent_runtime.decoding.sampling import score
from agent_runtime.decoding.worker import ModelWorker

from .conftest import CONFIGS, VOCAB, Gate, build, collect, plain_greedy
from .test_decoding_drafting import Oracle
from .test_decoding_greedy import agent_with_probes

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """One event loop: what is tested here happens on the model thread."""
    return "asyncio"


def prompt_of(seed: int, length: int = 40) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(length)]


@pytest.mark.parametrize("name", ["qwen3", "llama-biased"])
async def test_ids_equal_plain_decoding_with_probes_joining_and_leaving(
    name: str, model_of: Callable[[str], Any]
) -> None:
    model, rng = model_of(name), random.Random(name)
    with ModelWorker(model, executor="graph", prefill_chunk=32) as worker:
        assert worker.statistics().executor == "graph" and worker.statistics().co_decodes
        prompt = prompt_of(5, 70)
        ids = await agent_with_probes(worker, prompt, 120, rng)
        assert ids == plain_greedy(model, prompt, 120)


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
async def test_ids_equal_plain_decoding_with_drafts_that_are_often_wrong(qwen3: Any, tree: bool) -> None:
    prompts = [prompt_of(seed) for seed in range(5)]
    texts = [prompt + plain_greedy(qwen3, prompt, 50) for prompt in prompts]
    draft = Oracle(*texts, wrong=0.2, tree=tree)
    with ModelWorker(qwen3, executor="graph", drafts=[draft], draft_tokens=8) as worker:
        executor: Any = worker._executor
        runs: dict[int, Any] = {}

        async def one(index: int) -> None:
            asked = RowRequest(prompt=tuple(prompts[index]), max_new_tokens=50, owner=str(index))
            runs[index] = await collect(worker, asked)

        async with anyio.create_task_group() as group:
            for index in range(5):
                group.start_soon(one, index)
        shapes = {(key.batch, key.q_len) for key in executor.shapes}
    for index, text in enumerate(texts):
        assert runs[index].ids == text[40:]
        assert runs[index].finished.forwards < 50
    assert any(batch > 1 and q_len > 1 for batch, q_len in shapes)


async def test_a_draft_model_runs_in_shapes_of_its_own(qwen3: Any) -> None:
    prompt = prompt_of(9)
    with ModelWorker(
        qwen3, executor="graph", drafts=[ModelDraft(build(CONFIGS["qwen3"](), seed=0), executor="graph")]
    ) as worker:
        run = await collect(worker, RowRequest(prompt=tuple(prompt), max_new_tokens=60))
    assert run.ids == plain_greedy(qwen3, prompt, 60)
    assert run.finished is not None and run.finished.forwards < 40


async def test_sampled_rows_draw_the_same_as_on_the_lean_executor(qwen3: Any) -> None:
    asked = RowRequest(prompt=tuple(prompt_of(2)), max_new_tokens=40, sampling=Sampling(temperature=0.8, seed=3))
    ids = []
    for executor in ("graph", "lean"):
        with ModelWorker(qwen3, executor=executor, drafts=[LookupDraft()]) as worker:  # type: ignore[arg-type]
            ids.append((await collect(worker, asked)).ids)
    assert ids[0] == ids[1]


@pytest.mark.parametrize("drafted", [0, 3])
async def test_deterministic_rows_decode_in_one_shape(qwen3: Any, drafted: int) -> None:
    prompt = tuple(prompt_of(4, 64))
    drafts = [LookupDraft()] if drafted else []
    with ModelWorker(
        qwen3, executor="graph", deterministic=True, prefill_chunk=32, drafts=drafts, draft_tokens=drafted or None
    ) as worker:
        runs: list[Any] = []

        async def one(owner: str, background: bool) -> None:
            request = RowRequest(prompt=prompt, max_new_tokens=30, owner=owner, background=background)
            runs.append(await collect(worker, request))

        alone = await collect(worker, RowRequest(prompt=prompt, max_new_tokens=30, owner="alone"))
        worker.forget("alone")
        async with anyio.create_task_group() as group:
            for owner, background in (("a", False), ("b", False), ("a", True)):
                group.start_soon(one, owner, background)
        executor = worker._executor
        assert isinstance(executor, GraphExecutor)
        # Lanes and read lengths apart: the prompts' chunks of 32 are too long for a shape.
        assert {(key.batch, key.q_len) for key in executor.shapes} == {(1, drafted + 1)}
    for run in runs:
        assert (run.ids, run.logprobs) == (alone.ids, alone.logprobs)


async def test_an_error_in_a_shared_forward_leaves_the_other_rows_whole(qwen3: Any) -> None:
    prompts = {owner: prompt_of(index) for index, owner in enumerate(("bad", "good", "fine"))}
    with ModelWorker(qwen3, executor="graph") as worker:
        gate = Gate(worker)
        forward = gate._forward
        broken: list[int] = []

        def faulty(blocks: Any, taps: Any) -> Any:
            if len(gate.forwards) > 6 and any(len(block.tokens) == 1 and block.cache.length == 45 for block in blocks):
                broken.append(len(blocks))
                raise ArithmeticError("boom")
            return forward(blocks, taps)

        gate._forward = faulty
        results: dict[str, Any] = {}

        async def one(owner: str, count: int) -> None:
            try:
                asked = RowRequest(prompt=tuple(prompts[owner]), max_new_tokens=count, owner=owner)
                results[owner] = (await collect(worker, asked)).ids
            except Exception as error:
                results[owner] = error

        async with anyio.create_task_group() as group:
            group.start_soon(one, "bad", 30)
            group.start_soon(one, "good", 4)
            group.start_soon(one, "fine", 4)
    assert isinstance(results["bad"], Exception) and broken
    for owner in ("good", "fine"):
        assert results[owner] == plain_greedy(qwen3, prompts[owner], 4)


async def test_greedy_rows_take_the_choices_that_the_forward_made(qwen3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One copy from the device serves a step; logits are looked at only where a row's choice is another."""
    prompts = [prompt_of(seed) for seed in range(3)]
    texts = [prompt + plain_greedy(qwen3, prompt, 30) for prompt in prompts]
    scored: list[int] = []

    def counted(logits: Any, ids: Any) -> Any:
        scored.append(len(ids))
        return score(logits, ids)

    monkeypatch.setattr("agent_runtime.decoding.verify.score", counted)
    runs: dict[int, Any] = {}
    with ModelWorker(qwen3, executor="graph", drafts=[Oracle(*texts, wrong=0.3, tree=True)], draft_tokens=6) as worker:

        async def one(index: int, sampling: Sampling) -> None:
            asked = RowRequest(
                prompt=tuple(prompts[index]),
                max_new_tokens=30,
                owner=str(index),
                sampling=sampling,
                background=index > 0,
            )
            runs[index] = await collect(worker, asked)

        await one(0, Sampling())
        # Beyond the prompt's own forward, which has no shape, nothing was scored.
        assert len(scored) <= 1
        async with anyio.create_task_group() as group:
            group.start_soon(one, 1, Sampling())
            group.start_soon(one, 2, Sampling(temperature=1.0, seed=1))
        assert len(scored) > 2
    for index in (0, 1):
        assert runs[index].ids == texts[index][40:]
    lean = await _plain(qwen3, prompts[0])
    assert runs[0].logprobs == pytest.approx(lean.logprobs, abs=1e-4)


async def _plain(model: Any, prompt: list[int]) -> Any:
    with ModelWorker(model, executor="lean") as worker:
        return await collect(worker, RowRequest(prompt=tuple(prompt), max_new_tokens=30))
