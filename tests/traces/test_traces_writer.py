from __future__ import annotations

import contextlib
from collections.abc import Callable

import anyio
import pytest
import trio
import trio.testing
from agent_runtime.tools.values import ToolCall
from agent_runtime.traces import DatabaseUnavailable, MemoryTrace, TracesError, TraceStore, WriterFailed
from agent_runtime.traces.events import (
    Event,
    RunFinished,
    RunStarted,
    TextDelta,
    ThinkingDelta,
    TurnFinished,
    TurnStarted,
)

Sql = Callable[..., list[tuple[object, ...]]]
Hold = Callable[[], contextlib.AbstractContextManager[None]]

NO_TABLE = r"(no such table|relation .* does not exist)"


def turns(count: int) -> list[Event]:
    return [TurnStarted(turn=turn, at=float(turn)) for turn in range(count)]


@pytest.mark.anyio
async def test_what_is_appended_can_be_read_back_in_order(store: TraceStore, started: RunStarted) -> None:
    events = [started, *turns(1200), RunFinished(at=9.5, status="done", output="It ships today.")]
    async with store.start_run(started) as writer:
        for event in events:
            writer.append(event)
            await writer.drain_if_full()
    assert list(store.events(writer.run_id)) == events
    run = store.run(writer.run_id)
    assert (run.status, run.output, run.error, run.wall_ms) == ("done", "It ships today.", None, 9500)
    assert run.ended_at is not None and run.started_at <= run.ended_at
    assert run.summary is not None and run.summary["boundaries"] == 0


@pytest.mark.anyio
async def test_deltas_are_for_watchers_only(store: TraceStore, started: RunStarted) -> None:
    async with store.start_run(started) as writer:
        writer.append(ThinkingDelta(turn=0, at=0.1, text="hm"))
        writer.append(TextDelta(turn=0, at=0.1, text="yes"))
        await writer.durable()
    assert list(store.events(writer.run_id)) == []


@pytest.mark.anyio
async def test_durable_means_that_others_can_read_it(where: str, store: TraceStore, started: RunStarted) -> None:
    async with store.start_run(started) as writer:
        with TraceStore.open(where) as other:
            for number in range(1, 4):
                writer.append(TurnStarted(turn=number, at=0.0))
                await writer.durable()
                assert len(list(other.events(writer.run_id))) == number
                assert other.run(writer.run_id).status == "running"


@pytest.mark.anyio
async def test_appending_never_waits_and_events_gather_to_batches(
    writing_elsewhere: Hold, store: TraceStore, started: RunStarted
) -> None:
    async with store.start_run(started) as writer:
        with writing_elsewhere():
            for event in turns(100):
                writer.append(event)
            assert writer.statistics().pending == 100
        await writer.durable()
        statistics = writer.statistics()
        assert (statistics.committed, statistics.pending) == (100, 0)
        assert statistics.batches <= 3


@pytest.mark.anyio
async def test_a_full_writer_makes_the_run_wait_and_drops_nothing(
    writing_elsewhere: Hold, store: TraceStore, started: RunStarted
) -> None:
    drained = anyio.Event()

    async with store.start_run(started, capacity=10) as writer:

        async def drain() -> None:
            await writer.drain_if_full()
            drained.set()

        for event in turns(9):
            writer.append(event)
        await writer.drain_if_full()  # room for one more
        async with anyio.create_task_group() as tasks:
            with writing_elsewhere():
                for event in turns(50):
                    writer.append(event)
                tasks.start_soon(drain)
                await anyio.wait_all_tasks_blocked()
                assert not drained.is_set()
            with anyio.fail_after(30):
                await drained.wait()
            assert writer.statistics().pending < 10
    assert len(list(store.events(writer.run_id))) == 59


@pytest.mark.anyio
async def test_a_dead_writer_fails_the_run_at_the_next_event(store: TraceStore, started: RunStarted, sql: Sql) -> None:
    with pytest.raises(WriterFailed, match="can't be recorded any more.*" + NO_TABLE):
        async with store.start_run(started) as writer:
            sql("DROP TABLE events")
            writer.append(started)
            with pytest.raises(WriterFailed, match=NO_TABLE):
                await writer.durable()
            writer.append(TurnStarted(turn=0, at=0.0))


