"""`agent report`: one recorded run as a summary, an HTML page or a trace for a viewer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from agent_runtime.errors import UsageError

from . import parameters
from .output import note, stdout_console

STDOUT = "-"


def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id or its beginning, or last.")],
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write one HTML page that needs no network; - for stdout.")
    ] = None,
    chrome: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write a trace for ui.perfetto.dev or chrome://tracing; - for stdout."),
    ] = None,
    db: parameters.Db = None,
) -> None:
    """Report on a run: what was guessed, what hit, what it saved.

    Without options the summary is printed.
    """
    from agent_runtime.traces import TraceStore

    if html == chrome == STDOUT:
        raise UsageError("--html - and --chrome - can't both go to stdout: give one of them a file")
    with TraceStore.open(db) as store:
        row = store.run(run)
        stored = store.events(row.run_id)
        events = list(stored)
    if stored.skipped:
        note(f"{stored.skipped} events of a newer version are left out; upgrade agent-runtime to see them")
    if html is not None:
        from agent_runtime.report.page import html_page

        _write(html, html_page(events, row))
    if chrome is not None:
        import json

        from agent_runtime.traces.formats.perfetto import perfetto

        _write(chrome, json.dumps(perfetto(events, row.run_id), separators=(",", ":")))
    if html is None and chrome is None:
        from .summary import print_stored

        print_stored(stdout_console(), row, events)


def _write(file: str, text: str) -> None:
    if file == STDOUT:
        sys.stdout.write(text)
        return
    data = text.encode("utf-8")
    try:
        Path(file).write_bytes(data)
    except OSError as error:
        raise UsageError(f"can't write {file}: {error.strerror or error}; give a file that can be written") from None
    note(f"wrote {file} ({_size(len(data))})")


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1_000_000 else f"{count / 1e3:.0f} kB"
