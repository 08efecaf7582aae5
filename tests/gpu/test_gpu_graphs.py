"""Captured forwards on a real device; skipped without one."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest
import torch
from agent_runtime.decoding.drafts.lookup import LookupDraft
from agent_runtime.decoding.executor import FINAL, Block, choose_executor
from agent_runtime.decoding.graphs import GraphExecutor
from agent_runtime.decoding.lean import LeanExecutor
from agent_runtime.decoding.requests import RowRequest, Tokens
from agent_runtime.decoding.static_attention import PLAIN, SplitAttention
from agent_runtime.decoding.worker import ModelWorker
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

VOCAB = 1000
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 512,
    "max_position_embeddings": 4096,
}
CONFIGS = {"qwen3": Qwen3Config(**SHAPE, head_dim=64), "llama": LlamaConfig(**SHAPE)}


def build(name: str = "qwen3", dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name], dtype=torch.float32)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(3)  # spread logits, so that greedy choices are no ties
    return model.to("cuda", dtype).eval()


def some_ids(count: int, seed: int = 0) -> list[int]:
    return torch.randint(0, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def assert_near(ours: torch.Tensor, expected: torch.Tensor, within: float = 1e-4) -> None:
    assert ours.shape == expected.shape and bool(ours.isfinite().all())
    assert float((ours - expected).norm()) <= within * float(expected.norm())


@contextmanager
def no_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def prefilled(executor: LeanExecutor, lengths: list[int]) -> list[Any]:
    caches = [executor.new_cache(length) for length in lengths]
    for index, cache in enumerate(caches):
        executor.forward([Block(cache, some_ids(lengths[index], index), lengths[index])])
    return caches


def test_graphs_are_chosen_and_captured_by_themselves() -> None:
    with torch.no_grad():
        executor = choose_executor(build(), "auto")
    assert isinstance(executor, GraphExecutor)
    assert isinstance(executor._attention, SplitAttention)  # the first choice has stood its trial
    assert executor.shapes and all(graph.replay is not None for graph in executor._graphs.values())


@pytest.mark.parametrize("attention", [PLAIN, SplitAttention()], ids=["one pass", "chunks"])
@pytest.mark.parametrize("fuse", [False, True], ids=["plain pieces", "compiled pieces"])
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05)])
@torch.inference_mode()
def test_replays_equal_the_lean_executor(attention: Any, fuse: bool, dtype: torch.dtype, within: float) -> None:
    executor = GraphExecutor(build(dtype=dtype), attention=attention, fuse=fuse)
    lean = LeanExecutor(build(dtype=dtype))
    lengths = [700, 33, 260]
    ours, theirs = prefilled(executor, lengths), prefilled(lean, lengths)
    rng = random.Random(0)
    for step in range(30):
        rows = rng.sample(range(3), rng.randrange(1, 4))
        parts = [(row, some_ids(rng.choice([1, 1, 3, 8, 16]), step + row)) for row in rows]
        tree = tuple(rng.randrange(-1, index) for index in range(len(parts[0][1]) - 1)) if step % 3 == 0 else ()
        taps = (FINAL, 1) if step % 4 == 0 else ()
        found, expected = (
            side.forward_tapped(
                [Block(caches[row], ids, 0, tree if not at else ()) for at, (row, ids) in enumerate(parts)], taps
            )
            for side, caches in ((executor, ours), (lean, theirs))
        )
        assert_near(found[0], expected[0], within)
        for state, other in zip(found[1], expected[1], strict=True):
            assert_near(state.float(), other.float(), within)
        if tree:
            kept = ours[rows[0]].length - len(tree)
            for side, caches in ((executor, ours), (lean, theirs)):
                side.keep(caches[rows[0]], kept, [kept + len(tree) - 1])
    assert executor._failure is None


@pytest.mark.parametrize("name", ["qwen3", "llama"])
@torch.inference_mode()
def test_shapes_of_as_many_tokens_do_not_share_a_graph(name: str) -> None:
    executor, lean = GraphExecutor(build(name), lanes=8), LeanExecutor(build(name))
    lengths = [40 + 9 * row for row in range(8)]
    ours, theirs = prefilled(executor, lengths), prefilled(lean, lengths)
    for _ in range(3):
        for batch, q_len in ((1, 8), (2, 4), (4, 2), (8, 1)):
            found, expected = (
                side.forward([Block(caches[row], some_ids(q_len, row), 0) for row in range(batch)])
                for side, caches in ((executor, ours), (lean, theirs))
            )
            assert_near(found, expected)


@torch.inference_mode()
def test_lanes_that_grow_are_captured_again() -> None:
    executor, lean = GraphExecutor(build(), lanes=1, capacity=64), LeanExecutor(build())
    ours, theirs = prefilled(executor, [30]), prefilled(lean, [30])
    generations = set()
    for step in range(60):
        if step % 20 == 10:
            for side, caches in ((executor, ours), (lean, theirs)):
                caches.append(side.fork(caches[0], caches[0].length, 0)[0])
        found, expected = (
            side.forward([Block(cache, some_ids(4, step), 0) for cache in caches])
            for side, caches in ((executor, ours), (lean, theirs))
        )
        assert_near(found, expected)
        generations.add(executor.pool.generation)
    assert len(generations) > 2


@torch.inference_mode()
def test_a_step_of_a_known_shape_does_not_wait_for_the_device() -> None:
    executor = GraphExecutor(build())
    (cache,) = prefilled(executor, [100])
    executor.forward([Block(cache, some_ids(4), 0)])
    executor.crop(cache, 100)
    torch.cuda.synchronize()
    with no_waiting():
        logits = executor.forward([Block(cache, some_ids(4), 0)])
        picks = executor.picks
    assert picks is not None
    ids, logprobs = picks.read()
    assert ids == logits.argmax(-1).tolist()
    assert logprobs == pytest.approx(logits.log_softmax(-1).amax(-1).tolist(), abs=1e-4)


@torch.inference_mode()
def test_steps_issued_without_waiting_do_not_overwrite_each_others_tables() -> None:
    executor, lean = GraphExecutor(build()), LeanExecutor(build())
    ours, theirs = prefilled(executor, [50, 60]), prefilled(lean, [50, 60])
    for row in (0, 1):
        executor.forward([Block(ours[row], some_ids(4, 99), 0)])
        executor.crop(ours[row], 50 + 10 * row)
    found = [executor.forward([Block(ours[step % 2], some_ids(4, step), 0)]) for step in range(20)]
    for step, logits in enumerate(found):
        assert_near(logits, lean.forward([Block(theirs[step % 2], some_ids(4, step), 0)]))


@torch.inference_mode()
def test_another_thread_may_use_the_device_while_a_forward_is_captured() -> None:
    executor, done = GraphExecutor(build()), threading.Event()

    def allocate() -> None:
        while not done.is_set():
            torch.randn(1 << 16, device="cuda").sum().item()

    other = threading.Thread(target=allocate)
    other.start()
    try:
        (cache,) = prefilled(executor, [40])
        for count in (1, 2, 4, 8, 16):
            executor.forward([Block(cache, some_ids(count), 0)])
    finally:
        done.set()
        other.join()
    assert executor._failure is None


@torch.inference_mode()
def test_what_fails_to_be_captured_runs_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    executor, lean = GraphExecutor(build()), LeanExecutor(build())
    ours, theirs = prefilled(executor, [40]), prefilled(lean, [40])
    attend = executor._attention

    class Waiting:
        mask = attend.mask

        def __call__(self, *arguments: Any) -> Any:
            torch.cuda.synchronize()  # not permitted while a stream is captured
            return attend(*arguments)

    executor._attention = Waiting()
    for step in range(3):
        found = executor.forward([Block(ours[0], some_ids(2), 0)])
        assert_near(found, lean.forward([Block(theirs[0], some_ids(2), 0)]))
        assert executor._failure is not None, step
    assert "can't be captured any more" in caplog.text


@pytest.mark.anyio
async def test_a_worker_says_the_same_with_graphs_and_without() -> None:
    prompt = tuple(some_ids(30) * 3)
    texts = []
    for executor in ("auto", "lean"):
        with ModelWorker(build(), executor=executor, drafts=[LookupDraft()]) as worker:  # type: ignore[arg-type]
            assert worker.statistics().executor == ("graph" if executor == "auto" else "lean")
            ids: dict[str, list[int]] = {}

            async def read(owner: str, background: bool, worker: ModelWorker = worker, ids: Any = ids) -> None:
                row = worker.submit(RowRequest(prompt=prompt, max_new_tokens=150, owner=owner, background=background))
                ids[owner] = [token async for event in row if isinstance(event, Tokens) for token in event.ids]

            async with anyio.create_task_group() as group:
                group.start_soon(read, "agent", False)
                group.start_soon(read, "probe", True)
            texts.append(ids)
    assert texts[0] == texts[1]
