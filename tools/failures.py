"""What went wrong in a tool, in the words a model reads, and what it says about the service behind the tool."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .errors import ToolFailure
from .values import canonical_json

_LONGEST_MESSAGE = 500


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed execution. `kind` and `message` are for the model, the rest for back-off."""

    kind: str
    message: str
    status: int | None = None
    """HTTP status behind it, if any."""
    retry_after: float | None = None
    """Seconds the service asks to wait."""
    timed_out: bool = False

    @property
    def throttled(self) -> bool:
        """Whether the service turned the call away because there were too many."""
        return self.status == 429

    @property
    def strained(self) -> bool:
        """Whether guessing should stop for a while: too many requests, a server error, or a timeout."""
        return self.timed_out or self.status == 429 or (self.status is not None and self.status >= 500)

    @property
    def content(self) -> str:
        """The text the model reads."""
        return error_content(self.kind, self.message)


def error_content(kind: str, message: str) -> str:
    """Return an error as the model reads it: `{"error": kind, "message": message}`."""
    return canonical_json({"error": kind, "message": message})


def failure_of(error: BaseException) -> Failure:
    """Read an exception that came out of a tool.

    `ToolFailure` says itself what the model reads. Of any other the model reads the class and the first line. HTTP
    errors are recognised by `error.response.status_code`, as httpx and requests have it.
    """
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]  # a task group inside the tool wrapped it
    if isinstance(error, ToolFailure):
        return Failure(error.kind, error.message, error.status, error.retry_after)
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    names = {kind.__name__ for kind in type(error).__mro__}
    return Failure(
        type(error).__name__,
        _first_line(error),
        status if isinstance(status, int) else None,
        _retry_after(response),
        isinstance(error, TimeoutError) or "TimeoutException" in names,
    )


def _first_line(error: BaseException) -> str:
    try:
        text = str(error).strip()
    except Exception:
        text = ""
    line = text.partition("\n")[0].strip() or "no message"
    return line if len(line) <= _LONGEST_MESSAGE else line[: _LONGEST_MESSAGE - 3] + "..."


def _retry_after(response: Any) -> float | None:
    try:
        seconds = float(response.headers["retry-after"])
    except (AttributeError, KeyError, TypeError, ValueError):  # none, or a date
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