@pytest.mark.parametrize("backend", ["sqlite"])
@pytest.mark.anyio
async def test_a_full_disk_fails_the_run(store: TraceStore, started: RunStarted) -> None:
    with pytest.raises(WriterFailed, match=r"disk is full.*free some space"):
        async with store.start_run(started) as writer:
            connection = store._database._engine.raw_connection()
            connection.cursor().execute("PRAGMA max_page_count = 1")  # no more pages than there are
            connection.close()
            writer.append(RunStarted(at=0.0, agent="a", model="m", task="x" * 100_000))
            await writer.durable()


@pytest.mark.anyio
async def test_a_dead_writer_is_reported_at_the_latest_when_the_run_ends(
    store: TraceStore, started: RunStarted, sql: Sql
) -> None:
    with pytest.raises(WriterFailed, match=NO_TABLE):
        async with store.start_run(started) as writer:
            sql("DROP TABLE events")
            writer.append(started)


@pytest.mark.anyio
async def test_a_dead_writer_hides_no_error_of_the_run(store: TraceStore, started: RunStarted, sql: Sql) -> None:
    with pytest.raises(ZeroDivisionError):
        async with store.start_run(started) as writer:
            sql("DROP TABLE events")
            writer.append(started)
            raise ZeroDivisionError


@pytest.mark.anyio
async def test_a_run_whose_record_was_removed_fails(store: TraceStore, started: RunStarted, sql: Sql) -> None:
    with pytest.raises(WriterFailed, match="was removed"):
        async with store.start_run(started) as writer:
            sql("DELETE FROM runs")
            writer.append(started)
            await writer.durable()


@pytest.mark.anyio
async def test_a_run_that_cannot_get_its_row_does_not_start(store: TraceStore, started: RunStarted, sql: Sql) -> None:
    sql("ALTER TABLE runs RENAME TO walks")
    with pytest.raises(DatabaseUnavailable, match=NO_TABLE):
        async with store.start_run(started):
            pytest.fail("the body must not run")


@pytest.mark.anyio
async def test_cancelling_a_run_still_writes_what_it_did(store: TraceStore, started: RunStarted) -> None:
    with anyio.CancelScope() as scope:
        async with store.start_run(started) as writer:
            for event in turns(700):
                writer.append(event)
            scope.cancel()
            try:
                await anyio.sleep_forever()
            finally:
                writer.append(RunFinished(at=1.0, status="cancelled", output=""))
    assert scope.cancelled_caught
    assert len(list(store.events(writer.run_id))) == 701
    assert store.run(writer.run_id).status == "cancelled"


@pytest.mark.anyio
async def test_a_cancelled_run_that_said_no_last_word_is_interrupted(store: TraceStore, started: RunStarted) -> None:
    with anyio.CancelScope() as scope:
        async with store.start_run(started) as writer:
            scope.cancel()
            await anyio.sleep_forever()
    assert store.run(writer.run_id).status == "interrupted"


@pytest.mark.anyio
async def test_an_error_of_the_run_comes_out_unwrapped_after_the_flush(store: TraceStore, started: RunStarted) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with store.start_run(started) as writer:
            writer.append(started)
            raise KeyError("mine")
    assert list(store.events(writer.run_id)) == [started]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.anyio
async def test_asyncios_own_cancellation_flushes_too(store: TraceStore, started: RunStarted) -> None:
    import asyncio

    entered = asyncio.Event()
    ids: list[str] = []

    async def run() -> None:
        async with store.start_run(started) as writer:
            ids.append(writer.run_id)
            for event in turns(300):
                writer.append(event)
            entered.set()
            await asyncio.sleep(3600)

    task = asyncio.create_task(run())
    await entered.wait()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()  # a second Ctrl-C arrives while the writer flushes
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(list(store.events(ids[0]))) == 300


@pytest.mark.anyio
async def test_flushing_takes_a_bounded_time(writing_elsewhere: Hold, store: TraceStore, started: RunStarted) -> None:
    lock = contextlib.ExitStack()
    with lock, pytest.raises(WriterFailed, match="could not be written within"):
        async with store.start_run(started, flush_seconds=0.02) as writer:
            writer.append(started)
            await writer.durable()
            lock.enter_context(writing_elsewhere())
            writer.append(TurnStarted(turn=0, at=0.0))
    assert next(store.events(writer.run_id)) == started


