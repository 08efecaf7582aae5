"""Stop strings over token borders: which tokens may be emitted, and where the text ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

CONTEXT = 6
"""Prompt tokens decoded along, because some tokenizers drop a leading space at the start of a text."""
REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True)
class Stopped:
    """A stop string was found.

    `tail` is the text before it that belongs to no emitted token (the token that holds both is not emitted).
    """

    tail: str


class StopScanner:
    """Holds tokens back while their text may still turn out to be (part of) a stop string.

    Args:
        stops: the strings; the earliest occurrence in the text counts.
        detokenize: ids -> text; an incomplete character at the end must decode to U+FFFD.
        prompt: the tokens before, for context.
    """

    def __init__(self, stops: Sequence[str], detokenize: Callable[[Sequence[int]], str], prompt: Sequence[int]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._longest = max(map(len, self._stops), default=0)
        self._detokenize = detokenize
        self._ids = list(prompt[-CONTEXT:])
        self._prefix = 0
        self._read = len(self._ids)
        self._text = ""
        self._held: list[tuple[int, bool]] = []  # per held token: where its text ends, and whether it is complete there

    def push(self, token: int) -> tuple[int, Stopped | None]:
        """Take one token; return how many of the held tokens (this one included) may be emitted now.

        With `Stopped`, the remaining held tokens must be dropped.
        """
        searched = len(self._text)
        delta = self._delta(token)
        self._text += delta
        self._held.append((len(self._text), self._read == len(self._ids)))
        if delta:
            start = max(0, searched - self._longest + 1)
            found = [at for stop in self._stops if (at := self._text.find(stop, start)) >= 0]
            if found:
                at = min(found)
                count = self._release(at)
                return count, Stopped(self._text[self._emitted_text : at])
        return self._release(len(self._text) - self._partial()), None

    _emitted_text = 0

    def _release(self, until: int) -> int:
        """Pop the held tokens whose text is complete and ends at or before `until`."""
        count = 0
        for index, (end, complete) in enumerate(self._held, start=1):
            if end > until:
                break
            if complete:
                count, self._emitted_text = index, end
        del self._held[:count]
        return count

    def _partial(self) -> int:
        """Return the length of the longest end of the text that begins a stop string."""
        for size in range(min(self._longest - 1, len(self._text)), 0, -1):
            if any(stop.startswith(self._text[-size:]) for stop in self._stops):
                return size
        return 0

    def _delta(self, token: int) -> str:
        """Return the text that `token` completes; empty while a character is incomplete."""
        self._ids.append(token)
        before = self._detokenize(self._ids[self._prefix : self._read])
        after = self._detokenize(self._ids[self._prefix :])
        if after.endswith(REPLACEMENT) or len(after) < len(before):
            return ""
        self._prefix, self._read = self._read, len(self._ids)
        return after[len(before) :]
