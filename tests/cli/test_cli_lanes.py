"""The lanes follow a run's events and can be drawn at any width."""

from __future__ import annotations

import io

import pytest
from agent_runtime.tools.values import (
    CallDemanded,
    CallFinished,
    CallStarted,
    GuessEnded,
    GuessProposed,
    GuessStarted,
    Outcome,
    ToolCall,
)
from agent_runtime.traces.events import (
    Event,
    GenerationFinished,
    Prefilled,
    ProbeFinished,
    ProbeStarted,
    RunFinished,
    RunStarted,
    TextDelta,
    ThinkingDelta,
    TurnFinished,
    TurnStarted,
)
from rich.console import Console

from agent_runtime.cli.lanes import Activity, Lane, Lanes, Span
from agent_runtime.cli.lanes_view import LanesView, blocks, slice_seconds

CALL = ToolCall("find_order", {"id": 7})
OTHER = ToolCall("find_order", {"id": 8})


def opening(guess: ToolCall = CALL) -> list[Event]:
    return [
        RunStarted(at=0.0, agent="support", model="pocket", task="Where is order 7?"),
        TurnStarted(turn=0, at=0.0),
        ProbeStarted(turn=0, at=0.0, probe=0, position=0, placement="beside"),
        Prefilled(turn=0, at=0.1, prompt_tokens=300, reused_tokens=200, prefilled_tokens=100),
        ThinkingDelta(turn=0, at=0.2, text="The order "),
        ThinkingDelta(turn=0, at=0.3, text="is 7."),
        ProbeFinished(turn=0, at=0.4, probe=0, completed=True, call=guess, confidence=0.9),
        GuessProposed(turn=0, at=0.4, guess=0, call=guess, confidence=0.9, source="self"),
    ]


def hit(ending: str, outcome: Outcome) -> list[Event]:
    return [
        *opening(),
        GuessStarted(turn=0, at=0.4, guess=0, tool="find_order"),
        CallDemanded(turn=0, at=0.8, index=0, call=CALL, pre_executable=True),
        GuessEnded(
            turn=0,
            at=0.8,
            guess=0,
            ending=ending,  # type: ignore[arg-type]
            tool="find_order",
            matched=True,
            matched_name=True,
            executed=True,
            lead_ms=400.0,
            saved_ms=300.0,
        ),
        CallFinished(turn=0, at=max(0.8, outcome.ended_at), index=0, tool="find_order", outcome=outcome, guess=0),
    ]


def fed(events: list[Event]) -> Lanes:
    lanes = Lanes()
    for event in events:
        lanes.feed(event)
    return lanes


def spans(lane: Lane) -> list[Span]:
    return list(lane.spans.values())


def test_the_model_reads_thinks_and_writes() -> None:
    lanes = fed([*opening(), CallDemanded(turn=0, at=0.8, index=0, call=CALL, pre_executable=True)])
    assert spans(lanes.model) == [
        Span(0.0, 0.1, Activity.PREFILL),
        Span(0.2, 0.3, Activity.THINKING),
        Span(0.3, None, Activity.WRITING),
    ]
    assert lanes.model.text == "calls find_order(id=7)"


def test_thinking_is_shown_as_it_streams() -> None:
    assert fed(opening()).model.text == "The order is 7."


def test_an_early_tool_that_served_spans_its_own_time() -> None:
    lanes = fed(hit("adopted", Outcome("ok", "{}", 0.4, 0.7)))
    assert spans(lanes.tools) == [Span(0.4, 0.7, Activity.USED)]
    assert spans(lanes.speculation) == [Span(0.0, 0.4, Activity.PROBE), Span(0.4, 0.8, Activity.HIT)]
    assert lanes.speculation.text == "find_order(id=7) hit, saved 300 ms"
    assert lanes.tools.text == "find_order answered in 300 ms"


def test_a_joined_tool_runs_on_after_demand() -> None:
    before_the_end = hit("joined", Outcome("ok", "{}", 0.4, 1.1))
    lanes = fed(before_the_end[:-1])
    assert spans(lanes.tools) == [Span(0.4, None, Activity.EARLY)]
    lanes.feed(before_the_end[-1])
    assert spans(lanes.tools) == [Span(0.4, 1.1, Activity.USED)]