@pytest.mark.anyio
async def test_an_idle_run_still_shows_that_it_lives(store: TraceStore, started: RunStarted) -> None:
    async with store.start_run(started, heartbeat=0.001) as writer:
        first = store.run(writer.run_id).heartbeat_at
        with anyio.fail_after(30):
            while store.run(writer.run_id).heartbeat_at == first:
                await anyio.wait_all_tasks_blocked()


@pytest.mark.anyio
async def test_many_runs_write_into_one_store_at_once(store: TraceStore, started: RunStarted) -> None:
    async def run() -> None:
        async with store.start_run(started) as writer:
            for event in turns(20):
                writer.append(event)
                await writer.durable()
            writer.append(RunFinished(at=1.0, status="done", output=""))

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(run)
    runs = store.runs(limit=None)
    assert [run.status for run in runs] == ["done"] * 20
    assert {len(list(store.events(run.run_id))) for run in runs} == {21}


@pytest.mark.anyio
async def test_writing_outside_the_context_is_an_error(store: TraceStore, started: RunStarted) -> None:
    writer = store.start_run(started)
    with pytest.raises(TracesError, match="async with"):
        writer.append(started)
    async with writer:
        pass
    with pytest.raises(TracesError, match="async with"):
        writer.append(started)


@pytest.mark.anyio
async def test_inline_writing_is_committed_when_append_returns(
    store: TraceStore, started: RunStarted, sql: Sql
) -> None:
    with pytest.raises(WriterFailed, match=NO_TABLE):
        async with store.start_run(started, inline=True) as writer:
            writer.append(started)
            assert list(store.events(writer.run_id)) == [started]
            await writer.durable()
            await writer.drain_if_full()
            sql("DROP TABLE events")
            writer.append(started)


def test_under_a_virtual_clock_no_time_passes_while_writing(store: TraceStore, started: RunStarted) -> None:
    async def main() -> float:
        with trio.fail_after(5):  # a worker thread would let the clock jump over this
            async with store.start_run(started) as writer:
                for event in turns(50):
                    writer.append(event)
                    await writer.durable()
        return trio.current_time()

    clock = trio.testing.MockClock(autojump_threshold=0)
    begun = clock.current_time()
    assert trio.run(main, clock=clock) == begun
    assert store.statistics().events == 50


@pytest.mark.anyio
async def test_a_memory_trace_keeps_events_without_a_database(started: RunStarted) -> None:
    async with MemoryTrace() as trace:
        trace.append(started)
        trace.append(TextDelta(turn=0, at=0.1, text="hi"))
        await trace.drain_if_full()
        await trace.durable()
    assert trace.events == [started]
    assert trace.run_id != MemoryTrace().run_id


@pytest.mark.anyio
async def test_the_ledger_of_each_turn_is_kept_as_a_row(store: TraceStore, started: RunStarted, sql: Sql) -> None:
    from agent_runtime.tools.values import CallDemanded, CallFinished, GuessEnded, GuessProposed, GuessStarted, Outcome

    call, outcome = ToolCall("order", {"id": 1042}), Outcome("ok", "{}", 0.25, 0.75)
    async with store.start_run(started) as writer:
        for event in [
            TurnStarted(turn=0, at=0.0),
            GuessProposed(turn=0, at=0.25, guess=0, call=call, confidence=0.75, source="self"),
            GuessStarted(turn=0, at=0.25, guess=0, tool="order"),
            CallDemanded(turn=0, at=0.5, index=0, call=call, pre_executable=True),
            TurnFinished(turn=0, at=0.5),
        ]:
            writer.append(event)
        await writer.durable()
        assert sql("SELECT turn, tool, hit, ending FROM turns") == [(0, "order", 1, None)]
        writer.append(GuessEnded(turn=0, at=0.75, guess=0, ending="joined", tool="order", matched=True, lead_ms=250.0))
        writer.append(CallFinished(turn=0, at=0.75, index=0, tool="order", outcome=outcome, guess=0))
        writer.append(RunFinished(at=1.0, status="done", output=""))
    assert sql("SELECT turn, ending, saved_ms, t_gen_ms, confidence FROM turns") == [(0, "joined", 250.0, 500.0, 0.75)]
    summary = store.run(writer.run_id).summary
    assert summary == store.ledger(writer.run_id).summary()
    assert summary is not None and summary["hit_at_1"] == 1.0
