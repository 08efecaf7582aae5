"""Errors of the tools room, and the failure a tool raises on purpose.

ToolsError
├── ToolDefinitionError     a function can't be described to a model, or a contract contradicts itself
├── CatalogueError          an operator catalogue can't be read
├── InvalidArguments        arguments don't fit a tool's schema (the message is for the model)
└── DispatcherError         the dispatcher or a turn's calls were used in the wrong order

ToolFailure                 raised inside tools, read by the model
"""

from __future__ import annotations

from agent_runtime.base_error import AgentRuntimeError


class ToolsError(AgentRuntimeError):
    """Base of all errors of the tools room."""


class ToolDefinitionError(ToolsError):
    """Raised when a tool is declared in a way that can't work; the message names the tool."""

    exit_code = 2


class CatalogueError(ToolsError):
    """Raised when an operator catalogue can't be read; the message names the file and the entry."""

    exit_code = 2


class InvalidArguments(ToolsError):
    """Raised when arguments don't fit a tool's schema; the message is short enough for a model to read."""


class DispatcherError(ToolsError):
    """Raised when a dispatcher or a turn's calls are used in the wrong order."""


class ToolFailure(Exception):
    """Raised by a tool to tell the model what went wrong: it reads `{"error": kind, "message": message}`.

    Args:
        kind: A short name of the failure, e.g. `not_found`.
        message: One sentence for the model.
        status: HTTP status of the answer behind it, if any: 429 and 5xx stop guessing for a while.
        retry_after: Seconds after which the service wants to be asked again.
    """

    def __init__(self, kind: str, message: str, *, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.status = status
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[object, ...]:
        return (_restore_failure, (self.kind, self.message, self.status, self.retry_after))


def _restore_failure(kind: str, message: str, status: int | None, retry_after: float | None) -> ToolFailure:
    return ToolFailure(kind, message, status=status, retry_after=retry_after)
