"""Where the command line writes: results to stdout, prose and progress to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .text import safe

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH = 100
"""Columns used where the output is no terminal and COLUMNS isn't set."""


def print_json(value: Any, *, lines: bool = False) -> None:
    """Write one JSON object to stdout; on one line where it is part of a stream of them.

    Control characters are escaped by JSON itself, C1 ones too, so a terminal that shows the object stays safe.
    """
    print(json.dumps(value, ensure_ascii=True, indent=None if lines else 2), flush=True)


def note(text: str) -> None:
    """Write a line of prose to stderr."""
    print(safe(text), file=sys.stderr, flush=True)


def stdout_console() -> Console:
    """Return a console on stdout that never reads markup, emoji codes or highlights in what it prints."""
    return _console(stderr=False)


def stderr_console() -> Console:
    """Return a console on stderr, with the same care."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    console = Console(stderr=stderr, markup=False, emoji=False, highlight=False, soft_wrap=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PLAIN_WIDTH
    return console


def print_rows(rows: Iterable[tuple[str, ...]], *, heads: tuple[str, ...], right: frozenset[int] = frozenset()) -> None:
    """Print a plain table to stdout; cells fold, so that nothing is lost on a narrow terminal.

    Args:
        rows: the cells of each row, as text from anywhere.
        heads: the columns' headings.
        right: indexes of the columns that are flushed right.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, head in enumerate(heads):
        table.add_column(head, justify="right" if index in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(safe(cell)) for cell in row))
    stdout_console().print(table)
