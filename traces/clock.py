"""Whether the event loop's clock is a made-up one, under which nothing may use a worker thread."""

from __future__ import annotations

import sys


def under_virtual_clock() -> bool:
    """Tell whether time is made up: then a worker thread would let timeouts pass while it works."""
    testing = sys.modules.get("trio.testing")
    if testing is None:
        return False
    try:
        clock = sys.modules["trio"].lowlevel.current_clock()
    except RuntimeError:  # not under trio
        return False
    return isinstance(clock, testing.MockClock)
