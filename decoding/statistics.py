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
    rows_finished: int
    forwards: int
    prompt_tokens: int
    reused_tokens: int
    prefilled_tokens: int
    new_tokens: int
    bytes_copied: int
    cache_entries: int
    """Idle entries of the prefix store."""
    cache_bytes: int
    """Key/value bytes held by idle entries and running rows."""
    evictions: int
