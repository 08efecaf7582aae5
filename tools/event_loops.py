"""Reaching an event loop from any thread, and a clock that the loops of one process share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import anyio
from anyio.lowlevel import RunVar, current_token

_offset: RunVar[float] = RunVar("agent_runtime_clock_offset")


def shared_time() -> float:
    """Return the running loop's time in seconds on a scale that all loops of the process share.

    Each backend counts from a point of its own, so times that outlive a loop need a common scale. It moves with
    the loop's clock, also a virtual one, and agrees with `time.monotonic()` under a real clock.
    """
    now = anyio.current_time()
    offset = _offset.get(None)
    if offset is None:
        offset = now - time.monotonic()
        _offset.set(offset)
    return now - offset


class LoopHandle:
    """Calls functions in the event loop that was running when the handle was made; needs no waiting."""

    __slots__ = ("_native", "_thread")

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._native: Any = current_token().native_token

    def call(self, function: Callable[[], object]) -> None:
        """Call `function` now if this is the loop's thread, else soon; not at all if the loop has ended."""
        if threading.get_ident() == self._thread:
            function()
            return
        # asyncio's loop and trio's token name the same thing differently
        schedule = getattr(self._native, "call_soon_threadsafe", None) or self._native.run_sync_soon
        try:
            schedule(function)
        except RuntimeError:  # the loop has ended, and with it everyone who waited
            return
