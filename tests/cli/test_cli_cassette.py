"""`agent run --cassette`: what it prints, and how it ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]

AGENTS = '''
from agent_runtime import Agent, Limits, ScriptedEngine, tool
from agent_runtime.engines.scripted import Call, Probe, Say, Think, Turn
from agent_runtime.tools import ToolCall

ORDER = ToolCall("find_order", {"id": 7})


@tool(effect="read")
async def find_order(id: int) -> str:
    """Look an order up."""
    print("looking", flush=True)
    return "shipped \\x1b[2J"


def make(*turns, **settings):
    return Agent("support", ScriptedEngine(list(turns)), tools=[find_order], **settings)


guessed = Turn(items=(Think("let me see"), Call(ORDER)), probes=(Probe(ORDER, 0.9),))
recorded = make(guessed, "It left.")
many = make(guessed, "First.", guessed, "Second.")
silent = make()
ruder = make(instructions="Be rude.")
limited = make(guessed, "It left.", limits=Limits(turns=1))
no_model = Agent("support", "./no/such/model", tools=[find_order])
'''


@pytest.fixture
def cassette(tmp_path: Path) -> Path:
    return tmp_path / "cassette.jsonl"


@pytest.fixture
def run(agent: Command, tmp_path: Path, cassette: Path) -> Command:
    """Run a task with one of the agents above, on the cassette."""
    (tmp_path / "taped_agents.py").write_text(AGENTS)

    def call(name: str, *words: object, task: str = "Where is order 7?") -> Any:
        sys.modules.pop("taped_agents", None)
        asked = () if "--tasks" in words else (task,)
        db = tmp_path / "traces.db"
        return agent(
            "run", f"{tmp_path / 'taped_agents.py'}:{name}", *asked, "--db", db, "--cassette", cassette, *words
        )

    return call


def error_line(ended: Any, code: int) -> str:
    """Check the exit code, and return the one line that tells the error: the last on stderr."""
    lines = ended.err.splitlines()
    assert ended.code == code, ended.err
    assert [line for line in lines if line.startswith("error: ")] == lines[-1:]
    assert "Traceback" not in ended.err
    return str(lines[-1])


def test_a_run_is_recorded_and_then_replayed_without_model_and_tools(run: Command, cassette: Path) -> None:
    first = run("recorded")
    assert (first.code, "looking" in first.out, cassette.exists()) == (0, True, True)
    for name in ("silent", "no_model"):
        again = run(name)
        assert (again.code, again.out) == (0, "It left.\n")
        assert "guessed the same" in again.err


def test_json_has_the_same_keys_and_the_same_hits(run: Command) -> None:
    run("recorded")
    replayed = json.loads(run("silent", "--json").out)
    assert (replayed["status"], replayed["output"], replayed["turns"]) == ("done", "It left.", 2)
    assert replayed["speculation"]["hit_at_1"] == 1.0
    quiet = json.loads(run("silent", "--json", "--no-speculate").out)
    assert (quiet["output"], quiet["speculation"]["predicted"]) == ("It left.", 0)


def test_a_replay_is_recorded_as_a_run_like_any_other(run: Command, agent: Command, tmp_path: Path) -> None:
    run("recorded")
    run("silent")
    shown = json.loads(agent("runs", "show", "last", "--db", tmp_path / "traces.db", "--json").out)
    assert (shown["status"], shown["model"]) == ("done", "scripted")


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_the_first_divergence_is_shown_as_a_diff_and_ends_with_code_4(run: Command, more: tuple[str, ...]) -> None:
    run("recorded")
    ended = run("silent", *more, task="Where is order 8?")
    assert "diverged from the cassette" in error_line(ended, 4)
    assert "--- recorded\n+++ this run\n" in ended.err
    assert "-Where is order 7?\n+Where is order 8?\n" in ended.err
    assert "\x1b" not in ended.err
    if more:
        assert json.loads(ended.out)["status"] == "failed"
    assert "+Be rude." in run("ruder").err


def test_files_of_tasks_are_recorded_and_replayed_in_any_order(run: Command, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.txt"
    tasks.write_text("one\ntwo\n")
    assert run("many", "--tasks", tasks).code == 0
    tasks.write_text("two\none\n")
    replayed = run("silent", "--tasks", tasks, "--concurrency", 2, "--json")
    outputs = {line["task"]: line["output"] for line in map(json.loads, replayed.out.splitlines())}
    assert (replayed.code, outputs) == (0, {"one": "First.", "two": "Second."})
    tasks.write_text("one\nthree\n")
    ended = run("silent", "--tasks", tasks)
    assert "1 of 2 tasks did not end well" in error_line(ended, 4)
    assert "+three" in ended.err


def test_a_limit_is_replayed_with_its_own_exit_code(run: Command) -> None:
    assert [run("limited").code, run("limited").code] == [3, 3]


def test_nothing_is_made_where_the_model_does_not_even_load(run: Command, cassette: Path) -> None:
    assert "./no/such/model" in error_line(run("no_model"), 2)
    assert not cassette.exists()


def test_a_file_that_is_no_cassette_is_one_line_and_stays_as_it_is(run: Command, cassette: Path) -> None:
    cassette.write_text("dear diary\n")
    assert f"{cassette} is no cassette" in error_line(run("recorded"), 2)
    assert cassette.read_text() == "dear diary\n"
    cassette.write_text('{"cassette":1,"key":"00","model":"m"}\n{"type":"dance"}\n')
    assert "line 2 of the cassette" in error_line(run("recorded"), 2)


def test_a_folder_that_is_not_there_is_one_line(run: Command, tmp_path: Path) -> None:
    assert "no folder" in error_line(run("recorded", "--cassette", tmp_path / "no" / "tape"), 2)
