"""What a guess saves, under a virtual clock: the ledger's numbers equal those computed by hand (DESIGN 4.6)."""

from __future__ import annotations

import pytest
from agent_runtime.speculator.predictors import WrongPredictor
from agent_runtime.tools import ToolCall
from agent_runtime.traces.events import ProbeStarted

from agent_runtime import Speculation
from agent_runtime.engines.scripted import Call, Probe, Say, Think, Turn

RIGHT = ToolCall("lookup", {"key": "a"})
WRONG = ToolCall("lookup", {"key": "b"})
BESIDE = Speculation(placement="beside", reprobe=())
BEFORE = Speculation(placement="before", reprobe=())


def thinking_turn(*probes: Probe, after: float = 0.0) -> Turn:
    """A turn that thinks two seconds and closes its call at its third; `after` seconds more to its end."""
    tail = (Say("So.", delay=after),) if after else ()
    return Turn(items=(Think("let us", delay=1.0), Call(RIGHT, delay=1.0), *tail), probes=probes)


@pytest.fixture
def measure(virtual, lookup, scripted, watch):
    """Run one turn that calls and one that answers; return the result, and what the tool was asked for."""

    def run(turn: Turn, *, tool_seconds: float, speculation=BESIDE):
        tool, asked = lookup(tool_seconds)
        agent = scripted(turn, "Done.", tools=[tool], speculation=speculation)
        result, _ = virtual(lambda: watch(agent))
        assert result.status == "done" and result.output == "Done."
        return result, asked

    return run


def check(result, **expected: object) -> None:
    """Compare the calling turn's ledger with numbers computed by hand."""
    turn = result.ledger.turns[0]
    for name, value in expected.items():
        found = getattr(turn, name)
        assert found == pytest.approx(value), name


def test_without_guessing_the_tool_starts_when_the_call_closes(measure):
    result, asked = measure(thinking_turn(), tool_seconds=1.0, speculation=False)
    assert asked == ["a"]
    assert result.wall_ms == pytest.approx(4000)
    check(result, t_gen_ms=3000, t_tool_ms=1000, saved_ms=0, slowdown_ms=0, placement=None, lead_ms=None)
    assert result.ledger.hit_at_1 == 0


def test_a_guess_that_is_ready_at_demand_is_adopted_and_hides_the_whole_tool(measure):
    result, asked = measure(thinking_turn(Probe(RIGHT, delay=1.0)), tool_seconds=1.0)
    assert asked == ["a"]
    assert result.wall_ms == pytest.approx(3000)
    check(result, ending="adopted", lead_ms=2000, saved_ms=1000, t_gen_ms=3000, t_tool_ms=1000, t_probe_ms=1000)
    expected = result.ledger.expected
    assert (expected.serial_ms, expected.speculative_ms) == (pytest.approx(4000), pytest.approx(3000))
    assert result.ledger.hidden_share == pytest.approx(1.0)


def test_a_guess_in_flight_at_demand_is_joined_and_hides_its_lead(measure):
    result, asked = measure(thinking_turn(Probe(RIGHT, delay=1.0)), tool_seconds=5.0)
    assert asked == ["a"]
    assert result.wall_ms == pytest.approx(6000)
    check(result, ending="joined", lead_ms=2000, saved_ms=2000, t_tool_ms=5000, ceiling_ms=3000)
    expected = result.ledger.expected
    assert (expected.serial_ms, expected.speculative_ms) == (pytest.approx(8000), pytest.approx(6000))
    assert result.ledger.hidden_share == pytest.approx(2 / 3)


def test_a_miss_costs_no_time_and_is_counted_as_waste(measure):
    result, asked = measure(thinking_turn(Probe(WRONG, delay=1.0)), tool_seconds=1.0)
    assert asked == ["b", "a"]
    assert result.wall_ms == pytest.approx(4000)
    check(result, ending="discarded", saved_ms=0, wasted_ms=1000, hit=False, hit_name=True)
    assert result.ledger.expected.speculative_ms == pytest.approx(4000)


