"""Sessions of Claude Code and rollouts of Codex: lines of which only some are the conversation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agent_runtime.tools.values import MalformedCall, ToolCall
from agent_runtime.traces.formats import Reading, detect, read
from agent_runtime.traces.messages import SystemMessage, UserMessage
from agent_runtime.traces.trajectory import RecordedResult


def written(path: Path, *lines: Any) -> Path:
    path = path / "session.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), "utf-8")
    return path


def at(second: float) -> str:
    return f"2026-01-02T03:04:{second:06.3f}Z"


# --- Claude Code -------------------------------------------------------------------------------------------------


def line(kind: str, uuid: str, second: float, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "uuid": uuid, "parentUuid": "p", "sessionId": "s1", "isSidechain": False, "cwd": "/w",
            "timestamp": at(second), **fields}  # fmt: skip


def says(uuid: str, second: float, id: str, *blocks: Any, **fields: Any) -> dict[str, Any]:
    message = {"id": id, "role": "assistant", "model": "claude-x", "content": list(blocks)}
    return line("assistant", uuid, second, message=message, **fields)


def user(uuid: str, second: float, content: Any, **fields: Any) -> dict[str, Any]:
    return line("user", uuid, second, message={"role": "user", "content": content}, **fields)


def use(id: str, name: str = "Read", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


def gives(id: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **fields}


SUMMARY = {"type": "summary", "summary": "About it", "leafUuid": "x"}
SNAPSHOT = {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}}


def test_blocks_of_one_message_are_one_turn_with_times_from_the_lines(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        SUMMARY,
        user("u1", 0, "Look at it", parentUuid=None),
        says("a1", 1, "m1", {"type": "thinking", "thinking": "hm", "signature": "x"}),
        says("a2", 1.5, "m1", {"type": "text", "text": "I look."}),
        says("a3", 2, "m1", use("t1", path="a")),
        says("a4", 2.25, "m1", use("t2", path="b")),
        user("u2", 3, [gives("t2", [{"type": "text", "text": "B"}])]),
        user("u3", 4.25, [gives("t1", "A", is_error=True)]),
        SNAPSHOT,
        says("a5", 5, "m2", {"type": "text", "text": "Done."}),
        user("u4", 6, "Thanks"),
    )
    assert detect(path) == "claude-code"
    reading = read(path)
    (trajectory,) = reading
    assert reading.faults == []
    first, second = trajectory.turns
    assert first.before == (UserMessage("Look at it"),)
    assert (first.message.thinking, first.message.text) == ("hm", "I look.")
    assert first.message.calls == (ToolCall("Read", {"path": "a"}), ToolCall("Read", {"path": "b"}))
    assert first.results == (
        RecordedResult(content="A", latency_s=2.0, failed=True),
        RecordedResult(content="B", latency_s=0.75),
    )
    assert (first.generation_s, second.generation_s) == (2.25, 0.75)
    assert trajectory.after == (UserMessage("Thanks"),)
    assert (trajectory.id, trajectory.extra["model"], trajectory.extra["cwd"]) == ("s1", "claude-x", "/w")
    assert trajectory.extra["lines"] == [SUMMARY, SNAPSHOT]
    assert "waiting" in trajectory.extra["timing"]


def test_a_subagent_is_a_trajectory_of_its_own(tmp_path: Path) -> None:
    side: dict[str, Any] = {"isSidechain": True}
    path = written(
        tmp_path,
        user("u1", 0, "Go", parentUuid=None),
        says("a1", 1, "m1", use("t1", "Task")),
        user("x1", 2, "Search", parentUuid=None, **side),
        says("x2", 3, "n1", use("t2"), **side | {"parentUuid": "x1"}),
        user("x3", 4, [gives("t2", "found")], **side | {"parentUuid": "x2"}),
        user("y1", 4, "Other", agentId="ag7", **side),
        user("u2", 5, [gives("t1", "report")]),
    )
    main, old, named = read(path)
    assert (main.id, old.id, named.id) == ("s1", "s1/x1", "s1/ag7")
    assert main.turns[0].results == (RecordedResult(content="report", latency_s=4.0),)
    assert old.turns[0].results == (RecordedResult(content="found", latency_s=1.0),)
    assert named.after == (UserMessage("Other"),)


def test_sessions_one_after_the_other_are_told_apart_and_a_resumed_one_goes_on(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        user("u1", 0, "One", parentUuid=None),
        says("a1", 1, "m1", {"type": "text", "text": "1"}),
        user("u2", 2, "Resumed", sessionId="s2", parentUuid="a1"),
        user("v1", 3, "Two", sessionId="s3", parentUuid=None),
    )
    first, second = read(path)
    assert (first.id, first.after, second.id, second.after) == (
        "s1", (UserMessage("Resumed"),), "s3", (UserMessage("Two"),),
    )  # fmt: skip


def test_what_no_model_wrote_is_no_turn(tmp_path: Path) -> None:
    error = says("a1", 1, "m1", {"type": "text", "text": "API Error"})
    error["message"]["model"] = "<synthetic>"
    (trajectory,) = read(written(tmp_path, user("u1", 0, "Go"), error))
    assert trajectory.turns == ()
    assert trajectory.extra["lines"] == [error]


@pytest.mark.parametrize(
    "bad",
    [
        "{",
        7,
        says("a", 1, "m", 7),
        says("a", 1, "m") | {"message": {"id": "m", "role": "assistant", "content": 7}},
        user("u", 1, {}),
        user("u", 1, [gives("t", 7)]),
        says("a", 1, "m", {"type": "text", "text": 7}),
    ],
)
def test_a_broken_line_is_named_and_the_others_are_kept(tmp_path: Path, bad: Any) -> None:
    reading = read(written(tmp_path, user("u1", 0, "Go"), bad, says("a2", 2, "m2", {"type": "text", "text": "Done."})))
    (trajectory,) = reading
    assert trajectory.turns[-1].message.text == "Done."
    assert reading.faults[0].record == "line 2"


@pytest.mark.parametrize("stamp", ["yesterday", 7, None, "2026-01-02T03:04:05", "0001-01-01T00:00:00+23:59"])
def test_timestamps_that_are_none_leave_times_unknown(tmp_path: Path, stamp: Any) -> None:
    (trajectory,) = read(
        written(
            tmp_path,
            user("u1", 3, "Go"),
            says("a1", 1, "m1", use("t1"), timestamp=stamp),
            user("u2", 2, [gives("t1", "ok")], timestamp=stamp),
        )
    )
    assert trajectory.turns[0].generation_s is None
    (result,) = trajectory.turns[0].results
    assert result is not None and not result.latency_s


def test_a_call_of_the_wrong_kind_is_malformed(tmp_path: Path) -> None:
    block = {"type": "tool_use", "id": "t", "name": "Read", "input": [1]}
    (trajectory,) = read(written(tmp_path, says("a", 1, "m", block), user("u", 2, [gives("t", "no")])))
    assert isinstance(trajectory.turns[0].message.calls[0], MalformedCall)


# --- Codex -------------------------------------------------------------------------------------------------------


def item(second: float, kind: str, **fields: Any) -> dict[str, Any]:
    return {"timestamp": at(second), "type": "response_item", "payload": {"type": kind, **fields}}


def event(second: float, kind: str, **fields: Any) -> dict[str, Any]:
    return {"timestamp": at(second), "type": "event_msg", "payload": {"type": kind, **fields}}


def said(second: float, role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return item(second, "message", role=role, content=[{"type": kind, "text": text}])


def output(second: float, id: str, value: Any) -> dict[str, Any]:
    return item(second, "function_call_output", call_id=id, output=value)


META = {"timestamp": at(0), "type": "session_meta", "payload": {"id": "r1", "cwd": "/w", "cli_version": "1"}}
CONTEXT = {"timestamp": at(0), "type": "turn_context", "payload": {"model": "gpt-x", "effort": "high"}}
COUNT = event(9, "token_count", info={})


def codex(path: Path, *lines: Any) -> Reading:
    path = written(path, *lines)
    assert detect(path) == "codex"
    return read(path)


def test_items_up_to_an_output_are_one_turn(tmp_path: Path) -> None:
    reading = codex(
        tmp_path,
        META,
        said(0, "developer", "Rules"),
        said(0, "user", "Fix it"),
        event(0, "user_message", message="Fix it"),
        CONTEXT,
        item(1, "reasoning", summary=[{"type": "summary_text", "text": "hm"}], encrypted_content="xx"),
        said(1.5, "assistant", "I look."),
        item(2, "function_call", name="shell", arguments='{"command": ["ls"]}', call_id="c1"),
        item(2.5, "custom_tool_call", name="apply_patch", input="*** Begin", call_id="c2"),
        output(3, "c1", json.dumps({"output": "a", "metadata": {"exit_code": 1, "duration_seconds": 0.25}})),
        item(3.25, "custom_tool_call_output", call_id="c2", output="Done"),
        COUNT,
        said(5, "assistant", "Done."),
    )
    (trajectory,) = reading
    assert reading.faults == []
    first, second = trajectory.turns
    assert first.before == (SystemMessage("Rules"), UserMessage("Fix it"))
    assert (first.message.thinking, first.message.text) == ("hm", "I look.")
    assert first.message.calls == (
        ToolCall("shell", {"command": ["ls"]}),
        ToolCall("apply_patch", {"input": "*** Begin"}),
    )
    shell, patch = first.results
    assert shell is not None and (shell.latency_s, shell.failed) == (0.25, True)
    assert patch == RecordedResult(content="Done", latency_s=0.75)
    assert (first.generation_s, second.generation_s) == (2.5, 1.75)
    assert (trajectory.id, trajectory.extra["model"], trajectory.extra["cwd"]) == ("r1", "gpt-x", "/w")
    assert trajectory.extra["lines"] == [CONTEXT, COUNT]


@pytest.mark.parametrize(
    ("value", "latency", "failed"),
    [
        ("Exit code: 0\nWall time: 1.5 seconds\nOutput:\nx", 1.5, False),
        ("Process exited with code 2\nWall time: 0.5 seconds", 0.5, True),
        ({"content": "x", "success": False}, 2.0, True),
        ([{"type": "input_text", "text": "x"}], 2.0, False),
        ("plain", 2.0, False),
        ("{not json", 2.0, False),
        (None, 2.0, False),
    ],
)
def test_a_latency_is_what_the_output_says_else_the_time_between_the_lines(
    tmp_path: Path, value: Any, latency: float, failed: bool
) -> None:
    call = item(1, "function_call", name="exec", arguments="{}", call_id="c")
    (trajectory,) = codex(tmp_path, META, call, output(3, "c", value))
    (result,) = trajectory.turns[0].results
    assert result is not None and (result.latency_s, result.failed) == (latency, failed)


def test_events_that_tell_a_duration_are_believed(tmp_path: Path) -> None:
    call = item(1, "local_shell_call", call_id="c", action={"type": "exec", "command": ["ls"]})
    ended = event(2, "exec_command_end", call_id="c", duration={"secs": 0, "nanos": 500_000_000})
    (trajectory,) = codex(tmp_path, META, call, ended, output(3, "c", "x"))
    assert trajectory.turns[0].message.calls == (ToolCall("local_shell", {"command": ["ls"]}),)
    assert trajectory.turns[0].results == (RecordedResult(content="x", latency_s=0.5),)


def test_the_first_versions_had_bare_items(tmp_path: Path) -> None:
    (trajectory,) = codex(
        tmp_path,
        {"id": "r0", "timestamp": at(0), "instructions": None},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": "ok"},
        {"record_type": "state"},
    )
    assert trajectory.id == "r0"
    assert trajectory.turns[0].results == (RecordedResult(content="ok"),)
    assert trajectory.extra["lines"] == [{"record_type": "state"}]


def test_rollouts_one_after_the_other_are_told_apart(tmp_path: Path) -> None:
    first, second = codex(tmp_path, META, said(0, "user", "a"), META | {"payload": {"id": "r2"}}, said(1, "user", "b"))
    assert (first.id, first.after, second.id) == ("r1", (UserMessage("a"),), "r2")


@pytest.mark.parametrize(
    "bad",
    [
        "{",
        7,
        item(1, "message", role="user", content=7),
        item(1, "reasoning", summary=7),
        item(1, "reasoning", summary=[7]),
        item(1, "custom_tool_call", name="x", input=7),
        item(1, "local_shell_call", action=7),
        output(1, "c", 7),
    ],
)
def test_a_broken_item_is_named_and_the_others_are_kept(tmp_path: Path, bad: Any) -> None:
    reading = codex(tmp_path, META, bad, said(2, "assistant", "Done."))
    (trajectory,) = reading
    assert trajectory.turns[-1].message.text == "Done."
    assert reading.faults[0].record == "line 2"
