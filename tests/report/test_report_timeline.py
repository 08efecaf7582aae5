"""The timeline holds what model, guesses, tools and probes did, and an arrow for each guess that served."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.events import Event, GuessEnded, ThinkingDelta

from agent_runtime.report.timeline import MOST_ROWS, Span, Timeline, timeline

Build = Callable[..., list[Event]]
CALL, OTHER = ToolCall("find_order", {"id": 7}), ToolCall("find_order", {"id": 8})


def lane(shown: Timeline, name: str) -> list[Span]:
    return [span for span in shown.spans if span.lane == name]


def kinds(shown: Timeline, name: str) -> list[str]:
    return [span.kind for span in lane(shown, name)]


def test_a_guess_that_served_lasts_to_its_ending_and_points_at_the_demand(build: Build, step: Any) -> None:
    shown = timeline(build([step(call=CALL, guess=CALL)]))
    (guess,) = lane(shown, "guesses")
    assert (guess.kind, guess.start, guess.end) == ("served", 0.4, 1.0)
    (arrow,) = shown.arrows
    assert (shown.spans[arrow.guess], arrow.demanded) == (guess, 1.0)
    (tool,) = lane(shown, "tools")
    assert (tool.kind, tool.start, tool.end) == ("early_used", 0.4, 0.8)


def test_a_guess_that_missed_shows_its_tool_in_vain_beside_the_real_call(build: Build, step: Any) -> None:
    shown = timeline(build([step(call=CALL, guess=OTHER, ending="discarded")]))
    assert kinds(shown, "guesses") == ["missed"]
    assert sorted(kinds(shown, "tools")) == ["early_wasted", "tool"]
    assert not shown.arrows


def test_a_refused_guess_ran_no_tool(build: Build, step: Any) -> None:
    shown = timeline(build([step(call=CALL, guess=CALL, ending="refused", reason="effect")]))
    (guess,) = lane(shown, "guesses")
    assert guess.kind == "unused"
    assert ("ending", "refused, though it was right (effect)") in guess.facts
    assert kinds(shown, "tools") == ["tool"]


def test_the_model_reads_writes_and_asks(build: Build, step: Any) -> None:
    shown = timeline(build([step(call=CALL)]))
    model = sorted(lane(shown, "model"), key=lambda span: span.start)
    assert [span.kind for span in model] == ["prefill", "writing", "demand"]
    assert model[1].label == "calls find_order(id=7)"


def test_thinking_ends_where_its_last_word_was_seen_and_shares_the_bar_where_none_was(build: Build, step: Any) -> None:
    events = build([step(call=CALL, thinking="Hm.")])
    (bar,) = (span for span in lane(timeline(events), "model") if span.kind == "thinking")
    assert bar.label.startswith("thinks, then calls")
    events.insert(4, ThinkingDelta(turn=0, at=0.7, text="Hm."))
    spans = {span.kind: span for span in lane(timeline(events), "model")}
    assert spans["thinking"].end == spans["writing"].start == 0.7


def test_bands_tell_which_turns_hit(build: Build, step: Any) -> None:
    turns = [step(call=CALL, guess=CALL), step(call=CALL, guess=OTHER, ending="discarded"), step(text="Done.")]
    assert [band.hit for band in timeline(build(turns)).bands] == [True, False, None]


def test_calls_side_by_side_have_rows_of_their_own_up_to_a_bound(build: Build, step: Any) -> None:
    many = tuple(ToolCall("find_order", {"id": number}) for number in range(MOST_ROWS + 5))
    shown = timeline(build([step(call=CALL, parallel=many)]))
    assert shown.rows["tools"] == MOST_ROWS
    assert {span.row for span in lane(shown, "tools")} == set(range(MOST_ROWS))


def test_a_trace_may_break_off_anywhere(build: Build, step: Any) -> None:
    events = build([step(call=CALL, guess=CALL, thinking="Hm."), step(call=CALL, guess=OTHER, ending="discarded")])
    for length in range(len(events) + 1):
        shown = timeline(events[:length])
        assert all(0 <= span.start <= span.end <= shown.seconds for span in shown.spans)


def test_a_guess_without_an_ending_lasts_to_the_end_of_the_trace(build: Build, step: Any) -> None:
    events = [event for event in build([step(call=CALL, guess=CALL)]) if not isinstance(event, GuessEnded)]
    (guess,) = lane(timeline(events), "guesses")
    assert guess.end == pytest.approx(1.5)
    assert ("ending", "unknown: the trace ends before it") in guess.facts
