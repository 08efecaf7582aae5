"""The command tree, and the one place where errors become a line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from . import bench, db, doctor, runs, stats, tools
from . import replay as replay_command
from . import report as report_command
from . import run as run_command
from .errors import ExitCode, debugging, describe, exit_code
from .output import note

PROGRAM = "agent"


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("agent-runtime"))
        raise typer.Exit


def build() -> typer.Typer:
    """Return the command tree."""
    app = typer.Typer(
        name=PROGRAM,
        help="Run agents whose next tool call is guessed and started early.",
        rich_markup_mode=None,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def root(
        version: Annotated[
            bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
        ] = False,
    ) -> None:
        pass

    app.command("run")(run_command.run)
    app.command("replay")(replay_command.replay)
    app.add_typer(runs.app, name="runs")
    app.command("report")(report_command.report)
    app.command("stats")(stats.stats)
    app.command("tools")(tools.tools)
    app.command("doctor")(doctor.doctor)
    app.add_typer(db.app, name="db")
    app.add_typer(bench.app, name="bench")
    return app


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; every error has become one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 shows "?" where it can't show a block
    try:
        result = build()(args=None if arguments is None else list(arguments), prog_name=PROGRAM, standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else ExitCode.DONE
    except BrokenPipeError:
        # The reader (`| head`) went away: not our error, and nothing can be written about it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    except KeyboardInterrupt:
        note("error: interrupted")
        return ExitCode.INTERRUPTED
    except Exception as error:
        return _report(error)


def _report(error: Exception) -> int:
    usage = getattr(error, "format_message", None)  # the parser's own errors, whichever library typer builds on
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error)
        return ExitCode.USAGE
    if usage is not None:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else PROGRAM
        note(f"error: {usage().rstrip('.')}; see '{path} --help'".replace("\n", " "))
        return ExitCode.USAGE
    if type(error).__name__ == "Abort":
        note("error: interrupted")
        return ExitCode.INTERRUPTED
    if debugging():
        raise error
    note(f"error: {describe(error)}")
    return exit_code(error)
