"""Two runs are equal when the same was said and done; where they part is found at the first turn that differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.events import Event

from agent_runtime.report.diff import diff_runs

Build = Callable[..., list[Event]]
CALL, OTHER = ToolCall("find_order", {"id": 7}), ToolCall("find_order", {"id": 8})


def test_guessing_and_timing_make_no_difference(build: Build, step: Any) -> None:
    found = diff_runs(build([step(call=CALL, guess=CALL)]), build([step(call=CALL, guess=OTHER, ending="discarded")]))
    assert found.equal
    assert found.first is None
    assert found.turns[0].a is not None
    assert found.turns[0].a.ledger.hit


def test_the_order_of_arguments_makes_no_difference(build: Build, step: Any) -> None:
    one, other = ToolCall("f", {"a": 1, "b": 2}), ToolCall("f", {"b": 2, "a": 1})
    assert diff_runs(build([step(call=one)]), build([step(call=other)])).equal


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"call": OTHER}, "call 1"),
        ({"call": CALL, "result": '{"status":"lost"}'}, "result 1"),
        ({"call": CALL, "status": "error"}, "result 1"),
        ({"call": CALL, "text": "Let me see."}, "text"),
        ({"call": CALL, "thinking": "Hm."}, "thinking"),
        ({"call": CALL, "parallel": (OTHER,)}, "call 2"),
    ],
)
def test_the_first_divergence_names_turn_and_part(build: Build, step: Any, changed: dict[str, Any], part: str) -> None:
    same = step(call=ToolCall("find_customer"))
    found = diff_runs(build([same, step(call=CALL)]), build([same, step(**changed)]))
    assert found.first is not None
    assert (found.first.turn, found.first.difference.part) == (1, part)


def test_a_difference_knows_how_far_the_texts_agree(build: Build, step: Any) -> None:
    found = diff_runs(build([step(text="It left.")]), build([step(text="It is late.")]))
    assert found.first is not None
    assert found.first.difference.offset == len("It ")


def test_a_turn_that_only_one_run_has_does_not_shift_the_others(build: Build, step: Any) -> None:
    short = [step(call=CALL), step(text="Done.")]
    long = [step(call=OTHER), *short]
    found = diff_runs(build(short), build(long))
    pairs = [(turn.a and turn.a.turn, turn.b and turn.b.turn) for turn in found.turns]
    assert pairs == [(None, 0), (0, 1), (1, 2)]
    assert [len(turn.differences) for turn in found.turns] == [1, 0, 0]


def test_another_task_and_another_ending_are_differences(build: Build, step: Any) -> None:
    steps = [step(call=CALL)]
    task = diff_runs(build(steps), build(steps, task="Another?"))
    assert task.first is not None
    assert task.first.turn is None
    assert task.first.difference.part == "task"
    ending = diff_runs(build(steps), build(steps, status="failed"))
    assert ending.first is not None
    assert ending.first.difference.part == "status"
    cut = diff_runs(build(steps), build(steps)[:-1])
    assert cut.first is not None
    assert (cut.first.difference.a, cut.first.difference.b) == ("done", "interrupted")


def test_runs_without_any_event_are_equal() -> None:
    assert diff_runs([], []).equal


def test_the_json_holds_both_sides_of_every_turn(build: Build, step: Any) -> None:
    plain = diff_runs(build([step(call=CALL, guess=CALL)]), build([step(call=OTHER)])).to_json()
    assert plain["equal"] is False
    assert plain["first_divergence"]["turn"] == 0
    assert plain["first_divergence"]["part"] == "call 1"
    (turn,) = plain["turns"]
    assert (turn["a"]["saved_ms"], turn["b"]["saved_ms"]) == (400.0, 0)
