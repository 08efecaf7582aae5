"""`agent run --tasks`: many tasks, their results on disk, and going on after an interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runtime.cli.batch_results import ResultsFile
from agent_runtime.cli.batch_tasks import Task, read_tasks
from agent_runtime.errors import UsageError

AGENTS = '''
import anyio
from pathlib import Path
from agent_runtime import Agent, EngineFailed, ScriptedEngine, ToolCall, tool

HERE = Path(__file__).parent


@tool(effect="read")
async def wait(file: str) -> str:
    """Wait until a file is there."""
    while not (HERE / file).exists():
        await anyio.sleep(0.01)
    return "there"


class Told(ScriptedEngine):
    """Does what its task says: `wait FILE` calls the tool, `fail` breaks, anything else is repeated."""

    async def open(self, tools):
        if (HERE / "no server").exists():
            raise EngineFailed("the server is away")
        return await super().open(tools)

    def take(self, messages):
        task = messages[0].content
        kind, _, rest = task.partition(" ")
        if len(messages) > 1:
            return ScriptedEngine(["waited"]).take(messages)
        with (HERE / "ran").open("a") as file:
            file.write(task + "\\n")
        if kind == "fail":
            raise EngineFailed("told to fail")
        turn = ToolCall("wait", {"file": rest}) if kind == "wait" else "said " + task
        return ScriptedEngine([turn]).take(messages)


agent = Agent("told", Told([]), tools=[wait], speculation=False, traces=False)
lost = Agent("lost", "./no/such/model", traces=False)
'''


COMMAND = [sys.executable, "-c", "from agent_runtime.cli import main; main()"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agents.py").write_text(AGENTS)
    return tmp_path


@pytest.fixture
def run(agent: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    """Run the agent of the folder on lines of tasks."""

    def call(lines: str, *words: object, name: str = "tasks.txt", variable: str = "agent") -> Any:
        (folder / name).write_text(lines, encoding="utf-8")
        return agent("run", f"{folder / 'agents.py'}:{variable}", "--tasks", folder / name, *words)

    return call


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def ran(folder: Path) -> list[str]:
    return (folder / "ran").read_text().splitlines() if (folder / "ran").exists() else []


# --- the file of tasks ------------------------------------------------------------------------------------------


def test_lines_of_text_are_numbered_from_one(tmp_path: Path) -> None:
    path = tmp_path / "tasks.txt"
    path.write_text("\ufefffirst\n\n  second\u2028still second  \r\n", encoding="utf-8")
    assert read_tasks(path) == [Task(0, "1", "first"), Task(1, "2", "second\u2028still second")]


def test_jsonl_may_name_its_tasks(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"id": "a", "task": "one\\ntwo"}\n{"task": "three"}\n{"id": 7, "task": "four", "more": 1}\n')
    assert read_tasks(path) == [Task(0, "a", "one\ntwo"), Task(1, "2", "three"), Task(2, "7", "four")]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("nonsense", "line 2: not JSON"),
        ("[1]", 'line 2: write {"id": "...", "task": "..."}'),
        ('{"id": "b"}', "line 2: write"),
        ('{"id": "b", "task": " "}', "line 2: write"),
        ('{"id": "a", "task": "again"}', "line 2: the id 'a' is taken by line 1"),
        ('{"id": true, "task": "x"}', "line 2: the id must be a string or a whole number, not True"),
        ("[" * 100_000, "line 2: not JSON"),
    ],
)
def test_a_wrong_line_is_named(run: Callable[..., Any], line: str, problem: str) -> None:
    ended = run(f'{{"id": "a", "task": "x"}}\n{line}\n', name="tasks.jsonl")
    assert ended.code == 2
    assert problem in ended.err
    assert len(ended.err.splitlines()) == 1


# --- results ----------------------------------------------------------------------------------------------------


def test_results_come_as_tasks_end_with_their_index_and_id(run: Callable[..., Any], folder: Path) -> None:
    tasks = '{"id": "slow", "task": "wait go"}\n{"id": "quick", "task": "hello"}\n'
    with subprocess.Popen([sys.executable, "-c", WHEN_RAN, str(folder), "hello", "go"]):
        ended = run(tasks, "--concurrency", "2", "--json", "--out", folder / "out.jsonl", name="tasks.jsonl")
    found = lines_of(ended.out)
    assert ended.code == 0
    assert [(line["index"], line["id"], line["output"]) for line in found] == [
        (1, "quick", "said hello"),
        (0, "slow", "waited"),
    ]
    assert lines_of((folder / "out.jsonl").read_text()) == found


WHEN_RAN = """
import pathlib, sys, time
folder, text, file = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
deadline = time.monotonic() + 60
while time.monotonic() < deadline and not ((folder / "ran").exists() and text in (folder / "ran").read_text()):
    time.sleep(0.01)
