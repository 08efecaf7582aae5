"""The policy's decisions follow the expected values, and nothing but the events seen."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from agent_runtime.speculator.errors import SpeculationInvalid
from agent_runtime.speculator.estimates import Calibration, Recent
from agent_runtime.speculator.policy import OPENING, RETRY, Policy, Speculation
from agent_runtime.speculator.predictors import Guess, NoPredictor
from agent_runtime.tools.limits import GuessLimits
from agent_runtime.tools.values import (
    CallDemanded,
    CallFinished,
    GuessEnded,
    GuessProposed,
    Outcome,
    Prediction,
    ToolCall,
)
from agent_runtime.traces.events import (
    Event,
    GenerationFinished,
    ProbeFinished,
    ProbeStarted,
    TurnFinished,
    TurnStarted,
)
from hypothesis import given
from hypothesis import strategies as st

CALL = ToolCall("look", {"n": 1})


def turn(
    number: int = 0,
    *,
    generation: float = 100.0,
    probe: float | None = 20.0,
    placement: Any = "beside",
    tool: float | None = 300.0,
    hit: bool = True,
    confidence: float = 0.9,
    slowdown: float = 0.0,
    pre_executable: bool = True,
    tokens: int = 10,
) -> list[Event]:
    """The events of one turn; durations in milliseconds, `tool` None for a turn without a call."""
    events: list[Event] = [TurnStarted(turn=number, at=0)]
    if probe is not None:
        guess = CALL if hit else ToolCall("look", {"n": 2})
        events += [
            ProbeStarted(turn=number, at=0, probe=0, position=0, placement=placement),
            ProbeFinished(turn=number, at=0, probe=0, completed=True, call=guess, probe_ms=probe),
            GuessProposed(turn=number, at=0, guess=number, call=guess, confidence=confidence, source="self"),
        ]
    if tool is not None:
        events.append(CallDemanded(turn=number, at=0, index=0, call=CALL, pre_executable=pre_executable))
    events.append(
        GenerationFinished(
            turn=number,
            at=0,
            thinking="",
            text="",
            calls=(CALL,) if tool is not None else (),
            finish_reason="calls",
            prompt_tokens=1,
            completion_tokens=tokens,
            thinking_tokens=0,
            forwards=1,
            generation_ms=generation,
            slowdown_ms=slowdown,
        )
    )
    if probe is not None:
        served = hit and tool is not None and pre_executable
        lead = generation if placement == "before" else max(0.0, generation - probe)
        events.append(
            GuessEnded(
                turn=number,
                at=0,
                guess=number,
                ending="adopted" if served else "discarded",
                tool="look",
                matched=hit and tool is not None,
                lead_ms=lead if served else 0.0,
                saved_ms=min(lead, tool or 0.0) if served else 0.0,
            )
        )
    if tool is not None:
        outcome = Outcome("ok", "", 0.0, tool / 1000)
        guess_that_served = number if probe is not None and hit and pre_executable else None
        events.append(CallFinished(turn=number, at=0, index=0, tool="look", outcome=outcome, guess=guess_that_served))
    events.append(TurnFinished(turn=number, at=0))
    return events


def learned(count: int = 20, **facts: Any) -> Policy:
    policy = Policy(Speculation())
    for number in range(count):
        for event in turn(number, **facts):
            policy.observe(event)
    return policy


def prediction(confidence: float = 0.9, name: str = "look") -> Prediction:
    return Prediction(ToolCall(name), confidence, "self")


def test_without_speculation_nothing_is_probed_or_started() -> None:
    policy = Policy(None)
    assert policy.placement() is None and policy.positions == ()
    assert policy.refusal(prediction()) == "low_confidence"


def test_it_begins_with_some_turns_of_each_kind() -> None:
    policy = Policy(Speculation())
    made = []
    for number in range(len(OPENING)):
        policy.observe(TurnStarted(turn=number, at=0))
        made.append(policy.placement())
    assert tuple(made) == OPENING and {"beside", "before", None} == set(made)
    assert policy.expected_ms("beside") == math.inf and policy.expected_ms(None) == 0.0
    assert policy.refusal(prediction()) is None
    assert policy.worth_another(Guess(call=CALL, confidence=0.99), elapsed_ms=5.0)


@pytest.mark.parametrize("placement", ["beside", "before"])
def test_a_placement_that_was_asked_for_is_kept(placement: Any) -> None:
    policy = Policy(Speculation(placement=placement))
    for number in range(20):
        for event in turn(number, hit=False, slowdown=50.0):
            policy.observe(event)
    assert policy.placement() == placement


def test_until_the_usual_pace_is_known_the_engines_account_of_the_slowdown_counts() -> None:
    policy = learned(generation=100.0, probe=30.0, tool=60.0, slowdown=7.0)
    assert policy.expected_ms("beside") == pytest.approx(min(60.0, 100.0 - 30.0) - 7.0)
    before = learned(generation=100.0, probe=30.0, tool=90.0, placement="before")
    assert before.expected_ms("before") == pytest.approx(90.0 - 30.0)


def test_a_turn_gains_what_it_saved_less_what_it_took_beyond_the_usual_pace() -> None:
    policy = learned(4, probe=None, generation=100.0, tokens=20)  # 5 ms a token
    for number in range(4, 12):
        for event in turn(number, generation=130.0, probe=50.0, tool=60.0, slowdown=1.0, tokens=20):
            policy.observe(event)
    assert policy.expected_ms("beside") == pytest.approx(60.0 - 30.0)
    for number in range(12, 20):
        for event in turn(number, placement="before", generation=40.0, probe=25.0, tool=60.0, tokens=20):
            policy.observe(event)
    # The guess started the tool 40 ms early and drafted the call, at the price of 25 ms of waiting.
    assert policy.expected_ms("before") == pytest.approx(40.0 - 25.0 + 60.0)
    assert policy.placement() == "before"


def test_what_gains_most_is_done_and_the_others_are_tried_now_and_then() -> None:
    policy = learned(4, probe=None)
    for number in range(4, 12):
        before = number % 2 == 0
        for event in turn(number, placement="before" if before else "beside", probe=20.0 if before else 50.0):
            policy.observe(event)
    made = []
    for number in range(12, 12 + 4 * RETRY):
        policy.observe(TurnStarted(turn=number, at=0))
        made.append(policy.placement())
    assert made.count("before") >= 3 * RETRY  # the tool is longer than the turn, so all of the turn is its lead
    assert {"beside", None} <= set(made)


def test_one_stall_of_the_machine_does_not_stop_the_guessing() -> None:
    policy = learned(4, probe=None)
    for number in range(20):
        for event in turn(number, generation=100.0, probe=20.0, tool=60.0):
            policy.observe(event)
    for event in turn(99, generation=9000.0, probe=4000.0, hit=False):
        policy.observe(event)
    assert policy.expected_ms("beside") > 0


def test_turns_after_one_result_are_judged_apart_from_those_after_another() -> None:
    """The first turn of every run calls what was guessed; the second, after that tool's result, only answers."""
    policy = learned(4, probe=None)
    for number in range(40):
        run = policy.for_run()
        placement = "before" if number % 2 else "beside"
        for event in turn(0, placement=placement, generation=100.0):
            run.observe(event)
        for event in turn(1, placement=placement, generation=140.0, probe=30.0, tool=None):
            run.observe(event)
    starts, answers = [], []
    for _ in range(2 * RETRY):
        run = policy.for_run()
        for event in turn(0, probe=None)[:1]:
            run.observe(event)
        starts.append(run.placement())
        for event in turn(0, probe=None)[1:]:
            run.observe(event)
        run.observe(TurnStarted(turn=1, at=0))
        answers.append(run.placement())
    assert starts.count(None) <= 4
    assert answers.count(None) >= 2 * RETRY - 4
    assert all(math.isinf(Policy(Speculation()).expected_ms(arm)) for arm in ("beside", "before"))


