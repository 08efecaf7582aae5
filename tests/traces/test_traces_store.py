from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import is_dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import agent_runtime.traces
import anyio
import pytest
from agent_runtime.traces import AmbiguousRunId, RunNotFound, RunStillRunning, TraceStore
from agent_runtime.traces.events import EVENT_ADAPTER, STREAM_ONLY, Event, RunFinished, RunStarted, TurnStarted
from agent_runtime.traces.run_ids import new_run_id
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

Sql = Callable[..., list[tuple[object, ...]]]


async def record(store: TraceStore, started: RunStarted, *events: Event) -> str:
    async with store.start_run(started, inline=True) as writer:
        for event in (started, *events):
            writer.append(event)
    return writer.run_id


DONE = RunFinished(at=1.5, status="done", output="ok")


@pytest.mark.anyio
async def test_runs_are_listed_newest_first(store: TraceStore, started: RunStarted) -> None:
    ids = [await record(store, started, DONE) for _ in range(5)]
    assert [run.run_id for run in store.runs()] == ids[::-1]
    assert [run.run_id for run in store.runs(limit=2)] == ids[:2:-1]
    assert store.runs(agent="nobody") == []
    assert store.run("last").run_id == ids[-1]


@pytest.mark.anyio
async def test_the_order_of_runs_is_that_of_no_language(
    store: TraceStore, started: RunStarted, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ["0aa", "0ch", "0cz", "0h", "0z"]  # Danish would sort 0aa last, Czech 0ch after 0h
    made = iter(ids)
    monkeypatch.setattr("agent_runtime.traces.recorder.new_run_id", lambda: next(made))
    for _ in ids:
        await record(store, started, DONE)
    assert [run.run_id for run in store.runs()] == ids[::-1]
    if "postgresql" in store.name:
        assert set(sql("SELECT DISTINCT collation_name FROM information_schema.columns WHERE column_name = 'run_id'")) == {("C",)}  # fmt: skip # noqa: E501


@pytest.mark.anyio
async def test_a_run_is_found_by_the_beginning_of_its_id(
    store: TraceStore, started: RunStarted, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = iter(["0abc", "0abd", "0abcd"])
    monkeypatch.setattr("agent_runtime.traces.recorder.new_run_id", lambda: next(ids))
    for _ in range(3):
        await record(store, started, DONE)
    assert store.run("0abd").run_id == "0abd"
    assert store.run("0abc").run_id == "0abc", "a whole id is never ambiguous"
    with pytest.raises(AmbiguousRunId, match="0ab"):
        store.run("0ab")
    for nothing in ("zz", "", "%", "0ab_"):
        with pytest.raises(RunNotFound, match="agent runs list"):
            store.run(nothing)
    with pytest.raises(RunNotFound):
        store.events("zz")


@pytest.mark.anyio
async def test_a_removed_run_leaves_nothing_behind(store: TraceStore, started: RunStarted) -> None:
    run_id, kept = await record(store, started, DONE), await record(store, started, DONE)
    assert store.remove(run_id[:10]) == run_id
    with pytest.raises(RunNotFound):
        store.run(run_id)
    statistics = store.statistics()
    assert (statistics.runs, statistics.events, statistics.runs_by_status) == (1, 2, {"done": 1})
    assert store.run(kept).status == "done"
    async with store.start_run(started) as writer:
        with pytest.raises(RunStillRunning, match=str(os.getpid())):
            store.remove(writer.run_id)


@pytest.mark.anyio
async def test_events_of_a_newer_version_are_skipped_and_counted(
    store: TraceStore, started: RunStarted, sql: Sql
) -> None:
    run_id = await record(store, started, TurnStarted(turn=0, at=0.0), DONE)
    sql('INSERT INTO events VALUES (?, 97, 0, 0.5, \'dream\', \'{"type": "dream", "at": 0.5}\')', run_id)
    sql("INSERT INTO events VALUES (?, 98, 0, 0.5, 'run_finished', '{\"type\": \"run_finished\", \"at\": 1, \"status\": \"enlightened\", \"output\": \"\"}')", run_id)  # fmt: skip # noqa: E501
    sql("INSERT INTO events VALUES (?, 99, 0, 0.5, 'turn_started', '{\"type\": \"turn_started\", \"turn\": 1, \"at\": 0.5, \"mood\": 7}')", run_id)  # fmt: skip # noqa: E501
    events = store.events(run_id)
    assert [event.type for event in events] == ["run_started", "turn_started", "run_finished", "turn_started"]
    assert events.skipped == 2


@pytest.mark.anyio
async def test_a_run_not_heard_of_for_long_is_interrupted(store: TraceStore, started: RunStarted, sql: Sql) -> None:
    async with store.start_run(started) as writer:
        assert store.run(writer.run_id).status == "running"
        sql("UPDATE runs SET host = 'elsewhere', pid = 4194305")
        assert store.run(writer.run_id).status == "running", "nobody here can know"
        sql("UPDATE runs SET heartbeat_at = '2025-03-01 12:00:00.000000'")
        assert store.run(writer.run_id).status == "interrupted"
        assert store.statistics().runs_by_status == {"interrupted": 1}


PROGRAM = """
import sys
import anyio
from agent_runtime.traces import TraceStore
from agent_runtime.traces.events import RunStarted, TurnStarted

async def main():
    started = RunStarted(at=0.0, agent="shop", model="pocket", task="wait")
    store = TraceStore.open(sys.argv[1])
    async with store.start_run(started) as writer:
        writer.append(started)
        for turn in range(50):
            writer.append(TurnStarted(turn=turn, at=turn / 10))
        await writer.durable()
        print(writer.run_id, flush=True)
        sys.stdin.read()

anyio.run(main)
"""


def test_a_killed_run_stays_readable_and_shows_as_interrupted(where: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        run_id = process.stdout.readline().strip()
        with TraceStore.open(where) as store:
            assert store.run(run_id).status == "running"
            process.send_signal(signal.SIGKILL)
            process.wait()
            (run,) = store.runs()
            assert (run.run_id, run.status, run.task, run.output) == (run_id, "interrupted", "wait", None)
            assert len(list(store.events(run_id))) == 51
            assert len(store.ledger(run_id).turns) == 50
            store.remove(run_id)


def test_ids_are_short_unique_and_in_the_order_of_their_making() -> None:
    ids = [new_run_id() for _ in range(2000)]
    assert ids == sorted(ids) and len(set(ids)) == 2000
    assert {len(run_id) for run_id in ids} == {11}
    assert not set("last") <= set("".join(ids)), "`last` is no beginning of an id"


@pytest.mark.anyio
async def test_two_processes_that_hit_upon_one_id_get_two(
    store: TraceStore, started: RunStarted, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = iter(["same", "same", "other"])
    monkeypatch.setattr("agent_runtime.traces.recorder.new_run_id", lambda: next(ids))
    assert [await record(store, started, DONE) for _ in range(2)] == ["same", "other"]


def test_the_public_names_are_sorted_and_there() -> None:
    names = agent_runtime.traces.__all__
    assert names == sorted(names)
    assert all(hasattr(agent_runtime.traces, name) for name in names)


# --- any event comes back as it was -------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_characters=":=", exclude_categories=["Cs"]), max_size=12)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=4)


def of(hint: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for the type of a field."""
    plain = {int: st.integers(0, 2**31 - 1), float: NUMBER, str: TEXT, bool: st.booleans(), type(None): st.none()}
    if hint in plain:
        return plain[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, UnionType):
        return st.one_of(*map(of, arguments))
    if origin is tuple:
        return st.lists(of(arguments[0]), max_size=3).map(tuple)
    if is_dataclass(hint):
        return st.builds(hint, **{name: of(field) for name, field in get_type_hints(hint).items()})
    return OBJECT


EVENTS = of(Event)


@given(EVENTS)
def test_every_event_survives_json(event: Event) -> None:
    assert EVENT_ADAPTER.validate_json(EVENT_ADAPTER.dump_json(event)) == event


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(EVENTS, max_size=12))
def test_every_event_survives_the_store(store: TraceStore, events: list[Event]) -> None:
    async def main() -> str:
        async with store.start_run(RunStarted(at=0.0, agent="a", model="m", task="t"), inline=True) as writer:
            for event in events:
                writer.append(event)
        return writer.run_id

    reader = store.events(anyio.run(main))
    assert list(reader) == [event for event in events if not isinstance(event, STREAM_ONLY)]
    assert reader.skipped == 0
