"""Confidence intervals of shares."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

Z_95 = 1.959963984540054
"""Two-sided 95 % quantile of the normal distribution."""


@dataclass(frozen=True, slots=True)
class Share:
    """`hits` of `of`, with the 95 % interval of Wilson (1927): unlike the normal one it stays right near 0 and 1."""

    hits: int
    of: int

    @property
    def value(self) -> float | None:
        """The share itself; None of nothing."""
        return self.hits / self.of if self.of else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Lower and upper bound of the interval; None of nothing."""
        if not self.of:
            return None
        n, p, z2 = self.of, self.hits / self.of, Z_95 * Z_95
        center = (p + z2 / (2 * n)) / (1 + z2 / n)
        half = Z_95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
        low = 0.0 if self.hits == 0 else max(0.0, center - half)
        high = 1.0 if self.hits == n else min(1.0, center + half)
        return low, high

    def to_json(self) -> dict[str, Any]:
        """Return counts, share and interval."""
        low, high = self.interval or (None, None)
        return {"hits": self.hits, "of": self.of, "value": self.value, "low": low, "high": high}