def test_guessing_that_never_serves_stops_and_is_tried_again_now_and_then() -> None:
    policy = learned(4, probe=None)
    for number in range(40):
        for event in turn(number, placement="before" if number % 2 else "beside", hit=False, generation=120.0):
            policy.observe(event)
    made = []
    for number in range(2 * RETRY):
        policy.observe(TurnStarted(turn=number, at=0))
        made.append(policy.placement())
    assert len(made) - 2 <= made.count(None) < len(made)


def test_it_recovers_when_guesses_begin_to_serve() -> None:
    policy = learned(4, probe=None)
    for number in range(40):
        for event in turn(number, hit=False, generation=120.0):
            policy.observe(event)
    assert policy.expected_ms("beside") < 0
    for number in range(40, 100):
        for event in turn(number):
            policy.observe(event)
    assert policy.expected_ms("beside") > 0


def test_conversations_without_calls_are_not_probed_for_ever() -> None:
    policy = learned(8, probe=None, tool=None)
    for number in range(42):
        for event in turn(number, placement="before" if number % 2 else "beside", tool=None, generation=103.0):
            policy.observe(event)
    policy.observe(TurnStarted(turn=41, at=0))
    assert policy.placement() is None


def test_tools_that_may_not_start_early_do_not_count_as_time_to_save() -> None:
    policy = learned(tool=500.0, pre_executable=False, hit=False)
    assert policy.estimates.tool.mean is None and policy.estimates.tools["look"].mean == 500.0


