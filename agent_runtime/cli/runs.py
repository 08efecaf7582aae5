"""`agent runs`: the recorded runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import diff, parameters
from .output import note, print_json, print_rows, stdout_console
from .text import duration, one_line, percent
from .transfer import export_runs, import_runs

if TYPE_CHECKING:
    from agent_runtime.traces import RunRow

app = typer.Typer(help="Look at recorded runs.", no_args_is_help=True, rich_markup_mode=None)

RUN = Annotated[str, typer.Argument(metavar="RUN", help="A run's id or its beginning, or last.")]

TASK_LIMIT = 60


@app.command("list")
def list_runs(
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Show at most this many, latest first.")] = 20,
    db: parameters.Db = None,
    as_json: parameters.Json = False,
) -> None:
    """List the latest runs."""
    from agent_runtime.traces import TraceStore

    with TraceStore.open(db) as store:
        infos = store.runs(limit)
    if as_json:
        print_json({"runs": [_row(info) for info in infos]})
    elif not infos:
        note('no runs are recorded yet; make one: agent run shop "..."')
    else:
        print_rows(
            (_cells(info) for info in infos),
            heads=("run", "started", "status", "agent", "took", "Hit@1", "saved", "task"),
            right=frozenset({4, 5, 6}),
        )


@app.command()
def show(run: RUN, db: parameters.Db = None, as_json: parameters.Json = False) -> None:
    """Show a run again, and what guessing saved in it."""
    from agent_runtime.traces import TraceStore, ledger
    from agent_runtime.traces.events import EVENT_ADAPTER

    from .summary import print_stored

    with TraceStore.open(db) as store:
        info = store.run(run)
        stored = store.events(info.run_id)
        events = list(stored)
    if stored.skipped:
        note(f"{stored.skipped} events of a newer version are left out; upgrade agent-runtime to see them")
    if as_json:
        dumped = [EVENT_ADAPTER.dump_python(event, mode="json") for event in events]
        print_json(_row(info) | {"speculation": ledger(events).summary(), "events": dumped})
    else:
        print_stored(stdout_console(), info, events)


app.command("diff")(diff.diff)


@app.command()
def rm(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Ids of runs or their beginnings, or last.")],
    db: parameters.Db = None,
) -> None:
    """Remove runs from the database."""
    from agent_runtime.traces import TraceStore

    with TraceStore.open(db) as store:
        found = [store.run(run).run_id for run in runs]  # all names are right before anything is removed
        for run_id in dict.fromkeys(found):
            print(f"removed {store.remove(run_id)}")


app.command("export")(export_runs)
app.command("import")(import_runs)


def _row(info: RunRow) -> dict[str, Any]:
    return {
        "run_id": info.run_id,
        "status": info.status,
        "agent": info.agent,
        "model": info.model,
        "task": info.task,
        "started": info.started_at.isoformat(),
        "wall_ms": info.wall_ms,
        "output": info.output,
        "error": info.error,
    }


def _cells(info: RunRow) -> tuple[str, ...]:
    summary = info.summary or {}
    return (
        info.run_id,
        info.started_at.astimezone().strftime("%Y-%m-%d %H:%M"),
        info.status,
        info.agent,
        duration(info.wall_ms),
        percent(summary.get("hit_at_1")),
        duration(summary["saved_ms"]) if summary.get("saved_ms") else "-",
        one_line(info.task, TASK_LIMIT),
    )
