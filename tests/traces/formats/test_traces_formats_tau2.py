"""tau2 results: many simulations in one object."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.formats import Reading, detect, read
from agent_runtime.traces.messages import SystemMessage, UserMessage
from agent_runtime.traces.trajectory import RecordedResult

SIMULATION: dict[str, Any] = {
    "id": "sim-1",
    "task_id": "12",
    "trial": 0,
    "termination_reason": "user_stop",
    "reward_info": {"reward": 1.0},
    "messages": [
        {"role": "assistant", "content": "Hi! How can I help?", "tool_calls": None, "generation_time_seconds": None},
        {"role": "user", "content": "My phone is dead", "tool_calls": None},
        {"role": "user", "tool_calls": [{"id": "u1", "name": "look", "arguments": {}, "requestor": "user"}]},
        {"role": "tool", "id": "u1", "content": "dark", "requestor": "user", "error": False},
        {"role": "user", "content": "It is dark"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "a1", "name": "get_line", "arguments": {"id": "L1"}, "requestor": "assistant"},
                {"id": "a2", "name": "get_bill", "arguments": {}, "requestor": "assistant"},
            ],
            "generation_time_seconds": 1.25,
            "raw_data": {"choices": []},
        },
        {
            "role": "tool",
            "tool_messages": [
                {"role": "tool", "id": "a2", "content": "Error: none", "requestor": "assistant", "error": True},
                {"role": "tool", "id": "a1", "content": "{}", "requestor": "assistant", "error": False},
            ],
        },
        {"role": "assistant", "content": "Done.", "generation_time_seconds": 0.5},
    ],
}  # fmt: skip
INFO = {
    "agent_info": {"llm": "some-model"},
    "environment_info": {"domain_name": "telecom", "policy": "Help."},
    "user_info": {},
}


def results(path: Path, *simulations: Any, indent: int | None = 2, cut: int = 0, **fields: Any) -> Reading:
    document = {"timestamp": "t", "info": INFO, "tasks": [{"id": "12"}], "simulations": list(simulations)} | fields
    text = json.dumps(document, indent=indent)
    path = path / "results.json"
    path.write_text(text[: len(text) - cut])
    assert detect(path) == "tau2"
    return read(path)


@pytest.mark.parametrize("indent", [None, 2])
def test_a_simulation_has_generation_times_and_the_policy_first(tmp_path: Path, indent: int | None) -> None:
    reading = results(tmp_path, SIMULATION, indent=indent)
    (trajectory,) = reading
    assert reading.faults == []
    greeting, asking, done = trajectory.turns
    assert greeting.before == (SystemMessage("Help."),)
    assert asking.before == (UserMessage("My phone is dead"), UserMessage("It is dark"))
    assert asking.message.calls == (ToolCall("get_line", {"id": "L1"}), ToolCall("get_bill", {}))
    assert asking.results == (RecordedResult(content="{}"), RecordedResult(content="Error: none", failed=True))
    assert (greeting.generation_s, asking.generation_s, done.generation_s) == (None, 1.25, 0.5)
    assert (trajectory.id, trajectory.group) == ("sim-1", "12")
    assert (trajectory.extra["model"], trajectory.extra["domain"]) == ("some-model", "telecom")


def test_calls_of_the_simulated_user_are_left_out_and_counted(tmp_path: Path) -> None:
    (trajectory,) = results(tmp_path, SIMULATION)
    names = [getattr(call, "name", "") for turn in trajectory.turns for call in turn.message.calls]
    assert names == ["get_line", "get_bill"]
    assert trajectory.extra["user_tool_calls"] == 1


def test_a_broken_simulation_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    reading = results(tmp_path, SIMULATION, {"messages": 7}, "x", SIMULATION)
    assert [trajectory.id for trajectory in reading] == ["sim-1", "sim-1 (simulation 4)"]
    assert [fault.record for fault in reading.faults] == ["simulation 2", "simulation 3"]


def test_results_that_are_cut_off_keep_the_whole_simulations(tmp_path: Path) -> None:
    reading = results(tmp_path, SIMULATION, SIMULATION, cut=100)
    assert len(list(reading)) == 1
    assert reading.faults[0].where == "simulation 2: cut off in the middle"


def test_a_file_may_hold_one_simulation(tmp_path: Path) -> None:
    path = tmp_path / "sim.json"
    path.write_text(json.dumps(SIMULATION, indent=2))
    assert detect(path) == "tau2"
    (trajectory,) = read(path)
    assert len(trajectory.turns) == 3


def test_what_the_file_says_of_all_simulations_may_be_anything(tmp_path: Path) -> None:
    for info in (None, 7, {"environment_info": 7, "agent_info": []}, {"environment_info": {"policy": 7}}):
        (trajectory,) = results(tmp_path, SIMULATION, info=info)
        assert trajectory.turns[0].before == ()