def test_a_miss_in_flight_is_stopped_at_demand(measure):
    result, asked = measure(thinking_turn(Probe(WRONG, delay=1.0)), tool_seconds=9.0)
    assert asked == ["b", "a"]
    assert result.wall_ms == pytest.approx(12000)
    check(result, ending="discarded", wasted_ms=2000)


def test_a_prediction_that_is_finished_after_demand_is_late_and_no_hit(measure):
    result, asked = measure(thinking_turn(Probe(RIGHT, delay=4.0), after=2.0), tool_seconds=1.0)
    assert asked == ["a"]
    assert result.wall_ms == pytest.approx(5000)
    check(result, ending="late", saved_ms=0, hit=False, lead_ms=None, t_gen_ms=3000)
    assert (result.ledger.hit_at_1, result.ledger.coverage) == (0, 0)
    assert result.ledger.endings["late"] == 1


def test_a_probe_before_the_agent_has_all_of_t_gen_as_its_lead_and_costs_its_own_time(measure):
    result, _ = measure(thinking_turn(Probe(RIGHT, delay=0.5)), tool_seconds=3.0, speculation=BEFORE)
    assert result.wall_ms == pytest.approx(3500)
    check(result, placement="before", lead_ms=3000, saved_ms=3000, t_gen_ms=3000, slowdown_ms=500)
    expected = result.ledger.expected
    form = expected.closed_form
    assert (form.rho, form.sigma, form.alpha) == (pytest.approx(1.0), pytest.approx(1 / 6), 1.0)
    assert form.speedup == pytest.approx(2 / (2 + 1 / 6 - 1))
    assert expected.serial_ms / expected.speculative_ms == pytest.approx(form.speedup)
    assert 6000 / result.wall_ms == pytest.approx(form.speedup)  # measured = both forms, where nothing else runs


def test_a_later_probe_corrects_an_earlier_one_while_the_agent_thinks(measure):
    again = Speculation(placement="beside", reprobe=(1,))
    turn = Turn(
        items=(Think("well", delay=1.0), Think("so", delay=1.0), Call(RIGHT, delay=1.0)),
        probes=(Probe(WRONG, delay=0.5), Probe(RIGHT, delay=0.5)),
    )
    result, asked = measure(turn, tool_seconds=1.0, speculation=again)
    assert asked == ["b", "a"]
    assert result.wall_ms == pytest.approx(3000)
    turn_ledger = result.ledger.turns[0]
    assert [guess.ending for guess in turn_ledger.guesses] == ["cancelled", "adopted"]
    assert turn_ledger.saved_ms == pytest.approx(1000)
    assert [event.position for event in result.events if isinstance(event, ProbeStarted)] == [0, 1, 0]


def test_the_answering_turn_discards_a_guess_and_waits_for_nothing(virtual, lookup, scripted, watch):
    tool, asked = lookup(5.0)
    turn = Turn(items=(Say("Hello there.", delay=1.0),), probes=(Probe(RIGHT, delay=0.5),))
    result, _ = virtual(lambda: watch(scripted(turn, tools=[tool])))
    assert asked == ["a"]
    assert result.wall_ms == pytest.approx(2000)
    assert result.ledger.endings["discarded"] == 1 and result.ledger.boundaries == 0


def test_an_always_wrong_predictor_changes_neither_the_conversation_nor_the_time(measure):
    plain, _ = measure(thinking_turn(), tool_seconds=1.0, speculation=False)
    wrong = Speculation(placement="beside", predictor=WrongPredictor(WRONG))
    misled, asked = measure(thinking_turn(), tool_seconds=1.0, speculation=wrong)
    assert asked[:2] == ["b", "a"]
    assert misled.messages == plain.messages and misled.wall_ms == pytest.approx(plain.wall_ms)


def test_an_unlikely_prediction_is_refused_and_still_counts_as_predicted(measure):
    result, asked = measure(thinking_turn(Probe(RIGHT, 0.2, delay=1.0)), tool_seconds=1.0)
    assert asked == ["a"]
    assert result.wall_ms == pytest.approx(4000)
    check(result, ending="refused", reason="low_confidence", hit=True, saved_ms=0)
