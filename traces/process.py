"""Which process a run lives in, and whether that process is still there."""

from __future__ import annotations

import os
import socket
import sys
from functools import cache


@cache
def this_host() -> str:
    """Return a name of the machine and, where processes are numbered apart in containers, of that numbering."""
    name = socket.gethostname()
    try:
        return f"{name} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return name


def is_dead(host: str, pid: int) -> bool:
    """Tell whether a process is known to be gone; False also where that can't be told from here."""
    if host != this_host() or sys.platform == "win32":  # there, asking a process how it is would end it
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