time.sleep(0.2)
(folder / file).touch()
"""


def test_one_failure_stops_nothing_and_is_a_result(run: Callable[..., Any], folder: Path) -> None:
    ended = run("hello\nfail\nworld\n", "--out", folder / "out.jsonl")
    found = lines_of((folder / "out.jsonl").read_text())
    assert ended.code == 1
    assert [(line["id"], line["status"]) for line in found] == [("1", "done"), ("2", "failed"), ("3", "done")]
    assert found[1]["error"]
    assert "1 of 3 tasks did not end well" in ended.err


def test_runs_that_cannot_begin_are_results_too(run: Callable[..., Any], folder: Path) -> None:
    (folder / "no server").touch()
    ended = run("hello\nworld\n", "--json")
    found = lines_of(ended.out)
    assert ended.code == 1
    assert [(line["status"], line["error"]) for line in found] == [("failed", "the server is away")] * 2
    assert found[0].keys() >= {"run_id", "turns", "usage", "speculation", "decoding", "wall_ms"}


def test_what_is_wrong_with_every_task_is_said_once(run: Callable[..., Any]) -> None:
    ended = run("hello\nworld\n", "--json", variable="lost")
    assert ended.code == 2
    assert not ended.out
    assert len(ended.err.splitlines()) == 1


def test_no_progress_is_drawn_where_there_is_no_terminal(run: Callable[..., Any]) -> None:
    assert run("hello\nworld\n").err == ""


# --- going on ---------------------------------------------------------------------------------------------------


def test_finished_tasks_are_not_run_again(run: Callable[..., Any], folder: Path) -> None:
    out = folder / "out.jsonl"
    run("a\nb\n", "--out", out)
    ended = run("a\nb\nc\n", "--out", out, "--json")
    assert ended.code == 0
    assert ran(folder) == ["a", "b", "c"]
    assert [line["task"] for line in lines_of(ended.out)] == ["c"]
    assert [line["task"] for line in lines_of(out.read_text())] == ["a", "b", "c"]
    assert "2 of 3 tasks are finished" in ended.err
    assert run("a\nb\nc\n", "--out", out).code == 0
    assert ran(folder) == ["a", "b", "c"]


def test_failures_are_finished_unless_they_are_to_be_tried_again(run: Callable[..., Any], folder: Path) -> None:
    out = folder / "out.jsonl"
    assert run("a\nfail\n", "--out", out).code == 1
    assert run("a\nfail\n", "--out", out).code == 1  # the whole is what it was
    assert ran(folder) == ["a", "fail"]
    assert run("a\nfail\n", "--out", out, "--retry-failed").code == 1
    assert ran(folder) == ["a", "fail", "fail"]


def test_the_last_line_of_a_task_counts(folder: Path) -> None:
    out = folder / "out.jsonl"
    with ResultsFile.open(out) as results:
        for status in ("failed", "done"):
            results.add({"id": "1", "task": "a", "status": status})
    with ResultsFile.open(out) as results:
        assert results.statuses([Task(0, "1", "a")]) == {"1": "done"}


def test_an_id_that_stands_for_another_task_is_an_error(run: Callable[..., Any], folder: Path) -> None:
    out = folder / "out.jsonl"
    run("a\nb\n", "--out", out)
    ended = run("b\na\n", "--out", out)
    assert ended.code == 2
    assert "holds the result of another task '1'" in ended.err
    assert ran(folder) == ["a", "b"]


def test_a_file_that_holds_something_else_is_left_alone(run: Callable[..., Any], folder: Path) -> None:
    other = folder / "notes.txt"
    other.write_text("my notes\nmore")
    ended = run("a\n", "--out", other)
    assert ended.code == 2
    assert "notes.txt, line 1, is no result of 'agent run'" in ended.err
    assert other.read_text() == "my notes\nmore"


@pytest.mark.parametrize("words", [("--out", "x.jsonl"), ("--retry-failed",)])
def test_options_that_go_with_a_file_of_tasks(agent: Callable[..., Any], folder: Path, words: tuple[str, ...]) -> None:
    ended = agent("run", f"{folder / 'agents.py'}:agent", "hello", *words)
    assert ended.code == 2
    assert "goes with" in ended.err


RESULT = st.fixed_dictionaries({"id": st.text(), "task": st.text(), "status": st.sampled_from(["done", "failed"])})


@given(st.lists(RESULT, max_size=4), st.data())
def test_a_file_torn_anywhere_keeps_every_whole_line(lines: list[dict[str, str]], data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.jsonl"
        with ResultsFile.open(path) as results:
            for line in lines:
                results.add(line)
        content = path.read_bytes()
        cut = data.draw(st.integers(0, len(content)))
        path.write_bytes(content[:cut])
        whole = content[:cut].count(b"\n")
        with ResultsFile.open(path) as results:
            # A line that misses nothing but its end is whole as well.
            complete = whole + (cut < len(content) and content[cut : cut + 1] == b"\n" and cut > 0)
            assert results.lines == lines[:complete]
            results.add({"id": "new", "task": "t", "status": "done"})
        assert lines_of(path.read_text()) == [*lines[:complete], {"id": "new", "task": "t", "status": "done"}]


def test_two_processes_do_not_write_one_file(run: Callable[..., Any], folder: Path) -> None:
    pytest.importorskip("fcntl")
    with ResultsFile.open(folder / "out.jsonl"), pytest.raises(UsageError, match="another process writes results to"):
        with ResultsFile.open(folder / "out.jsonl"):
            pass


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_file_goes_on_where_it_was(run: Callable[..., Any], folder: Path, how: signal.Signals) -> None:
    out = folder / "out.jsonl"
    (folder / "tasks.txt").write_text("a\nwait later\nb\n")
    words = ["run", f"{folder / 'agents.py'}:agent", "--tasks", str(folder / "tasks.txt"), "--out", str(out)]
    process = subprocess.Popen(
        [*COMMAND, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 60
    while ran(folder) != ["a", "wait later"] and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(how)
    _, err = process.communicate(timeout=60)
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert "interrupted after 1 of 3 tasks; the same command runs the rest" in err
    with out.open("a") as file:
        file.write('{"id": "2", "task": "wait la')  # what a crash in the middle of a write leaves
    (folder / "later").touch()
    ended = run("a\nwait later\nb\n", "--out", out)
    assert ended.code == 0
    assert ran(folder) == ["a", "wait later", "wait later", "b"]
    assert [(line["id"], line["status"]) for line in lines_of(out.read_text())] == [
        ("1", "done"),
        ("2", "done"),
        ("3", "done"),
    ]


def test_a_terminal_gets_a_bar(folder: Path) -> None:
    pty = pytest.importorskip("pty")
    (folder / "tasks.txt").write_text("a\nfail\nb\n")
    main, other = pty.openpty()
    words = ["run", f"{folder / 'agents.py'}:agent", "--tasks", str(folder / "tasks.txt"), "--json"]
    ended = subprocess.run(
        [*COMMAND, *words],
        stdout=subprocess.PIPE,
        stderr=other,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "100"},
        timeout=60,
        check=False,
    )
    os.close(other)
    drawn = os.read(main, 100_000).decode(errors="replace")
    os.close(main)
    assert ended.returncode == 1
    assert len(lines_of(ended.stdout.decode())) == 3  # stdout stays clean
    assert "3/3" in drawn
    assert "1 not done" in drawn
