"""How much memory of this machine is free for us."""

from __future__ import annotations

import os
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int | None:
    """Return the bytes that can be taken without swapping, within the limit of a container; None if unknown."""
    found = [bytes_ for bytes_ in (_of_machine(), _of_container()) if bytes_ is not None]
    return min(found) if found else None


def _of_machine() -> int | None:
    try:
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # neither Linux nor another Unix that tells
        return None


def _of_container() -> int | None:
    try:
        limit, used = ((CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return max(0, int(limit) - int(used)) if limit != "max" else None
    except (OSError, ValueError):  # no second version of control groups here
        return None
