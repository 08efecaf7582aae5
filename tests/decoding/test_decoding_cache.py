"""The prefix store: what is re-used, what is copied, what is evicted, and that a fork leaves its source alone."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
import torch
from agent_runtime.decoding.cache import common_prefix
from agent_runtime.decoding.errors import KvBudgetExceeded
from agent_runtime.decoding.requests import Finished, Ready, RowRequest, Tokens
from agent_runtime.decoding.worker import ModelWorker

from .conftest import VOCAB, Gate, collect, plain_greedy

pytestmark = pytest.mark.anyio
PROMPT = tuple((7 * i + 3) % VOCAB for i in range(100))
BYTES_PER_TOKEN = 2 * 2 * 2 * 32 * 4  # layers, keys and values, heads, size, fp32


def request(prompt: tuple[int, ...] = PROMPT, count: int = 5, owner: str = "a", background: bool = False) -> RowRequest:
    return RowRequest(prompt=prompt, max_new_tokens=count, owner=owner, background=background)


def test_common_prefix_finds_the_first_difference_wherever_it_is() -> None:
    a = list(range(1000))
    for at in (0, 1, 63, 64, 65, 191, 192, 500, 999):
        b = [*a[:at], -1, *a[at + 1 :]]
        assert common_prefix(a, b, 2000) == at
        assert common_prefix(a, b, 7) == min(7, at)
    assert common_prefix(a, a, 2000) == 1000


async def test_the_next_turn_reuses_its_own_cache_in_place(qwen3: Any) -> None:
    with ModelWorker(qwen3) as worker:
        first = await collect(worker, request())
        assert first.ready == Ready(prompt_tokens=100, reused_tokens=0, bytes_copied=0)
        # The last new token never passed the model, so 104 tokens are in the cache.
        second = await collect(worker, request((*PROMPT, *first.ids, 1, 2, 3)))
        assert second.ready == Ready(prompt_tokens=108, reused_tokens=104, bytes_copied=0)
        assert worker.statistics().cache_entries == 1
        # A template that drops earlier thinking: the text differs from token 60 on.
        third = await collect(worker, request((*PROMPT[:60], *range(40))))
        assert third.ready == Ready(prompt_tokens=100, reused_tokens=60, bytes_copied=0)


async def test_another_conversation_copies_the_common_prefix(qwen3: Any) -> None:
    with ModelWorker(qwen3) as worker:
        await collect(worker, request())
        run = await collect(worker, request((*PROMPT[:70], 1, 2, 3), owner="b"))
        assert run.ready == Ready(prompt_tokens=73, reused_tokens=70, bytes_copied=70 * BYTES_PER_TOKEN)
        assert run.ids == plain_greedy(qwen3, [*PROMPT[:70], 1, 2, 3], 5)
        statistics = worker.statistics()
        assert (statistics.reused_tokens, statistics.prefilled_tokens) == (70, 103)
        assert statistics.cache_entries == 2


async def test_a_prompt_can_be_prefilled_without_decoding(qwen3: Any) -> None:
    with ModelWorker(qwen3) as worker:
        run = await collect(worker, request(count=0))
        assert run.ids == [] and run.finished is not None and run.finished.reason == "length"
        after = await collect(worker, request())
        assert after.ready is not None and after.ready.reused_tokens == 99
        again = await collect(worker, request(PROMPT, count=0))
        assert again.ready is not None and again.ready.reused_tokens == 99
        assert after.ids == plain_greedy(qwen3, list(PROMPT), 5)


async def test_a_probe_forks_from_the_running_row_and_leaves_its_bytes_alone(qwen3: Any) -> None:
    with ModelWorker(qwen3) as worker:
        gate = Gate(worker)
        gate.close()
        agent = worker.submit(request(count=40))
        gate.let_pass(20)  # the prompt and 19 tokens
        for _ in range(21):
            await anyio.to_thread.run_sync(gate.wait_for_a_forward)
        # The model thread stands before the 20th decoding step: 100 + 19 tokens are cached.
        (state,) = worker._scheduler.running
        cache: Any = state.cache
        assert cache.length == 119
        before = cache.buffer[:, :, :, :119].clone()
        probe = worker.submit(request((*PROMPT, *agent.tokens_so_far[:10], 5, 6), 12, background=True))
        gate.open()
        (ready,) = [event async for event in probe if isinstance(event, Ready)]
        assert (ready.reused_tokens, ready.bytes_copied) == (110, 110 * BYTES_PER_TOKEN)
        events = [event async for event in agent]
        (finished,) = (event for event in events if isinstance(event, Finished))
        assert finished.shared_forwards >= 11
        assert torch.equal(before, cache.buffer[:, :, :, :119])
        ids = [token for event in events if isinstance(event, Tokens) for token in event.ids]
        assert ids == plain_greedy(qwen3, list(PROMPT), 40)


async def test_a_probe_waits_for_its_agents_prefill_instead_of_reading_twice(qwen3: Any) -> None:
    with ModelWorker(qwen3, prefill_chunk=32) as worker:
        gate = Gate(worker)
        gate.close()
        runs: dict[str, Any] = {}

        async def run(name: str, **kwargs: Any) -> None:
            runs[name] = await collect(worker, request(**kwargs))

        async with anyio.create_task_group() as group:
            group.start_soon(lambda: run("agent"))
            await anyio.to_thread.run_sync(gate.wait_for_a_forward)
            group.start_soon(lambda: run("probe", prompt=(*PROMPT, 1, 2), background=True))
            group.start_soon(lambda: run("other", prompt=(*PROMPT[:80], 9), owner="b"))
            await anyio.wait_all_tasks_blocked()
            gate.open()
        assert runs["probe"].ready.reused_tokens == 100
        assert runs["other"].ready.reused_tokens == 80
        assert worker.statistics().prefilled_tokens == 100 + 2 + 1


async def test_a_probe_before_its_turn_reads_the_prompt_for_it(qwen3: Any) -> None:
    with ModelWorker(qwen3) as worker:
        first = await collect(worker, request())
        prompt = (*PROMPT, *first.ids, 5, 6, 7)
        probe = await collect(worker, request((*prompt, 1, 2), background=True))
        assert probe.ready is not None and probe.ready.bytes_copied == 104 * BYTES_PER_TOKEN
        turn = await collect(worker, request(prompt))
        assert turn.ready == Ready(prompt_tokens=108, reused_tokens=107, bytes_copied=0)
        assert turn.ids == plain_greedy(qwen3, list(prompt), 5)


async def test_a_probe_beside_its_turn_leaves_no_entry_behind(qwen3: Any) -> None:
    with ModelWorker(qwen3) as worker:
        agent = worker.submit(request(count=300))
        probe = await collect(worker, request((*PROMPT, 1, 2), background=True))
        assert probe.finished is not None and probe.ready is not None
        assert probe.ready.bytes_copied == 100 * BYTES_PER_TOKEN
        assert worker.statistics().cache_entries == 0
        await agent.aclose()
        assert worker.statistics().cache_entries == 1


async def test_idle_entries_are_evicted_oldest_first_and_forgotten_by_owner(qwen3: Any) -> None:
    room = 110 * BYTES_PER_TOKEN
    with ModelWorker(qwen3, kv_budget_bytes=3 * room) as worker:
        for index in range(5):
            await collect(worker, request(tuple((index + token) % VOCAB for token in PROMPT), owner=str(index)))
        statistics = worker.statistics()
        assert statistics.evictions >= 2 and statistics.cache_bytes <= 3 * room
        recent = await collect(worker, request(tuple((4 + token) % VOCAB for token in PROMPT), owner="4"))
        assert recent.ready is not None and recent.ready.reused_tokens == 99
        oldest = await collect(worker, request(PROMPT, owner="0"))
        assert oldest.ready is not None and oldest.ready.reused_tokens == 0
        worker.forget("0")
        again = await collect(worker, request(PROMPT, owner="0"))
        assert again.ready is not None and again.ready.reused_tokens == 0


async def test_a_row_larger_than_the_budget_is_refused_and_one_that_grows_too_large_ends(qwen3: Any) -> None:
    with ModelWorker(qwen3, kv_budget_bytes=110 * BYTES_PER_TOKEN) as worker:
        with pytest.raises(KvBudgetExceeded, match="Raise kv_budget_bytes"):
            worker.submit(request(tuple(range(111))))
        with pytest.raises(KvBudgetExceeded):
            await collect(worker, request(count=50))
        assert len((await collect(worker, request(count=9))).ids) == 9


async def test_rows_that_do_not_fit_together_take_turns_and_stay_correct(qwen3: Any) -> None:
    with ModelWorker(qwen3, kv_budget_bytes=260 * BYTES_PER_TOKEN) as worker:
        runs: dict[int, Any] = {}

        async def one(index: int) -> None:
            prompt = tuple((index * 11 + token) % VOCAB for token in PROMPT)
            runs[index] = await collect(worker, request(prompt, 20, owner=str(index), background=index % 2 == 1))
            assert runs[index].ids == plain_greedy(qwen3, list(prompt), 20)

        async with anyio.create_task_group() as group:
            for index in range(6):
                group.start_soon(one, index)
        assert len(runs) == 6