def test_low_confidence_and_tools_that_take_no_time_are_not_started() -> None:
    policy = learned(tool=0.2)
    assert policy.refusal(prediction(0.3)) == "low_confidence"
    assert policy.refusal(prediction(0.9)) == "not_worth_it"
    assert policy.refusal(prediction(0.9, "never seen")) is None
    assert learned(tool=50.0).refusal(prediction(0.9)) is None


def test_another_probe_must_pay_for_itself() -> None:
    sure, unsure = Guess(call=CALL, confidence=0.95), Guess(call=CALL, confidence=0.45)
    policy = learned(generation=100.0, probe=20.0, tool=300.0, slowdown=10.0)
    assert policy.worth_another(unsure, elapsed_ms=10.0) and policy.worth_another(None, elapsed_ms=10.0)
    assert not policy.worth_another(sure, elapsed_ms=10.0)
    assert not policy.worth_another(unsure, elapsed_ms=85.0)  # no lead is left
    assert policy.worth_another(sure, elapsed_ms=1000.0)  # no turn was ever this long


def test_no_further_probe_once_the_turn_is_about_to_call_what_may_not_start_early() -> None:
    policy = learned(generation=200.0, probe=10.0, tool=300.0)
    guess = Guess(call=CALL, confidence=0.5)
    policy.observe(TurnStarted(turn=50, at=0))
    assert policy.worth_another(guess, elapsed_ms=10.0)
    policy.observe(GuessProposed(turn=50, at=0, guess=99, call=CALL, confidence=0.9, source="self"))
    policy.observe(GuessProposed(turn=50, at=0, guess=98, call=CALL, confidence=0.9, source="counter", index=1))
    policy.observe(GuessEnded(turn=50, at=0, guess=98, ending="refused", reason="effect", tool="look"))
    assert policy.worth_another(guess, elapsed_ms=10.0), "a later call of the turn says nothing of the first"
    policy.observe(GuessEnded(turn=50, at=0, guess=99, ending="refused", reason="effect", tool="look"))
    assert not policy.worth_another(guess, elapsed_ms=10.0)
    policy.observe(TurnStarted(turn=51, at=0))
    assert policy.worth_another(guess, elapsed_ms=10.0)


def test_a_sure_no_call_is_not_asked_for_again() -> None:
    policy = learned(generation=100.0, probe=20.0, tool=300.0, slowdown=5.0)
    assert not policy.worth_another(Guess(call=None, confidence=0.99), elapsed_ms=10.0)
    assert policy.worth_another(Guess(call=None, confidence=0.3), elapsed_ms=10.0)
    assert not Policy(Speculation()).worth_another(Guess(call=None, confidence=1.0), elapsed_ms=10.0)


def test_runs_share_what_is_known_and_keep_their_turns_apart() -> None:
    policy = Policy(Speculation())
    runs = [policy.for_run() for _ in range(2)]
    streams = [turn(0, generation=50.0, confidence=0.9), turn(0, generation=150.0, confidence=0.1, hit=False)]
    for first, second in zip(*streams, strict=True):
        runs[0].observe(first)
        runs[1].observe(second)
    assert policy.estimates.generation.mean == 100.0
    assert [turn.served for turn in policy.estimates.turns["beside"]] == [True, False]
    assert policy.estimates.calibration.probability(0.9) > 0.9 > 0.1 > policy.estimates.calibration.probability(0.1)


