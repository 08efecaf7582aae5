"""What measured runs come to: one frozen report over pairs of runs of the same tasks."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from agent_runtime.traces.events import GenerationFinished, ProbeFinished
from agent_runtime.traces.ledger import HitRate, Ledger, merge
from agent_runtime.traces.quantiles import Quantiles

from .records import SERIAL, SPECULATIVE, RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """What guessing did to a set of tasks. Durations are milliseconds, shares lie between 0 and 1.

    The first twelve fields are those that `agent bench speculate --json` promises; figures that don't exist are None.
    """

    tasks: int
    success: float | None
    """Share of the tasks solved with guessing; None where nobody judges."""
    hit_at_1: float | None
    hidden_share: float | None
    serial_ms: float
    """Sum of the runs' wall-clock: same runtime, calls started at block close, no probe."""
    speculative_ms: float
    speedup: float | None
    """Sum of serial over sum of speculative wall-clock."""
    closed_form: float | None
    """Speedup by (1 + rho) / (1 + rho + sigma - alpha * min(1, rho)); its terms are in `forms`."""
    slowdown_pct: float | None
    """How much longer the same turn's message takes with guessing, in percent; parts in `slowdown`."""
    identical_transcripts: bool
    writes_pre_executed: int
    """Writes that ran without having been demanded; anything but 0 is a defect."""
    tool_latency_ms: float | None
    """Injected latency; None where tools took their own time."""

    concurrency: int
    success_serial: float | None
    success_by_phrasing: dict[str, dict[str, Any]]
    success_by_kind: dict[str, dict[str, Any]]
    statuses: dict[str, int]
    """Runs with guessing by how they ended."""
    speedup_median: float | None
    """Median over the tasks of serial over speculative wall-clock."""
    speedup_quantiles: dict[str, Any]
    forms: dict[str, Any]
    """Both forms of the expected speedup, with the measured one over each."""
    hits: dict[str, Any]
    """Hit@1 over all boundaries, over pre-executable ones, by tool, and with and without thinking in that turn."""
    boundaries: int
    reasoned_share: float | None
    """Share of the boundaries whose turn thinks before the call."""
    thinking_tokens: dict[str, Any]
    """Quantiles over the turns that think."""
    endings: dict[str, int]
    refusals: dict[str, int]
    placements: dict[str, int]
    """Turns by where their first probe ran."""
    lead_ms: dict[str, Any]
    """Quantiles over predictions that were started and stood at a demand."""
    medians: dict[str, float | None]
    """T_gen and T_tool of boundaries without guessing, T_probe, and slowdown of a turn."""
    after_demand_ms: dict[str, Any]
    """Quantiles of the wait from a boundary's demand to its result: `adopted`, `joined`, and `called` for the rest."""
    adopted_turn_cost_ms: dict[str, Any]
    """Quantiles, over adopted boundaries, of how much longer (above 0) the whole turn took than without guessing."""
    saved_ms: float
    wasted_ms: float
    ceiling_ms: float
    slowdown: dict[str, float | None]
    """`measured_pct` as `slowdown_pct`; of it by the engine's own count: `decoding_pct` (rows of probes beside the
    agent) and `waiting_pct` (probes that the agent waited for)."""
    tokens: dict[str, Any]
    """Prompt tokens reused and prefilled in both modes, and bytes that forks copied."""
    identical_writes: bool | None
    different_tasks: tuple[str, ...]
    """Tasks whose transcripts or writes differ between the modes."""
    failures: tuple[dict[str, Any], ...]
    """Tasks not solved with guessing: id, kind, phrasing, reason."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name, as plain JSON values."""
        return asdict(self)


