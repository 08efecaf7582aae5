"""The help pages of every command as one Markdown page: `python -m agent_runtime.cli.pages docs/cli.md`."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import typer

from .app import PROGRAM, build, run

INTRODUCTION = """\
# The command line

Generated from the program's own help (`make docs`).

`TARGET` names an agent: `module:variable`, `file.py:variable`, or the built-in `shop`. The variable is an `Agent`, or a
function that returns one or an async context manager of one; `--model`, `--device`, `--speculate` and `--db` reach a
function as `model`, `device`, `speculation` and `traces` where it has such parameters.

The answer of `agent run` goes to stdout, everything else to stderr. With `--json` stdout is one JSON object, with
`--tasks` one per line; its keys are listed in [output.md](output.md).

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | the run failed |
| 2 | something in the command can't be used |
| 3 | a limit was reached |
| 130 | interrupted |

An error is one line on stderr, `error: ...`, that says what to do. `AGENT_RUNTIME_DEBUG=1` shows the traceback instead.
"""


def page() -> str:
    """Return the whole page."""
    root: Any = typer.main.get_command(build())
    sections = [INTRODUCTION]
    for path in _paths(root, ()):
        title = " ".join((PROGRAM, *path))
        sections.append(f"## {title}\n\n```text\n{_help(path)}\n```\n")
    return "\n".join(sections)


def _paths(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from _paths(child, (*path, name))


def _help(path: tuple[str, ...]) -> str:
    text = io.StringIO()
    # The page must not depend on the terminal on which it is made.
    with mock.patch.dict(os.environ, {"COLUMNS": "80", "NO_COLOR": "1"}), contextlib.redirect_stdout(text):
        run([*path, "--help"])
    return text.getvalue().rstrip()


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