@given(st.lists(st.tuples(st.floats(1, 500), st.floats(1, 200), st.floats(0, 50), st.booleans()), max_size=30))
def test_decisions_depend_on_the_events_alone(facts: list[tuple[float, float, float, bool]]) -> None:
    def decisions() -> list[Any]:
        policy, made = Policy(Speculation()), []
        for number, (generation, probe, slowdown, hit) in enumerate(facts):
            made.append(policy.placement())
            for event in turn(number, generation=generation, probe=probe, slowdown=slowdown, hit=hit):
                policy.observe(event)
        return made

    assert decisions() == decisions()


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=50), st.floats(0, 1))
def test_calibrated_probabilities_stay_probabilities(seen: list[tuple[float, bool]], confidence: float) -> None:
    calibration = Calibration()
    assert calibration.probability(confidence) == pytest.approx(confidence)
    for item in seen:
        calibration.add(*item)
    assert 0.0 <= calibration.probability(confidence) <= 1.0


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=80), st.floats(0, 1000), st.floats(0, 1000))
def test_mean_leads_lie_between_nothing_and_the_tools_time(values: list[float], start: float, tool: float) -> None:
    recent = Recent()
    for value in values:
        recent.add(value)
    lead = recent.mean_lead_after(-1.0, start=start, at_most=tool)
    assert lead is not None and 0.0 <= lead <= tool + 1e-9
    assert len(recent) <= 64 and Recent().mean_lead_after(0, start=0, at_most=1) is None


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("placement", "after"),
        ("predictor", "other"),
        ("min_confidence", 1.5),
        ("max_probe_tokens", 0),
        ("reprobe", (16, 16)),
        ("reprobe", (0, 4)),
        ("reprobe", (32, 16)),
    ],
)
def test_settings_that_can_not_work_are_named(setting: str, value: Any) -> None:
    with pytest.raises(SpeculationInvalid, match=setting):
        Speculation(**{setting: value})


def test_settings_are_a_value_and_plain_json_for_the_trace() -> None:
    import json

    settings = Speculation(predictor=NoPredictor(), allow_idempotent={"b", "a"}, limits=GuessLimits(in_flight=2))
    plain = settings.to_json()
    assert json.loads(json.dumps(plain)) == plain
    assert (plain["predictor"], plain["allow_idempotent"], plain["limits"]["in_flight"]) == ("none", ["a", "b"], 2)
    assert Speculation() == Speculation() and Speculation().to_json()["predictor"] == "self"


def test_guesses_of_later_calls_do_not_teach_how_far_confidences_can_be_believed() -> None:
    """They are refused, or given up with what they followed from, which proves nothing of them."""
    policy = Policy(Speculation())
    for number in range(30):
        begun = [
            TurnStarted(turn=number, at=0),
            CallDemanded(turn=number, at=0, index=0, call=CALL, pre_executable=True),
            GuessProposed(turn=number, at=0, guess=number, call=CALL, confidence=0.9, source="counter", index=1),
            GuessEnded(turn=number, at=0, guess=number, ending="refused", reason="barrier", tool="look"),
        ]
        for event in begun:
            policy.observe(event)
    assert policy.estimates.calibration.probability(0.9) == pytest.approx(0.9)


def test_a_probe_is_not_credited_with_a_first_call_that_counting_guessed() -> None:
    policy = Policy(Speculation())
    events = turn(0, hit=True)
    for event in events:
        policy.observe(replace(event, source="counter") if isinstance(event, GuessProposed) else event)
    (probed,) = policy.estimates.turns["beside"]
    assert probed.saved_ms == 0.0


def test_a_probe_is_not_credited_with_what_was_guessed_without_it() -> None:
    events = [
        TurnStarted(turn=0, at=0),
        ProbeStarted(turn=0, at=0, probe=0, position=0, placement="beside"),
        ProbeFinished(turn=0, at=0, probe=0, completed=True, call=None, probe_ms=20.0),
        CallDemanded(turn=0, at=0.1, index=0, call=CALL, pre_executable=True),
        GuessProposed(turn=0, at=0.1, guess=0, call=CALL, confidence=0.9, source="counter", index=1),
        CallFinished(turn=0, at=0.2, index=0, tool="look", outcome=Outcome("ok", "", 0.1, 0.2)),
        CallDemanded(turn=0, at=0.4, index=1, call=CALL, pre_executable=True),
        GuessEnded(turn=0, at=0.4, guess=0, ending="adopted", tool="look", matched=True, lead_ms=300.0, saved_ms=300.0),
        CallFinished(turn=0, at=0.4, index=1, tool="look", outcome=Outcome("ok", "", 0.1, 0.4), guess=0),
        TurnFinished(turn=0, at=0.4),
    ]
    policy = Policy(Speculation())
    for event in events:
        policy.observe(event)
    (turn,) = policy.estimates.turns["beside"]
    assert (turn.saved_ms, turn.served) == (0.0, False)
