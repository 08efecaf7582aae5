"""`agent runs export` and `import`: recorded runs to files, and recordings of any agent into the database."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import parameters
from .output import note, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent_runtime.traces import TraceStore
    from agent_runtime.traces.formats import Reading, RecordedRun

STDOUT = "-"
SHOWN_FAULTS = 20
"""Lines about what could not be read; the others are counted."""


def export_runs(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Ids of runs or their beginnings, or last.")],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The file, which is replaced; - for stdout.")
    ],
    format: Annotated[
        str,
        typer.Option("--format", metavar="F", help="own (loses nothing), atif, chat, perfetto, otel or parquet."),
    ] = "own",
    db: parameters.Db = None,
) -> None:
    """Write recorded runs to a file."""
    from agent_runtime.traces import TraceStore
    from agent_runtime.traces.formats import write, write_to

    with TraceStore.open(db) as store:
        ids = list(dict.fromkeys(store.run(run).run_id for run in runs))  # all are right before anything is written
        if output == STDOUT:
            write_to(sys.stdout.buffer, _stored(store, ids), format)
            return
        write(_stored(store, ids), output, format)
    note(f"wrote {_count(len(ids), 'run')} to {output}")


def import_runs(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Recordings of this or of other agents.")],
    format: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="F",
            help="auto, own, chat, atif, tau-bench, tau2, swe-agent, claude-code or codex.",
        ),
    ] = "auto",
    db: parameters.Db = None,
    as_json: parameters.Json = False,
) -> None:
    """Read recordings into the database; what can't be read is named and left out."""
    from agent_runtime.traces import TraceStore
    from agent_runtime.traces.formats import UnreadableFile, read

    results: list[dict[str, Any]] = []
    unread: UnreadableFile | None = None
    with TraceStore.open(db) as store:
        for file in files:
            try:
                results.append(_import(store, read(file, format), as_json=as_json))
            except UnreadableFile as error:
                if unread is not None:
                    note(f"error: {unread}")
                unread = error
    if unread is not None:
        if not results:
            raise unread
        note(f"error: {unread}")
    if as_json:
        print_json({"files": results})


def _stored(store: TraceStore, ids: list[str]) -> Iterator[RecordedRun]:
    from agent_runtime.traces.formats import RecordedRun

    for run_id in ids:
        stored = store.events(run_id)
        run = RecordedRun(store.run(run_id), tuple(stored))
        if stored.skipped:
            note(f"{stored.skipped} events of run {run_id} are of a newer version and left out")
        yield run


def _import(store: TraceStore, reading: Reading, *, as_json: bool) -> dict[str, Any]:
    """Import one file, and tell about it."""
    from agent_runtime.traces.formats import import_run

    new: list[str] = []
    known: list[str] = []
    for run in reading.runs():
        run_id, is_new = import_run(store, run)
        (new if is_new else known).append(run_id)
    for fault in reading.faults[:SHOWN_FAULTS]:
        note(str(fault))
    if reading.fault_count > SHOWN_FAULTS:
        note(f"{reading.path}: {reading.fault_count - SHOWN_FAULTS} more faults")
    here = f"; {_count(len(known), 'run')} of it {'was' if len(known) == 1 else 'were'} here already" if known else ""
    note(f"imported {_count(len(new), 'run')} from {reading.path} ({reading.format}){here}")
    if not as_json:
        for run_id in new:
            print(run_id)
    return {
        "file": str(reading.path),
        "format": reading.format,
        "imported": new,
        "already_there": known,
        "faults": [{"record": fault.record, "reason": fault.reason} for fault in reading.faults],
        "fault_count": reading.fault_count,
    }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
