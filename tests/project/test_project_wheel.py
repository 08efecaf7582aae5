"""The wheel works beside a user's own `tools.py` and `traces/`, which share names with folders of this repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "agent_runtime", "tools", "decoding", "speculator", "traces")

PROGRAM = """
import json

import agent_runtime
import agent_runtime.tools
import agent_runtime.traces
import tools
import traces.mine
from agent_runtime import Agent, ScriptedEngine, tool
from agent_runtime.tools import ToolCall


@tool(effect="read")
def answer(question: str) -> int:
    '''Answer a question.'''
    return tools.ANSWER + traces.mine.MORE


engine = ScriptedEngine([ToolCall("answer", {"question": "?"}), "done"])
agent = Agent("mine", engine, tools=[answer], traces="runs.db")
result = agent.run_sync("Answer.")
print(json.dumps({
    "output": result.output,
    "told": engine.conversations[1][-1].content,
    "package": agent_runtime.__file__,
    "rooms": [agent_runtime.tools.__file__, agent_runtime.traces.__file__],
}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the sources: a build leaves files in its tree."""
    copy = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    out = tmp_path_factory.mktemp("wheel")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(out), str(copy)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (path,) = out.glob("*.whl")
    return path


def test_the_wheel_holds_every_room_under_one_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"agent_runtime"}
    for room in ("tools", "decoding", "speculator", "traces"):
        assert f"agent_runtime/{room}/__init__.py" in names
    assert "agent_runtime/py.typed" in names
    assert any(name.startswith("agent_runtime/traces/migrations/versions/") for name in names)


def test_the_wheel_ships_what_the_demo_needs(wheel: Path) -> None:
    packaged = {name.removeprefix("agent_runtime/") for name in zipfile.ZipFile(wheel).namelist()}
    data = {
        str(path.relative_to(ROOT / "agent_runtime"))
        for path in (ROOT / "agent_runtime" / "demo").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".md"
    }
    assert data <= packaged


def test_an_agent_runs_beside_a_user_s_own_tools_and_traces(wheel: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    project = tmp_path / "project"
    (project / "traces").mkdir(parents=True)
    (project / "tools.py").write_text("ANSWER = 40\n")
    (project / "traces" / "mine.py").write_text("MORE = 2\n")
    (project / "main.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-W", "error", "main.py"],
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["output"], told["told"]) == ("done", "42")
    for file in (told["package"], *told["rooms"]):
        assert Path(file).is_relative_to(installed)
    assert (project / "runs.db").is_file()
