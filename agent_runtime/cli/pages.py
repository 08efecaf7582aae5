"""The help pages of every command as one Markdown page: `python -m agent_runtime.cli.pages docs/cli.md`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from .app import PROGRAM, build

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
| 1 | the run failed, or the runs of `agent runs diff` differ |
| 2 | something in the command can't be used |
| 3 | a limit was reached |
| 4 | a cassette's replay diverged |
| 130 | interrupted |

An error is one line on stderr, `error: ...`, that says what to do. `AGENT_RUNTIME_DEBUG=1` shows the traceback instead.
"""


def page() -> str:
    """Return the whole page."""
    root: Any = typer.main.get_command(build())
    return "\n".join([INTRODUCTION, *(_section(path, command) for path, command in _commands(root, (PROGRAM,)))])


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the commands that do something, with the words that name them."""
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
        return
    for name, child in children.items():
        yield from _commands(child, (*path, name))


def _section(path: tuple[str, ...], command: Any) -> str:
    # Written from the parameters, not from the help text, whose form changes with the library's version.
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    usage = [*path, *("[OPTIONS]" for _ in options[:1]), *(map(_argument, arguments))]
    text = f"## {' '.join(path)}\n\n`{' '.join(usage)}`\n\n{inspect.cleandoc(command.help or '')}\n"
    rows = [f"| `{_argument(parameter)}` | {parameter.help} |" for parameter in arguments]
    rows += [f"| `{_option(parameter)}` | {parameter.help}{_default(parameter)} |" for parameter in options]
    return text + "\n" + "\n".join(["| | |", "|---|---|", *rows]) + "\n" if rows else text


def _argument(parameter: Any) -> str:
    return parameter.metavar if parameter.required else f"[{parameter.metavar}]"


def _option(parameter: Any) -> str:
    names = "/".join([*parameter.opts, *parameter.secondary_opts])
    return f"{names} {parameter.metavar}" if parameter.metavar else names


def _default(parameter: Any) -> str:
    plain = parameter.default is None or isinstance(parameter.default, bool)
    return "" if plain else f" Default: {parameter.default}."


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
