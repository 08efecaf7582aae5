"""Writes docs/results.md from the measurements that benchmarks/results.py keeps in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from agent_runtime.bench import BenchReport, RunRecord, report

Records = Callable[[Path], list[RunRecord]]

HEAD = """# Results

Written by `python benchmarks/results.py render --out DIR` from measured runs; nothing here is estimated by hand. The
model is *pocket*, the demo's own, greedy; the backend is the demo's, over HTTP on the loopback interface. All tool
latency below is **injected** by that backend; nothing here is the latency of a real service.
"""


def page(folder: Path, *, ended: Records) -> str:
    """Return the page over what `folder` holds; what was not measured is left out."""
    parts = [HEAD]
    unseen, handwritten = _load(folder, "unseen", ended), _load(folder, "handwritten", ended)
    parts += _success(unseen, handwritten)
    parts += _hits(unseen)
    parts += _identity(unseen, handwritten)
    parts += _slowdown(unseen)
    parts += _dispatcher(folder)
    parts += _decode(folder)
    return "\n".join(parts).rstrip() + "\n"


class Measured:
    """A measurement's settings and its runs."""

    def __init__(self, settings: dict[str, Any], records: list[RunRecord]) -> None:
        self.settings = settings
        self.records = records

    def report(self, mode: str = "speculative") -> BenchReport:
        """Return the figures of one mode against the runs without guessing."""
        return report(
            self.records,
            mode=mode,
            tool_latency_ms=self.settings["latency_ms"],
            concurrency=self.settings.get("concurrency", 1),
        )


def _load(folder: Path, name: str, ended: Records) -> Measured | None:
    settings = folder / f"{name}.json"
    records = ended(folder / f"{name}.jsonl")
    return Measured(json.loads(settings.read_text()), records) if settings.exists() and records else None


# --- sections --------------------------------------------------------------------------------------------------------


def _success(unseen: Measured | None, handwritten: Measured | None) -> list[str]:
    if unseen is None:
        return []
    figures = unseen.report()
    rows = [["generated tasks, names and products unseen", figures.tasks, percent(figures.success)]]
    names = {"train": "of them: phrasings used in training", "heldout": "of them: phrasings kept out of training"}
    for phrasing, name in names.items():
        if phrasing in figures.success_by_phrasing:
            part = figures.success_by_phrasing[phrasing]
            rows.append([name, part["tasks"], percent(part["success"])])
    if handwritten is not None:
        part = handwritten.report()
        rows.append(["requests written by hand", part.tasks, percent(part.success)])
    kinds = [[kind, part["tasks"], percent(part["success"])] for kind, part in figures.success_by_kind.items()]
    thought = figures.thinking_tokens
    return [
        "## Does the demo's model solve its tasks?\n",
        "Judged by the backend's state and the facts in the answer, never by the oracle's text.\n",
        table(["tasks", "number", "solved"], rows),
        made_by(unseen, *([handwritten] if handwritten else [])),
        f"{percent(figures.reasoned_share)} of the {figures.boundaries} boundaries come after thinking in the same "
        f"turn; turns that think take {number(thought['p10'])} to {number(thought['p90'])} tokens for it (10th and "
        f"90th percentile, median {number(thought['p50'])}).\n",
        "<details><summary>By kind of task</summary>\n",
        table(["kind", "tasks", "solved"], kinds),
        "</details>\n",
    ]


def _hits(unseen: Measured | None) -> list[str]:
    if unseen is None:
        return []
    first, beside = unseen.report("before"), unseen.report()
    rows = [
        [
            name,
            first.hits[key]["boundaries"],
            percent(first.hits[key]["hit_at_1"]),
            percent(first.hits[key]["hit_at_1_name"]),
            percent(beside.hits[key]["hit_at_1"]),
        ]
        for key, name in (
            ("all", "all"),
            ("over_pre_executable", "calls that may start early"),
            ("without_reasoning", "no thinking before the call"),
            ("with_reasoning", "thinking before the call"),
        )
        if first.hits[key] is not None and beside.hits[key] is not None
    ]
    for tool, rate in first.hits["by_tool"].items():
        also = beside.hits["by_tool"].get(tool, {})
        rows.append(
            [
                f"`{tool}`",
                rate["boundaries"],
                percent(rate["hit_at_1"]),
                percent(rate["hit_at_1_name"]),
                percent(also.get("hit_at_1")),
            ]
        )
    return [
        "## How often is the guess right?\n",
        "Hit@1 over **all** boundaries: same tool and same canonical arguments. *At the turn's start* is one probe "
        "before the agent decodes. *Beside* probes while it decodes and again as its thinking grows; a guess that "
        "ends after the demand is late and no hit, so calls made at once without thinking can't be hit there.\n",
        table(["boundaries", "number", "at the turn's start", "by name", "beside"], rows),
        made_by(unseen),
    ]


