"""What goes wrong on the command line, as one line and an exit code.

Exception
└── CliError          a line for stderr and an exit code
    └── UsageError    what the user typed cannot be used (exit code 2)
"""

from __future__ import annotations

import errno
import os
from enum import IntEnum

from .text import one_line


class ExitCode(IntEnum):
    """Exit codes of the `agent` command."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    LIMIT = 3
    INTERRUPTED = 130


class CliError(Exception):
    """Raised when a command can't go on; the message is shown as `error: ...`."""

    code = ExitCode.FAILED


class UsageError(CliError):
    """Raised when an argument, a file or a setting that the user named can't be used."""

    code = ExitCode.USAGE


def debugging() -> bool:
    """Tell whether tracebacks are wanted (AGENT_RUNTIME_DEBUG=1)."""
    return os.environ.get("AGENT_RUNTIME_DEBUG", "") not in ("", "0")


def exit_code(error: BaseException) -> ExitCode:
    """Return the exit code that `error` stands for."""
    if isinstance(error, CliError):
        return error.code
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    # Errors of every room that mean "you named something unusable" share these names; importing the
    # rooms here just to compare classes would make each error cost a torch import.
    if any(kind.__name__ in _USAGE for kind in type(error).__mro__):
        return ExitCode.USAGE
    return ExitCode.FAILED


_USAGE = {
    "CatalogueError",
    "DatabaseUnavailable",
    "ModelNotFound",
    "RunNotFound",
    "RunStillRunning",
    "ToolDefinitionError",
    "UsageError",
}


def leaf(error: BaseException) -> BaseException:
    """Return the first real error inside exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def describe(error: BaseException) -> str:
    """Return one line that says what happened.

    The project's own errors are written for people and shown as they are; others get their class in front.
    """
    error = leaf(error)
    text = one_line(str(error))
    if isinstance(error, CliError) or type(error).__module__.split(".")[0] == "agent_runtime":
        return text or type(error).__name__
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.ENOENT, errno.EROFS, errno.ENOSPC):
        return one_line(f"{error.strerror}: {error.filename}" if error.filename else str(error))
    hint = "set AGENT_RUNTIME_DEBUG=1 to see where"
    return f"{type(error).__name__}: {text} ({hint})" if text else f"{type(error).__name__} ({hint})"
