"""Chat JSONL and tau-bench: messages with roles."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_runtime.tools.values import MalformedCall, ToolCall
from agent_runtime.traces.formats import Reading, RecordedRun, read, run_of, write
from agent_runtime.traces.messages import SystemMessage, UserMessage
from agent_runtime.traces.trajectory import RecordedResult, RecordedTool, Trajectory


def reading(path: Path, *records: Any) -> Reading:
    path = path / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return read(path, "chat")


def one(path: Path, *messages: Any, **fields: Any) -> Trajectory:
    (trajectory,) = reading(path, {"messages": list(messages), **fields})
    return trajectory


def call(name: str, arguments: Any, id: str | None = "c") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def asks(*calls: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **fields}


def told(id: str | None, content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content, **fields}


def test_a_conversation_becomes_turns_with_what_came_before_and_the_results(tmp_path: Path) -> None:
    trajectory = one(
        tmp_path,
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Where is it?"},
        asks(call("find", '{"n": 1}'), reasoning_content="hm", generation_s=0.5),
        told("c", "there", latency_s=0.25, name="find"),
        {"role": "assistant", "content": "There."},
        {"role": "user", "content": [{"type": "text", "text": "Thanks"}, {"type": "image_url", "image_url": {}}]},
        tools=[
            {"type": "function", "function": {"name": "find", "description": "d", "parameters": {"type": "object"}}}
        ],
        task_id=7,
        id="t",
        reward=1,
    )
    first, second = trajectory.turns
    assert first.before == (SystemMessage("Be brief."), UserMessage("Where is it?"))
    assert first.message.calls == (ToolCall("find", {"n": 1}),)
    assert (first.message.thinking, first.generation_s) == ("hm", 0.5)
    assert first.results == (RecordedResult(content="there", latency_s=0.25),)
    assert (second.before, second.message.text, second.results) == ((), "There.", ())
    assert trajectory.after == (UserMessage("Thanks\n[image_url]"),)
    assert trajectory.tools == (RecordedTool(name="find", description="d", parameters={"type": "object"}),)
    assert (trajectory.id, trajectory.group, trajectory.extra) == ("t", "7", {"task_id": 7, "reward": 1})


def test_results_find_their_calls_by_id_in_any_order(tmp_path: Path) -> None:
    trajectory = one(tmp_path, asks(call("f", "{}", "a"), call("g", "{}", "b")), told("b", "2"), told("a", "1"))
    assert [result.content for result in trajectory.turns[0].results if result] == ["1", "2"]


def test_an_id_that_comes_again_belongs_to_the_latest_call(tmp_path: Path) -> None:
    trajectory = one(tmp_path, asks(call("f", "{}")), told("c", "1"), asks(call("g", "{}")), told("c", "2"))
    assert [turn.results[0].content for turn in trajectory.turns if turn.results[0]] == ["1", "2"]


def test_two_calls_of_one_id_take_their_results_in_order(tmp_path: Path) -> None:
    trajectory = one(tmp_path, asks(call("f", "{}"), call("g", "{}")), told("c", "1"), told("c", "2"))
    assert [result.content for result in trajectory.turns[0].results if result] == ["1", "2"]


def test_results_without_ids_go_to_the_calls_in_order(tmp_path: Path) -> None:
    trajectory = one(tmp_path, asks(call("f", {}, None), call("g", {}, None)), told(None, "1"), told(None, "2"))
    assert [result.content for result in trajectory.turns[0].results if result] == ["1", "2"]


def test_a_result_of_no_call_is_left_out_and_said(tmp_path: Path) -> None:
    read_now = reading(tmp_path, {"messages": [told("x", "1"), asks(call("f", "{}")), told("y", "2"), told("c", "3")]})
    (trajectory,) = read_now
    assert trajectory.turns[0].results == (RecordedResult(content="3"),)
    assert read_now.faults[0].where == "line 1: a result of no call ('x'); a result of no call ('y')"


def test_the_older_interface_with_one_function_call_is_understood(tmp_path: Path) -> None:
    trajectory = one(
        tmp_path,
        {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": '{"a": 1}'}},
        {"role": "function", "name": "f", "content": "ok"},
    )
    assert trajectory.turns[0].message.calls == (ToolCall("f", {"a": 1}),)
    assert trajectory.turns[0].results == (RecordedResult(content="ok"),)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ('{"a": ', "no JSON"),
        ("[1]", "the arguments are an array"),
        (7, "the arguments are a number"),
        ('{"a": NaN}', "NaN is no number"),
        ('{"a": 1e999}', "a number too large"),
        ("[" * 3000, "levels deep|no JSON"),
    ],
)
def test_arguments_that_are_no_object_make_a_malformed_call(tmp_path: Path, arguments: Any, reason: str) -> None:
    trajectory = one(tmp_path, asks(call("f", arguments)), told("c", "error"))
    (malformed,) = trajectory.turns[0].message.calls
    assert isinstance(malformed, MalformedCall)
    assert malformed.text.startswith("f(")
    assert trajectory.turns[0].results[0] is not None


@pytest.mark.parametrize("arguments", [None, "", "  ", "{}", {}])
def test_missing_arguments_are_none(tmp_path: Path, arguments: Any) -> None:
    trajectory = one(tmp_path, asks(call("f", arguments)), told("c", "ok"))
    assert trajectory.turns[0].message.calls == (ToolCall("f", {}),)


@pytest.mark.parametrize(
    "message",
    [
        *(7, "x", None, [], {}, {"role": 7}, {"role": "robot"}),
        *({"role": "user", "content": 7}, asks(7), asks() | {"tool_calls": "x"}),
    ],
)
def test_a_message_of_the_wrong_kind_breaks_its_record_only(tmp_path: Path, message: Any) -> None:
    good = {"messages": [{"role": "user", "content": "hi"}]}
    read_now = reading(tmp_path, good, {"messages": [message]}, good)
    assert len(list(read_now)) == 2
    assert [fault.record for fault in read_now.faults] == ["line 2"]


@pytest.mark.parametrize("latency", ["x", -1, True, None, [], "1e999", 10**400])
def test_a_latency_that_is_no_duration_counts_as_unknown(tmp_path: Path, latency: Any) -> None:
    trajectory = one(tmp_path, asks(call("f", "{}")), told("c", "ok", latency_s=latency))
    assert trajectory.turns[0].results == (RecordedResult(content="ok"),)


def test_fields_that_are_not_known_are_kept(tmp_path: Path) -> None:
    trajectory = one(tmp_path, {"role": "user", "content": "hi", "weight": 2}, model="m")
    assert trajectory.extra == {"model": "m", "message_fields": {"0": {"weight": 2}}}


def test_a_conversation_that_was_written_reads_the_same(tmp_path: Path) -> None:
    trajectory = one(
        tmp_path,
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u \N{GRINNING FACE}"},
        asks(call("f", {"a": [1, None]}), call("g", "{}"), reasoning_content="t", generation_s=1.5),
        told("c", "1", latency_s=0.5, failed=True),
        {"role": "user", "content": "after"},
        tools=[{"name": "f", "description": "d", "parameters": {"type": "object"}}],
        id="x",
        group="g",
    )
    write([run_of(trajectory)], tmp_path / "b.jsonl", "chat")
    (again,) = read(tmp_path / "b.jsonl")
    assert again == replace(trajectory, extra=again.extra)
    assert again.extra["group"] == "g"


def test_a_run_of_ours_becomes_a_conversation_without_the_guesses(tmp_path: Path, recorded: RecordedRun) -> None:
    write([recorded], tmp_path / "a.jsonl", "chat")
    record = json.loads((tmp_path / "a.jsonl").read_text("utf-8"))
    assert [message["role"] for message in record["messages"]] == [
        "system", "user", "assistant", "tool", "assistant", "tool", "tool", "tool", "assistant",
    ]  # fmt: skip
    assert record["messages"][3] == {
        "role": "tool", "tool_call_id": "call_0_0", "name": "find", "content": '{"id": 1}', "latency_s": 0.14,
    }  # fmt: skip
    assert record["messages"][7]["failed"] is True


def test_a_tau_bench_trial_belongs_to_its_task(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    trial = {"task_id": 4, "trial": 2, "reward": 1.0, "info": {"x": 1}, "traj": [{"role": "user", "content": "hi"}]}
    path.write_text(json.dumps([trial, trial | {"trial": 3}]))
    first, second = read(path)
    assert (first.id, first.group, second.id, second.group) == ("4-2", "4", "4-3", "4")
    assert first.extra == {"task_id": 4, "trial": 2, "reward": 1.0, "info": {"x": 1}}
