"""The base of every error that this package raises on purpose, in a module of its own so that every room can use it."""

from __future__ import annotations

from typing import Any, ClassVar


class AgentRuntimeError(Exception):
    """Base of the errors raised on purpose; the message is one line that says what happened and what to do.

    `exit_code` is what the `agent` command ends with; `result` holds what there is of the run that met the error, as a
    `RunResult`, or None.
    """

    exit_code: ClassVar[int] = 1
    result: Any = None
