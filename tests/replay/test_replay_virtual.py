"""Recordings in virtual time: real loop, real dispatcher, recorded or injected times."""

from __future__ import annotations

import math
import threading
from typing import Any

import anyio
import pytest
from agent_runtime.speculator.predictors import Guess, NoPredictor
from agent_runtime.speculator.settings import Speculation
from agent_runtime.tools import GuessLimits
from agent_runtime.tools.values import MalformedCall, ToolCall
from agent_runtime.traces.trajectory import RecordedResult, Trajectory

from agent_runtime.errors import UsageError
from agent_runtime.replay.arithmetic import estimate
from agent_runtime.replay.forced import Answer
from agent_runtime.replay.replaying import Replay, replay
from agent_runtime.replay.timing import TimeSources, Timing
from agent_runtime.replay.whatif import Outcome, Setting, exchanges


def asked(make: Any, trajectories: list[Trajectory], answers: Any) -> Replay:
    async def ask() -> Replay:
        return await replay(trajectories, [make.known(answers)], catalogue=make.catalogue)

    return anyio.run(ask)


AS_RECORDED = Timing()


def setting(timing: Timing = AS_RECORDED, **options: Any) -> Setting:
    speculation = {
        "placement": options.pop("placement", "beside"),
        "min_confidence": options.pop("min_confidence", 0.5),
        "reprobe": options.pop("reprobe", ()),
        "limits": options.pop("limits", GuessLimits()),
    }
    return Setting(
        source="known",
        timing=timing,
        speculation=Speculation(predictor=NoPredictor(), **speculation),
        probe_ms=options.pop("probe_ms", 0.0),
        **options,
    )


def played(make: Any, trajectory: Trajectory, answers: Any, *settings: Setting) -> list[Outcome]:
    return asked(make, [trajectory], answers).what_if(settings or [setting()])


ALL = {0: ToolCall("find", {"query": "red shoes"}), 1: ToolCall("look", {"item": 17}), 3: ToolCall("buy", {"item": 17})}


def test_without_a_guess_the_loop_takes_what_the_recording_took(make):
    (outcome,) = played(make, make.shopping(), {})
    assert outcome.serial_ms == pytest.approx(5000 + 400 + 2000 + 500)
    assert outcome.speculative_ms == pytest.approx(outcome.serial_ms)
    assert outcome.turns == 5


def test_hits_hide_reads_behind_the_generation_and_never_writes(make):
    (outcome,) = played(make, make.shopping(), ALL)
    # find: 0.4 s all hidden; look: 1 of its 2 s; buy: a write, which starts when it is asked for
    assert outcome.speculative_ms == pytest.approx(outcome.serial_ms - 400 - 1000)
    assert outcome.ledger.endings["adopted"] == 1
    assert outcome.ledger.endings["joined"] == 1
    assert outcome.ledger.endings["refused"] == 1
    assert outcome.ledger.hit_at_1 == 1.0
    assert outcome.ledger.hidden_share == pytest.approx(1.0)
    assert outcome.ledger.expected.speedup == pytest.approx(outcome.speedup)


def test_the_sum_of_expected_times_agrees_with_the_loop(make):
    done = asked(make, [make.shopping()], ALL)
    (outcome,) = done.what_if([setting()])
    expected = estimate((turn for turns in done.answered for turn in turns), "known", Timing())
    assert expected.serial_ms == pytest.approx(outcome.serial_ms)
    assert expected.speculative_ms == pytest.approx(outcome.speculative_ms, abs=1)
    assert expected.hidden_share == pytest.approx(1.0, abs=1e-3)


def test_a_wrong_guess_costs_the_tool_time_and_nothing_else(make):
    (outcome,) = played(make, make.shopping(), {0: ToolCall("find", {"query": "blue"})})
    assert outcome.speculative_ms == pytest.approx(outcome.serial_ms)
    assert outcome.wasted_calls == 1
    assert outcome.ledger.wasted_ms == pytest.approx(400)  # what `find` usually takes
    assert outcome.ledger.endings["discarded"] == 1


def test_injected_latency_takes_the_place_of_the_recorded_one(make):
    (outcome,) = played(make, make.shopping(), ALL, setting(Timing(tool_latency_ms=100)))
    assert outcome.serial_ms == pytest.approx(5000 + 3 * 100)
    assert outcome.speculative_ms == pytest.approx(5000 + 100)


