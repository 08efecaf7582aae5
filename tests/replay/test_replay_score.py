"""Hit@1 over recorded turns: what counts as a boundary, as a hit, as a read, and why misses missed."""

from __future__ import annotations

from typing import Any

import pytest
from agent_runtime.speculator.predictors import Guess, NoPredictor, WrongPredictor
from agent_runtime.tools.values import MalformedCall, ToolCall
from agent_runtime.traces.proportion import Proportion, wilson
from agent_runtime.traces.trajectory import RecordedTool, Trajectory

from agent_runtime.replay.combined import BOTH
from agent_runtime.replay.forced import Answer, Forced
from agent_runtime.replay.replaying import Replay, replay
from agent_runtime.replay.timing import Timing

pytestmark = pytest.mark.anyio


async def scored(make: Any, trajectory: Trajectory, answers: Any, **options: Any) -> tuple[Replay, dict[str, Any]]:
    done = await replay([trajectory], [make.known(answers)], catalogue=make.catalogue, **options)
    return done, done.to_json(timing=Timing())


async def test_every_turn_with_calls_is_one_boundary_and_every_hit_counts_over_all_of_them(make):
    answers = {0: make.find("red shoes"), 1: ToolCall("look", {"item": 99}), 2: make.find("x"), 3: None}
    _, report = await scored(make, make.shopping(), answers)
    assert report["trajectories"] == 1
    assert report["boundaries"] == 3
    assert report["predictor"] == "known"
    assert report["hit_at_1"]["exact"] == pytest.approx(1 / 3)
    assert report["hit_at_1"]["name"] == pytest.approx(2 / 3)
    assert report["hit_at_1"]["reads"] == 2
    assert report["hit_at_1"]["exact_over_reads"] == pytest.approx(1 / 2)
    assert report["coverage"] == pytest.approx(2 / 3)
    assert report["turns_without_call"] == {"turns": 2, "guessed_a_call": 1}


async def test_without_a_catalogue_nothing_counts_as_a_read(make):
    done = await replay([make.shopping()], [make.known({0: make.find("red shoes")})])
    hits = done.to_json(timing=Timing())["hit_at_1"]
    assert (hits["reads"], hits["exact_over_reads"]) == (0, None)
    assert hits["exact"] == pytest.approx(1 / 3)


async def test_calls_are_equal_by_validated_arguments(make):
    schema = {"type": "object", "properties": {"item": {"type": "integer"}, "note": {"type": "string"}}}
    trajectory = make.trajectory(
        make.turn(ToolCall("look", {"item": 17, "note": "n"}), user="?"),
        tools=[RecordedTool(name="look", parameters=schema)],
    )
    _, report = await scored(make, trajectory, {0: ToolCall("look", {"note": "n", "item": 17.0})})
    assert report["hit_at_1"]["exact"] == 1.0
    assert report["effects"]["schemas_inferred"] == []


async def test_a_schema_that_recorded_calls_break_gives_way_to_what_the_calls_show(make):
    schema = {"type": "object", "properties": {"query": {"type": "integer"}}}
    tools = [RecordedTool(name="find", parameters=schema)]
    trajectory = make.trajectory(make.turn(make.find("words"), user="?"), tools=tools)
    _, report = await scored(make, trajectory, {0: make.find("words")})
    assert report["effects"]["schemas_inferred"] == ["find"]
    assert report["hit_at_1"]["exact_over_reads"] == 1.0


async def test_a_malformed_first_call_is_a_boundary_that_nobody_can_hit(make):
    trajectory = make.trajectory(make.turn(MalformedCall("{", "cut off"), user="?", results=[None]))
    _, report = await scored(make, trajectory, {0: make.find("x")})
    assert report["boundaries"] == 1
    assert report["hit_at_1"]["exact"] == report["hit_at_1"]["name"] == 0.0
    assert report["misses"]["by_cause"]["wrong_tool"] == 1


async def test_turns_after_the_user_and_after_a_tool_are_reported_apart(make):
    answers = {0: make.find("red shoes"), 1: None, 3: None}
    _, report = await scored(make, make.shopping(), answers)
    assert report["after"]["user"]["boundaries"] == 2
    assert report["after"]["user"]["exact"] == pytest.approx(1 / 2)
    assert report["after"]["tool"]["boundaries"] == 1
    assert report["after"]["tool"]["exact"] == 0.0


async def test_hits_are_reported_by_the_tool_that_was_called(make):
    _, report = await scored(make, make.shopping(), {0: make.find("red shoes"), 1: make.find("red shoes")})
    assert {name: row["exact"] for name, row in report["by_tool"].items()} == {"find": 1.0, "look": 0.0, "buy": 0.0}


