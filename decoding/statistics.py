"""What a worker counted."""

from __future__ import annotations

from dataclasses import dataclass


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
        )
