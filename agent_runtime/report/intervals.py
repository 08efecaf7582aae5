"""Confidence intervals of shares."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

Z_95 = 1.959963984540054
"""Two-sided 95 % quantile of the normal distribution."""


@dataclass(frozen=True, slots=True)
class Proportion:
    """`count` of `of` cases, with the 95 % interval of Wilson (1927): unlike the normal one it holds near 0 and 1."""

    count: int
    of: int

    @property
    def share(self) -> float | None:
        """The share itself; None over no case."""
        return self.count / self.of if self.of else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Lower and upper bound of the interval; None over no case."""
        if not self.of:
            return None
        n, p, z2 = self.of, self.count / self.of, Z_95 * Z_95
        middle, spread = p + z2 / (2 * n), Z_95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
        low, high = (middle - spread) / (1 + z2 / n), (middle + spread) / (1 + z2 / n)
        return 0.0 if self.count == 0 else low, 1.0 if self.count == n else high  # exactly, whatever rounding does

    def to_json(self) -> dict[str, Any]:
        """Return count, number of cases, share, and the interval's ends."""
        low, high = self.interval or (None, None)
        return {"count": self.count, "of": self.of, "share": self.share, "low": low, "high": high}
