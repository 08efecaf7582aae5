"""The seam between a run and wherever its events go, and the trace that only lives in memory."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from .events import STREAM_ONLY, Event
from .run_ids import new_run_id


class RunTrace(Protocol):
    """Takes the events of one run in the order they happen."""

    @property
    def run_id(self) -> str:
        """The id made for the run."""
        ...

    def append(self, event: Event) -> None:
        """Take an event; never waits, so that it may be called from anywhere on the event loop."""
        ...

    async def drain_if_full(self) -> None:
        """Wait while more events are pending than the trace likes to hold."""
        ...

    async def durable(self) -> None:
        """Wait until everything taken so far would survive the process."""
        ...


class MemoryTrace:
    """Keeps the events of one run in a list, without any database: for tests, and for those who want no record."""

    def __init__(self) -> None:
        self.run_id = new_run_id()
        self.events: list[Event] = []

    def append(self, event: Event) -> None:
        """Take an event. Deltas are left out, as a database leaves them out."""
        if not isinstance(event, STREAM_ONLY):
            self.events.append(event)

    async def drain_if_full(self) -> None:
        """Return at once: nothing is ever pending."""

    async def durable(self) -> None:
        """Return at once: nothing here outlives the process anyway."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None