def report(
    records: Iterable[RunRecord],
    *,
    mode: str = SPECULATIVE,
    tool_latency_ms: float | None = None,
    concurrency: int = 1,
) -> BenchReport:
    """Compare the runs of `mode` with the serial runs of the same tasks.

    Tasks that lack one of the two are left out.
    """
    pairs = _pairs(records, mode)
    serial, guessing = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    alone, ledger = merge(run.ledger for run in serial), merge(run.ledger for run in guessing)
    serial_ms, speculative_ms = (sum((run.wall_ms for run in runs), 0.0) for runs in (serial, guessing))
    ratios = [one.wall_ms / other.wall_ms for one, other in pairs if other.wall_ms > 0]
    speedup = serial_ms / speculative_ms if speculative_ms > 0 else None
    slowdown = _slowdown(pairs, ledger)
    different = [one for one, other in pairs if one.transcript != other.transcript or one.writes != other.writes]
    return BenchReport(
        tasks=len(pairs),
        success=_success(guessing),
        hit_at_1=ledger.hit_at_1,
        hidden_share=ledger.hidden_share,
        serial_ms=serial_ms,
        speculative_ms=speculative_ms,
        speedup=speedup,
        closed_form=ledger.expected.closed_form.speedup,
        slowdown_pct=slowdown["measured_pct"],
        identical_transcripts=all(one.transcript == other.transcript for one, other in pairs),
        writes_pre_executed=sum(run.writes_pre_executed for run in chain(serial, guessing)),
        tool_latency_ms=tool_latency_ms,
        concurrency=concurrency,
        success_serial=_success(serial),
        success_by_phrasing=_success_by(guessing, lambda run: run.phrasing),
        success_by_kind=_success_by(guessing, lambda run: run.kind),
        statuses=dict(Counter(run.status for run in guessing)),
        speedup_median=statistics.median(ratios) if ratios else None,
        speedup_quantiles=Quantiles.of(ratios).to_json(),
        forms=_forms(ledger, pairs, speedup),
        hits=_hits(ledger),
        boundaries=ledger.boundaries,
        reasoned_share=_share_of_thought(ledger),
        thinking_tokens=Quantiles.of(turn.thinking_tokens for turn in ledger.turns if turn.thought).to_json(),
        endings=ledger.endings,
        refusals=dict(
            Counter(guess.reason or "" for turn in ledger.turns for guess in turn.guesses if guess.ending == "refused")
        ),
        placements=dict(Counter(turn.placement or "none" for turn in ledger.turns)),
        lead_ms=ledger.lead.to_json(),
        medians=_medians(alone, ledger, guessing),
        after_demand_ms=_after_demand(guessing),
        adopted_turn_cost_ms=_adopted_turn_cost(pairs).to_json(),
        saved_ms=ledger.saved_ms,
        wasted_ms=ledger.wasted_ms,
        ceiling_ms=ledger.ceiling_ms,
        slowdown=slowdown,
        tokens=_tokens(serial, guessing),
        identical_writes=None
        if any(run.writes is None for run in serial)
        else all(one.writes == other.writes for one, other in pairs),
        different_tasks=tuple(run.task_id for run in different),
        failures=tuple(
            {"task": run.task_id, "kind": run.kind, "phrasing": run.phrasing, "reason": run.reason}
            for run in guessing
            if run.success is False
        ),
    )


def _pairs(records: Iterable[RunRecord], mode: str) -> list[tuple[RunRecord, RunRecord]]:
    by_task: dict[int, dict[str, RunRecord]] = {}
    for record in records:
        by_task.setdefault(record.index, {})[record.mode] = record
    both = ({SERIAL, mode} <= runs.keys() for runs in by_task.values())
    return [(runs[SERIAL], runs[mode]) for whole, runs in zip(both, by_task.values(), strict=True) if whole]


def _success(runs: Sequence[RunRecord]) -> float | None:
    judged = [run.success for run in runs if run.success is not None]
    return sum(judged) / len(judged) if judged else None


def _success_by(runs: Sequence[RunRecord], key: Callable[[RunRecord], str]) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return {name: {"tasks": len(group), "success": _success(group)} for name, group in sorted(groups.items())}


def _forms(ledger: Ledger, pairs: Sequence[tuple[RunRecord, RunRecord]], speedup: float | None) -> dict[str, Any]:
    first, closed = ledger.expected, ledger.expected.closed_form
    paired = _paired_form(pairs)

    def over(form: float | None) -> float | None:
        return speedup / form if speedup is not None and form else None

    return {
        "first": {
            "serial_ms": first.serial_ms,
            "speculative_ms": first.speculative_ms,
            "speedup": first.speedup,
            "measured_over_form": over(first.speedup),
        },
        "paired": {**paired, "measured_over_form": over(paired["speedup"])},
        "closed": {**asdict(closed), "measured_over_form": over(closed.speedup)},
    }


def _paired_form(pairs: Sequence[tuple[RunRecord, RunRecord]]) -> dict[str, float | None]:
    """Return the first form with the slowdown that was measured from outside.

    The ledger's slowdown counts what probes cost. This one is the difference between a turn's message with guessing and
    the same message without, so it also holds what drafts take off it, and may be negative.
    """
    serial = speculative = 0.0
    for one, other in pairs:
        if one.transcript != other.transcript:
            continue
        for turn in other.ledger.turns:
            if not turn.complete or not {turn.turn} <= one.message_ms.keys() & other.message_ms.keys():
                continue
            serial += one.message_ms[turn.turn] + turn.t_wait_ms
            speculative += other.message_ms[turn.turn] + turn.t_wait_ms - turn.saved_ms
    return {
        "serial_ms": serial,
        "speculative_ms": speculative,
        "speedup": serial / speculative if speculative > 0 else None,
    }


