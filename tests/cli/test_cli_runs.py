"""Recorded runs can be listed, shown and removed, and their database is found and migrated."""

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
STARTED = RunStarted(at=0.0, agent="support", model="pocket", task="Where is \x1b[2Jorder 7?")


def generation(turn: int, at: float, calls: tuple[ToolCall, ...]) -> GenerationFinished:
    return GenerationFinished(
        turn=turn,
        at=at,
        thinking="",
        text="" if calls else "It left.",
        calls=calls,
        finish_reason="calls" if calls else "stop",
        prompt_tokens=10,
        completion_tokens=5,
        thinking_tokens=0,
        forwards=5,
        generation_ms=800.0,
        slowdown_ms=0.0,
    )


ONE_TURN: tuple[Event, ...] = (
    STARTED,
    TurnStarted(turn=0, at=0.0),
    GuessProposed(turn=0, at=0.3, guess=0, call=CALL, confidence=0.9, source="self"),
    GuessStarted(turn=0, at=0.3, guess=0, tool="find_order"),
    CallDemanded(turn=0, at=0.8, index=0, call=CALL, pre_executable=True),
    GuessEnded(
        turn=0,
        at=0.8,
        guess=0,
        ending="adopted",
        tool="find_order",
        matched=True,
        matched_name=True,
        executed=True,
        lead_ms=500.0,
        saved_ms=300.0,
    ),
    generation(0, 0.8, (CALL,)),
    CallFinished(turn=0, at=0.8, index=0, tool="find_order", outcome=Outcome("ok", "{}", 0.3, 0.6), guess=0),
    TurnFinished(turn=0, at=0.8),
)
WHOLE: tuple[Event, ...] = (
    *ONE_TURN,
    TurnStarted(turn=1, at=0.8),
    generation(1, 1.2, ()),
    TurnFinished(turn=1, at=1.2),
    RunFinished(at=1.2, status="done", output="It left.\x1b]0;title\x07"),
)


def record(path: Path, events: tuple[Event, ...]) -> str:
    async def write() -> str:
        with TraceStore.open(path) as store:
            async with store.start_run(STARTED) as writer:
                for event in events:
                    writer.append(event)
            return writer.run_id

    return anyio.run(write)


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "traces.db"


def test_a_run_is_listed_with_what_guessing_did(agent: Command, db: Path) -> None:
    run_id = record(db, WHOLE)
    ended = agent("runs", "list", "--db", db)
    assert ended.code == 0
    line = next(line for line in ended.out.splitlines() if run_id in line)
    assert "done" in line
    assert "100 %" in line
    assert "300 ms" in line
    assert "\x1b" not in ended.out


def test_the_list_as_json_has_its_keys(agent: Command, db: Path) -> None:
    run_id = record(db, WHOLE)
    (row,) = json.loads(agent("runs", "list", "--db", db, "--json").out)["runs"]
    assert row["run_id"] == run_id
    assert {"run_id", "status", "agent", "model", "task", "started", "wall_ms"} <= row.keys()


def test_an_empty_database_says_how_to_make_a_run(agent: Command, db: Path) -> None:
    ended = agent("runs", "list", "--db", db)
    assert (ended.code, ended.out) == (0, "")
    assert "agent run shop" in ended.err


def test_a_run_is_shown_by_the_beginning_of_its_id(agent: Command, db: Path) -> None:
    run_id = record(db, WHOLE)
    for name in (run_id, run_id[:-2], "last"):
        ended = agent("runs", "show", name, "--db", db)
        assert ended.code == 0
        assert ended.out.startswith(f"run {run_id}  done  1.2 s")
        assert "It left." in ended.out
        assert "adopted" in ended.out
        assert "\x1b" not in ended.out


def test_a_shown_run_as_json_has_its_events_and_the_promised_keys(agent: Command, db: Path) -> None:
    record(db, WHOLE)
    shown = json.loads(agent("runs", "show", "last", "--db", db, "--json").out)
    assert [event["type"] for event in shown["events"]] == [event.type for event in WHOLE]
    assert shown["speculation"]["hit_at_1"] == 1.0
    assert shown["speculation"]["saved_ms"] == pytest.approx(300.0)


def test_a_run_without_an_end_is_shown_as_interrupted(agent: Command, db: Path) -> None:
    record(db, ONE_TURN)
    with TraceStore.open(db) as store:
        assert store.run("last").status in ("running", "interrupted")
        age_heartbeats(db)
    ended = agent("runs", "show", "last", "--db", db)
    assert ended.code == 0
    assert "interrupted: the process ended before the run did" in ended.out
    assert "adopted" in ended.out


def age_heartbeats(db: Path) -> None:
    """Let every run look as if it had not been heard of for long."""
    import contextlib
    import sqlite3

    with contextlib.closing(sqlite3.connect(db)) as connection, connection:
        connection.execute("UPDATE runs SET heartbeat_at = '2000-01-01 00:00:00', started_at = '2000-01-01 00:00:00'")


def test_a_run_can_be_removed(agent: Command, db: Path) -> None:
    first, second = record(db, WHOLE), record(db, WHOLE)
    assert agent("runs", "rm", first, "--db", db).out == f"removed {first}\n"
    listed = agent("runs", "list", "--db", db).out
    assert second in listed
    assert first not in listed


def test_nothing_is_removed_when_one_of_the_names_is_wrong(agent: Command, db: Path) -> None:
    run_id = record(db, WHOLE)
    assert agent("runs", "rm", run_id, "nothing", "--db", db).code == 2
    assert run_id in agent("runs", "list", "--db", db).out


@pytest.mark.parametrize("command", ["show", "rm"])
def test_an_unknown_run_is_one_line_with_the_remedy(agent: Command, db: Path, command: str) -> None:
    ended = agent("runs", command, "nothing", "--db", db)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: no run 'nothing'")
    assert "agent runs list" in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize("words", [("runs", "list"), ("runs", "show", "x"), ("db", "upgrade")])
def test_a_database_that_cannot_be_written_is_one_line(agent: Command, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "file").write_text("not a folder")
    ended = agent(*words, "--db", tmp_path / "file" / "traces.db")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: can't write the trace database")
    assert "--db" in ended.err
    assert ended.err.count("\n") == 1


def test_a_file_that_is_no_database_is_one_line(agent: Command, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("These are notes, and long enough to look like a page of something. " * 40)
    ended = agent("runs", "list", "--db", tmp_path / "notes.txt")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: can't ")
    assert ended.err.count("\n") == 1


def test_db_path_names_the_database(agent: Command, db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert agent("db", "path", "--db", db).out == f"{db}\n"
    monkeypatch.setenv("AGENT_RUNTIME_DB", str(db))
    assert agent("db", "path").out == f"{db}\n"
    assert not db.exists()


def test_db_path_hides_the_password(agent: Command) -> None:
    assert agent("db", "path", "--db", "postgresql+psycopg://me:secret@host/db").out.strip().endswith("me:***@host/db")


def test_db_upgrade_says_what_it_did(agent: Command, db: Path) -> None:
    assert "from empty to revision" in agent("db", "upgrade", "--db", db).out
    assert "up to date" in agent("db", "upgrade", "--db", db).out
