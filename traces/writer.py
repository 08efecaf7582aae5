"""Records a run while it runs: events go in without waiting, one task commits them in batches in a worker thread.

Drivers that are asynchronous themselves are not used: cancelled at the wrong moment they can hang at exit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVarTuple

import anyio
import anyio.abc
import anyio.to_thread

from .clock import under_virtual_clock
from .errors import TracesError, WriterFailed
from .events import STREAM_ONLY, Event, RunStarted
from .recorder import RunRecorder

Ts = TypeVarTuple("Ts")

CAPACITY = 4096
"""Events that may be pending before `drain_if_full` waits."""
HEARTBEAT_SECONDS = 2.0
"""A run that has nothing to write still says this often that it lives."""
FLUSH_SECONDS = 10.0
"""How long leaving the writer may take, also when its run was cancelled."""
BATCH = 2048


@dataclass(frozen=True, slots=True)
class WriterStatistics:
    """What a writer has done so far."""

    appended: int
    committed: int
    pending: int
    most_pending: int
    batches: int


class RunWriter:
    """The trace of one run in a database; use it as `async with store.start_run(...) as writer`.

    Leaving the context writes what is pending, shielded from cancellation, within `flush_seconds`.
    """

    def __init__(
        self,
        recorder: RunRecorder,
        started: RunStarted,
        *,
        inline: bool | None = None,
        capacity: int = CAPACITY,
        heartbeat: float = HEARTBEAT_SECONDS,
        flush_seconds: float = FLUSH_SECONDS,
    ) -> None:
        self._recorder = recorder
        self._started = started
        self._inline = inline
        self._capacity = capacity
        self._heartbeat = heartbeat
        self._flush_seconds = flush_seconds
        self._pending: deque[Event] = deque()
        self._appended = self._committed = self._batches = self._most_pending = 0
        self._failure: WriterFailed | None = None
        self._told = False
        self._open = False
        self._closing = False
        self._wake = anyio.Event()
        self._progress = anyio.Event()
        self._done = anyio.Event()
        self._limiter = anyio.CapacityLimiter(1)
        self._tasks: anyio.abc.TaskGroup | None = None

    @property
    def run_id(self) -> str:
        """The id made for the run; known once the context is entered."""
        return self._recorder.run_id

    def append(self, event: Event) -> None:
        """Take an event; never waits. Deltas are left out.

        Raises:
            WriterFailed: earlier events could not be written.
            TracesError: the writer is not open.
        """
        self._check()
        if not self._open:
            raise TracesError(
                f"the trace of run {self.run_id or '(not begun)'} is not open: append inside `async with`"
            )
        if isinstance(event, STREAM_ONLY):
            return
        self._appended += 1
        if self._inline:
            self._commit_here(event)
            return
        self._pending.append(event)
        self._most_pending = max(self._most_pending, len(self._pending))
        self._wake.set()

    async def drain_if_full(self) -> None:
        """Wait until fewer events are pending than the writer's capacity; nothing is ever dropped.

        Raises:
            WriterFailed: the pending events can't be written.
        """
        await self._wait_for(self._appended - self._capacity + 1)

    async def durable(self) -> None:
        """Wait until everything appended so far is committed.

        Raises:
            WriterFailed: it can't be.
        """
        await self._wait_for(self._appended)

    def statistics(self) -> WriterStatistics:
        """Return counts of events and batches."""
        return WriterStatistics(
            appended=self._appended,
            committed=self._committed,
            pending=self._appended - self._committed,
            most_pending=self._most_pending,
            batches=self._batches,
        )

    async def __aenter__(self) -> Self:
        if self._inline is None:
            self._inline = under_virtual_clock()
        if self._inline:
            self._recorder.begin(self._started)
            self._open = True
            return self
        self._writing = anyio.CancelScope(shield=True)
        try:
            await anyio.to_thread.run_sync(self._recorder.begin, self._started, limiter=self._limiter)
            self._tasks = await anyio.create_task_group().__aenter__()
        except BaseException:
            with anyio.CancelScope(shield=True):  # a row without a writer would be a run that nobody ends
                await anyio.to_thread.run_sync(self._recorder.close, limiter=self._limiter)
            raise
        self._tasks.start_soon(self._write, name=f"trace writer of run {self.run_id}")
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open = False
        if self._tasks is None:
            self._close_here()
        else:
            self._closing = True
            self._writing.deadline = anyio.current_time() + self._flush_seconds
            self._wake.set()
            try:
                with anyio.CancelScope(shield=True):
                    await self._done.wait()
            except BaseException as cancelled:  # asyncio's own cancellation knows no shields
                await self._tasks.__aexit__(type(cancelled), cancelled, cancelled.__traceback__)
                raise
            # Without the body's error: it is not the writer's, and a task group would wrap it in another.
            await self._tasks.__aexit__(None, None, None)
        if self._failure is not None and not self._told and error is None:
            raise self._failure

    async def _write(self) -> None:
        """Commit what is pending, in order, until the writer closes; an error ends it and is kept for the run."""
        try:
            with self._writing:  # shielded: cancelling a run must not cancel the writing of what it did
                await self._write_until_closed()
            if self._writing.cancelled_caught:
                raise WriterFailed(
                    f"the last events of run {self.run_id} could not be written within {self._flush_seconds:g} s; "
                    "what was written before can be read"
                )
        except Exception as error:
            self._fail(error)
        finally:
            self._done.set()
            self._advance()

    async def _write_until_closed(self) -> None:
        while True:
            if not self._pending and not self._closing:
                with anyio.move_on_after(self._heartbeat):
                    await self._wake.wait()
            self._wake = anyio.Event()
            batch = [self._pending.popleft() for _ in range(min(BATCH, len(self._pending)))]
            if self._closing and not batch:
                await self._in_thread(self._recorder.close)
                return
            await self._in_thread(self._recorder.commit, batch)
            self._count(len(batch))

    async def _in_thread(self, function: Callable[[*Ts], None], *arguments: *Ts) -> None:
        await anyio.to_thread.run_sync(function, *arguments, limiter=self._limiter, abandon_on_cancel=True)

    def _commit_here(self, event: Event) -> None:
        try:
            self._recorder.commit([event])
        except Exception as error:
            self._fail(error)
            self._check()
        self._count(1)

    def _close_here(self) -> None:
        try:
            self._recorder.close()
        except Exception as error:
            self._fail(error)

    def _count(self, events: int) -> None:
        self._committed += events
        self._batches += events > 0
        self._advance()

    def _advance(self) -> None:
        """Wake everyone who waits for progress; they look again."""
        progress, self._progress = self._progress, anyio.Event()
        progress.set()

    async def _wait_for(self, committed: int) -> None:
        self._check()
        while self._committed < committed:
            await self._progress.wait()
            self._check()

    def _fail(self, error: Exception) -> None:
        if isinstance(error, WriterFailed):
            self._failure = error
        else:
            self._failure = WriterFailed(f"run {self.run_id} can't be recorded any more: {error}")
            self._failure.__cause__ = error

    def _check(self) -> None:
        if self._failure is not None:
            self._told = True
            raise WriterFailed(str(self._failure)) from self._failure
