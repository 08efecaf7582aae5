"""A row as its consumer sees it: an async iterator of events, filled by the model thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import anyio

from .requests import Finished, RowEvent, RowRequest, Tokens
from .wake import Wake

BUFFERED_EVENTS = 512
"""Events that may wait for a slow consumer before its row pauses."""
WAKE_INTERVAL_S = 0.016
"""Tokens that come faster than this share a wake-up.

Every wake-up takes the interpreter's lock from the model thread in the middle of a step. With steps of half a
millisecond, one wake-up per token costs more than the step itself.
"""


class Row:
    """Events of one request: Ready, Tokens..., Finished, in this order; Finished is always last.

    A row cancelled before its prompt was in the cache yields Finished alone. One consumer at a time. Errors of this
    row (`RowFailed`, `KvBudgetExceeded`, `WorkerStopped`) are raised from the iterator.
    """

    def __init__(self, request: RowRequest, wake: Wake, ring: Callable[[], None]) -> None:
        self.request = request
        self._wake = wake
        self._ring = ring  # wakes the model thread
        self.suggestion = request.suggestion
        self._events: deque[RowEvent] = deque()
        self._tokens: list[int] = []
        self._error: BaseException | None = None
        self._over = False  # nothing more will be pushed
        self._cancelled = False
        self._paused = False  # the model thread found the buffer full
        self._wake_pending = False
        self._woken_at = 0.0
        self._bell: anyio.Event | None = None

    # -- consumer's side ----------------------------------------------------------------------------------------

    def __aiter__(self) -> Row:
        """Return itself."""
        return self

    async def __anext__(self) -> RowEvent:
        """Wait for the next event."""
        while True:
            if self._events:
                event = self._events.popleft()
                if self._paused and len(self._events) <= BUFFERED_EVENTS // 2:
                    self._paused = False
                    self._ring()
                return event
            if self._over and not self._events:
                if self._error is not None:
                    error, self._error = self._error, None
                    raise error
                raise StopAsyncIteration
            await self._wait()

    @property
    def tokens_so_far(self) -> tuple[int, ...]:
        """Every token emitted so far, also those that still wait in the buffer."""
        return tuple(self._tokens)

    def suggest(self, tokens: tuple[int, ...]) -> None:
        """Tell a text that is expected somewhere in the answer; the next steps may draft from it."""
        self.suggestion = tokens

    def cancel(self) -> None:
        """End this row at the next step boundary; its events go on until `Finished("cancelled")`."""
        if not self._over:
            self._cancelled = True
            self._ring()

    async def aclose(self) -> None:
        """Cancel, drop the events that are left, and wait until the model thread has let go of the row.

        Afterwards the row's cache is back in the prefix store.
        """
        self.cancel()
        while not self._over:
            self._events.clear()
            await self._wait()
        self._events.clear()
        self._error = None

    async def _wait(self) -> None:
        """Wait for the next wake-up, unless something is there already."""
        bell = self._bell
        if bell is None:
            bell = self._bell = anyio.Event()
        # Looked at after the bell was hung up: what comes from now on rings it.
        if not self._events and not self._over:
            await bell.wait()

    # -- model thread's side ------------------------------------------------------------------------------------

    @property
    def cancelled(self) -> bool:
        """Whether the consumer has given up, or its event loop is gone."""
        return self._cancelled

    def is_full(self) -> bool:
        """Tell whether the consumer is too far behind for another step; it rings once it has caught up."""
        if len(self._events) < BUFFERED_EVENTS:
            return False
        self._paused = True
        # The consumer may have drained the buffer between the two lines above.
        return len(self._events) > BUFFERED_EVENTS // 2

    def push(self, event: RowEvent) -> None:
        """Append an event and wake the consumer."""
        if isinstance(event, Tokens):
            self._tokens.extend(event.ids)
        self._events.append(event)
        if isinstance(event, Finished):
            self._over = True
        if not isinstance(event, Tokens) or time.perf_counter() - self._woken_at >= WAKE_INTERVAL_S:
            self._notify()

    def fail(self, error: BaseException) -> None:
        """End the row with an error."""
        if not self._over:
            self._error = error
            self._over = True
            self._notify()

    def flush(self) -> None:
        """Wake the consumer for tokens that were pushed without a wake-up."""
        if self._events:
            self._notify()

    def _notify(self) -> None:
        if self._wake_pending:
            return
        self._woken_at = time.perf_counter()
        self._wake_pending = True
        if not self._wake(self._on_wake):
            self._cancelled = True

    def _on_wake(self) -> None:
        """Wake the consumer; runs in its event loop."""
        self._wake_pending = False
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.set()
