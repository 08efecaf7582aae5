"""`agent bench speculate` hands its options on and shows the report; `agent doctor` looks at the machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_runtime.cli import doctor

Command = Callable[..., Any]

FIGURES: dict[str, Any] = {
    "tasks": 3,
    "success": 0.5,
    "hit_at_1": 0.75,
    "hidden_share": 0.6,
    "serial_ms": 9000.0,
    "speculative_ms": 6000.0,
    "speedup": 1.5,
    "closed_form": 1.45,
    "slowdown_pct": 4.2,
    "identical_transcripts": True,
    "writes_pre_executed": 0,
    "tool_latency_ms": 300.0,
}


class Report:
    def __init__(self, figures: dict[str, Any]) -> None:
        self.figures = figures

    def to_json(self) -> dict[str, Any]:
        return self.figures


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stand in for the measurement; return what it was asked for, and take other figures under `figures`."""
    seen: dict[str, Any] = {"figures": FIGURES}

    async def measure(target: Any, **options: Any) -> Report:
        seen.update(options, target=target.name)
        return Report(seen["figures"])

    monkeypatch.setattr("agent_runtime.bench.bench_speculate", measure)
    return seen


def test_the_options_reach_the_measurement(agent: Command, asked: dict[str, Any]) -> None:
    words = ("--tasks", "3", "--seed", "5", "--tool-latency", "300", "--json")
    ended = agent("bench", "speculate", "shop", *words)
    assert json.loads(ended.out) == FIGURES
    assert (asked["target"], asked["tasks"], asked["seed"], asked["tool_latency_ms"]) == ("shop", 3, 5, 300.0)


def test_the_figures_are_readable(agent: Command, asked: dict[str, Any]) -> None:
    out = agent("bench", "speculate", "shop").out
    assert asked["tool_latency_ms"] is None
    for part in ("3, 50 % solved", "300 ms (injected)", "75 %", "1.50 measured, 1.45 expected", "4.2 %", "yes"):
        assert part in out


def test_figures_that_do_not_exist_are_dashes(agent: Command, asked: dict[str, Any]) -> None:
    asked["figures"] = dict.fromkeys(FIGURES, None) | {
        "tasks": 1,
        "serial_ms": 0.0,
        "speculative_ms": 0.0,
        "identical_transcripts": False,
        "writes_pre_executed": 0,
    }
    ended = agent("bench", "speculate", "shop", "--tool-latency", "generation")
    assert asked["tool_latency_ms"] == "generation"
    assert "- measured, - expected" in ended.out
    assert "defect" in ended.err


@pytest.mark.parametrize("latency", ["fast", "-1", "nan", "inf"])
def test_a_latency_that_is_none_is_one_line(agent: Command, latency: str) -> None:
    ended = agent("bench", "speculate", "shop", f"--tool-latency={latency}")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"error: --tool-latency {latency}: give milliseconds")


def test_the_doctor_names_every_check(agent: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_RUNTIME_DB", str(tmp_path / "traces.db"))
    ended = agent("doctor")
    assert ended.code == 0
    for name in ("python", "torch", "devices", "threads", "transformers", "database", "pocket", "gguf", "trio"):
        assert any(line.split()[1] == name for line in ended.out.splitlines() if line.startswith(("ok", "warn")))


def test_the_doctor_fails_where_something_essential_is_broken(
    agent: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("AGENT_RUNTIME_DB", str(tmp_path / "file" / "traces.db"))
    monkeypatch.setattr(doctor, "checks", lambda: iter([doctor.database()]))
    ended = agent("doctor")
    assert ended.code == 1
    assert ended.out.startswith("broken")
    assert "AGENT_RUNTIME_DB" in ended.out
    assert ended.err.startswith("error: 1 of the checks")


def test_a_check_that_breaks_is_reported_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def pocket() -> doctor.Check:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(doctor, "pocket", pocket)
    found = {check.name: check for check in doctor.checks()}
    assert found["pocket"].state == "broken"
    assert "no such thing" in found["pocket"].detail
    assert "trio" in found
