"""Nothing that a file holds makes a reader raise anything but `UnreadableFile`, or give what can't be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agent_runtime.tools.values import ToolCall
from agent_runtime.traces import TraceStore
from agent_runtime.traces.formats import (
    FORMATS,
    WRITERS,
    Reading,
    RecordedRun,
    UnreadableFile,
    detect,
    import_run,
    read,
    run_of,
    trajectory_of,
    write,
)
from agent_runtime.traces.trajectory import Trajectory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("atif")

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
MESSAGES = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": [{"type": "text", "text": "u"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "generation_time_seconds": 1.5, "generation_s": 2},
    {"role": "tool", "tool_call_id": "c", "id": "c", "content": "r", "latency_s": 0.5, "requestor": "assistant"},
    {"role": "assistant", "content": "bye", "action": "ls", "tool_calls": [CALL]},
]
WHEN = "2026-01-02T03:04:05Z"

WHOLE: dict[str, list[Any]] = {
    "chat": [{"id": "x", "messages": MESSAGES, "tools": [{"function": {"name": "f", "parameters": {}}}]}],
    "tau-bench": [{"task_id": 1, "trial": 2, "traj": MESSAGES, "info": {}}],
    "tau2": [
        {
            "info": {"environment_info": {"policy": "p", "domain_name": "d"}, "agent_info": {"llm": "m"}},
            "tasks": [{}],
            "simulations": [
                {"id": "i", "task_id": "1", "messages": [*MESSAGES, {"role": "tool", "tool_messages": [{}]}]},
            ],
        }
    ],
    "swe-agent": [
        {
            "info": {"instance_id": "i"},
            "trajectory": [{"action": "ls", "observation": "o", "execution_time": "0.5", "response": "```\nls\n```"}],
            "history": [*MESSAGES, {"role": "user", "content": "o", "tool_call_ids": ["c"]}],
        }
    ],
    "atif": [
        {
            "schema_version": "ATIF-v1.8",
            "agent": {"name": "a", "version": "1", "tool_definitions": [{"function": {"name": "f"}}]},
            "steps": [
                {
                    "step_id": 1,
                    "source": "agent",
                    "message": "m",
                    "tool_calls": [{"tool_call_id": "c", "function_name": "f", "arguments": {"a": 1}}],
                    "observation": {"results": [{"source_call_id": "c", "content": "r", "extra": {}}]},
                    "extra": {"agent_runtime": {"turn": 0, "generation_s": 1}},
                }
            ],
            "extra": {"agent_runtime": {"events": [{"type": "turn_started", "turn": 0, "at": 0}]}},
        }
    ],
    "claude-code": [
        {"type": "user", "sessionId": "s", "uuid": "u", "timestamp": WHEN, "message": {"content": "hi"}},
        {
            "type": "assistant",
            "sessionId": "s",
            "isSidechain": True,
            "agentId": "a",
            "timestamp": WHEN,
            "message": {
                "id": "m",
                "model": "x",
                "content": [
                    {"type": "tool_use", "id": "t", "name": "f", "input": {}},
                    {"type": "thinking", "thinking": "h"},
                ],
            },
        },
        {
            "type": "user",
            "sessionId": "s",
            "isSidechain": True,
            "agentId": "a",
            "timestamp": WHEN,
            "message": {"content": [{"type": "tool_result", "tool_use_id": "t", "content": "r"}]},
        },
    ],
    "codex": [
        {"type": "session_meta", "timestamp": WHEN, "payload": {"id": "r"}},
        {"type": "response_item", "timestamp": WHEN, "payload": {"type": "message", "role": "user", "content": "hi"}},
        {"type": "response_item", "payload": {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"}},
        {"type": "event_msg", "payload": {"type": "end", "call_id": "c", "duration": {"secs": 1, "nanos": 2}}},
        {
            "type": "response_item",
            "timestamp": WHEN,
            "payload": {"type": "function_call_output", "call_id": "c", "output": '{"metadata": {"exit_code": 1}}'},
        },
    ],
}  # fmt: skip

ODD = st.sampled_from(
    [
        None, True, 7, -1, 1.5, 2**70, 10**400, "", "x", "inf", "nan", "\ud800", "\0", [], [[]], [None], {}, {"a": {}},
        "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "assistant", "user", "tool", [7], {"text": 7},
        {"role": "assistant"}, {"type": "message"}, '{"a": [', '{"metadata": 7}', "```\nls\n```",
    ]
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path to every value in JSON."""
    found = [path]
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            found += places(value[key], (*path, key))
    return found


