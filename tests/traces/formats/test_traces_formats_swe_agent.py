"""SWE-agent's .traj files: with and without steps, with tool calls and with commands in backticks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.formats import UnreadableFile, detect, read
from agent_runtime.traces.messages import SystemMessage, UserMessage
from agent_runtime.traces.trajectory import RecordedResult, Trajectory

SYSTEM = {"role": "system", "content": "You are in a shell.", "agent": "main"}
ISSUE = {"role": "user", "content": "Fix it.", "agent": "main"}


def called(action: str, name: str, arguments: str, id: str = "c") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": "I do it.", "thought": "I do it.", "action": action,
            "tool_calls": [{"id": id, "type": "function", "function": function}]}  # fmt: skip


def typed(action: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": f"I look.\n```\n{action}\n```",
        "thought": "I look.\n",
        "action": f"{action}\n",
    }


def told(content: str, id: str | None = "c") -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_ids": [id]} if id else {"role": "user", "content": content}


def step(action: str, observation: str, time: Any, **fields: Any) -> dict[str, Any]:
    response = f"Now.\n```\n{action}\n```"
    return {"action": action, "observation": observation, "execution_time": time, "response": response,
            "state": "{}", "query": [SYSTEM, ISSUE], **fields}  # fmt: skip


def one(path: Path, indent: int | None = 2, **parts: Any) -> Trajectory:
    path = path / "issue-1.traj"
    path.write_text(json.dumps(parts, indent=indent), "utf-8")
    assert detect(path) == "swe-agent"
    reading = read(path)
    (trajectory,) = reading
    assert reading.faults == []
    return trajectory


@pytest.mark.parametrize("indent", [None, 2])
def test_tool_calls_have_the_execution_times_of_their_steps(tmp_path: Path, indent: int | None) -> None:
    trajectory = one(
        tmp_path,
        indent,
        environment="main",
        trajectory=[step("open a", "[a]", "0.25"), step("bash ls", "a b", 0.5)],
        history=[
            SYSTEM, ISSUE,
            called("open a", "open", '{"path": "a"}'), told("[a]\nbash-$"),
            called("bash ls", "bash", '{"command": "ls"}'), told("a b\nbash-$"),
        ],
        info={"exit_status": "submitted"},
    )  # fmt: skip
    first, second = trajectory.turns
    assert first.before == (SystemMessage("You are in a shell."), UserMessage("Fix it."))
    assert first.message.calls == (ToolCall("open", {"path": "a"}),)
    assert first.results == (RecordedResult(content="[a]\nbash-$", latency_s=0.25),)
    assert second.results == (RecordedResult(content="a b\nbash-$", latency_s=0.5),)
    assert (trajectory.id, trajectory.extra["info"]) == ("issue-1", {"exit_status": "submitted"})


def test_a_command_in_backticks_is_a_call_of_the_shell_and_the_next_message_its_result(tmp_path: Path) -> None:
    trajectory = one(
        tmp_path,
        history=[SYSTEM, ISSUE, typed("ls -a"), told("a b", None), typed("cat a"), told("x", None)],
    )
    first, second = trajectory.turns
    assert first.message.text == "I look."
    assert first.message.calls == (ToolCall("bash", {"command": "ls -a"}),)
    assert first.results == (RecordedResult(content="a b"),)
    assert (second.before, second.results) == ((), (RecordedResult(content="x"),))


def test_the_action_is_found_in_the_text_where_the_message_does_not_name_it(tmp_path: Path) -> None:
    message = {"role": "assistant", "content": "Not this:\n```py\nx\n```\nbut\n```bash\nls\n```"}
    trajectory = one(tmp_path, history=[ISSUE, message, told("a", None), {"role": "assistant", "content": "Done."}])
    assert trajectory.turns[0].message.calls == (ToolCall("bash", {"command": "ls"}),)
    assert trajectory.turns[1].message.calls == ()


def test_the_last_observation_comes_from_the_steps_where_the_history_ends_before_it(tmp_path: Path) -> None:
    trajectory = one(
        tmp_path,
        history=[ISSUE, typed("submit")],
        trajectory=[step("submit\n", "diff", "0.5")],
    )
    assert trajectory.turns[0].results == (RecordedResult(content="diff", latency_s=0.5),)


def test_steps_alone_are_enough(tmp_path: Path) -> None:
    trajectory = one(tmp_path, trajectory=[step("ls", "a", "0.25"), step("", "", None)])
    first, second = trajectory.turns
    assert first.before == (SystemMessage("You are in a shell."), UserMessage("Fix it."))
    assert first.message.calls == (ToolCall("bash", {"command": "ls"}),)
    assert first.results == (RecordedResult(content="a", latency_s=0.25),)
    assert second.message.calls == ()


def test_steps_that_no_message_took_are_passed_over(tmp_path: Path) -> None:
    trajectory = one(
        tmp_path,
        history=[ISSUE, typed("b"), told("2", None), typed("unknown"), told("3", None), typed("c"), told("4", None)],
        trajectory=[step("a", "1", 1), step("b", "2", 2), 7, step("c", "4", 4)],
    )
    assert [turn.results[0].latency_s for turn in trajectory.turns if turn.results[0]] == [2.0, None, 4.0]


def test_demonstrations_are_no_turns(tmp_path: Path) -> None:
    demo = [message | {"is_demo": True} for message in (typed("ls"), told("a", None))]
    trajectory = one(tmp_path, history=[SYSTEM, *demo, ISSUE, typed("ls"), told("a", None)])
    assert len(trajectory.turns) == 1
    assert len(trajectory.turns[0].before) == 4


def test_a_file_that_is_cut_off_keeps_the_whole_messages(tmp_path: Path) -> None:
    path = tmp_path / "a.traj"
    text = json.dumps(
        {"environment": "e", "history": [SYSTEM, ISSUE, typed("ls"), told("a", None), typed("cat")]}, indent=1
    )
    path.write_text(text[:-60])
    reading = read(path)
    (trajectory,) = reading
    assert len(trajectory.turns) == 1
    assert [fault.where for fault in reading.faults] == ["message 5: cut off in the middle"]


@pytest.mark.parametrize("history", [7, [7], [{"role": 7}], [{"role": "user", "content": {}}], [], {}])
def test_a_history_of_the_wrong_kind_is_an_error(tmp_path: Path, history: Any) -> None:
    for indent in (None, 2):
        path = tmp_path / "a.traj"
        path.write_text(json.dumps({"history": history}, indent=indent))
        with pytest.raises(UnreadableFile):
            list(read(path, "swe-agent"))
