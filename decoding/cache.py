"""The prefix store: caches of finished rows, kept by their tokens, forked or taken over by the rows that follow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .executor import Executor, RowCache
from .row_state import RowState

OWNER_ENTRIES = 4
"""Idle entries kept per conversation."""


def common_prefix(a: Sequence[int], b: Sequence[int], limit: int) -> int:
    """Return how many leading tokens of lists `a` and `b` agree, at most `limit`."""
    limit = min(limit, len(a), len(b))
    done, step = 0, 64
    # Slices compare at the speed of C; a Python loop over single tokens would not.
    while done < limit and a[done : min(done + step, limit)] == b[done : min(done + step, limit)]:
        done = min(done + step, limit)
        step *= 2
    end = min(done + step, limit)
    while done < end:
        middle = (done + end + 1) // 2
        if a[done:middle] == b[done:middle]:
            done = middle
        else:
            end = middle - 1
    return done


@dataclass(slots=True, eq=False)
class Entry:
    """An idle cache that holds `tokens`."""

    owner: str
    tokens: list[int]
    cache: RowCache
    used: int
    """When it was last used, in the store's own count."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a new row's prefix comes from: `length` tokens of an idle entry or of a running row."""

    length: int
    entry: Entry | None = None
    row: RowState | None = None


class PrefixStore:
    """Idle caches by token prefix, within a budget of bytes shared with the running rows.

    The least recently used entry goes first. Called from the model thread only.
    """

    def __init__(self, executor: Executor, budget_bytes: int, *, align: int = 1) -> None:
        """Start empty. Prefixes are re-used in multiples of `align` tokens."""
        self.executor = executor
        self.align = align
        self.budget_bytes = budget_bytes
        self.evictions = 0
        self._entries: list[Entry] = []
        self._clock = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """Bytes held by idle entries."""
        return sum(entry.cache.nbytes for entry in self._entries)

    # -- finding ------------------------------------------------------------------------------------------------

    def find(self, row: RowState, running: Iterable[RowState]) -> Source | None:
        """Return where the longest usable prefix of `row` lies, or None.

        Among equals the row's own conversation comes first (its cache can be taken over), then idle entries.
        """
        best: Source | None = None
        rank = (0, False, False)
        for entry in self._entries:
            length = self._usable(row, entry.tokens, entry.cache.length)
            key = (length, entry.owner == row.owner, True)
            if length and key > rank:
                best, rank = Source(length, entry=entry), key
        for other in running:
            length = self._usable(row, other.tokens, other.cached)
            key = (length, other.owner == row.owner, False)
            if length and key > rank:
                best, rank = Source(length, row=other), key
        return best

    def _usable(self, row: RowState, tokens: Sequence[int], length: int) -> int:
        common = common_prefix(row.tokens, tokens, min(length, row.reusable_limit))
        if self.executor.rewinds:
            return common - common % self.align
        return length if common == length and length % self.align == 0 else 0

    def coming(self, row: RowState, other: RowState) -> int:
        """Return the prefix that `row` could fork from `other` once that one has read its prompt; 0 if nothing new.

        Counts only while `other` is still reading its prompt.
        """
        if other.is_ready or other.cache is None:
            return 0
        planned = other.prompt_tokens if self.executor.rewinds else other.prompt_tokens - 1
        common = common_prefix(row.tokens, other.tokens, min(planned, row.reusable_limit))
        if not self.executor.rewinds and common < planned:
            return 0
        common -= common % self.align
        return common if common > other.cached else 0

    # -- taking -------------------------------------------------------------------------------------------------

    def take(self, row: RowState, source: Source | None, room: int) -> None:
        """Give `row` its cache: the source's own if it may be taken over, else a copy of the prefix, else an empty one.

        An entry is taken over by a foreground row of the same conversation; a probe never takes what its agent will
        need. States that cannot be rewound are always copied, because they serve again only as they are.
        """
        if source is None:
            row.start(self.executor.new_cache(room), 0, 0)
            return
        entry = source.entry
        if entry is not None:
            entry.used = self._tick()
            if entry.owner == row.owner and not row.background and self.executor.rewinds:
                self._entries.remove(entry)
                self.executor.crop(entry.cache, source.length)
                row.start(entry.cache, source.length, 0)
                return
        origin = entry.cache if entry is not None else source.row.cache if source.row is not None else None
        assert origin is not None
        cache, copied = self.executor.fork(origin, source.length, room)
        row.start(cache, source.length, copied)

    # -- giving back --------------------------------------------------------------------------------------------

    def keep(self, row: RowState, running: Iterable[RowState]) -> None:
        """Take the cache of a row that is over.

        A probe's serves the turn that follows it, which begins with the same prompt. It is dropped if that turn is
        running already, or if a state can't be rewound to where the turn branches off.
        """
        cache, row.cache = row.cache, None
        if cache is None or cache.length == 0:
            return
        if row.background:
            if not self.executor.rewinds:
                return
            if any(other.owner == row.owner and not other.background for other in running):
                return
        self._add(row.owner, row.tokens[: cache.length], cache)

    def snapshot(self, row: RowState) -> None:
        """Keep a copy of a running row's present state, for models whose state cannot be rewound."""
        assert row.cache is not None
        copy, _ = self.executor.fork(row.cache, row.cache.length, row.cache.length)
        self._add(row.owner, row.tokens[: row.cache.length], copy)

    def _add(self, owner: str, tokens: list[int], cache: RowCache) -> None:
        # What the new entry covers is of no further use, unless states serve only at their own length.
        covered = [
            entry
            for entry in self._entries
            if entry.owner == owner
            and len(entry.tokens) <= len(tokens)
            and (self.executor.rewinds or len(entry.tokens) == len(tokens))
            and entry.tokens == tokens[: len(entry.tokens)]
        ]
        for entry in covered:
            self._entries.remove(entry)
        self._entries.append(Entry(owner, tokens, cache, self._tick()))
        own = [entry for entry in self._entries if entry.owner == owner]
        if len(own) > OWNER_ENTRIES:
            self._evict(min(own, key=lambda entry: entry.used))

    def forget(self, owner: str) -> None:
        """Drop the idle entries of `owner`."""
        self._entries = [entry for entry in self._entries if entry.owner != owner]

    def shrink(self, running_bytes: int, wanted_bytes: int = 0, spare: Entry | None = None) -> bool:
        """Evict idle entries until everything held, and `wanted_bytes` more, fits the budget; tell whether it does.

        `spare` is evicted last: it is what the new row wants to re-use.
        """
        while running_bytes + wanted_bytes + self.nbytes > self.budget_bytes:
            if not self._entries:
                return False
            self._evict(min(self._entries, key=lambda entry: (entry is spare, entry.used)))
        return True

    def _evict(self, entry: Entry) -> None:
        self._entries.remove(entry)
        self.evictions += 1

    def clear(self) -> None:
        """Drop everything."""
        self._entries.clear()

    def _tick(self) -> int:
        self._clock += 1
        return self._clock