def changed(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    """Return JSON with the value at a path replaced, or left out (`by` is `...`)."""
    if not path:
        return None if by is ... else by
    key, *rest = path
    copy = dict(value) if isinstance(value, dict) else list(value)
    if by is ... and not rest:
        del copy[key]
    else:
        copy[key] = changed(copy[key], tuple(rest), by)
    return copy


def check(path: Path, format: str = "auto") -> list[Trajectory]:
    """Read a file; whatever comes of it must be usable."""
    try:
        reading = read(path, format)
        trajectories = list(reading)
    except UnreadableFile as error:
        assert "\n" not in str(error)
        return []
    assert all("\n" not in str(fault) for fault in reading.faults)
    for trajectory in trajectories:
        assert trajectory.format in FORMATS
        for turn in trajectory.turns:
            assert len(turn.results) == len(turn.message.calls)
            for call in turn.message.calls:
                if isinstance(call, ToolCall):
                    call.canonical().encode()
        assert trajectory_of(*_run(trajectory)) == trajectory
        json.dumps(trajectory.extra, allow_nan=False).encode()
        trajectory.messages_before(len(trajectory.turns))
    assert len({trajectory.id for trajectory in trajectories}) == len(trajectories)
    return trajectories


def _run(trajectory: Trajectory) -> tuple[Any, Any]:
    run = run_of(trajectory)
    return run.info, run.events


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "a.json"


@given(content=st.binary(max_size=200))
def test_any_bytes(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    check(file)
    for name in FORMATS:
        check(file, name)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(WHOLE)))
def test_any_value_at_any_place(file: Path, data: st.DataObject, name: str) -> None:
    records = WHOLE[name]
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places(records)[1:]))
        records = changed(records, path, data.draw(ODD | st.just(...)))
        if not isinstance(records, list) or not records:
            return
    indent = data.draw(st.sampled_from([None, None, 1]))
    file.write_text("".join(json.dumps(record, indent=indent) + "\n" for record in records))
    check(file)
    check(file, name)


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_a_file_that_is_cut_off_anywhere(file: Path, name: str) -> None:
    for indent in (None, 1):
        text = "".join(json.dumps(record, indent=indent) + "\n" for record in WHOLE[name])
        for end in range(0, len(text), 7):
            file.write_text(text[:end])
            check(file)
            check(file, name)
        file.write_text(text)
        assert detect(file) == name
        assert check(file)


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_every_other_format_is_refused_or_read_as_what_it_is_not(file: Path, name: str) -> None:
    file.write_text("".join(json.dumps(record) + "\n" for record in WHOLE[name]))
    for other in FORMATS:
        check(file, other)


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"messages":[', '[{"traj":[', '{"history":['])
def test_nesting_without_end(file: Path, opening: str) -> None:
    file.write_text(opening * 30_000)
    for name in ("auto", *FORMATS):
        assert check(file, name) == []


def test_arguments_nested_without_end_are_malformed(file: Path) -> None:
    deep = "[" * 50_000 + "]" * 50_000
    call = {"id": "c", "function": {"name": "f", "arguments": deep}}
    file.write_text(json.dumps({"messages": [{"role": "assistant", "tool_calls": [call]}]}))
    (trajectory,) = check(file)
    assert not isinstance(trajectory.turns[0].message.calls[0], ToolCall)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_runs_of_ours_that_somebody_changed_are_imported_and_exported_or_refused(
    tmp_path_factory: pytest.TempPathFactory, changeable: list[Any], file: Path, data: st.DataObject
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.json.file")
    pytest.importorskip("pyarrow")
    records = changeable
    for _ in range(data.draw(st.integers(1, 3))):
        records = changed(records, data.draw(st.sampled_from(places(records)[1:])), data.draw(ODD | st.just(...)))
    if data.draw(st.booleans()):
        records = records[:1] + data.draw(st.permutations(records[1:]))
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    try:
        reading: Reading = read(file, "own")
        runs = list(reading.runs())
    except UnreadableFile:
        return
    folder = tmp_path_factory.mktemp("changed")
    with TraceStore.open(folder / "traces.db") as store:
        for run in runs:
            run_id, _ = import_run(store, run)
            stored = RecordedRun(store.run(run_id), tuple(store.events(run_id)))
            assert len(stored.events) == len(run.events)
            for name in WRITERS:
                write([stored], folder / name, name)
            assert list(read(folder / "own").runs()) == [stored]
            assert list(read(folder / "atif").runs()) == [stored]


@pytest.fixture
def changeable(tmp_path: Path, recorded: RecordedRun) -> list[Any]:
    write([recorded], tmp_path / "own.jsonl", "own")
    return [json.loads(line) for line in (tmp_path / "own.jsonl").read_text("utf-8").splitlines()]
