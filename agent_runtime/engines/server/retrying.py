"""Trying again: only what may pass, only while nothing has been handed out, and when the server says so."""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio
import stamina

from .faults import ServerRejected, ServerSilent, ServerUnreachable, StreamBroken

_log = logging.getLogger(__name__)

logging.getLogger("stamina").addHandler(logging.NullHandler())  # its words are for logs, not for a terminal
_WAIT_FIRST, _WAIT_MOST = 0.2, 5.0


class Retries:
    """When one request is tried again.

    The waits grow exponentially with a random part; a `Retry-After` is followed instead, unless it is longer than what
    is left: then the server's answer is the error, so that nobody waits for nothing.

    Args:
        retry_for: Seconds after which the last error stands; 0 tries once.
        note: Called with each error that is tried again.
    """

    def __init__(self, retry_for: float, *, note: Callable[[Exception], None]) -> None:
        self._retry_for = retry_for
        self._deadline = anyio.current_time() + retry_for
        self._note = note

    def attempts(self) -> stamina._core._RetryContextIterator:
        """Return the attempts: `async for attempt in retries.attempts(): with attempt: ...`."""
        return stamina.retry_context(
            on=self._backoff,
            attempts=None if self._retry_for else 1,
            timeout=self._retry_for or None,
            wait_initial=_WAIT_FIRST,
            wait_max=_WAIT_MOST,
            wait_jitter=_WAIT_FIRST,
        )

    def _backoff(self, error: Exception) -> bool | float:
        """Return whether to try again; seconds where the server names them."""
        if not may_pass(error) or not self._retry_for:
            return False
        wait = error.retry_after if isinstance(error, ServerRejected) else None
        if wait is not None and anyio.current_time() + wait > self._deadline:
            return False
        self._note(error)
        _log.info("trying again: %s", error)
        return True if wait is None else wait


def may_pass(error: BaseException) -> bool:
    """Tell whether the same request may succeed when it is made again."""
    if isinstance(error, ServerRejected):
        return error.may_pass
    return isinstance(error, ServerUnreachable | ServerSilent | StreamBroken)