async def test_misses_say_whether_the_tool_or_an_argument_was_wrong_and_whether_its_text_had_been_seen(make):
    call = ToolCall("look", {"item": 17, "colour": "red", "gift": True})
    turns = [make.turn(make.find("shoes"), user="Red shoes, or item 17."), *[make.turn(call)] * 4]
    trajectory = make.trajectory(*turns)
    unseen = make.trajectory(make.turn(make.find("green hat"), user="Something else."))
    _, report = await scored(
        make,
        trajectory,
        {
            1: None,
            2: make.find("shoes"),
            3: ToolCall("look", {"item": 17, "colour": "blue", "gift": True}),
            4: ToolCall("look", {"item": 18, "colour": "red"}),
        },
    )
    misses = report["misses"]
    assert misses["by_cause"] == {"no_guess": 2, "wrong_tool": 1, "unseen_text": 0, "wrong_argument": 2}
    assert misses["wrong_arguments"] == {"look.colour": 1, "look.gift": 1, "look.item": 1}
    assert misses["call_holds_unseen_text"] == 0
    _, report = await scored(make, unseen, {0: make.find("red hat")})
    assert report["misses"]["by_cause"]["unseen_text"] == 1
    assert report["misses"]["call_holds_unseen_text"] == 1


async def test_a_number_counts_as_seen_only_where_it_stands_alone(make):
    trajectory = make.trajectory(make.turn(ToolCall("look", {"item": 17}), user="Order 2170 for 17.5."))
    _, report = await scored(make, trajectory, {0: ToolCall("look", {"item": 1})})
    assert report["misses"]["by_cause"]["unseen_text"] == 1


async def test_a_value_of_a_closed_list_needs_no_text(make):
    schema = {"type": "object", "properties": {"cabin": {"enum": ["economy", "business"]}}}
    tools = [RecordedTool(name="look", parameters=schema)]
    trajectory = make.trajectory(make.turn(ToolCall("look", {"cabin": "business"}), user="Book."), tools=tools)
    _, report = await scored(make, trajectory, {0: None})
    assert report["misses"]["call_holds_unseen_text"] == 0


async def test_hit_at_1_is_that_of_the_turns_start_and_later_positions_stand_beside_it(make):
    right, wrong = Guess(call=make.find("a"), confidence=0.9), Guess(call=make.find("b"), confidence=0.4)
    answers = {0: (Answer(guess=wrong), Answer(guess=right, position=1.0))}
    trajectory = make.trajectory(make.turn(make.find("a"), user="?", thinking="a, then."))
    _, report = await scored(make, trajectory, answers)
    assert report["hit_at_1"]["exact"] == 0.0
    assert {position: row["exact"] for position, row in report["by_position"].items()} == {"0.00": 0.0, "1.00": 1.0}


async def test_a_predictor_sees_a_turns_message_only_after_it_has_answered(make):
    known = make.known({})
    await replay([make.shopping()], [known])
    assert known.revealed == [0, 1, 2, 3, 4]


async def test_the_runtimes_own_predictors_can_be_led_through_recordings(make):
    wrong = Forced(WrongPredictor(make.find("nothing")))
    done = await replay([make.shopping()], [Forced(NoPredictor()), wrong], catalogue=make.catalogue)
    assert done.scores["none"].all.coverage == 0.0
    assert done.scores["wrong"].all.hit_at_1 == 0.0
    assert done.scores["wrong"].all.hit_at_1_name == pytest.approx(1 / 3)


async def test_both_takes_the_predictor_that_has_been_right_at_that_confidence(make):
    turns = [make.turn(make.find(f"q{number}"), user=f"q{number}") for number in range(20)]
    trajectory = make.trajectory(*turns)
    liar = make.known({number: make.find("wrong") for number in range(20)}, source="liar", confidence=0.95)
    modest = make.known({number: make.find(f"q{number}") for number in range(20)}, source="modest", confidence=0.5)
    done = await replay([trajectory], [liar, modest], combine=True)
    assert done.source == BOTH
    hits = done.scores[BOTH].all.hits
    assert 15 <= hits < 20  # it takes a few turns to learn whom to believe
    assert done.to_json(timing=Timing())["predictors"]["liar"]["hit_at_1"]["exact"] == 0.0


async def test_both_takes_the_one_call_where_the_other_says_that_none_follows(make):
    silent = make.known({}, source="silent")
    unsure = make.known({0: make.find("red shoes")}, source="unsure", confidence=0.1)
    done = await replay([make.shopping()], [silent, unsure], combine=True)
    assert done.scores[BOTH].all.hits == 1


def test_the_wilson_interval_agrees_with_published_values():
    # 5 of 10 and 0 of 10, e.g. in Agresti and Coull (1998) and any table of score intervals
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(0, 0) is None
    assert Proportion(1, 4).to_json()["share"] == 0.25


async def test_an_empty_recording_gives_no_rates_rather_than_an_error(make):
    done = await replay([], [make.known({})])
    report = done.to_json(timing=Timing())
    assert (report["boundaries"], report["hit_at_1"]["exact"], report["coverage"]) == (0, None, None)
    assert report["latency"] is None
