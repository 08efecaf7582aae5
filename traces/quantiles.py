"""Quantiles of a sample, as a value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Size and quantiles of a sample, linear between its values; the quantiles of none are None."""

    count: int
    p10: float | None
    p25: float | None
    p50: float | None
    p75: float | None
    p90: float | None

    @classmethod
    def of(cls, sample: Iterable[float]) -> Quantiles:
        """Return the quantiles of a sample."""
        ordered = sorted(sample)
        shares = {"p10": 0.10, "p25": 0.25, "p50": 0.50, "p75": 0.75, "p90": 0.90}
        return cls(count=len(ordered), **{name: _at(ordered, share) for name, share in shares.items()})

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


def _at(ordered: list[float], share: float) -> float | None:
    if not ordered:
        return None
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
