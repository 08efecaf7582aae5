"""How errors end a command: one line on stderr, and an exit code."""

from __future__ import annotations

import os
from enum import IntEnum

from agent_runtime.errors import AgentRuntimeError

from .text import one_line


class ExitCode(IntEnum):
    """Exit codes of the `agent` command."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    LIMIT = 3
    DIVERGED = 4
    INTERRUPTED = 130


def debugging() -> bool:
    """Tell whether tracebacks are wanted (AGENT_RUNTIME_DEBUG=1)."""
    return os.environ.get("AGENT_RUNTIME_DEBUG", "") not in ("", "0")


def exit_code(error: BaseException) -> ExitCode:
    """Return the exit code that `error` stands for."""
    error = leaf(error)
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    if isinstance(error, AgentRuntimeError):
        return ExitCode(error.exit_code)
    return ExitCode.FAILED


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
    if type(error).__module__.split(".")[0] == "agent_runtime":
        return text or type(error).__name__
    hint = "set AGENT_RUNTIME_DEBUG=1 to see where"
    return f"{type(error).__name__}: {text} ({hint})" if text else f"{type(error).__name__} ({hint})"
