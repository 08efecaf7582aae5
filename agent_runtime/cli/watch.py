"""Follows a run to its end: draws its lanes on a terminal, and stops it on Ctrl-C."""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import anyio
from anyio import CancelScope

from .lanes import Lanes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from agent_runtime import RunStream

REDRAWS_PER_SECOND = 10


class Watcher:
    """Watches one run. `stream` is its stream as soon as it has one, also when watching was broken off."""

    def __init__(self, console: Console | None) -> None:
        self.stream: RunStream | None = None
        self._console = console
        self._lanes = Lanes()
        self._synced = 0.0

    async def watch(self, opening: AbstractAsyncContextManager[RunStream]) -> None:
        """Open a run and follow it to its end, drawing its lanes if there is a console."""
        if self._console is None:
            await self._follow(opening)
            return
        from rich.live import Live

        self._synced = anyio.current_time()
        # Redrawn by a task, not by rich's own thread, which would read the lanes while they change.
        with Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
            async with anyio.create_task_group() as beside:
                beside.start_soon(self._redraw, live)
                try:
                    await self._follow(opening)
                finally:
                    beside.cancel_scope.cancel()
                    self._draw(live)

    async def _follow(self, opening: AbstractAsyncContextManager[RunStream]) -> None:
        async with opening as stream:
            self.stream = stream
            async for event in stream:
                self._lanes.feed(event)
                self._synced = anyio.current_time()

    async def _redraw(self, live: Live) -> None:
        while True:
            self._draw(live)
            await anyio.sleep(1 / REDRAWS_PER_SECOND)

    def _draw(self, live: Live) -> None:
        from .lanes_view import LanesView

        lanes = self._lanes
        # Between two events the run's clock goes on with the event loop's.
        now = lanes.at if lanes.over else lanes.at + anyio.current_time() - self._synced
        live.update(LanesView(lanes, now), refresh=True)


async def unless_interrupted(work: Callable[[], Awaitable[None]]) -> bool:
    """Do `work`; on Ctrl-C or SIGTERM cancel it, let it clean up, and return True.

    A second Ctrl-C, while it cleans up, ends the process the ordinary way.
    """
    interrupted = False

    async def listen(scope: CancelScope) -> None:
        nonlocal interrupted
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
            async for _ in received:
                interrupted = True
                scope.cancel()
                return

    if sys.platform == "win32":  # no signal handlers on its event loop: KeyboardInterrupt does it
        await work()
        return False
    async with anyio.create_task_group() as group:
        group.start_soon(listen, group.cancel_scope)
        await work()
        group.cancel_scope.cancel()
    return interrupted
