"""`agent runs`: the recorded runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import parameters
from .output import note, print_json, print_rows, stdout_console
from .text import duration, one_line, percent

if TYPE_CHECKING:
    from agent_runtime.traces import RunInfo, TraceStore

app = typer.Typer(help="Look at recorded runs.", no_args_is_help=True, rich_markup_mode=None)

RUN = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or its beginning.")]

TASK_LIMIT = 60


@contextmanager
def _opened(db: str | None) -> Iterator[TraceStore]:
    from agent_runtime.traces import TraceStore

    store = TraceStore.open(db)
    try:
        yield store
    finally:
        store.close()


@app.command("list")
def list_runs(
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Show at most this many, latest first.")] = 20,
    db: parameters.Db = None,
    as_json: parameters.Json = False,
) -> None:
    """List the latest runs."""
    with _opened(db) as store:
        infos = store.runs(limit=limit)
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
    from agent_runtime.traces.events import EVENT_ADAPTER
    from agent_runtime.traces.ledger import ledger

    from .summary import print_stored

    with _opened(db) as store:
        info = store.run(run)
        events = store.events(info.run_id)
    speculation = ledger(events).summary()
    if as_json:
        dumped = [EVENT_ADAPTER.dump_python(event, mode="json") for event in events]
        print_json(_row(info) | {"speculation": speculation, "events": dumped})
        return
    print_stored(stdout_console(), run_id=info.run_id, status=info.status, events=events, speculation=speculation)


@app.command()
def rm(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Ids of runs, or their beginnings.")],
    db: parameters.Db = None,
) -> None:
    """Remove runs from the database."""
    with _opened(db) as store:
        found = [store.run(run).run_id for run in runs]  # all names are right before anything is removed
        for run_id in dict.fromkeys(found):
            store.remove(run_id)
            print(f"removed {run_id}")


def _row(info: RunInfo) -> dict[str, Any]:
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


def _cells(info: RunInfo) -> tuple[str, ...]:
    summary = info.summary or {}
    return (
        info.run_id,
        info.started_at.astimezone().strftime("%Y-%m-%d %H:%M"),
        info.status,
        info.agent,
        "-" if info.wall_ms is None else duration(info.wall_ms),
        percent(summary.get("hit_at_1")),
        duration(summary["saved_ms"]) if summary.get("saved_ms") else "-",
        one_line(info.task, TASK_LIMIT),
    )
