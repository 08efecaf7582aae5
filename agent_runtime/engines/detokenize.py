"""Token ids to text, as they come, without broken characters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_HELD_BACK = 8
"""Ids that may wait for the rest of a character; UTF-8 has at most 4 bytes, so more can only be garbage."""
_CONTEXT = 6
"""Ids before the new ones that are decoded again, since some tokenizers write a token by its left neighbour."""


class Detokenizer:
    """Turns a growing sequence of ids into pieces whose concatenation is the text of the whole sequence.

    Where the ids are no valid UTF-8, U+FFFD stands in the place of what can't be read.

    Args:
        decode: Returns the text of ids, control tokens included.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._context: list[int] = []
        self._context_text = ""
        self._pending: list[int] = []

    def push(self, token: int) -> str:
        """Take one id; return the text that became certain, perhaps none."""
        self._pending.append(token)
        text = self._decode(self._context + self._pending)
        if text.endswith("�") and len(self._pending) < _HELD_BACK:
            return ""
        return self._settle(text)

    def flush(self) -> str:
        """Return the text of what still waits; characters that never became whole come as U+FFFD."""
        return self._settle(self._decode(self._context + self._pending)) if self._pending else ""

    def _settle(self, text: str) -> str:
        new = text[len(self._context_text) :]
        self._context = (self._context + self._pending)[-_CONTEXT:]
        self._context_text = self._decode(self._context)
        self._pending = []
        return new
