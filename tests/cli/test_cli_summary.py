"""The summary tells a person what was guessed, what hit and what it saved."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

import pytest
from agent_runtime.tools.values import CallDemanded, CallFinished, GuessEnded, GuessProposed, Outcome, ToolCall
from agent_runtime.traces import RunRow
from agent_runtime.traces.events import (
    Event,
    GenerationFinished,
    ProbeFinished,
    RunStatus,
    TurnStarted,
)
from rich.console import Console

from agent_runtime.cli.summary import costs, print_speculation, print_stored, turn_rows, verdict

CALL = ToolCall("find_order", {"id": 7})
OTHER = ToolCall("find_order", {"id": 8})


def turn(number: int, *, guess: ToolCall | None = CALL, calls: int = 1, **ended: Any) -> list[Event]:
    events: list[Event] = [TurnStarted(turn=number, at=0.0)]
    if guess is not None:
        events.append(GuessProposed(turn=number, at=0.1, guess=number, call=guess, confidence=0.9, source="self"))
    events += [CallDemanded(turn=number, at=0.4, index=i, call=CALL, pre_executable=True) for i in range(calls)]
    if ended:
        events.append(GuessEnded(turn=number, at=0.4, guess=number, tool="find_order", **ended))
        served = number if ended["ending"] == "adopted" else None
        events.append(finished(number, 0, guess=served))
    return events


def finished(turn: int, index: int, *, guess: int | None) -> CallFinished:
    """A tool that took 200 ms."""
    outcome = Outcome("ok", "", 0.1, 0.3)
    return CallFinished(turn=turn, at=0.4, index=index, tool="find_order", outcome=outcome, guess=guess)


def answer(number: int) -> GenerationFinished:
    return GenerationFinished(
        turn=number,
        at=0.5,
        thinking="",
        text="Done.",
        calls=(),
        finish_reason="stop",
        prompt_tokens=1,
        completion_tokens=1,
        thinking_tokens=0,
        forwards=1,
        generation_ms=1.0,
        slowdown_ms=0.0,
    )


def speculation(**changed: Any) -> dict[str, Any]:
    plain = {
        "boundaries": 4,
        "predicted": 4,
        "hit_at_1": 0.75,
        "hit_at_1_name": 1.0,
        "adopted": 1,
        "joined": 1,
        "discarded": 1,
        "stale": 0,
        "late": 0,
        "refused": 1,
        "saved_ms": 450.0,
        "wasted_ms": 250.0,
        "slowdown_ms": 120.0,
        "hidden_share": 0.6,
    }
    return plain | changed


ADOPTED: dict[str, Any] = {
    "ending": "adopted",
    "matched": True,
    "matched_name": True,
    "executed": True,
    "lead_ms": 300.0,
    "saved_ms": 200.0,
}


def test_a_hit_shows_its_lead_and_what_it_saved() -> None:
    (row,) = turn_rows(turn(0, **ADOPTED))
    assert (row.call, row.guess, row.ending) == ("find_order(id=7)", "the same", "adopted")
    assert (row.confidence, row.lead_ms, row.saved_ms) == (0.9, 300.0, pytest.approx(200.0))


def test_a_turn_whose_later_calls_came_early_too_says_so_and_shows_what_the_turn_saved() -> None:
    later = [GuessProposed(turn=0, at=0.1, guess=1, call=OTHER, confidence=0.8, source="counter", index=1)]
    ended = [GuessEnded(turn=0, at=0.4, guess=1, tool="find_order", **ADOPTED), finished(0, 1, guess=1)]
    (row,) = turn_rows([*turn(0, calls=2, **ADOPTED), *later, *ended])
    assert (row.call, row.guess, row.confidence) == ("find_order(id=7) and 1 more", "the same, and 1 more in time", 0.9)
    assert row.saved_ms == pytest.approx(200.0)
    (row,) = turn_rows([*turn(0, calls=2, guess=None), *later, *ended])
    assert (row.guess, row.saved_ms) == ("-, and 1 more in time", pytest.approx(200.0))


def test_a_miss_shows_what_was_guessed_instead() -> None:
    (row,) = turn_rows(turn(0, guess=OTHER, ending="discarded", executed=True, wasted_ms=250.0))
    assert (row.guess, row.ending, row.saved_ms) == ("find_order(id=8)", "missed, 250 ms wasted", None)


def test_a_refused_guess_shows_the_reason_and_no_lead() -> None:
    (row,) = turn_rows(turn(0, ending="refused", reason="effect", matched=True))
    assert (row.guess, row.ending, row.lead_ms) == ("the same", "not started (effect)", None)


def test_several_calls_of_a_turn_are_counted() -> None:
    (row,) = turn_rows(turn(0, calls=3))
    assert row.call == "find_order(id=7) and 2 more"


def test_a_turn_without_calls_answers() -> None:
    probe = ProbeFinished(turn=0, at=0.2, probe=0, completed=True, call=None, confidence=0.8)
    (row,) = turn_rows([TurnStarted(turn=0, at=0.0), probe, answer(0)])
    assert (row.call, row.guess, row.confidence) == ("(answers)", "no call", 0.8)


def test_of_several_guesses_of_a_turn_the_one_that_served_is_shown() -> None:
    first = GuessProposed(turn=0, at=0.1, guess=0, call=CALL, confidence=0.9, source="self")
    again = GuessProposed(turn=0, at=0.2, guess=1, call=CALL, confidence=0.95, source="self")
    events: list[Event] = [
        TurnStarted(turn=0, at=0.0),
        first,
        again,
        GuessEnded(turn=0, at=0.2, guess=1, tool="find_order", ending="refused", reason="same_as_standing"),
        GuessEnded(turn=0, at=0.4, guess=0, tool="find_order", **ADOPTED),
    ]
    (row,) = turn_rows(events)
    assert (row.confidence, row.ending) == (0.9, "adopted")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {},
            "The speculator guessed 3 of 4 calls exactly (Hit@1 75 %); "
            "2 results came early and saved 450 ms of a run that took 2.0 s.",
        ),
        (
            {"adopted": 0, "joined": 0, "saved_ms": 0.0},
            "The speculator guessed 3 of 4 calls exactly (Hit@1 75 %); no result came early.",
        ),
        (
            {"boundaries": 1, "hit_at_1": 1.0, "adopted": 1, "joined": 0},
            "The speculator guessed 1 of 1 call exactly (Hit@1 100 %); "
            "1 result came early and saved 450 ms of a run that took 2.0 s.",
        ),
        (
            {"predicted": 0, "hit_at_1": 0.0, "adopted": 0, "joined": 0},
            "No call was guessed in time; the model made calls in 4 turns.",
        ),
        (
            {"predicted": 0, "hit_at_1": 0.0, "adopted": 1, "joined": 0},
            "The speculator guessed 0 of 4 calls exactly (Hit@1 0 %); "
            "1 result came early and saved 450 ms of a run that took 2.0 s.",
        ),
        (
            {"boundaries": 0, "predicted": 0, "hit_at_1": None},
            "The model made no call, so there was nothing to guess.",
        ),
    ],
)
def test_one_sentence_says_what_guessing_did(changes: dict[str, Any], sentence: str) -> None:
    assert verdict(speculation(**changes), wall_ms=2000.0) == sentence


def test_costs_name_only_what_there_was() -> None:
    assert costs(speculation()) == (
        "hid 60 % of what guesses can hide, 250 ms of tool time in vain, decoding 120 ms slower, 1 discarded, 1 refused"
    )
    quiet = speculation(hidden_share=None, wasted_ms=0.0, slowdown_ms=0.0, discarded=0, refused=0)
    assert costs(quiet) == ""


def printed(width: int, events: list[Event], stored: RunRow | None = None) -> str:
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False, emoji=False)
    if stored is not None:
        print_stored(console, stored, events)
    else:
        print_speculation(console, events, speculation(), wall_ms=2000.0)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_summary_fits_the_terminal_and_loses_nothing(width: int) -> None:
    long = ToolCall("find_order", {"query": "ж" * 90})
    text = printed(width, [*turn(0, **ADOPTED), *turn(1, guess=long, ending="discarded", executed=True)])
    assert max(map(len, text.splitlines())) <= width
    assert text.count("ж") == 90


def test_escapes_and_markup_of_model_text_are_harmless() -> None:
    evil = ToolCall("find\x1b[2J", {"q": "[red]x[/red]"})
    text = printed(80, turn(0, guess=evil, ending="discarded"))
    assert "\x1b" not in text
    assert "[red]x[/red]" in text


def row(status: RunStatus, **changed: Any) -> RunRow:
    now = datetime.now(UTC)
    plain: dict[str, Any] = {
        "run_id": "r1",
        "agent": "support",
        "model": "pocket",
        "task": "Where is it?\x1b[2J",
        "started_at": now,
        "ended_at": None,
        "heartbeat_at": now,
        "host": "here",
        "pid": 1,
        "output": None,
        "error": None,
        "wall_ms": 1500.0,
        "summary": None,
    }
    return RunRow(status=status, **plain | changed)


def test_a_stored_run_shows_task_answer_and_summary() -> None:
    lines = printed(80, turn(0, **ADOPTED), row("done", output="It left.\x1b[2J")).splitlines()
    assert lines[0] == "run r1  done  1.5 s"
    assert lines[1].startswith("support on pocket, 20")
    assert lines[2:5] == ["task: Where is it?", "", "It left."]
    assert any("adopted" in line for line in lines)


def test_an_interrupted_run_says_so_and_shows_what_there_is() -> None:
    text = printed(80, turn(0, **ADOPTED), row("interrupted"))
    assert text.startswith("run r1  interrupted")
    assert "interrupted: the process ended before the run did" in text
    assert "adopted" in text


def test_a_failed_run_says_why() -> None:
    assert "failed: no memory" in printed(80, [], row("failed", error="no memory\x1b[2J"))
