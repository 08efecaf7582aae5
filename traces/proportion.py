"""A share of some cases with its confidence interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

Z_95 = 1.959963984540054
"""Standard normal quantile of a two-sided 95 % interval."""


@dataclass(frozen=True, slots=True)
class Proportion:
    """`count` of `of` cases."""

    count: int
    of: int

    @property
    def share(self) -> float | None:
        """The share; None over no case."""
        return self.count / self.of if self.of else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of Wilson (1927), which stays inside 0 to 1 also for few cases; None over no case."""
        return wilson(self.count, self.of)

    def to_json(self) -> dict[str, Any]:
        """Return count, number of cases, share, and the interval's ends."""
        low, high = self.interval or (None, None)
        return {"count": self.count, "of": self.of, "share": self.share, "low": low, "high": high}


def wilson(count: int, of: int, *, z: float = Z_95) -> tuple[float, float] | None:
    """Return the Wilson score interval of `count` successes in `of` trials; None without trials.

    Source: E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927).
    """
    if not of:
        return None
    share, square = count / of, z * z / of
    middle = share + square / 2
    spread = z * math.sqrt(share * (1 - share) / of + square / (4 * of))
    low, high = (middle - spread) / (1 + square), (middle + spread) / (1 + square)
    return 0.0 if count == 0 else low, 1.0 if count == of else high  # exactly, whatever rounding does
