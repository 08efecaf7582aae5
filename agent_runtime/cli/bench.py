"""`agent bench`: measurements on this machine."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from . import parameters
from .output import note, print_json, stdout_console
from .text import duration, percent

app = typer.Typer(help="Measure on this machine.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _bench() -> None:
    pass


@app.command()
def speculate(
    target: parameters.Target,
    tasks: Annotated[int, typer.Option(metavar="N", min=1, help="Freshly generated tasks.")] = 30,
    seed: Annotated[int, typer.Option(metavar="SEED", help="Seed of the tasks.")] = 0,
    tool_latency: Annotated[
        float | None, typer.Option(metavar="MS", min=0, help="Milliseconds that tools take, if not their own time.")
    ] = None,
    as_json: parameters.Json = False,
) -> None:
    """Measure what guessing saves, on fresh tasks.

    Every task runs with and without speculation, interleaved in one process.
    """
    import anyio

    from .setup import before_torch

    before_torch()
    from agent_runtime.bench import bench_speculate

    from .target import load_target

    found = load_target(target)

    async def measure() -> Any:
        return await bench_speculate(found, tasks=tasks, seed=seed, tool_latency_ms=tool_latency)

    report = anyio.run(measure).to_json()
    if as_json:
        print_json(report)
    else:
        _show(report)


def _show(report: dict[str, Any]) -> None:
    from rich.table import Table

    latency = report["tool_latency_ms"]
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_row("tasks", f"{report['tasks']}, {percent(report['success'])} solved")
    table.add_row("tools", "as they are" if latency is None else f"made to take {duration(latency)} (injected)")
    table.add_row("Hit@1", percent(report["hit_at_1"]))
    table.add_row("hidden share", percent(report["hidden_share"]))
    table.add_row("without guessing", duration(report["serial_ms"]))
    table.add_row("with guessing", duration(report["speculative_ms"]))
    table.add_row("speedup", f"{report['speedup']:.2f} measured, {_form(report['closed_form'])} expected")
    table.add_row("slower decoding", f"{report['slowdown_pct']:.1f} % of a turn")
    table.add_row("same transcripts", "yes" if report["identical_transcripts"] else "NO")
    table.add_row("writes run early", str(report["writes_pre_executed"]))
    stdout_console().print(table)
    if not report["identical_transcripts"]:
        note("the transcripts differ between the two modes: that is a defect, please report it")


def _form(value: Any) -> str:
    """Return the closed form's speedup, whether it is one number or one per form."""
    if isinstance(value, dict):
        return ", ".join(f"{number:.2f} ({name})" for name, number in value.items())
    return f"{value:.2f}"
