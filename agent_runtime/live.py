"""Hands a run's events to the one who watches it, without letting a slow watcher fill memory."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator

import anyio

from agent_runtime.traces.events import Event

HIGH_WATER = 256
"""Events that may wait before the run pauses."""


class LiveEvents(AsyncIterator[Event]):
    """A queue between a run and its watcher: `put` never waits, `room` does.

    Only the run that is watched pauses; the model goes on serving others.
    """

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._closed = False
        self._detached = False
        self._changed = anyio.Event()

    def put(self, event: Event) -> None:
        """Add an event; never waits, so that it may be called from anywhere on the event loop."""
        if not self._detached:
            self._events.append(event)
            self._wake()

    async def room(self) -> None:
        """Wait until the watcher has caught up to below the high-water mark."""
        while len(self._events) >= HIGH_WATER and not self._detached:
            await self._changed.wait()

    def close(self) -> None:
        """No event follows; the watcher's loop ends after the last one."""
        self._closed = True
        self._wake()

    def detach(self) -> None:
        """Nobody watches any more: drop what waits and never hold the run up."""
        self._detached = True
        self._events.clear()
        self._wake()

    # An iterator rather than an async generator: one that is left early needs no closing, which trio would insist on.
    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if self._closed or self._detached:
                raise StopAsyncIteration
            await self._changed.wait()
        event = self._events.popleft()
        if len(self._events) == HIGH_WATER - 1:
            self._wake()
        return event

    def _wake(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