def _identity(*measured: Measured | None) -> list[str]:
    rows = []
    for each in measured:
        if each is None:
            continue
        modes = list(dict.fromkeys(record.mode for record in each.records))
        for mode in modes[1:] if modes[0] == "serial" else [mode for mode in modes if mode != "serial"]:
            figures = each.report(mode)
            name = {"speculative": "beside", "wrong": "always wrong"}.get(mode, mode)
            rows.append(
                [
                    name,
                    figures.tasks,
                    f"{figures.tasks - len(figures.different_tasks)}",
                    "yes" if figures.identical_writes else "NO",
                    figures.writes_pre_executed,
                    sum(figures.endings[key] for key in ("adopted", "joined")),
                    figures.endings["discarded"],
                ]
            )
    if not rows:
        return []
    return [
        "## Is what the model sees the same?\n",
        "Whole conversations compared byte by byte with those of the run without guessing; writes compared at the "
        "backend. *Always wrong* guesses a read that the agent never makes, every turn.\n",
        table(
            ["guessing", "tasks", "same bytes", "same writes", "writes run early", "guesses served", "guesses missed"],
            rows,
        ),
        made_by(*(each for each in measured if each is not None)),
    ]


def _slowdown(unseen: Measured | None) -> list[str]:
    if unseen is None:
        return []
    rows = []
    for mode, name in (("speculative", "beside, every turn"), ("before", "before, every turn")):
        figures = unseen.report(mode)
        slowdown, cost = figures.slowdown, figures.adopted_turn_cost_ms
        rows.append(
            [
                name,
                f"{number(slowdown['measured_pct'], 1)} %",
                f"{number(slowdown['decoding_pct'], 1)} %",
                f"{number(slowdown['waiting_pct'], 1)} %",
                number(figures.medians["t_gen_ms"]),
                number(figures.medians["t_probe_ms"]),
                number(figures.after_demand_ms["adopted"]["p50"], 2),
                number(cost["p50"], 1),
                ratio(figures.speedup),
            ]
        )
    return [
        "## What does guessing cost?\n",
        "Tools that answer at once, so that nothing can be saved and every cost shows; here the policy is "
        "overruled and every turn is probed. *Longer messages* pairs each turn with the same turn without "
        "guessing; the next two columns are the engine's own account of it: rows of probes in the agent's steps, "
        "and waiting for a probe to end. The last columns are hits whose tool is shorter than their lead: what the "
        "agent still waits after its demand, and how much longer its whole turn took.\n",
        table(
            [
                "probes",
                "longer messages",
                "slower decoding",
                "waiting",
                "T_gen (ms, median)",
                "T_probe (ms, median)",
                "wait after an adopted guess (ms, median)",
                "turn longer by (ms, median)",
                "speedup",
            ],
            rows,
        ),
        made_by(unseen),
        _tokens_line(unseen.report()),
    ]


def _tokens_line(figures: BenchReport) -> str:
    tokens = figures.tokens
    serial, probes = tokens["serial"], tokens["probes"]
    total = serial["reused"] + serial["prefilled"]
    return (
        f"Prompt tokens found in the cache: {percent(serial['reused'] / total if total else None)} without "
        f"guessing. {tokens['probes_co_decoded']} of {probes} probes beside the agent shared forward passes with "
        f"it; their forks copied {number(tokens['bytes_copied'] / probes / 1024 if probes else None)} KiB each on "
        "average.\n"
    )


def _dispatcher(folder: Path) -> list[str]:
    kept = _kept(folder, "dispatcher")
    if kept is None:
        return []
    figures = kept["figures"]
    rows = [[key.replace("_", " "), value] for key, value in figures.items()]
    return [
        "## What does the dispatcher cost?\n",
        "A guess that hits, without its tool's time: propose, demand and adopt, less the same call without a "
        "guess; medians.\n",
        table(["figure", "value"], rows),
        _made(kept["command"], kept),
    ]


def _decode(folder: Path) -> list[str]:
    kept = _kept(folder, "decode")
    if kept is None:
        return []
    figures = kept["figures"]
    rows = [
        [key, number(value, 2)] for key, value in figures.items() if isinstance(value, int | float) and key != "threads"
    ]
    return [
        "## How fast is the engine?\n",
        f"Batch 1, no drafts, {figures.get('unit', 'us per token')}; the floor is the model's matrix products alone as "
        "the library stores them, `products` those of the executor, by NumPy where that runs single tokens.\n",
        table(["figure", "value"], rows),
        _made(kept["command"], kept),
    ]


def _kept(folder: Path, name: str) -> dict[str, Any] | None:
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


# --- forms -----------------------------------------------------------------------------------------------------------


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table; the first column is text, the others are figures."""
    lines = [f"| {' | '.join(heads)} |", "|" + "|".join(["---", *["---:"] * (len(heads) - 1)]) + "|"]
    lines += [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def made_by(*measured: Measured) -> str:
    """Return the commands and machines behind a table."""
    settings = [each.settings for each in measured]
    machines = {_machine(each) for each in settings}
    commands = "\n".join(each["command"] for each in settings)
    return f"```sh\n{commands}\n```\n\n{'; '.join(sorted(machines))}.\n"


def _made(command: str, settings: dict[str, Any]) -> str:
    return f"```sh\n{command}\n```\n\n{_machine(settings)}.\n"


def _machine(settings: dict[str, Any]) -> str:
    return f"{settings['machine']}; torch {settings['torch']}, transformers {settings['transformers']}"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
