"""Versions of resource keys: which results a write has made stale (shared by all runs of a process)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Set

Keys = Set[str] | None
"""Resource keys; None = undeclared, which means all of them."""


class Versions:
    """Counts writes. Every write moves its keys on at its start and at its end, whatever its outcome."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._moved: dict[str, int] = {}
        self._all_moved = 0
        self._writing: Counter[str] = Counter()
        self._writing_all = 0

    def now(self) -> int:
        """Return a stamp of this moment for `moved_since`."""
        return self._count

    def moved_since(self, stamp: int, reads: Keys) -> bool:
        """Tell whether a key in `reads` was written since the stamp."""
        with self._lock:
            if reads is None:
                return self._count > stamp
            if not reads:
                return False
            return self._all_moved > stamp or any(self._moved.get(key, 0) > stamp for key in reads)

    def being_written(self, reads: Keys) -> bool:
        """Tell whether a write to a key in `reads` has started and not ended."""
        with self._lock:
            if reads is None:
                return self._writing_all > 0 or self._writing.total() > 0
            return bool(reads) and (self._writing_all > 0 or any(self._writing[key] > 0 for key in reads))

    def begin_write(self, writes: Keys) -> Write:
        """Record that a write starts; its `end` must be called however it goes."""
        with self._lock:
            self._move(writes)
            self._count_writers(writes, +1)
        return Write(self, writes)

    def _move(self, writes: Keys) -> None:
        self._count += 1
        if writes is None:
            self._all_moved = self._count
        else:
            for key in writes:
                self._moved[key] = self._count

    def _count_writers(self, writes: Keys, step: int) -> None:
        if writes is None:
            self._writing_all += step
        else:
            for key in writes:
                self._writing[key] += step


class Write:
    """One write in progress."""

    __slots__ = ("_ended", "_versions", "_writes")

    def __init__(self, versions: Versions, writes: Keys) -> None:
        self._versions = versions
        self._writes = writes
        self._ended = False

    def move(self) -> None:
        """Move the keys on while the write goes on, e.g. when nobody waits for it any more."""
        with self._versions._lock:
            self._versions._move(self._writes)

    def end(self) -> None:
        """Move the keys on, once: the write is over. May be called from any thread."""
        with self._versions._lock:
            if not self._ended:
                self._ended = True
                self._versions._move(self._writes)
                self._versions._count_writers(self._writes, -1)
