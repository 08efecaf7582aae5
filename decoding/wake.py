"""Waking an event loop from the model thread, under asyncio and trio."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

Wake = Callable[[Callable[[], None]], bool]
"""Runs a callback soon in the loop it was made for; returns False when that loop is gone."""


def waker_of_this_loop() -> Wake:
    """Return the means to wake the event loop of the calling task.

    Raises:
        RuntimeError: no event loop is running here.
    """
    trio: Any = sys.modules.get("trio")
    if trio is not None:
        try:
            token = trio.lowlevel.current_trio_token()
        except RuntimeError:
            pass
        else:

            def wake_trio(callback: Callable[[], None]) -> bool:
                try:
                    token.run_sync_soon(callback, idempotent=True)
                except trio.RunFinishedError:
                    return False
                return True

            return wake_trio
    loop = asyncio.get_running_loop()

    def wake_asyncio(callback: Callable[[], None]) -> bool:
        try:
            loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop is closed
            return False
        return True

    return wake_asyncio
