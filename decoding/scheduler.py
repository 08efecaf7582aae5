"""Which rows take part in the next step, and with how many tokens each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from .cache import PrefixStore, Source
from .errors import KvBudgetExceeded
from .row_state import RowState

ROOM = 256
"""New tokens for which a row's cache is sized at first; it grows when they are used up."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A row's part in a step: its next `count` pending tokens."""

    row: RowState
    count: int


class Scheduler:
    """Continuous batching: rows join and leave between steps.

    Rows that decode step together. Prompts are read in chunks: each step has `prefill_chunk` tokens for them, dealt to
    the conversations in turn, foreground first. A new row waits while another reads a prompt that both begin with, and
    then forks from it. When rows or memory run short, background rows are put back into the queue (youngest first), and
    read again later what they had.
    """

    def __init__(self, store: PrefixStore, *, max_rows: int, prefill_chunk: int, align_chunks: bool = False) -> None:
        self.store = store
        self.max_rows = max_rows
        self.prefill_chunk = prefill_chunk
        self.align_chunks = align_chunks
        self.waiting: list[RowState] = []
        self.running: list[RowState] = []
        self.failed: list[tuple[RowState, Exception]] = []
        """Rows that can never fit, or whose cache could not be made; the worker collects them."""
        self.at_rest: list[RowState] = []
        """Running rows that have nothing to read or decode; the worker ends them."""
        self._turn = 0
        self._inherits: set[int] = set()

    @property
    def running_bytes(self) -> int:
        """Bytes of the running rows' caches."""
        return sum(row.cache.nbytes for row in self.running if row.cache is not None)

    def add(self, row: RowState) -> None:
        """Queue a row."""
        self.waiting.append(row)

    def remove(self, row: RowState) -> None:
        """Take a row that is over out of the books; its cache goes to the store."""
        if row in self.running:
            self.running.remove(row)
        elif row in self.waiting:
            self.waiting.remove(row)
        self.store.keep(row, self.running)

    def schedule(self) -> list[Planned]:
        """Return the rows of the next step; empty when nothing can run."""
        self._fit_budget()
        self._admit()
        decoding: list[Planned] = []
        reading: list[RowState] = []
        self.at_rest = []
        for row in self.running:
            if row.pending == 0:
                self.at_rest.append(row)
                continue
            if row.row.is_full():
                continue
            if row.is_ready and row.pending <= self.prefill_chunk:
                decoding.append(Planned(row, row.pending))
            else:
                reading.append(row)
        return decoding + list(self._deal(reading))

    def _deal(self, reading: list[RowState]) -> Iterator[Planned]:
        """Deal this step's prefill tokens: conversations take turns, background rows get what is left."""
        budget = self.prefill_chunk
        self._turn += 1
        for background in (False, True):
            rows = [row for row in reading if self._gives_way(row) is background]
            owners = list(dict.fromkeys(row.owner for row in rows))
            turn = {owner: (index + self._turn) % len(owners) for index, owner in enumerate(owners)}
            for row in sorted(rows, key=lambda row: turn[row.owner]):
                count = min(row.pending, budget)
                if self.align_chunks:
                    count = min(row.pending, self.prefill_chunk - row.cached % self.prefill_chunk)
                boundary = row.prompt_tokens - 1
                if not self.store.executor.rewinds and row.cached < boundary:
                    # Stop one short of the prompt's end: the state there is what the next row can start from.
                    count = min(count, boundary - row.cached)
                if count > 0 and budget > 0:
                    budget -= count
                    yield Planned(row, count)

    def _gives_way(self, row: RowState) -> bool:
        return row.background and row.number not in self._inherits

    # -- joining ------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        self._inherits.clear()
        held = Counter(row.owner for row in self.running)
        for row in sorted(self.waiting, key=lambda row: (row.background, held[row.owner], row.number)):
            source = self.store.find(row, self.running)
            if self._waits_for_a_prefix(row, source):
                continue
            if len(self.running) >= self.max_rows and (row.background or not self._preempt(background_only=True)):
                continue
            if not self._make_room(row, source):
                continue
            # Making room may have taken the source away.
            source = self.store.find(row, self.running)
            self.waiting.remove(row)
            try:
                self.store.take(row, source, len(row.tokens) + self._room(row))
            except Exception as error:  # e.g. the device is out of memory: that ends this row, not the thread
                self.failed.append((row, error))
                continue
            self.running.append(row)

    def _room(self, row: RowState) -> int:
        left = row.request.max_new_tokens - (len(row.tokens) - row.prompt_tokens)
        return min(ROOM, max(left, 0))

    def _waits_for_a_prefix(self, row: RowState, source: Source | None) -> bool:
        now = source.length if source is not None else 0
        for other in self.running:
            if self.store.coming(row, other) > now:
                if not row.background:
                    self._inherits.add(other.number)
                return True
        return False

    # -- memory -------------------------------------------------------------------------------------------------

    def _make_room(self, row: RowState, source: Source | None) -> bool:
        wanted = self.store.executor.bytes_for(len(row.tokens) + self._room(row))
        entry = source.entry if source is not None else None
        while not self.store.shrink(self.running_bytes, wanted, spare=entry):
            if row.background or not self._preempt(background_only=True):
                # Alone, a row may run although its first room is beyond the budget: `_fit_budget` judges what it uses.
                return not self.running
        return True

    def _fit_budget(self) -> None:
        while not self.store.shrink(self.running_bytes):
            if not self.running:
                return
            if len(self.running) > 1:
                self._preempt(background_only=False)
                continue
            row = self.running[0]
            used = self.store.executor.bytes_for(row.cached)
            if used <= self.store.budget_bytes:
                return
            self.running.remove(row)
            row.cache = None
            self.failed.append((row, budget_error(row.owner, used, self.store.budget_bytes)))

    def _preempt(self, *, background_only: bool) -> bool:
        """Put the youngest background row, or else the youngest row, back into the queue; tell whether one was."""
        candidates = [row for row in self.running if row.background]
        if not candidates and not background_only:
            candidates = self.running
        if not candidates:
            return False
        row = max(candidates, key=lambda row: row.number)
        self.running.remove(row)
        row.cache = None
        self.waiting.append(row)
        return True


def budget_error(owner: str, needed: int, budget: int) -> KvBudgetExceeded:
    """Return the error of a row that is larger than the whole budget."""
    return KvBudgetExceeded(
        f"A row of {owner!r} needs {needed / 2**20:.1f} MiB of keys and values; the budget is "
        f"{budget / 2**20:.1f} MiB. Raise kv_budget_bytes or shorten the prompt."
    )