def test_a_miss_is_wasted_and_the_real_call_runs() -> None:
    lanes = fed(
        [
            *opening(OTHER),
            GuessStarted(turn=0, at=0.4, guess=0, tool="find_order"),
            CallDemanded(turn=0, at=0.8, index=0, call=CALL, pre_executable=True),
            GuessEnded(turn=0, at=0.8, guess=0, ending="discarded", tool="find_order", executed=True, wasted_ms=400.0),
            CallStarted(turn=0, at=0.8, index=0, tool="find_order", effect="read"),
            CallFinished(
                turn=0,
                at=1.0,
                index=0,
                tool="find_order",
                outcome=Outcome("error", "{}", 0.8, 1.0, error="not_found"),
            ),
        ]
    )
    assert spans(lanes.tools) == [Span(0.4, 0.8, Activity.WASTED), Span(0.8, 1.0, Activity.FAILED)]
    assert spans(lanes.speculation)[-1] == Span(0.4, 0.8, Activity.MISS)
    assert lanes.speculation.text == "find_order(id=8) missed, 400 ms wasted"
    assert lanes.tools.text == "find_order not_found after 200 ms"


def test_a_refused_guess_says_why() -> None:
    refused = GuessEnded(turn=0, at=0.4, guess=0, ending="refused", reason="requires_approval", tool="find_order")
    lanes = fed([*opening(), refused])
    assert spans(lanes.tools) == []
    assert lanes.speculation.text == "find_order(id=7) not started (requires approval)"


def test_the_end_of_a_run_closes_every_span() -> None:
    lanes = fed([*opening(), RunFinished(at=0.9, status="failed", output="", error="the model went away")])
    assert all(span.end is not None for lane in (lanes.model, lanes.tools, lanes.speculation) for span in spans(lane))
    assert lanes.over
    assert lanes.model.text == "the model went away"


def test_an_answer_closes_the_turn() -> None:
    lanes = fed(
        [
            TurnStarted(turn=0, at=0.0),
            Prefilled(turn=0, at=0.1, prompt_tokens=3, reused_tokens=0, prefilled_tokens=3),
            TextDelta(turn=0, at=0.2, text="It left."),
            GenerationFinished(
                turn=0,
                at=0.3,
                thinking="",
                text="It left.",
                calls=(),
                finish_reason="stop",
                prompt_tokens=3,
                completion_tokens=3,
                thinking_tokens=0,
                forwards=3,
                generation_ms=300.0,
                slowdown_ms=0.0,
            ),
            TurnFinished(turn=0, at=0.3),
        ]
    )
    assert spans(lanes.model) == [Span(0.0, 0.1, Activity.PREFILL), Span(0.1, 0.3, Activity.WRITING)]


def drawn(lanes: Lanes, width: int, now: float = 0.0) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=False, markup=False, color_system=None)
    console.print(LanesView(lanes, now))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lanes = fed([*hit("adopted", Outcome("ok", "{}", 0.4, 0.7)), TextDelta(turn=0, at=0.9, text="word " * 200)])
    lines = drawn(lanes, width)
    assert max(map(len, lines)) <= width
    assert [line.split()[0] for line in lines[1:7:2]] == ["model", "tools", "speculation"]


def test_before_the_first_event_the_lanes_are_empty() -> None:
    lines = drawn(Lanes(), 80, now=1.5)
    assert lines[0].startswith("loading the model")
    assert lines[0].rstrip().endswith("turn 1  1.5 s")


def test_open_spans_grow_with_time() -> None:
    open_span = [Span(0.1, None, Activity.THINKING)]
    assert blocks(open_span, now=0.3, seconds=0.1, width=6).plain == " ▒▒   "
    assert blocks(open_span, now=0.5, seconds=0.1, width=6).plain == " ▒▒▒▒ "


def test_a_short_span_still_fills_a_block() -> None:
    assert blocks([Span(0.25, 0.2501, Activity.TOOL)], now=1.0, seconds=0.1, width=5).plain == "  █  "


@pytest.mark.parametrize(("elapsed", "seconds"), [(0.0, 0.01), (0.9, 0.01), (1.1, 0.015), (6.0, 0.075), (700.0, 7.5)])
def test_the_whole_run_fits_into_the_width(elapsed: float, seconds: float) -> None:
    assert slice_seconds(elapsed, 100) == pytest.approx(seconds)


def test_text_of_model_and_tools_reaches_the_terminal_without_escapes_or_markup() -> None:
    evil = "\x1b]0;title\x07\x1b[2J[bold]words[/bold]"
    lanes = fed([*opening(ToolCall("find\x1b[2J", {"q": "[red]"})), TextDelta(turn=0, at=0.5, text=evil)])
    text = "\n".join(drawn(lanes, 100))
    assert "\x1b" not in text
    assert "[bold]words[/bold]" in text
    assert 'find(q="[red]")' in text