def _hits(ledger: Ledger) -> dict[str, Any]:
    thinking = ledger.by_thinking
    return {
        "all": _rate(ledger.all),
        "over_pre_executable": _rate(ledger.over_pre_executable),
        "with_reasoning": _rate(thinking[True]) if True in thinking else None,
        "without_reasoning": _rate(thinking[False]) if False in thinking else None,
        "by_tool": {name: _rate(rate) for name, rate in sorted(ledger.by_tool.items())},
    }


def _rate(rate: HitRate) -> dict[str, Any]:
    shares = {"hit_at_1": rate.hit_at_1, "hit_at_1_name": rate.hit_at_1_name, "coverage": rate.coverage}
    return {**asdict(rate), **shares}


def _share_of_thought(ledger: Ledger) -> float | None:
    thought = [turn.thought for turn in ledger.turns if turn.boundary is not None]
    return sum(thought) / len(thought) if thought else None


def _medians(alone: Ledger, ledger: Ledger, guessing: Sequence[RunRecord]) -> dict[str, float | None]:
    boundaries = [turn for turn in alone.turns if turn.boundary is not None]
    probes = [event.probe_ms for run in guessing for event in run.events if isinstance(event, ProbeFinished)]
    return {
        "t_gen_ms": _median(turn.t_gen_ms for turn in boundaries),
        "t_tool_ms": _median(turn.t_tool_ms for turn in boundaries if turn.t_tool_ms is not None),
        "t_probe_ms": _median(probes),
        "slowdown_ms": _median(turn.slowdown_ms for turn in ledger.turns),
    }


def _median(sample: Iterable[float]) -> float | None:
    values = list(sample)
    return statistics.median(values) if values else None


def _after_demand(runs: Sequence[RunRecord]) -> dict[str, Any]:
    waits: dict[str, list[float]] = {"adopted": [], "joined": [], "called": []}
    for run in runs:
        for wait in run.waits:
            waits[wait.served or "called"].append(wait.ms)
    return {name: Quantiles.of(sample).to_json() for name, sample in waits.items()}


def _adopted_turn_cost(pairs: Sequence[tuple[RunRecord, RunRecord]]) -> Quantiles:
    return Quantiles.of(
        guessing.turn_ms[wait.turn] - serial.turn_ms[wait.turn]
        for serial, guessing in pairs
        if serial.transcript == guessing.transcript
        for wait in guessing.waits
        if wait.served == "adopted" and wait.turn in guessing.turn_ms.keys() & serial.turn_ms.keys()
    )


def _slowdown(pairs: Sequence[tuple[RunRecord, RunRecord]], ledger: Ledger) -> dict[str, float | None]:
    """Compare the messages of the turns that both runs of a pair have, where they said the same."""
    alone = beside = 0.0
    for serial, guessing in pairs:
        if serial.transcript == guessing.transcript:
            for turn in serial.message_ms.keys() & guessing.message_ms.keys():
                alone += serial.message_ms[turn]
                beside += guessing.message_ms[turn]
    decoding = sum(
        (event.slowdown_ms for _, run in pairs for event in run.events if isinstance(event, GenerationFinished)),
        0.0,
    )
    if alone <= 0:
        return {"measured_pct": None, "decoding_pct": None, "waiting_pct": None}
    return {
        "measured_pct": 100 * (beside / alone - 1),
        "decoding_pct": 100 * decoding / alone,
        "waiting_pct": 100 * (ledger.slowdown_ms - decoding) / alone,
    }


def _tokens(serial: Sequence[RunRecord], guessing: Sequence[RunRecord]) -> dict[str, Any]:
    def prompt(runs: Sequence[RunRecord]) -> dict[str, int]:
        return {
            "reused": sum(run.reused_tokens for run in runs),
            "prefilled": sum(run.prefilled_tokens for run in runs),
        }

    probes = [event for run in guessing for event in run.events if isinstance(event, ProbeFinished)]
    return {
        "serial": prompt(serial),
        "speculative": prompt(guessing),
        "probes": len(probes),
        "probe_tokens": sum(probe.tokens for probe in probes),
        "probes_co_decoded": sum(probe.co_decoded for probe in probes),
        "bytes_copied": sum(probe.bytes_copied for probe in probes),
    }
