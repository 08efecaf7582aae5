"""Which tool comes next: counts of what followed the last two steps, backing off to one and to none.

Interpolated Witten-Bell smoothing (Witten and Bell, 1991): a context's own counts weigh n / (n + d) against the shorter
context, n being how often it was seen and d how many different tools followed it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

Context = tuple[str, ...]

NO_CALL = ""
"""Stands for a turn without a call."""


class ToolCounts:
    """Order-2 back-off counts."""

    def __init__(self) -> None:
        self._counts: defaultdict[Context, Counter[str]] = defaultdict(Counter)

    def add(self, contexts: Sequence[Context], tool: str) -> None:
        """Count that `tool` followed; `contexts` from the longest to the shortest."""
        for context in contexts:
            self._counts[context][tool] += 1

    def probabilities(self, contexts: Sequence[Context]) -> dict[str, float]:
        """Return how likely each tool seen so far is next; empty before the first."""
        result: dict[str, float] = {}
        for context in reversed(contexts):
            counts = self._counts.get(context)
            if not counts:
                continue
            total, kinds = counts.total(), len(counts)
            own = total / (total + kinds) if result else 1.0
            result = {tool: (1 - own) * share for tool, share in result.items()}
            for tool, count in counts.items():
                result[tool] = result.get(tool, 0.0) + own * count / total
        return result
