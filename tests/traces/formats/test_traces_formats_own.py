"""Our own export, which loses nothing; runs as trajectories and back; runs put into a store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_runtime.tools.values import CallFinished, MalformedCall, ToolCall
from agent_runtime.traces import TraceStore
from agent_runtime.traces.events import RunStarted
from agent_runtime.traces.formats import (
    RecordedRun,
    UnreadableFile,
    UnwritableFile,
    import_run,
    read,
    run_of,
    trajectory_of,
    write,
)
from agent_runtime.traces.messages import AssistantMessage, SystemMessage, UserMessage
from agent_runtime.traces.trajectory import RecordedResult, RecordedTool, RecordedTurn, Trajectory
from hypothesis import given
from hypothesis import strategies as st

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SECONDS = st.none() | st.floats(0, 1e6)
JSON = st.recursive(st.none() | st.booleans() | st.integers() | TEXT, lambda inner: st.lists(inner, max_size=3))
CALLS = st.builds(ToolCall, TEXT.filter(bool), st.dictionaries(TEXT, JSON, max_size=2)) | st.builds(
    MalformedCall, TEXT, TEXT
)
RESULTS = st.none() | st.builds(RecordedResult, content=TEXT, latency_s=SECONDS, failed=st.booleans())
SAID = st.lists(st.builds(SystemMessage, TEXT) | st.builds(UserMessage, TEXT), max_size=3).map(tuple)


@st.composite
def turns(draw: st.DrawFn) -> RecordedTurn:
    answered = draw(st.lists(st.tuples(CALLS, RESULTS), max_size=3))
    return RecordedTurn(
        before=draw(SAID),
        message=AssistantMessage(text=draw(TEXT), thinking=draw(TEXT), calls=tuple(call for call, _ in answered)),
        results=tuple(result for _, result in answered),
        generation_s=draw(SECONDS),
    )


TRAJECTORIES = st.builds(
    Trajectory,
    id=TEXT,
    format=st.sampled_from(["chat", "tau-bench"]),
    group=st.none() | TEXT,
    tools=st.lists(st.builds(RecordedTool, name=TEXT, description=TEXT), max_size=2).map(tuple),
    turns=st.lists(turns(), max_size=3).map(tuple),
    after=SAID,
    extra=st.dictionaries(TEXT, JSON, max_size=2),
)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[TraceStore]:
    with TraceStore.open(tmp_path / "memory.db") as store:
        yield store


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_an_export_has_a_line_per_run_and_per_event(tmp_path: Path, recorded: RecordedRun) -> None:
    write([recorded], tmp_path / "a.jsonl", "own")
    written = lines(tmp_path / "a.jsonl")
    assert written[0]["type"] == "run"
    assert (written[0]["format"], written[0]["version"]) == ("agent-runtime", 1)
    assert [line["type"] for line in written[1:]] == [event.type for event in recorded.events]


def test_an_export_comes_back_with_nothing_lost(tmp_path: Path, recorded: RecordedRun) -> None:
    broken_off = replace(recorded, events=recorded.events[:9])
    write([recorded, broken_off], tmp_path / "a.jsonl", "own")
    reading = read(tmp_path / "a.jsonl")
    assert reading.format == "own"
    assert list(reading.runs()) == [recorded, broken_off]
    assert reading.faults == []


def test_a_run_is_a_trajectory_with_its_times(recorded: RecordedRun) -> None:
    trajectory = trajectory_of(recorded.info, recorded.events)
    assert (trajectory.id, trajectory.format, trajectory.group) == ("02qmsmh6arr", "own", recorded.info.task)
    first, second, last = trajectory.turns
    assert first.before == (SystemMessage("Be brief."), UserMessage(recorded.info.task))
    assert first.results == (RecordedResult(content='{"id": 1}', latency_s=0.14),)
    found, malformed, missing = second.results
    assert found == RecordedResult(content="[1, 2]", latency_s=0.5)
    assert malformed == RecordedResult(content='{"error": "malformed"}', latency_s=None, failed=True)
    assert missing is not None and missing.failed
    assert (last.before, last.results, last.message.text) == ((), (), "There are two.")
    assert [turn.generation_s for turn in trajectory.turns] == [0.29, 0.29, 0.25]
    assert [tool.name for tool in trajectory.tools] == ["find"]


def test_a_run_that_broke_off_ends_with_its_last_whole_message(recorded: RecordedRun) -> None:
    assert trajectory_of(recorded.info, ()).after == (UserMessage(recorded.info.task),)
    cut = next(n for n, event in enumerate(recorded.events) if isinstance(event, CallFinished) and event.turn == 1)
    trajectory = trajectory_of(recorded.info, recorded.events[:cut])
    assert trajectory.turns[1].results == (None, None, None)


@given(TRAJECTORIES)
def test_a_trajectory_that_becomes_a_run_becomes_the_same_trajectory_again(trajectory: Trajectory) -> None:
    run = run_of(trajectory)
    assert trajectory_of(run.info, run.events) == trajectory


@given(trajectory=TRAJECTORIES)
def test_a_trajectory_survives_our_export(tmp_path_factory: pytest.TempPathFactory, trajectory: Trajectory) -> None:
    path = tmp_path_factory.mktemp("export") / "a.jsonl"
    write([run_of(trajectory)], path, "own")
    assert list(read(path)) == [trajectory]


def test_settings_of_an_import_that_somebody_changed_leave_what_the_events_say(recorded: RecordedRun) -> None:
    for imported in ({}, {"before": 7}, {"before": {}, "times": {"0": [1]}}, {"before": {"0": [[7]]}, "times": {}}):
        first = recorded.events[0]
        assert isinstance(first, RunStarted)
        changed = replace(first, settings={"imported": imported})
        trajectory = trajectory_of(recorded.info, (changed, *recorded.events[1:]))
        assert trajectory.format == "own"
        assert len(trajectory.turns) == 3


@pytest.mark.parametrize(
    "change",
    [
        {"at": "inf"},
        {"turn": -1},
        {"turn": 2**31},
        {"type": "robot"},
        {"at": None},
    ],
)
def test_an_event_that_is_none_is_named_and_the_others_are_kept(
    tmp_path: Path, recorded: RecordedRun, change: dict[str, Any]
) -> None:
    path = tmp_path / "a.jsonl"
    write([recorded], path, "own")
    written = lines(path)
    written[2] |= change
    path.write_text("".join(json.dumps(line) + "\n" for line in written))
    reading = read(path)
    (run,) = reading.runs()
    assert run.events == recorded.events[:1] + recorded.events[2:]
    assert [fault.record for fault in reading.faults] == ["line 3"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 2}, "version 2 of the export"),
        ({"run": 7}, "no run"),
        ({"run": {"run_id": "x"}}, "no run: agent: "),
    ],
)
def test_a_run_that_cannot_be_read_takes_its_events_with_it(
    tmp_path: Path, recorded: RecordedRun, change: dict[str, Any], reason: str
) -> None:
    path = tmp_path / "a.jsonl"
    write([recorded], path, "own")
    good = path.read_text("utf-8")
    bad = lines(path)
    bad[0] |= change
    path.write_text("".join(json.dumps(line) + "\n" for line in bad) + good)
    reading = read(path)
    assert list(reading.runs()) == [recorded]
    assert [fault.record for fault in reading.faults] == ["line 1"]
    assert reason in reading.faults[0].reason


@pytest.mark.parametrize(
    "change",
    [{"started_at": "0001-01-01T00:00:00+14:00"}, {"pid": 2**40}, {"pid": -1}, {"wall_ms": "inf"}],
)
def test_numbers_and_times_that_no_database_holds_are_refused(
    tmp_path: Path, recorded: RecordedRun, change: dict[str, Any]
) -> None:
    path = tmp_path / "a.jsonl"
    write([recorded], path, "own")
    written = lines(path)
    written[0]["run"] |= change
    path.write_text("".join(json.dumps(line) + "\n" for line in written))
    with pytest.raises(UnreadableFile, match=r"line 1: (no run|pid|wall_ms)"):
        list(read(path))


def test_a_stored_run_goes_to_another_database_and_loses_nothing(
    tmp_path: Path, memory: TraceStore, recorded: RecordedRun
) -> None:
    assert import_run(memory, recorded) == ("02qmsmh6arr", True)
    stored = memory.run("last")
    assert stored == recorded.info
    assert tuple(memory.events(stored.run_id)) == recorded.events
    assert memory.ledger(stored.run_id).summary() == recorded.info.summary
    write([RecordedRun(stored, tuple(memory.events(stored.run_id)))], tmp_path / "a.jsonl", "own")
    write([recorded], tmp_path / "b.jsonl", "own")
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def test_a_run_that_is_there_is_not_imported_again(memory: TraceStore, recorded: RecordedRun) -> None:
    import_run(memory, recorded)
    assert import_run(memory, recorded) == ("02qmsmh6arr", False)
    assert memory.statistics().runs == 1


def test_another_run_of_the_same_id_gets_a_new_one(memory: TraceStore, recorded: RecordedRun) -> None:
    import_run(memory, recorded)
    other = replace(recorded, info=replace(recorded.info, agent="other"))
    run_id, is_new = import_run(memory, other)
    assert is_new and run_id != "02qmsmh6arr"
    assert memory.run(run_id).started_at == recorded.info.started_at


@pytest.mark.parametrize("run_id", ["", "last", "a" * 40, "../../x", "02QMSMH6ARR"])
def test_an_id_that_is_none_of_ours_is_replaced(memory: TraceStore, recorded: RecordedRun, run_id: str) -> None:
    new, _ = import_run(memory, replace(recorded, info=replace(recorded.info, run_id=run_id)))
    assert len(new) == 11


def test_a_run_that_was_interrupted_stays_interrupted(memory: TraceStore, recorded: RecordedRun) -> None:
    info = replace(recorded.info, status="interrupted", ended_at=None, output=None, summary=None)
    cut = RecordedRun(info, recorded.events[:12])
    import_run(memory, cut)
    assert memory.run("last") == info
    import_run(memory, replace(cut, info=replace(info, run_id="02qmsmh6ars", status="running")))
    assert memory.run("last").status == "interrupted"


def test_secrets_are_taken_out_of_what_is_imported(memory: TraceStore) -> None:
    call = ToolCall("login", {"password": "hunter2hunter2"})
    turn = RecordedTurn(message=AssistantMessage(calls=(call,)), results=(RecordedResult(content="ok"),))
    run_id, _ = import_run(memory, run_of(Trajectory(id="x", format="chat", turns=(turn,))))
    assert "hunter2" not in repr(list(memory.events(run_id)))


def test_a_file_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path, recorded: RecordedRun) -> None:
    with pytest.raises(UnwritableFile, match="No such file"):
        write([recorded], tmp_path / "nowhere" / "a", "own")
    with pytest.raises(UnwritableFile, match="there are own, atif"):
        write([recorded], tmp_path / "a", "tau2")

    def fails() -> Iterator[RecordedRun]:
        yield recorded
        raise RuntimeError

    (tmp_path / "a").write_text("before")
    with pytest.raises(RuntimeError):
        write(fails(), tmp_path / "a", "own")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "before"
