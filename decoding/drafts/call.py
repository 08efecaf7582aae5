"""The `call` draft: a text that is expected in the row's answer, e.g. the call that speculator mode has guessed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .base import DraftedRow, DraftKind, Proposal

OPENING, INSIDE, AGAIN = 0, 1, 2
"""Strengths: nothing of the text has come yet; all of it up to here has; it departed from it and seems to be back."""
RESUME = 2
"""Tokens that must agree before a text that was departed from is drafted again."""


class SuggestedRow(DraftedRow, Protocol):
    """A row that knows such a text."""

    @property
    def suggestion(self) -> tuple[int, ...]:
        """The tokens; empty where nothing is expected."""
        ...


class CallDraft:
    """Proposes the rest of the row's suggestion.

    At the answer's start the whole text, afterwards what follows the part of it that the answer ends with: the longest
    beginning of the text, or else the place in it where the last tokens occur.
    """

    kind: DraftKind = "call"
    needs_hidden = False

    def propose(self, row: DraftedRow, limit: int) -> Proposal | None:
        """Return what should follow."""
        text: tuple[int, ...] = getattr(row, "suggestion", ())
        if not text:
            return None
        written = len(row.tokens) - row.prompt_tokens
        if written == 0:
            return self._from(text, 0, limit, OPENING)
        tail = row.tokens[-min(written, len(text)) :]
        begun = beginning_at_end(text, tail)
        if begun:
            return self._from(text, begun, limit, INSIDE)
        at = _resumed(text, tail)
        return self._from(text, at, limit, AGAIN) if at else None

    def forget(self, row: DraftedRow) -> None:
        """Nothing is kept."""

    def _from(self, text: tuple[int, ...], start: int, limit: int, strength: int) -> Proposal | None:
        tokens = text[start : start + limit]
        return Proposal("call", tokens, strength=strength) if tokens else None


def beginning_at_end(text: Sequence[int], tail: Sequence[int]) -> int:
    """Return the length of the longest beginning of `text` that `tail` ends with."""
    for length in range(min(len(text), len(tail)), 0, -1):
        if tail[-1] == text[length - 1] and list(tail[-length:]) == list(text[:length]):
            return length
    return 0


def _resumed(text: Sequence[int], tail: Sequence[int]) -> int:
    """Return where `text` goes on after the last occurrence of the tail's end in it; 0 if it doesn't occur."""
    if len(tail) < RESUME:
        return 0
    end = tuple(tail[-RESUME:])
    for start in range(len(text) - RESUME, -1, -1):
        if tuple(text[start : start + RESUME]) == end:
            return start + RESUME
    return 0
