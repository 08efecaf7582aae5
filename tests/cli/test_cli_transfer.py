"""`agent runs export` and `agent runs import`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Agent = Callable[..., Any]

CHAT = {
    "id": "one",
    "messages": [
        {"role": "user", "content": "Where is it?"},
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "find", "arguments": '{"n": 1}'}}]},
        {"role": "tool", "tool_call_id": "c", "content": "there", "latency_s": 0.25},
        {"role": "assistant", "content": "There."},
    ],
}


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps(CHAT) + "\n{oops\n")
    return path


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "traces.db"


def test_a_recording_of_another_agent_is_imported_and_what_is_broken_is_named(
    agent: Agent, recording: Path, db: Path
) -> None:
    ended = agent("runs", "import", recording, "--db", db)
    assert ended.code == 0
    (run_id,) = ended.out.split()
    assert ended.err.splitlines() == [
        f"{recording}, line 2: no JSON: Expecting property name enclosed in double quotes at character 1",
        f"imported 1 run from {recording} (chat)",
    ]
    shown = json.loads(agent("runs", "show", run_id, "--db", db, "--json").out)
    assert (shown["agent"], shown["task"], shown["output"]) == ("chat", "Where is it?", "There.")


def test_what_was_imported_is_told_as_json(agent: Agent, recording: Path, db: Path) -> None:
    (told,) = json.loads(agent("runs", "import", recording, "--db", db, "--json").out)["files"]
    assert (told["format"], len(told["imported"]), told["already_there"], told["fault_count"]) == ("chat", 1, [], 1)
    assert told["faults"][0]["record"] == "line 2"


def test_runs_go_from_one_database_to_another_once(agent: Agent, recording: Path, db: Path, tmp_path: Path) -> None:
    (run_id,) = agent("runs", "import", recording, "--db", db).out.split()
    exported = agent("runs", "export", run_id[:10], "last", "-o", tmp_path / "own.jsonl", "--db", db)
    assert (exported.code, exported.out, exported.err) == (0, "", f"wrote 1 run to {tmp_path / 'own.jsonl'}\n")
    other = tmp_path / "other.db"
    assert agent("runs", "import", tmp_path / "own.jsonl", "--db", other).out.split() == [run_id]
    again = agent("runs", "import", tmp_path / "own.jsonl", "--db", other)
    assert (again.code, again.out) == (0, "")
    assert again.err.endswith(
        "imported 0 runs from " + f"{tmp_path / 'own.jsonl'} (own); 1 run of it was here already\n"
    )


@pytest.mark.parametrize("format", ["own", "atif", "chat", "perfetto", "otel"])
def test_each_format_is_written_as_json(agent: Agent, recording: Path, db: Path, tmp_path: Path, format: str) -> None:
    pytest.importorskip({"atif": "atif", "otel": "opentelemetry.exporter.otlp.json.file"}.get(format, "json"))
    agent("runs", "import", recording, "--db", db)
    assert agent("runs", "export", "last", "--format", format, "-o", tmp_path / "x", "--db", db).code == 0
    assert all(json.loads(line) for line in (tmp_path / "x").read_text("utf-8").splitlines())


def test_an_export_may_go_to_stdout(agent: Agent, recording: Path, db: Path) -> None:
    agent("runs", "import", recording, "--db", db)
    ended = agent("runs", "export", "last", "--format", "chat", "-o", "-", "--db", db)
    assert json.loads(ended.out)["messages"][0] == {"role": "user", "content": "Where is it?"}
    assert ended.err == ""


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("import", "nowhere.jsonl"), "can't read nowhere.jsonl: No such file"),
        (("import", "empty"), "empty is empty"),
        (("import", "prose", "nowhere"), "prose is none of the formats own, "),
        (("import", "chat.jsonl", "--format", "x"), "no format is called 'x'"),
        (("export", "last", "-o", "x"), "no run 'last'"),
        (("export", "last"), "Missing option '--output'"),
    ],
)
def test_where_nothing_can_be_done_one_line_says_why(
    agent: Agent, recording: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], reason: str
) -> None:
    monkeypatch.chdir(recording.parent)
    Path("empty").touch()
    Path("prose").write_text("hello\n")
    ended = agent("runs", *words, "--db", "traces.db")
    assert (ended.code, ended.out) == (2, "")
    assert all(line.startswith("error: ") for line in ended.err.splitlines())
    assert reason in ended.err


def test_files_that_can_be_read_are_imported_beside_one_that_can_not(
    agent: Agent, recording: Path, db: Path, tmp_path: Path
) -> None:
    ended = agent("runs", "import", tmp_path / "nowhere", recording, "--db", db)
    assert (ended.code, len(ended.out.split())) == (0, 1)
    assert f"error: can't read {tmp_path / 'nowhere'}: No such file or directory" in ended.err
