"""`agent report`, `agent stats` and `agent runs diff` on recorded runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from agent_runtime.tools.values import (
    CallDemanded,
    CallFinished,
    GuessEnded,
    GuessProposed,
    GuessStarted,
    Outcome,
    ToolCall,
)
from agent_runtime.traces import TraceStore
from agent_runtime.traces.events import Event, GenerationFinished, RunFinished, RunStarted, TurnFinished, TurnStarted

Command = Callable[..., Any]
CALL = ToolCall("find_order", {"id": 7})
GUESSING = {"speculation": {"predictor": "self"}}


def run_of(*, answer: str = "It left.", guess: bool = True, task: str = "Where is it?") -> list[Event]:
    """Return the events of a run of two turns."""

    def said(turn: int, at: float, text: str, calls: tuple[ToolCall, ...]) -> GenerationFinished:
        return GenerationFinished(
            turn=turn,
            at=at,
            thinking="",
            text=text,
            calls=calls,
            finish_reason="calls" if calls else "stop",
            prompt_tokens=10,
            completion_tokens=30,
            thinking_tokens=0,
            forwards=20,
            generation_ms=1000.0,
            slowdown_ms=0.0,
        )

    settings = GUESSING if guess else {"speculation": None}
    events: list[Event] = [
        RunStarted(at=0.0, agent="support", model="pocket", task=task, settings=settings),
        TurnStarted(turn=0, at=0.0),
    ]
    if guess:
        events.append(GuessProposed(turn=0, at=0.5, guess=0, call=CALL, confidence=0.9, source="self"))
        events.append(GuessStarted(turn=0, at=0.5, guess=0, tool="find_order"))
    events.append(CallDemanded(turn=0, at=1.0, index=0, call=CALL, pre_executable=True))
    if guess:
        events.append(
            GuessEnded(
                turn=0,
                at=1.0,
                guess=0,
                ending="adopted",
                tool="find_order",
                matched=True,
                matched_name=True,
                executed=True,
                lead_ms=500.0,
                saved_ms=300.0,
            )
        )
    outcome = Outcome("ok", '{"status":"\x1b[31mshipped"}', 0.5, 0.8)
    events += [
        said(0, 1.0, "", (CALL,)),
        CallFinished(turn=0, at=1.0, index=0, tool="find_order", outcome=outcome, guess=0 if guess else None),
        TurnFinished(turn=0, at=1.0),
        TurnStarted(turn=1, at=1.0),
        said(1, 2.0, answer, ()),
        TurnFinished(turn=1, at=2.0),
        RunFinished(at=2.0, status="done", output=answer),
    ]
    return events


def record(path: Path, events: list[Event]) -> str:
    async def write() -> str:
        started = events[0]
        assert isinstance(started, RunStarted)
        with TraceStore.open(path) as store:
            async with store.start_run(started) as writer:
                for event in events:
                    writer.append(event)
            return writer.run_id

    return anyio.run(write)


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "traces.db"


def test_without_options_the_report_is_the_summary(agent: Command, db: Path) -> None:
    run_id = record(db, run_of())
    ended = agent("report", "last", "--db", db)
    assert ended.code == 0
    assert ended.out == agent("runs", "show", run_id, "--db", db).out


def test_the_html_page_is_written_where_it_was_asked_for(agent: Command, db: Path, tmp_path: Path) -> None:
    run_id = record(db, run_of())
    ended = agent("report", run_id, "--html", tmp_path / "run.html", "--db", db)
    assert (ended.code, ended.out) == (0, "")
    assert ended.err.startswith(f"wrote {tmp_path / 'run.html'} (")
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert run_id in page
    assert "Where is it?" in page
    assert "\x1b" not in page


def test_the_chrome_trace_is_json_with_trace_events(agent: Command, db: Path, tmp_path: Path) -> None:
    record(db, run_of())
    assert agent("report", "last", "--chrome", tmp_path / "run.json", "--db", db).code == 0
    assert json.loads((tmp_path / "run.json").read_text())["traceEvents"]


def test_one_of_them_may_go_to_stdout(agent: Command, db: Path, tmp_path: Path) -> None:
    record(db, run_of())
    ended = agent("report", "last", "--html", "-", "--chrome", tmp_path / "run.json", "--db", db)
    assert ended.out.startswith("<!doctype html>")
    both = agent("report", "last", "--html", "-", "--chrome", "-", "--db", db)
    assert (both.code, both.out) == (2, "")


def test_a_file_that_cannot_be_written_is_one_line(agent: Command, db: Path, tmp_path: Path) -> None:
    record(db, run_of())
    ended = agent("report", "last", "--html", tmp_path / "missing" / "run.html", "--db", db)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: can't write ")
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize("words", [("report", "nothing"), ("runs", "diff", "last", "nothing")])
def test_a_run_that_is_not_there_is_one_line(agent: Command, db: Path, words: tuple[str, ...]) -> None:
    record(db, run_of())
    ended = agent(*words, "--db", db)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: no run 'nothing'")


def test_runs_that_say_the_same_are_equal_though_one_guessed(agent: Command, db: Path) -> None:
    first, second = record(db, run_of()), record(db, run_of(guess=False))
    ended = agent("runs", "diff", first, second, "--db", db)
    assert ended.code == 0
    assert "The runs are equal" in ended.out
    assert "adopted | none" in ended.out
    plain = agent("runs", "diff", first, second, "--db", db, "--json")
    found = json.loads(plain.out)
    assert (plain.code, found["equal"], found["first_divergence"]) == (0, True, None)
    assert (found["a"]["run_id"], found["b"]["run_id"]) == (first, second)


def test_runs_that_differ_end_with_1_and_show_where_they_part(agent: Command, db: Path) -> None:
    first, second = record(db, run_of(answer="It left.")), record(db, run_of(answer="It's late.\x1b[2J"))
    ended = agent("runs", "diff", first, second, "--db", db)
    assert ended.code == 1
    assert "The runs part at turn 2, in its text:" in ended.out
    assert "A  It left." in ended.out
    assert "B  It's late.\\x1b[2J" in ended.out
    plain = agent("runs", "diff", first, second, "--db", db, "--json")
    divergence = json.loads(plain.out)["first_divergence"]
    assert plain.code == 1
    assert (divergence["turn"], divergence["part"], divergence["offset"]) == (1, "text", 2)


def test_another_task_is_where_runs_part_first(agent: Command, db: Path) -> None:
    first, second = record(db, run_of()), record(db, run_of(task="Where is order 8?"))
    ended = agent("runs", "diff", first, second, "--db", db)
    assert ended.code == 1
    assert "The runs part in the task:" in ended.out


@pytest.mark.parametrize("columns", ["80", "140"])
def test_stats_show_runs_by_agent_model_and_predictor(
    agent: Command, db: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    for _ in range(3):
        record(db, run_of())
    record(db, run_of(guess=False))
    monkeypatch.setenv("COLUMNS", columns)
    ended = agent("stats", "--tools", "--db", db)
    assert ended.code == 0
    assert max(map(len, ended.out.splitlines())) <= int(columns)
    for part in ("support", "pocket", "self", "off", "100 % (44 to 100)", "900 ms", "1.50", "find_order"):
        assert part in ended.out


def test_stats_as_json_have_their_keys(agent: Command, db: Path) -> None:
    record(db, run_of())
    found = json.loads(agent("stats", "--db", db, "--json").out)
    (group,) = found["groups"]
    assert (group["agent"], group["model"], group["guessing"], group["runs"]) == ("support", "pocket", "self", 1)
    assert group["hit_at_1"] == pytest.approx({"count": 1, "of": 1, "share": 1.0, "low": 0.2065, "high": 1.0}, abs=1e-4)
    assert group["lead_ms"]["p50"] == 500.0
    assert group["tokens_per_forward"] == 1.5
    assert found["all"]["agent"] is None


def test_stats_of_nothing_say_how_to_make_a_run(agent: Command, db: Path) -> None:
    record(db, run_of())
    ended = agent("stats", "--agent", "none such", "--db", db)
    assert (ended.code, ended.out) == (0, "")
    assert "agent run shop" in ended.err
