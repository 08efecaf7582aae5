"""What goes wrong with a server, in one line each; every one of them is an `EngineFailed` or a `UsageError`.

EngineFailed
├── ServerUnreachable   no connection, or it was lost before the answer began
├── ServerSilent        nothing came for as long as the timeout allows
├── ServerRejected      an HTTP status that says no, or an error inside the stream
└── StreamBroken        the connection was lost in the middle of a message
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from agent_runtime.errors import EngineFailed

from .address import Endpoint

_EXCERPT = 300
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Statuses that may pass when one waits."""


class ServerUnreachable(EngineFailed):
    """Raised when no connection to a server can be made, or it was lost before the answer began."""

    def __init__(self, endpoint: Endpoint, reason: str) -> None:
        self.endpoint = endpoint
        self.reason = reason
        super().__init__(f"the server at {endpoint.place} can't be reached ({reason}): start it, or check the address")

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.endpoint, self.reason))


class ServerSilent(EngineFailed):
    """Raised when a server said nothing for `seconds`."""

    def __init__(self, endpoint: Endpoint, seconds: float) -> None:
        self.endpoint = endpoint
        self.seconds = seconds
        super().__init__(
            f"the server at {endpoint.place} has said nothing for {seconds:g} s: "
            "it may be overloaded; give it longer with ?timeout=SECONDS"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.endpoint, self.seconds))


class ServerRejected(EngineFailed):
    """Raised when a server refuses a request; `retry_after` is in seconds, where the server names it."""

    def __init__(self, endpoint: Endpoint, status: int, reason: str, retry_after: float | None = None) -> None:
        self.endpoint = endpoint
        self.status = status
        self.reason = reason
        self.retry_after = retry_after
        wait = "" if retry_after is None else f"; it asks to wait {retry_after:g} s"
        super().__init__(f"the server at {endpoint.place} answers {status}: {reason}{wait}")

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.endpoint, self.status, self.reason, self.retry_after))

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in _PASSING


class StreamBroken(EngineFailed):
    """Raised when the connection was lost in the middle of a message."""

    def __init__(self, endpoint: Endpoint, reason: str) -> None:
        self.endpoint = endpoint
        self.reason = reason
        super().__init__(
            f"the connection to the server at {endpoint.place} was lost in the middle of a message ({reason}): "
            "nothing that changes the world was started from it; run the task again"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.endpoint, self.reason))


Transient = ServerUnreachable | ServerSilent | StreamBroken | ServerRejected


def error_text(body: str) -> str:
    """Return what an error's body says, in one line: the message of the forms that servers use."""
    try:
        found: Any = json.loads(body)
    except ValueError:
        found = re.sub(r"<[^>]*>", " ", body)  # a proxy's page
    for key in ("error", "detail", "message"):
        if isinstance(found, dict) and found.get(key):
            found = found[key]
    if isinstance(found, dict):
        found = found.get("message") or found
    text = " ".join((found if isinstance(found, str) else json.dumps(found)).split())
    return text[:_EXCERPT] + "..." if len(text) > _EXCERPT else text or "no reason given"


def retry_after(header: str | None) -> float | None:
    """Return the seconds that a `Retry-After` header asks for (RFC 9110, 10.2.3): a number, or until a date."""
    if header is None:
        return None
    text = header.strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    try:
        until = parsedate_to_datetime(text)
    except ValueError:
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())
