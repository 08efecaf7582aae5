"""Recordings that others published, where they are at hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.formats import FORMATS, Reading, detect, read, run_of, trajectory_of, write
from agent_runtime.traces.trajectory import Trajectory

DATA = Path(__file__).parents[4] / "shared" / "data"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the published recordings are not here")


def opened(name: str) -> Reading:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{name} is not here")
    return read(path)


def latencies(trajectories: list[Trajectory]) -> list[float | None]:
    return [r.latency_s for t in trajectories for turn in t.turns for r in turn.results if r is not None]


def test_tau_bench_airline() -> None:
    reading = opened("tau-bench-airline-gpt-4o.json")
    trajectories = list(reading)
    assert (reading.format, len(trajectories), reading.faults) == ("tau-bench", 100, [])
    assert len({trajectory.group for trajectory in trajectories}) == 25
    assert sum(bool(turn.message.calls) for t in trajectories for turn in t.turns) == 577
    assert set(latencies(trajectories)) == {None}
    assert all(isinstance(call, ToolCall) for t in trajectories for turn in t.turns for call in turn.message.calls)


def test_hotpotqa_react() -> None:
    reading = opened("hotpotqa-react.jsonl")
    trajectories = list(reading)
    assert (reading.format, len(trajectories), reading.faults) == ("chat", 44, [])
    measured = latencies(trajectories)
    assert len(measured) == 160 and None not in measured
    assert {tool.name for t in trajectories for tool in t.tools} == {"search", "lookup", "finish"}


@pytest.mark.parametrize(
    ("name", "calls", "timed"),
    [("function_calling_simple", 5, 0), ("humanevalfix", 5, 0), ("marshmallow-function-calling", 11, 11)],
)
def test_swe_agent(name: str, calls: int, timed: int) -> None:
    reading = opened(f"swe-agent/{name}.traj")
    (trajectory,) = reading
    assert (reading.format, reading.faults) == ("swe-agent", [])
    assert sum(len(turn.message.calls) for turn in trajectory.turns) == calls
    assert sum(latency is not None for latency in latencies([trajectory])) == timed


def test_every_recording_becomes_runs_and_comes_back_from_our_export_and_from_atif(tmp_path: Path) -> None:
    pytest.importorskip("atif")
    for path in [*DATA.glob("*.json*"), *DATA.glob("*/*.traj")]:
        trajectories = list(read(path))[:20]
        assert detect(path) in FORMATS
        runs = [run_of(trajectory) for trajectory in trajectories]
        assert [trajectory_of(run.info, run.events) for run in runs] == trajectories
        for name in ("own", "atif"):
            write(runs, tmp_path / name, name)
            assert list(read(tmp_path / name)) == trajectories
