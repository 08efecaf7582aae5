"""How much longer background rows make the steps of the others: a moving estimate of what a step costs without them."""

from __future__ import annotations

from collections.abc import Sequence

from .row_state import RowState

WEIGHT = 0.1
"""Share of the newest step in the moving average."""
OUTLIER = 3.0
"""A step this many times dearer than the average is a stall of the machine and counts as this much."""

Kind = tuple[int, int]


class SlowdownMeter:
    """Attributes to each foreground row the seconds by which steps with background rows were longer.

    A step's kind is its foreground part: (rows, size class of their tokens). Steps of that kind without background rows
    give the expected cost. A kind not seen yet is settled when the row ends, by then usually known; otherwise it counts
    as no slowdown. Errors of single steps cancel out over a row: its sum is only cut at zero in the end.
    """

    def __init__(self) -> None:
        self._cost: dict[Kind, float] = {}
        self._steps: dict[int, dict[Kind, tuple[int, float]]] = {}

    def add(self, rows: Sequence[RowState], counts: Sequence[int], seconds: float) -> None:
        """Record a step in which `rows` took part with `counts` tokens each."""
        foreground = [(row, count) for row, count in zip(rows, counts, strict=True) if not row.background]
        if not foreground:
            return
        kind = (len(foreground), sum(count for _, count in foreground).bit_length())
        if len(foreground) == len(rows):
            known = self._cost.get(kind)
            if known is None:
                self._cost[kind] = seconds
            else:
                self._cost[kind] = known + WEIGHT * (min(seconds, OUTLIER * known) - known)
            return
        for row, _ in foreground:
            steps = self._steps.setdefault(row.number, {})
            number, total = steps.get(kind, (0, 0.0))
            steps[kind] = (number + 1, total + seconds)

    def settle(self, row: RowState) -> float:
        """Return the seconds that background rows added to `row`'s steps, and forget the row."""
        excess = 0.0
        for kind, (number, total) in self._steps.pop(row.number, {}).items():
            if kind in self._cost:
                excess += total - number * self._cost[kind]
        return max(0.0, excess)
