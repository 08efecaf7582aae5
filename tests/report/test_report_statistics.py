"""Figures over many runs are folded from the store, apart by agent, model and predictor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from agent_runtime.tools.values import ToolCall
from agent_runtime.traces import TraceStore, merge
from agent_runtime.traces.events import Event
from agent_runtime.traces.proportion import Proportion

from agent_runtime.report import statistics as module
from agent_runtime.report.statistics import statistics

Build = Callable[..., list[Event]]
Record = Callable[[Sequence[Event]], str]
CALL, OTHER = ToolCall("find_order", {"id": 7}), ToolCall("find_order", {"id": 8})


@pytest.mark.parametrize(
    ("count", "of", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (8, 10, 0.4902, 0.9433), (50, 100, 0.4038, 0.5962)],
)
def test_intervals_are_those_of_wilson(count: int, of: int, low: float, high: float) -> None:
    interval = Proportion(count, of).interval
    assert interval is not None
    assert interval == pytest.approx((low, high), abs=1e-4)


def test_nothing_of_nothing_has_no_share() -> None:
    assert Proportion(0, 0).to_json() == {"count": 0, "of": 0, "share": None, "low": None, "high": None}


def test_the_figures_equal_the_ledgers_of_the_runs(
    build: Build, step: Any, record: Record, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE", 2)  # more than one page of runs
    runs = [
        [step(call=CALL, guess=CALL), step(call=CALL, guess=OTHER, ending="discarded"), step(text="Done.")],
        [step(call=CALL, guess=CALL, ending="joined"), step(call=OTHER)],
        [step(call=OTHER, guess=OTHER, ending="refused", reason="effect")],
    ]
    ids = [record(build(steps)) for steps in runs]
    with TraceStore.open(db) as store:
        whole = merge(store.ledger(run_id) for run_id in ids)
    found = statistics(db)
    (group,) = found.groups
    assert (group.agent, group.model, group.guessing, group.runs) == ("support", "pocket", "self", 3)
    assert group.statuses == {"done": 3}
    assert (group.all.hits, group.all.boundaries) == (whole.all.hits, whole.boundaries) == (3, 5)
    assert group.sums["saved_ms"] == pytest.approx(whole.saved_ms)
    assert group.sums["wasted_ms"] == pytest.approx(whole.wasted_ms)
    assert group.sums["slowdown_ms"] == pytest.approx(whole.slowdown_ms)
    assert group.hidden_share == pytest.approx(whole.hidden_share)
    assert group.lead == whole.lead
    assert group.endings == {ending: count for ending, count in whole.endings.items() if count}
    assert group.tokens_per_forward == 2.0
    assert found.all.to_json() | {"agent": "support", "model": "pocket", "guessing": "self"} == group.to_json()


def test_runs_without_guessing_stand_apart(build: Build, step: Any, record: Record, db: Path) -> None:
    record(build([step(call=CALL, guess=CALL)]))
    record(build([step(call=CALL)], settings={"speculation": None}))
    record(build([step(call=CALL)], agent="other"))
    groups = statistics(db).groups
    assert {(group.agent, group.guessing) for group in groups} == {
        ("support", "self"),
        ("support", "off"),
        ("other", "self"),
    }
    assert statistics(db, agent="other").all.runs == 1
    assert statistics(db, model="none such").groups == ()


def test_an_empty_store_has_no_groups(db: Path) -> None:
    found = statistics(db)
    assert found.groups == ()
    assert found.all.tokens_per_forward is None
    assert found.all.hidden_share is None
