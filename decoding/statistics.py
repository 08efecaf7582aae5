"""What a worker counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .tally import DraftCounts, Tally, frozen

if TYPE_CHECKING:
    from .drafts.base import DraftKind


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatistics:
    """Counts of a model worker since its start (tokens, forwards, bytes)."""

    executor: str
    """"lean" or "hf"."""
    co_decodes: bool
    """Whether rows share forwards on this model."""
    rows_running: int
    rows_waiting: int
    rows: int
    """Rows ever taken up."""
    forwards: int
    prompt_tokens: int
    reused_tokens: int
    """Prompt tokens that came from a cache."""
    prefilled_tokens: int
    """Prompt tokens that passed the model."""
    new_tokens: int
    bytes_copied: int
    """Key/value bytes copied from other rows' caches."""
    cache_entries: int
    """Idle entries of the prefix store."""
    cache_bytes: int
    """Key/value bytes held by idle entries and running rows after the last step."""
    evictions: int
    """Idle entries dropped for want of memory or because their conversation had newer ones."""
    forward_s: float
    """Seconds in forward passes of the model."""
    verify_s: float
    """Of these, in passes that verified drafts."""
    draft_s: float
    """Seconds of drafting."""
    host_s: float
    """Seconds of choosing, verifying and taking back between forward passes."""
    drafting: tuple[DraftCounts, ...]
    """What was drafted by rows that are over, by kind."""


@dataclass(slots=True)
class Counts:
    """The model thread's running counts."""

    rows: int = 0
    forwards: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    prefilled_tokens: int = 0
    new_tokens: int = 0
    bytes_copied: int = 0
    cache_bytes: int = 0
    forward_s: float = 0.0
    verify_s: float = 0.0
    draft_s: float = 0.0
    host_s: float = 0.0
    tallies: dict[DraftKind, Tally] = field(default_factory=dict)

    def finish(self, emitted: int, tallies: Mapping[DraftKind, Tally]) -> None:
        """Count a row that is over."""
        self.new_tokens += emitted
        for kind, tally in tallies.items():
            self.tallies.setdefault(kind, Tally()).take(tally)

    def frozen(
        self,
        *,
        executor: str,
        co_decodes: bool,
        rows_running: int,
        rows_waiting: int,
        cache_entries: int,
        evictions: int,
    ) -> WorkerStatistics:
        """Return a copy with what others counted."""
        return WorkerStatistics(
            executor=executor,
            co_decodes=co_decodes,
            rows_running=rows_running,
            rows_waiting=rows_waiting,
            rows=self.rows,
            forwards=self.forwards,
            prompt_tokens=self.prompt_tokens,
            reused_tokens=self.reused_tokens,
            prefilled_tokens=self.prefilled_tokens,
            new_tokens=self.new_tokens,
            bytes_copied=self.bytes_copied,
            cache_entries=cache_entries,
            cache_bytes=self.cache_bytes,
            evictions=evictions,
            forward_s=self.forward_s,
            verify_s=self.verify_s,
            draft_s=self.draft_s,
            host_s=self.host_s,
            drafting=frozen(self.tallies),
        )