def test_messages_without_a_recorded_time_take_the_injected_one(make):
    trajectory = make.trajectory(make.turn(make.find("x"), user="?", latency_s=1.0))
    (outcome,) = played(make, trajectory, {0: make.find("x")}, setting(Timing(generation_ms=250)))
    assert outcome.serial_ms == pytest.approx(1250)
    assert outcome.speculative_ms == pytest.approx(1000)


def test_a_recorded_failure_fails_the_guess_and_the_real_call_runs(make):
    result = RecordedResult(content="no such item", latency_s=0.5, failed=True)
    trajectory = make.trajectory(make.turn(make.find("x"), user="?", results=[result], generation_s=1.0))
    (outcome,) = played(make, trajectory, {0: make.find("x")})
    assert outcome.ledger.endings["failed"] == 1
    assert outcome.speculative_ms == pytest.approx(outcome.serial_ms) == pytest.approx(1500)


def test_calls_of_one_turn_run_side_by_side_and_only_the_first_can_be_served_early(make):
    calls = (make.find("a"), make.find("b"))
    trajectory = make.trajectory(make.turn(*calls, user="?", results=["1", "2"], latency_s=0.9, generation_s=2.0))
    (outcome,) = played(make, trajectory, {0: make.find("a")})
    # the first call closes at half of the message and is done when the message ends, guessed or not
    assert outcome.serial_ms == pytest.approx(2900)
    assert outcome.speculative_ms == pytest.approx(2900)
    assert outcome.ledger.endings["adopted"] == 1


def test_a_call_made_twice_in_one_turn_gets_both_recorded_results(make):
    results = [RecordedResult(content="1", latency_s=0.5), RecordedResult(content="2", latency_s=3.0)]
    trajectory = make.trajectory(
        make.turn(make.find("a"), make.find("a"), user="?", results=results, generation_s=1.0),
    )
    (outcome,) = played(make, trajectory, {})
    assert outcome.serial_ms == pytest.approx(1000 + 3000)


def test_malformed_calls_and_calls_without_result_take_no_time(make):
    trajectory = make.trajectory(
        make.turn(MalformedCall("{", "cut off"), user="?", results=[None], generation_s=1.0),
        make.turn(make.find("a"), results=[None], generation_s=1.0),
    )
    (outcome,) = played(make, trajectory, {1: make.find("a")})
    assert outcome.serial_ms == outcome.speculative_ms == pytest.approx(2000)


def test_guesses_below_the_least_confidence_are_not_started(make):
    answers = {0: (Answer(guess=Guess(call=make.find("red shoes"), confidence=0.3)),)}
    strict, lenient = played(make, make.shopping(), answers, setting(), setting(min_confidence=0.2))
    assert strict.speculative_ms == pytest.approx(strict.serial_ms)
    assert strict.ledger.hit_at_1 == pytest.approx(1 / 3)
    assert lenient.speculative_ms == pytest.approx(lenient.serial_ms - 400)


def test_a_bound_of_wasted_calls_stops_guessing_within_the_run(make):
    turns = [make.turn(make.find(f"q{number}"), latency_s=0.5, generation_s=1.0) for number in range(6)]
    trajectory = make.trajectory(*turns)
    answers = {number: make.find("wrong") for number in range(5)} | {5: make.find("q5")}
    limits = GuessLimits(wasted_calls=2, wasted_seconds=math.inf)
    bounded, free = played(make, trajectory, answers, setting(limits=limits), setting())
    assert bounded.wasted_calls == 2
    assert bounded.ledger.endings["adopted"] == 0
    assert free.wasted_calls == 5
    assert free.ledger.endings["adopted"] == 1


def test_a_guess_that_takes_time_shortens_the_lead(make):
    (outcome,) = played(make, make.shopping(), {1: ALL[1]}, setting(probe_ms=300))
    assert outcome.speculative_ms == pytest.approx(outcome.serial_ms - 700)
    (late,) = played(make, make.shopping(), {1: ALL[1]}, setting(probe_ms=1300))
    assert late.speculative_ms == pytest.approx(late.serial_ms)


