"""ATIF v1.8: documents that the format's own models accept, and what comes back from them."""

from __future__ import annotations

import builtins
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_runtime.tools.values import MalformedCall, ToolCall
from agent_runtime.traces.events import GenerationFinished
from agent_runtime.traces.formats import MissingExtra, RecordedRun, detect, read, run_of, trajectory_of, write
from agent_runtime.traces.formats.atif_write import to_atif
from agent_runtime.traces.messages import SystemMessage, UserMessage
from agent_runtime.traces.trajectory import RecordedResult, RecordedTurn, Trajectory

atif = pytest.importorskip("atif")


def without_extra(value: Any) -> Any:
    """Return a document without what other programs may drop."""
    if isinstance(value, dict):
        return {key: without_extra(item) for key, item in value.items() if key != "extra"}
    return [without_extra(item) for item in value] if isinstance(value, list) else value


def document(*steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    numbered = [{"step_id": number, "message": "", **step} for number, step in enumerate(steps, 1)]
    return {"schema_version": "ATIF-v1.8", "agent": {"name": "a", "version": "1"}, "steps": numbered, **fields}


def one(path: Path, value: Any) -> Trajectory:
    path = path / "a.json"
    path.write_text(json.dumps(value, indent=2))
    assert detect(path) == "atif"
    (trajectory,) = read(path)
    return trajectory


def test_a_run_is_a_valid_document_with_a_step_per_message(recorded: RecordedRun) -> None:
    written = to_atif(recorded)
    valid = atif.Trajectory.model_validate(written)
    assert [step.source for step in valid.steps] == ["system", "user", "agent", "agent", "agent"]
    assert valid.schema_version == "ATIF-v1.8"
    assert (valid.agent.name, valid.agent.model_name, valid.session_id) == ("shop", "pocket", "02qmsmh6arr")
    step = valid.steps[2]
    assert (step.message, step.reasoning_content) == ("Looking.", "a lamp")
    assert (step.metrics.prompt_tokens, step.metrics.cached_tokens) == (10, 5)
    assert step.observation.results[0].source_call_id == step.tool_calls[0].tool_call_id
    assert set(written["extra"]) == {"agent_runtime"}


def test_a_run_comes_back_with_every_event(tmp_path: Path, recorded: RecordedRun) -> None:
    write([recorded, recorded], tmp_path / "a.jsonl", "atif")
    assert list(read(tmp_path / "a.jsonl").runs()) == [recorded, recorded]


def test_what_the_model_said_and_was_told_stands_once(recorded: RecordedRun) -> None:
    text = json.dumps(to_atif(recorded))
    assert text.count("Looking.") == 1
    assert text.count('{\\"id\\": 1}') == 1


def test_what_the_format_itself_can_hold_survives_the_loss_of_extra(tmp_path: Path, recorded: RecordedRun) -> None:
    whole = trajectory_of(recorded.info, recorded.events)
    bare = one(tmp_path, without_extra(to_atif(recorded)))
    assert bare.format == "atif"
    assert bare.tools == whole.tools
    assert [turn.before for turn in bare.turns] == [turn.before for turn in whole.turns]
    for turn, original in zip(bare.turns, whole.turns, strict=True):
        assert (turn.message.text, turn.message.thinking) == (original.message.text, original.message.thinking)
        assert [result.content for result in turn.results if result] == [r.content for r in original.results if r]


def test_what_the_format_has_no_field_for_is_lost_with_extra(tmp_path: Path, recorded: RecordedRun) -> None:
    bare = one(tmp_path, without_extra(to_atif(recorded)))
    assert {turn.generation_s for turn in bare.turns} == {None}  # how long a message took
    results = [result for turn in bare.turns for result in turn.results if result]
    assert {result.latency_s for result in results} == {None}  # how long a tool took
    assert not any(result.failed for result in results)  # that a call failed
    malformed = trajectory_of(recorded.info, recorded.events).turns[1].message.calls[1]
    assert isinstance(malformed, MalformedCall)  # that a call was malformed, and why
    assert bare.turns[1].message.calls[1] == ToolCall("", {"malformed": malformed.text})
    assert bare.group is None  # which runs tried the same task
    # and all that belongs to guessing: probes, guesses, their endings


def test_a_run_that_broke_off_comes_back(tmp_path: Path, recorded: RecordedRun) -> None:
    for end in range(len(recorded.events)):
        run = replace(recorded, events=recorded.events[:end])
        write([run], tmp_path / "a.jsonl", "atif")
        assert list(read(tmp_path / "a.jsonl").runs()) == [run]


def test_a_message_that_was_edited_since_is_read_as_edited(tmp_path: Path, recorded: RecordedRun) -> None:
    written = to_atif(recorded)
    written["steps"][2]["message"] = "Edited."
    path = tmp_path / "a.json"
    path.write_text(json.dumps(written))
    (run,) = read(path).runs()
    assert next(event for event in run.events if isinstance(event, GenerationFinished)).text == "Edited."


def test_events_that_were_broken_leave_the_steps(tmp_path: Path, recorded: RecordedRun) -> None:
    written = to_atif(recorded)
    written["extra"]["agent_runtime"]["events"][3]["at"] = "never"
    path = tmp_path / "a.json"
    path.write_text(json.dumps(written))
    reading = read(path)
    (trajectory,) = reading
    assert trajectory.turns[0].generation_s == 0.29
    assert "read without it" in reading.faults[0].reason


def test_a_foreign_trajectory_becomes_a_valid_document_and_comes_back(tmp_path: Path) -> None:
    turn = RecordedTurn(
        before=(SystemMessage("s"), UserMessage("u")),
        message=trajectory_message(ToolCall("f", {"a": 1})),
        results=(None,),
        generation_s=None,
    )
    trajectory = Trajectory(id="x", format="tau-bench", group="7", turns=(turn, turn), after=(UserMessage("bye"),))
    write([run_of(trajectory)], tmp_path / "a.json", "atif")
    atif.Trajectory.model_validate_json((tmp_path / "a.json").read_text("utf-8"))
    (again,) = read(tmp_path / "a.json")
    assert again == trajectory


def trajectory_message(*calls: ToolCall) -> Any:
    from agent_runtime.traces.messages import AssistantMessage

    return AssistantMessage(text="t", calls=calls)


def test_documents_of_others_are_read(tmp_path: Path) -> None:
    image = {"type": "image", "source": {"media_type": "image/png", "path": "a.png"}}
    call = {"tool_call_id": "c", "function_name": "f", "arguments": {"a": 1}}
    value = document(
        {"source": "system", "message": "s"},
        {"source": "user", "message": [{"type": "text", "text": "look"}, image]},
        {
            "source": "agent",
            "message": "m",
            "reasoning_content": "r",
            "tool_calls": [call, call | {"tool_call_id": "d"}],
            "observation": {"results": [{"source_call_id": "d", "content": "2"}, {"content": "1"}]},
        },
        {"source": "agent", "observation": {"results": [{"content": "seen"}]}},
        {"source": "system", "message": "n", "observation": {"results": [{"content": "o"}]}},
        trajectory_id="t",
        subagent_trajectories=[document({"source": "user", "message": "sub"}, trajectory_id="u")],
    )
    path = tmp_path / "a.json"
    path.write_text(json.dumps(value))
    trajectory, subagent = read(path)
    first, second = trajectory.turns
    assert first.before == (SystemMessage("s"), UserMessage("look\n[image: a.png]"))
    assert (first.message.text, first.message.thinking) == ("m", "r")
    assert first.results == (RecordedResult(content="1"), RecordedResult(content="2"))
    assert second.message.calls == ()
    assert trajectory.after == (UserMessage("seen"), SystemMessage("n"), SystemMessage("o"))
    assert (trajectory.id, subagent.id, subagent.after) == ("t", "u", (UserMessage("sub"),))


def test_a_document_that_the_models_refuse_is_named_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    bad = [document({"source": "robot"}), document({"source": "user", "tool_calls": []}), document() | {"x": 1}]
    path.write_text("".join(json.dumps(value) + "\n" for value in [document({"source": "user"}), *bad]))
    reading = read(path)
    assert len(list(reading)) == 1
    assert [fault.record for fault in reading.faults] == ["line 2", "line 3", "line 4"]
    assert all(fault.reason.startswith("no valid ATIF: ") and "\n" not in fault.reason for fault in reading.faults)


def test_without_the_package_one_line_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: RecordedRun
) -> None:
    write([recorded], tmp_path / "a.json", "atif")
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **named: Any) -> Any:
        if name == "atif":
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtra, match=r"agent-runtime\[atif\]"):
        list(read(tmp_path / "a.json"))
    with pytest.raises(MissingExtra, match=r"agent-runtime\[atif\]"):
        write([recorded], tmp_path / "b.json", "atif")
    assert not (tmp_path / "b.json").exists()
