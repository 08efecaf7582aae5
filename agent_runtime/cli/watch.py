"""Follows a run to its end: draws its lanes on a terminal, and stops it on Ctrl-C."""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio
from anyio import CancelScope

from .lanes import Lanes

if TYPE_CHECKING:
    from collections.abc import AsyncIterable

    from agent_runtime.traces.events import Event
    from rich.console import Console

REDRAWS_PER_SECOND = 10


async def watch(events: AsyncIterable[Event], lanes: Lanes, console: Console | None) -> None:
    """Feed every event to `lanes`; redraw them on `console`, if there is one, until the events end."""
    if console is None:
        async for event in events:
            lanes.feed(event)
        return
    from rich.live import Live

    from .lanes_view import LanesView

    clock = _Clock(lanes)
    # Redrawn by a task, not by rich's own thread, which would read the lanes while they change.
    with Live(LanesView(lanes, 0.0), console=console, auto_refresh=False, redirect_stdout=False) as live:

        async def redraw() -> None:
            while True:
                await anyio.sleep(1 / REDRAWS_PER_SECOND)
                live.update(LanesView(lanes, clock.now()), refresh=True)

        async with anyio.create_task_group() as beside:
            beside.start_soon(redraw)
            try:
                async for event in events:
                    lanes.feed(event)
                    clock.sync()
            finally:
                beside.cancel_scope.cancel()
                live.update(LanesView(lanes, lanes.at), refresh=True)


class _Clock:
    """The run's time between two events, carried on by the event loop's clock."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._synced = anyio.current_time()

    def sync(self) -> None:
        self._synced = anyio.current_time()

    def now(self) -> float:
        if self._lanes.over:
            return self._lanes.at
        return self._lanes.at + anyio.current_time() - self._synced


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