def test_a_probe_beside_the_agent_may_slow_its_message_down(make):
    (outcome,) = played(make, make.shopping(), {1: ALL[1]}, setting(probe_ms=300, slowdown=0.5))
    # five probes of 300 ms, each half paid by the agent, whose later demand gives the guess 150 ms more
    assert outcome.ledger.slowdown_ms == pytest.approx(5 * 150)
    assert outcome.speculative_ms == pytest.approx(outcome.serial_ms + 5 * 150 - 850)


def test_a_probe_before_the_agent_is_waited_for(make):
    (outcome,) = played(make, make.shopping(), {1: ALL[1]}, setting(probe_ms=100, placement="before"))
    assert outcome.speculative_ms == pytest.approx(outcome.serial_ms + 5 * 100 - 1000)


def test_later_positions_of_the_thinking_are_asked_when_the_agent_gets_there(make):
    wrong, right = Guess(call=make.find("b"), confidence=0.9), Guess(call=make.find("a"), confidence=0.9)
    answers = {0: (Answer(guess=wrong), Answer(guess=right, position=0.5), Answer(guess=right, position=1.0))}
    thinking = "x" * (2 * len('find{"query": "a"}'))  # two thirds of the message
    trajectory = make.trajectory(
        make.turn(make.find("a"), user="?", thinking=thinking, latency_s=1.0, generation_s=3.0, results=["1"])
    )
    (outcome,) = played(make, trajectory, answers, setting(reprobe=(50,)))
    assert outcome.serial_ms == pytest.approx(4000)
    assert outcome.speculative_ms == pytest.approx(3000)  # known after 1 s, ready after 2 s, asked for after 3 s
    assert outcome.ledger.endings["adopted"] == 1
    assert outcome.wasted_calls == 1


def test_an_exchange_is_a_run_of_its_own(make):
    assert exchanges(make.shopping()) == [(0, 3), (3, 2)]
    assert exchanges(make.trajectory(make.turn(make.find("a")))) == [(0, 1)]
    assert exchanges(make.trajectory()) == []


def test_odd_tool_names_are_played_too(make):
    call = ToolCall("find the thing!", {})
    trajectory = make.trajectory(make.turn(call, user="?", latency_s=0.5, results=["x"], generation_s=1.0))
    (outcome,) = played(make, trajectory, {})
    assert outcome.serial_ms == pytest.approx(1500)


def test_no_thread_is_started_in_virtual_time(make, monkeypatch):
    done = asked(make, [make.shopping()], ALL)

    def refuse(self: threading.Thread) -> None:
        raise AssertionError(f"the thread {self.name} was started")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    (outcome,) = done.what_if([setting()])
    assert outcome.turns == 5


def test_the_same_sweep_gives_the_same_figures(make):
    first, again = (played(make, make.shopping(), ALL)[0].to_json() for _ in range(2))
    assert first == again


def test_figures_say_where_their_times_come_from(make):
    done = asked(make, [make.shopping()], ALL)
    recorded = done.to_json(timing=Timing())["latency"]
    assert (recorded["source"], recorded["generation_source"], recorded["time"]) == ("recorded", "recorded", "recorded")
    assert recorded["calls_without_latency"] == 0
    injected = Timing(tool_latency_ms=50)
    report = done.to_json(timing=injected, outcomes=done.what_if([setting(injected)]))
    assert report["latency"]["source"] == "injected"
    assert report["latency"]["tool_latency_ms"] == 50
    assert report["latency"]["time"] == "virtual"
    assert report["latency"]["speedup"] == report["what_if"][0]["speedup"]


def test_without_recorded_or_injected_latency_there_is_no_figure(make):
    trajectory = make.trajectory(make.turn(make.find("a"), user="?", results=["x"]))
    done = asked(make, [trajectory], {})
    assert done.latency(Timing()) is None
    half = make.trajectory(
        make.turn(make.find("a"), results=["x"], latency_s=1.0), make.turn(make.find("b"), results=["y"])
    )
    label = TimeSources.of([half]).to_json(Timing())
    assert (label["source"], label["calls_without_latency"]) == ("recorded", 1)
    assert (label["generation_source"], label["generation_ms"]) == ("injected", 1000.0)


@pytest.mark.parametrize("times", [{"tool_latency_ms": -1.0}, {"generation_ms": math.inf}, {"generation_ms": math.nan}])
def test_impossible_times_are_refused(times):
    with pytest.raises(UsageError, match="at least 0"):
        Timing(**times)
