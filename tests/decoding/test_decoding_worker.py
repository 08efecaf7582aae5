"""The worker's life: cancellation, fairness, slow consumers, errors, closing; on asyncio and trio."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
import torch
from agent_runtime.decoding.errors import RowFailed, WorkerStopped
from agent_runtime.decoding.requests import Finished, Ready, RowRequest, Tokens
from agent_runtime.decoding.row import BUFFERED_EVENTS
from agent_runtime.decoding.slowdown import SlowdownMeter
from agent_runtime.decoding.worker import ModelWorker

from .conftest import VOCAB, Gate, collect, plain_greedy

pytestmark = pytest.mark.anyio


def request(start: int = 0, length: int = 20, count: int = 5, **kwargs: Any) -> RowRequest:
    prompt = tuple((start + 7 * token) % VOCAB for token in range(length))
    return RowRequest(prompt=prompt, max_new_tokens=count, owner=kwargs.pop("owner", str(start)), **kwargs)


async def test_a_long_prompt_can_be_cancelled_between_chunks_and_what_was_read_is_kept(qwen3: Any) -> None:
    with ModelWorker(qwen3, prefill_chunk=16) as worker:
        gate = Gate(worker)
        gate.close()
        row = worker.submit(request(length=200))
        gate.let_pass(3)
        for _ in range(4):
            await anyio.to_thread.run_sync(gate.wait_for_a_forward)
        row.cancel()
        gate.open()
        events = [event async for event in row]
        assert [type(event) for event in events] == [Finished]
        assert events[0].reason == "cancelled"
        assert worker.statistics().forwards == 4
        again = await collect(worker, request(length=200))
        assert again.ready is not None and again.ready.reused_tokens == 64


async def test_aclose_waits_until_the_cache_is_back(qwen3: Any) -> None:
    with ModelWorker(qwen3) as worker:
        row = worker.submit(request(count=500))
        async for event in row:
            if isinstance(event, Tokens):
                await row.aclose()
        assert worker.statistics().rows_running == 0 and worker.statistics().cache_entries == 1


async def test_a_cancelled_consumer_leaves_the_worker_usable(qwen3: Any) -> None:
    with ModelWorker(qwen3) as worker:
        gate = Gate(worker)
        gate.close()
        row = worker.submit(request(count=500))

        async def consume() -> None:
            try:
                async for _ in row:
                    pass
            finally:
                row.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(consume)
            await anyio.to_thread.run_sync(gate.wait_for_a_forward)
            group.cancel_scope.cancel()
        gate.open()
        assert (await collect(worker, request(3))).ids == plain_greedy(qwen3, list(request(3).prompt), 5)


async def test_a_long_prompt_does_not_stop_the_others(qwen3: Any) -> None:
    with ModelWorker(qwen3, prefill_chunk=16) as worker:
        gate = Gate(worker)
        gate.close()
        async with anyio.create_task_group() as group:
            group.start_soon(collect, worker, request(1, length=4, count=10))
            await anyio.to_thread.run_sync(gate.wait_for_a_forward)
            group.start_soon(collect, worker, request(2, length=400, count=1))
            group.start_soon(collect, worker, request(3, length=20, count=1))
            await anyio.wait_all_tasks_blocked()
            gate.open()
        # The short prompt took turns with the long one, and decoding went on beside both: at the end the long one is
        # alone. (Who is told first says nothing: rows that end within one wake-up are told together.)
        ((_, last),) = gate.forwards[-1]
        assert last > 1
        assert any(len(blocks) > 1 and max(count for _, count in blocks) > 1 for blocks in gate.forwards)
        assert max(sum(count for _, count in blocks) for blocks in gate.forwards) <= 16 + 3


async def test_background_rows_give_way_when_rows_are_short(qwen3: Any) -> None:
    with ModelWorker(qwen3, max_rows=1) as worker:
        gate = Gate(worker)
        gate.close()
        ids: dict[str, list[int]] = {}

        async def one(name: str, asked: RowRequest) -> None:
            ids[name] = (await collect(worker, asked)).ids

        async with anyio.create_task_group() as group:
            group.start_soon(one, "probe", request(1, count=30, background=True))
            gate.let_pass(5)
            for _ in range(6):
                await anyio.to_thread.run_sync(gate.wait_for_a_forward)
            group.start_soon(one, "agent", request(2, count=30))
            await anyio.wait_all_tasks_blocked()
            gate.open()
        lengths = [length for ((length, _),) in gate.forwards]
        # Who is told first says nothing: the agent's steps are the only ones that none of the others' comes between.
        own = list(range(20, 49))
        began = [at for at in range(len(lengths)) if lengths[at : at + len(own)] == own]
        assert len(began) == 1 and len(lengths) > began[0] + len(own)
        assert ids["probe"] == plain_greedy(qwen3, list(request(1).prompt), 30)


async def test_a_slow_consumer_pauses_its_own_row_only(qwen3: Any) -> None:
    count = BUFFERED_EVENTS + 200
    with ModelWorker(qwen3) as worker:
        slow = worker.submit(request(1, count=count))
        await collect(worker, request(2, count=count))
        # Nobody read the slow row meanwhile: it stands at its buffer's edge.
        assert len(slow.tokens_so_far) < count
        assert worker.statistics().rows_running == 1
        ids = [token async for event in slow if isinstance(event, Tokens) for token in event.ids]
        assert ids == plain_greedy(qwen3, list(request(1).prompt), 40) + ids[40:] and len(ids) == count


async def test_an_error_in_the_forward_ends_the_row_at_fault_only(qwen3: Any) -> None:
    with ModelWorker(qwen3) as worker:
        executor: Any = worker._executor
        forward = executor.forward_tapped

        def faulty(blocks: Any, taps: Any) -> Any:
            if any(299 in block.tokens for block in blocks):
                raise ArithmeticError("boom")
            return forward(blocks, taps)

        executor.forward_tapped = faulty
        results: dict[str, Any] = {}

        async def one(name: str, asked: RowRequest) -> None:
            try:
                results[name] = (await collect(worker, asked)).ids
            except RowFailed as error:
                results[name] = error

        bad = RowRequest(prompt=(1, 2, 299), max_new_tokens=5, owner="bad")
        async with anyio.create_task_group() as group:
            for name, asked in {"good": request(1, count=9), "bad": bad, "fine": request(4, count=9)}.items():
                group.start_soon(one, name, asked)
        assert isinstance(results["bad"], RowFailed) and isinstance(results["bad"].__cause__, ArithmeticError)
        assert "ArithmeticError: boom" in str(results["bad"])
        for name, start in (("good", 1), ("fine", 4)):
            assert results[name] == plain_greedy(qwen3, list(request(start).prompt), 9)


async def test_a_cache_that_cannot_be_made_ends_its_row_only(qwen3: Any) -> None:
    with ModelWorker(qwen3) as worker:
        executor: Any = worker._executor
        new_cache = executor.new_cache

        def scarce(tokens: int) -> Any:
            if tokens > 500:
                raise MemoryError("no room on the device")
            return new_cache(tokens)

        executor.new_cache = scarce
        with pytest.raises(RowFailed, match="MemoryError: no room on the device"):
            await collect(worker, request(1, length=300, count=300))
        assert worker.statistics().rows_running == worker.statistics().rows_waiting == 0
        assert (await collect(worker, request(4, count=9))).ids == plain_greedy(qwen3, list(request(4).prompt), 9)


async def test_closing_ends_every_row_and_joins_the_thread(qwen3: Any) -> None:
    worker = ModelWorker(qwen3)
    gate = Gate(worker)
    gate.close()
    running, waiting = worker.submit(request(1, count=300)), worker.submit(request(2))
    await anyio.to_thread.run_sync(gate.wait_for_a_forward)
    closer = threading.Thread(target=worker.close)
    closer.start()
    gate.open()
    for row in (running, waiting):
        with pytest.raises(WorkerStopped, match="closed"):
            async for _ in row:
                pass
    await anyio.to_thread.run_sync(closer.join)
    assert not worker._thread.is_alive()
    worker.close()
    with pytest.raises(WorkerStopped):
        worker.submit(request(1))


async def test_a_dead_thread_fails_every_row_with_one_clear_error(qwen3: Any, monkeypatch: Any) -> None:
    worker = ModelWorker(qwen3)

    def broken() -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(worker._scheduler, "schedule", broken)
    rows = [worker.submit(request(1)), worker.submit(request(2))]
    for row in rows:
        with pytest.raises(WorkerStopped, match="died: MemoryError: no more") as caught:
            async for _ in row:
                pass
        assert isinstance(caught.value.__cause__, MemoryError)
    with pytest.raises(WorkerStopped, match="died"):
        worker.submit(request(3))
    worker.close()


def test_a_row_whose_event_loop_is_gone_is_given_up(qwen3: Any) -> None:
    with ModelWorker(qwen3) as worker:

        async def start_and_leave() -> None:
            row = worker.submit(request(1, count=10_000))
            async for event in row:
                if isinstance(event, Ready):
                    return

        asyncio.run(start_and_leave())

        async def other() -> list[int]:
            ids = (await collect(worker, request(2))).ids
            while worker.statistics().rows_running:
                await asyncio.sleep(0)
            return ids

        assert asyncio.run(other()) == plain_greedy(qwen3, list(request(2).prompt), 5)


async def test_a_cached_prompt_is_ready_while_others_decode(qwen3: Any) -> None:
    with ModelWorker(qwen3) as worker:
        await collect(worker, request(1, count=0))
        busy = worker.submit(request(2, count=10_000))
        async for event in busy:
            if isinstance(event, Tokens):
                break
        run = await collect(worker, request(1, count=0))
        assert run.ready is not None and run.ready.reused_tokens == 19
        assert run.finished is not None and run.finished.reason == "length"
        await busy.aclose()


async def test_a_row_can_be_closed_beside_the_task_that_reads_it(qwen3: Any) -> None:
    with ModelWorker(qwen3) as worker:
        gate = Gate(worker)
        gate.close()
        row = worker.submit(request(1, count=50))

        async def read() -> None:
            async for _ in row:
                pass

        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(read)
                await anyio.wait_all_tasks_blocked()
                group.start_soon(row.aclose)
                await anyio.wait_all_tasks_blocked()
                gate.open()


async def test_counts_add_up(qwen3: Any) -> None:
    with ModelWorker(qwen3, prefill_chunk=8) as worker:
        run = await collect(worker, request(1, length=20, count=5))
        assert run.finished is not None
        assert (run.finished.forwards, run.finished.shared_forwards, run.finished.new_tokens) == (4, 0, 5)
        statistics = worker.statistics()
        assert (statistics.forwards, statistics.prefilled_tokens, statistics.new_tokens) == (3 + 4, 20, 5)
        assert (statistics.executor, statistics.co_decodes, statistics.rows) == ("lean", True, 1)
        assert run.finished.slowdown_s == 0.0 and run.finished.prefill_s > 0 < run.finished.decode_s


class FakeRow:
    def __init__(self, number: int, background: bool) -> None:
        self.number, self.background = number, background


def test_slowdown_is_what_background_rows_add_to_a_step() -> None:
    meter: Any = SlowdownMeter()
    agent, probe = FakeRow(1, False), FakeRow(2, True)
    for _ in range(3):
        meter.add([agent, probe], [1, 1], 3.0)  # before any step without the probe was seen
    for _ in range(20):
        meter.add([agent], [1], 2.0)
    meter.add([agent, probe], [1, 6], 2.5)
    meter.add([probe], [1], 9.0)
    assert meter.settle(agent) == pytest.approx(3.5)
    assert meter.settle(agent) == 0.0 == meter.settle(probe)


class Unhurried:
    """A constraint that allows everything and takes a second of a made-up clock for each mask."""

    def __init__(self, clock: list[float]) -> None:
        self.clock = clock

    def allowed(self) -> Any:
        self.clock[0] += 1.0
        return torch.ones(VOCAB, dtype=torch.bool)

    def forced(self) -> list[int]:
        return []

    def advance(self, token: int) -> None: ...

    def rollback(self, count: int) -> None: ...

    def finished(self) -> bool:
        return False


async def test_what_a_probes_grammar_takes_between_forwards_is_slowdown_too(qwen3: Any, monkeypatch: Any) -> None:
    clock = [0.0]
    monkeypatch.setattr("agent_runtime.decoding.worker.time", SimpleNamespace(perf_counter=lambda: clock[0]))
    with ModelWorker(qwen3) as worker:
        executor: Any = worker._executor
        forward = executor.forward_tapped

        def timed(blocks: Any, taps: Any) -> Any:
            clock[0] += 1.0
            return forward(blocks, taps)

        executor.forward_tapped = timed
        probe = request(1, count=6, owner="a", background=True, constraint=Unhurried(clock))
        async with anyio.create_task_group() as group:
            group.start_soon(collect, worker, probe)
            agent = await collect(worker, request(1, count=300, owner="a"))
        assert 3.0 <= agent.finished.slowdown_s <= 7.0  # six masks; forwards cost the same with the probe and without


def test_threads_are_set_before_torch_loads_and_the_users_choice_wins() -> None:
    script = (
        "import os, sys\n"
        "from agent_runtime.decoding.threads import configure_threads, default_threads\n"
        "assert 'torch' not in sys.modules\n"
        "print(configure_threads() == {expected}, os.environ['OMP_WAIT_POLICY'])\n"
    )
    for environment, expected in (({}, "default_threads()"), ({"OMP_NUM_THREADS": "3"}, "3")):
        output = subprocess.run(
            [sys.executable, "-c", script.format(expected=expected)],
            env={"PATH": "", **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        assert output.stdout.split() == ["True", "PASSIVE"]


@pytest.mark.parametrize("loaded_before", [True, False])
def test_numpys_products_get_the_same_number_of_threads(loaded_before: bool) -> None:
    script = (
        f"{'import numpy' if loaded_before else ''}\n"
        "from agent_runtime.decoding.threads import configure_threads, one_thread\n"
        "configure_threads(1)\n"
        "import numpy, torch\n"
        "print(one_thread())\n"
        "torch.set_num_threads(2)\n"
        "print(one_thread())\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", script], env={"PATH": ""}, capture_output=True, text=True, check=True
    )
    assert output.stdout.split() == ["True", "False"]


def test_a_close_that_falls_between_two_steps_is_heard(qwen3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class LateBell(threading.Event):
        """Lets a close arrive just before the bell is cleared."""

        worker: ModelWorker | None = None

        def clear(self) -> None:
            if self.worker is not None:
                self.worker._closing = True
                self.set()
            super().clear()

    monkeypatch.setattr("agent_runtime.decoding.worker.threading.Event", LateBell)
    worker = ModelWorker(qwen3)
    monkeypatch.undo()
    worker._bell.worker = worker  # type: ignore[attr-defined]
    worker._bell.set()
    worker._thread.join(timeout=30)
    assert not worker._thread.is_alive()
