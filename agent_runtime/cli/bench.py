"""`agent bench`: measurements on this machine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from agent_runtime.errors import UsageError

from . import bench_decode, parameters
from .output import note, print_json, stderr_console, stdout_console
from .text import duration, percent

if TYPE_CHECKING:
    from agent_runtime.bench import RunRecord

app = typer.Typer(help="Measure on this machine.", no_args_is_help=True, rich_markup_mode=None)


app.command()(bench_decode.decode)


@app.callback()
def _bench() -> None:
    pass


@app.command()
def speculate(
    target: parameters.Target,
    tasks: Annotated[int, typer.Option(metavar="N", min=1, help="Freshly generated tasks.")] = 30,
    seed: Annotated[int, typer.Option(metavar="SEED", help="Seed of the tasks.")] = 0,
    tool_latency: Annotated[
        str | None,
        typer.Option(metavar="MS", help="What tools take, if not their own time; generation is one median turn."),
    ] = None,
    model: parameters.Model = None,
    device: parameters.Device = "auto",
    as_json: parameters.Json = False,
) -> None:
    """Measure what guessing saves, on fresh tasks.

    Every task runs with and without speculation, interleaved in one process.
    """
    from functools import partial

    import anyio

    from .setup import before_torch
    from .target import load_target

    latency = _latency(tool_latency)
    before_torch()
    found = load_target(target)

    from agent_runtime.bench import bench_speculate

    measure = partial(
        bench_speculate,
        found,
        tasks=tasks,
        seed=seed,
        tool_latency_ms=latency,
        model=model,
        device=device,
        on_records=_Progress(tasks).show,
    )
    report = anyio.run(measure).to_json()
    if as_json:
        print_json(report)
    else:
        _show(report)


def _latency(text: str | None) -> float | Literal["generation"] | None:
    if text is None:
        return None
    if text == "generation":
        return "generation"
    try:
        latency = float(text)
    except ValueError:
        latency = -1.0
    if not 0 <= latency < math.inf:
        raise UsageError(f"--tool-latency {text}: give milliseconds, at least 0, or 'generation'")
    return latency


class _Progress:
    """How many tasks are measured, on a terminal's stderr only."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done: set[str] = set()
        self._console = stderr_console()

    def show(self, records: Sequence[RunRecord]) -> None:
        self._done.update(record.task_id for record in records)
        if self._console.is_terminal:
            self._console.print(f"{len(self._done)} of {self._total} tasks", style="dim", end="\r")


def _show(report: Mapping[str, Any]) -> None:
    from rich.table import Table

    latency = report["tool_latency_ms"]
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_row("tasks", f"{report['tasks']}, {percent(report['success'])} solved")
    table.add_row("tools", "as they are" if latency is None else f"made to take {duration(latency)} (injected)")
    table.add_row("Hit@1", percent(report["hit_at_1"]))
    table.add_row("hidden share", percent(report["hidden_share"]))
    table.add_row("without guessing", duration(report["serial_ms"]))
    table.add_row("with guessing", duration(report["speculative_ms"]))
    table.add_row("speedup", f"{_ratio(report['speedup'])} measured, {_ratio(report['closed_form'])} expected")
    slowdown = report["slowdown_pct"]
    table.add_row("longer turns", "-" if slowdown is None else f"{slowdown:.1f} %")
    table.add_row("same transcripts", "yes" if report["identical_transcripts"] else "NO")
    table.add_row("writes run early", str(report["writes_pre_executed"]))
    stdout_console().print(table)
    if not report["identical_transcripts"]:
        note("the transcripts differ between the two modes: that is a defect, please report it")


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
