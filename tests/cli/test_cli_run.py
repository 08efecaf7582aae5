"""`agent run`: what it prints, where, and how it ends, with a scripted model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]

AGENTS = '''
from contextlib import asynccontextmanager

import anyio

from agent_runtime import Agent, Limits, ScriptedEngine, ToolFailure, tool
from agent_runtime.engines.scripted import Call, Probe, Say, Think, Turn
from agent_runtime.tools import ToolCall

ORDER = ToolCall("find_order", {"id": 7})


@tool(effect="read")
async def find_order(id: int) -> dict[str, str]:
    """Look an order up.

    Args:
        id: The order's number.
    """
    return {"status": "shipped\\x1b[2J"}


@tool(effect="read")
async def broken(id: int) -> str:
    """Raise."""
    raise ValueError("no luck")


@tool(effect="read")
async def hang(id: int) -> str:
    """Never answer."""
    print("hanging", flush=True)
    await anyio.sleep_forever()


def script(*calls, answer="It left.\\x1b]0;title\\x07 [bold]Now[/bold]"):
    turns = [Turn(items=(Think("let me see"), Call(call)), probes=(Probe(call, 0.9),)) for call in calls]
    return ScriptedEngine([*turns, answer])


def make(engine, **settings):
    return Agent("support", engine, tools=[find_order, broken, hang], **settings)


good = make(script(ORDER))
unknown_tool = make(script(ToolCall("no_such_tool", {})))
wrong_arguments = make(script(ToolCall("find_order", {"id": "seven"})))
raising = make(script(ToolCall("broken", {"id": 7})))
hanging = make(script(ToolCall("hang", {"id": 7})))
limited = make(script(ORDER, ORDER, ORDER), limits=Limits(turns=2))
exhausted = make(ScriptedEngine([]))
many = make(ScriptedEngine(["one", "two", "three"]))
no_model = Agent("lost", "./no/such/model")
no_tools = Agent("bare", ScriptedEngine(["Hi."]))
number = 7


def factory():
    return make(script(ORDER))


def choosy(model=None, speculation=True, traces=True):
    return make(script(ORDER, answer=f"{model} {speculation}"), speculation=speculation, traces=traces)


def demanding(path):
    return make(script(ORDER))


async def coroutine():
    return make(script(ORDER))


@asynccontextmanager
async def context():
    print("entered", flush=True)
    yield make(script(ORDER))
    print("left", flush=True)


def gives_a_number():
    return 7
'''


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "traces.db"


@pytest.fixture
def run(agent: Command, tmp_path: Path, db: Path) -> Command:
    """Run a task with one of the agents above."""
    (tmp_path / "scripted_agents.py").write_text(AGENTS)

    def call(name: str, *words: object) -> Any:
        sys.modules.pop("scripted_agents", None)
        task = () if "--tasks" in words else ("Where is order 7?",)
        return agent("run", f"{tmp_path / 'scripted_agents.py'}:{name}", *task, "--db", db, *words)

    return call


PROMISED = {
    "run_id",
    "status",
    "output",
    "turns",
    "usage",
    "speculation",
    "decoding",
    "wall_ms",
}
SPECULATION = {
    "boundaries",
    "predicted",
    "hit_at_1",
    "hit_at_1_name",
    "adopted",
    "joined",
    "discarded",
    "stale",
    "late",
    "refused",
    "saved_ms",
    "wasted_ms",
    "slowdown_ms",
    "hidden_share",
}
DECODING = {"tokens", "forwards", "mean_accepted_length", "acceptance_by_position", "draft"}


def test_the_answer_goes_to_stdout_and_the_rest_to_stderr(run: Command) -> None:
    ended = run("good")
    assert ended.code == 0
    assert ended.out == "It left. [bold]Now[/bold]\n"
    assert "find_order(id=7)" in ended.err
    assert "agent runs show" in ended.err
    assert "\x1b" not in ended.out + ended.err


def test_json_is_one_object_with_the_promised_keys(run: Command) -> None:
    ended = run("good", "--json")
    result = json.loads(ended.out)
    assert (ended.code, ended.err) == (0, "")
    assert result.keys() >= PROMISED
    assert result["speculation"].keys() >= SPECULATION
    assert result["decoding"].keys() >= DECODING
    assert (result["status"], result["turns"]) == ("done", 2)
    assert result["speculation"]["boundaries"] == 1


def test_the_run_can_be_shown_again(run: Command, agent: Command, db: Path) -> None:
    run_id = json.loads(run("good", "--json").out)["run_id"]
    shown = agent("runs", "show", run_id, "--db", db)
    assert "task: Where is order 7?" in shown.out
    assert "find_order(id=7)" in shown.out
    assert "\x1b" not in shown.out


@pytest.mark.parametrize(("word", "on"), [("--speculate", True), ("--no-speculate", False)])
def test_speculation_can_be_switched(run: Command, agent: Command, db: Path, word: str, on: bool) -> None:
    assert run("good", word).code == 0
    started = json.loads(agent("runs", "show", "last", "--db", db, "--json").out)["events"][0]
    assert (started["settings"]["speculation"] is not None) == on


@pytest.mark.parametrize("name", ["unknown_tool", "wrong_arguments", "raising"])
def test_a_call_that_goes_wrong_is_told_to_the_model_and_the_run_goes_on(run: Command, name: str) -> None:
    ended = run(name)
    assert ended.code == 0
    assert ended.out.startswith("It left.")
    assert "Traceback" not in ended.err


def assert_one_line(ended: Any, code: int, *parts: str) -> None:
    """Check the exit code, and that the last line on stderr is the only one that tells an error."""
    lines = ended.err.splitlines()
    assert ended.code == code
    assert [line for line in lines if line.startswith("error: ")] == lines[-1:]
    for part in parts:
        assert part in lines[-1]
    assert "Traceback" not in ended.err


def test_a_limit_ends_with_code_3(run: Command) -> None:
    assert_one_line(run("limited"), 3, "2 turns", "Limits(...)")


def test_a_run_that_fails_ends_with_code_1(run: Command) -> None:
    assert_one_line(run("exhausted"), 1, "the script has 0 turns")


def test_a_failed_run_as_json_still_prints_its_object(run: Command) -> None:
    ended = run("exhausted", "--json")
    assert json.loads(ended.out)["status"] == "failed"
    assert_one_line(ended, 1, "the script has 0 turns")


def test_a_model_that_is_not_there_ends_with_code_2(run: Command, tmp_path: Path) -> None:
    assert_one_line(run("no_model"), 2, "no/such/model")
    (tmp_path / "empty").mkdir()
    assert_one_line(run("good", "--model", tmp_path / "empty"), 2, str(tmp_path / "empty"), "config.json")


def test_a_database_that_cannot_be_written_ends_with_code_2(run: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    assert_one_line(run("good", "--db", tmp_path / "file" / "traces.db"), 2, "can't write the trace database", "--db")


@pytest.mark.parametrize("name", ["factory", "coroutine", "good"])
def test_a_target_may_be_an_agent_or_make_one(run: Command, name: str) -> None:
    assert run(name).out == "It left. [bold]Now[/bold]\n"


def test_a_target_may_be_a_context_that_is_left_when_the_run_is_over(run: Command) -> None:
    assert run("context").out == "entered\nleft\nIt left. [bold]Now[/bold]\n"


def test_options_reach_a_factory_by_name(run: Command) -> None:
    assert run("choosy", "--model", "some/model", "--no-speculate").out == "some/model False\n"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("number", ("is a int", "name an Agent")),
        ("gives_a_number", ("is a int", "name an Agent")),
        ("demanding", ("needs path",)),
        ("nothing", ("has no 'nothing'", "good", "no_tools")),
    ],
)
def test_a_target_that_gives_no_agent_is_one_line(run: Command, name: str, parts: tuple[str, ...]) -> None:
    assert_one_line(run(name), 2, *parts)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("run",), ("TARGET", "agent run --help")),
        (("run", "shop"), ("TASK", "--tasks")),
        (("run", "shop", " "), ("empty",)),
        (("run", "shop", "x", "--tasks", "y"), ("TASK", "--tasks")),
        (("run", "nonsense", "x"), ("'nonsense' names no agent", "module:variable")),
        (("run", "no_such_module:agent", "x"), ("no module named 'no_such_module'",)),
        (("run", "no_such_file.py:agent", "x"), ("no file no_such_file.py",)),
        (("run", "shop", "x", "--device", "tpu"), ("unknown device 'tpu'",)),
        (("run", "shop", "x", "--concurrency", "0"), ("--concurrency",)),
        (("run", "shop", "--tasks", "no_such_file.txt"), ("can't read tasks from no_such_file.txt",)),
        (("rum", "shop"), ("rum", "agent --help")),
        (("run", "shop", "x", "--nothing"), ("--nothing",)),
    ],
)
def test_a_wrong_command_line_is_one_line_with_code_2(
    agent: Command, words: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    ended = agent(*words)
    assert ended.out == ""
    assert_one_line(ended, 2, *parts)


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("agent = 1 / 0\n", ("ZeroDivisionError", "line 1")),
        ("import no_such_thing\n", ("ModuleNotFoundError", "no_such_thing", "line 1")),
        ("def agent(:\n", ("SyntaxError", "line 1")),
    ],
)
def test_a_file_that_cannot_be_imported_is_one_line(
    agent: Command, tmp_path: Path, source: str, parts: tuple[str, ...]
) -> None:
    (tmp_path / "failing_agent.py").write_text(source)
    assert_one_line(agent("run", f"{tmp_path / 'failing_agent.py'}:agent", "x"), 2, "failing_agent.py", *parts)


def test_a_module_of_the_working_folder_is_found(
    agent: Command, tmp_path: Path, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agents_in_a_module.py").write_text(AGENTS)
    monkeypatch.chdir(tmp_path)
    assert agent("run", "agents_in_a_module:good", "x", "--db", db).code == 0


def test_a_file_of_tasks_is_run_line_by_line(run: Command, tmp_path: Path) -> None:
    (tmp_path / "tasks.txt").write_text("first\n\n  second  \nthird\n")
    ended = run("many", "--tasks", tmp_path / "tasks.txt", "--json")
    results = [json.loads(line) for line in ended.out.splitlines()]
    assert ended.code == 0
    assert [(result["index"], result["task"], result["output"]) for result in results] == [
        (0, "first", "one"),
        (1, "second", "two"),
        (2, "third", "three"),
    ]
    assert all(result.keys() >= PROMISED for result in results)


def test_tasks_may_run_together(run: Command, tmp_path: Path) -> None:
    (tmp_path / "tasks.txt").write_text("a\nb\nc\n")
    ended = run("many", "--tasks", tmp_path / "tasks.txt", "--concurrency", "3")
    assert ended.code == 0
    assert len(ended.out.splitlines()) == 3


def test_a_task_of_a_file_that_fails_fails_the_whole(run: Command, tmp_path: Path) -> None:
    (tmp_path / "tasks.txt").write_text("a\nb\nc\nd\n")
    ended = run("many", "--tasks", tmp_path / "tasks.txt")
    assert len(ended.out.splitlines()) == 4
    assert_one_line(ended, 1, "1 of 4 tasks")


def test_a_file_without_tasks_is_one_line(run: Command, tmp_path: Path) -> None:
    (tmp_path / "tasks.txt").write_text("\n\n")
    assert_one_line(run("many", "--tasks", tmp_path / "tasks.txt"), 2, "holds no task")


def start(tmp_path: Path, db: Path) -> subprocess.Popen[str]:
    """Start a run in its own process, and wait until its tool hangs."""
    (tmp_path / "scripted_agents.py").write_text(AGENTS)
    words = ["run", f"{tmp_path / 'scripted_agents.py'}:hanging", "x", "--db", str(db)]
    process = subprocess.Popen(
        [sys.executable, "-c", "from agent_runtime.cli import main; main()", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "hanging\n"
    return process


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_ends_the_run_in_order(tmp_path: Path, db: Path, agent: Command) -> None:
    process = start(tmp_path, db)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1].startswith("error: interrupted; 'agent runs show ")
    assert "Traceback" not in err
    assert "cancelled" in agent("runs", "show", "last", "--db", db).out


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_killed_run_is_shown_as_interrupted(tmp_path: Path, db: Path, agent: Command) -> None:
    process = start(tmp_path, db)
    process.kill()
    process.communicate(timeout=60)
    shown = agent("runs", "show", "last", "--db", db)
    assert shown.code == 0
    assert "interrupted: the process ended before the run did" in shown.out
    assert "task: x" in shown.out


def test_tools_say_why_they_may_start_early(agent: Command, tmp_path: Path) -> None:
    (tmp_path / "scripted_agents.py").write_text(AGENTS)
    ended = agent("tools", f"{tmp_path / 'scripted_agents.py'}:good")
    assert ended.code == 0
    line = next(line for line in ended.out.splitlines() if line.startswith("find_order"))
    assert "read" in line
    assert "yes" in line


def test_tools_as_json_have_the_promised_keys(agent: Command, tmp_path: Path) -> None:
    (tmp_path / "scripted_agents.py").write_text(AGENTS)
    rows = json.loads(agent("tools", f"{tmp_path / 'scripted_agents.py'}:good", "--json").out)["tools"]
    assert [row["name"] for row in rows] == ["find_order", "broken", "hang"]
    assert all(row.keys() >= {"name", "effect", "pre_executable", "reason", "source"} for row in rows)


def test_an_agent_without_tools_says_so(agent: Command, tmp_path: Path) -> None:
    (tmp_path / "scripted_agents.py").write_text(AGENTS)
    assert agent("tools", f"{tmp_path / 'scripted_agents.py'}:no_tools").out == "The agent has no tools.\n"
