"""Whether a confidence means what it says: hit rates per bin, the reliability table and the expected calibration error.

The error is ECE of Naeini et al. (2015) and Guo et al. (2017): the mean over all guesses of |confidence - hit rate| of
their bin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BINS = 10


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """The guesses whose confidence lay in [low, high)."""

    low: float
    high: float
    guesses: int
    hits: int
    mean_confidence: float | None
    """None in an empty bin."""

    @property
    def hit_rate(self) -> float | None:
        """Share of hits; None in an empty bin."""
        return self.hits / self.guesses if self.guesses else None


@dataclass(frozen=True, slots=True)
class Reliability:
    """How far confidences can be believed."""

    bins: tuple[ReliabilityBin, ...]

    @property
    def guesses(self) -> int:
        """All guesses counted."""
        return sum(row.guesses for row in self.bins)

    @property
    def ece(self) -> float | None:
        """Expected calibration error, in [0, 1]; None without guesses."""
        if not self.guesses:
            return None
        gaps = sum(abs((row.mean_confidence or 0.0) * row.guesses - row.hits) for row in self.bins)
        return gaps / self.guesses

    def to_json(self) -> dict[str, Any]:
        """Return the table and its error as plain JSON."""
        rows = [
            {
                "low": row.low,
                "high": row.high,
                "guesses": row.guesses,
                "hits": row.hits,
                "mean_confidence": row.mean_confidence,
                "hit_rate": row.hit_rate,
            }
            for row in self.bins
        ]
        return {"guesses": self.guesses, "ece": self.ece, "bins": rows}


class ReliabilityTable:
    """Counts guesses by their confidence once it is known whether they were right."""

    def __init__(self, bins: int = BINS) -> None:
        self._guesses = [0] * bins
        self._hits = [0] * bins
        self._confidence = [0.0] * bins

    def add(self, confidence: float, hit: bool) -> None:
        """Count one guess."""
        index = self._bin(confidence)
        self._guesses[index] += 1
        self._hits[index] += hit
        self._confidence[index] += confidence

    def reliability(self) -> Reliability:
        """Return the table."""
        count = len(self._guesses)
        return Reliability(
            tuple(
                ReliabilityBin(index / count, (index + 1) / count, guesses, hits, total / guesses if guesses else None)
                for index, (guesses, hits, total) in enumerate(
                    zip(self._guesses, self._hits, self._confidence, strict=True)
                )
            )
        )

    def to_json(self) -> dict[str, Any]:
        """Return the counts as plain JSON."""
        return {"guesses": self._guesses, "hits": self._hits, "confidence": self._confidence}

    def load(self, data: Mapping[str, Any]) -> None:
        """Take over what `to_json` gave."""
        self._guesses, self._hits = list(data["guesses"]), list(data["hits"])
        self._confidence = list(data["confidence"])

    def _bin(self, confidence: float) -> int:
        return min(len(self._guesses) - 1, max(0, int(confidence * len(self._guesses))))


class Calibrator:
    """Turns a raw score into the rate at which such scores were right.

    Hit rates per bin, pulled towards the score itself by `prior` guesses, then read off between the bins' centres.
    """

    def __init__(self, bins: int = BINS, prior: float = 4.0) -> None:
        self._prior = prior
        self._guesses = [0] * bins
        self._hits = [0] * bins
        self._scores = [0.0] * bins

    def add(self, score: float, hit: bool) -> None:
        """Learn from one guess."""
        index = min(len(self._guesses) - 1, max(0, int(score * len(self._guesses))))
        self._guesses[index] += 1
        self._hits[index] += hit
        self._scores[index] += score

    def probability(self, score: float) -> float:
        """Return the probability that a guess of this score is right."""
        count = len(self._guesses)
        at = min(count - 1.0, max(0.0, score * count - 0.5))
        low = int(at)
        high = min(count - 1, low + 1)
        part = at - low
        return min(1.0, max(0.0, score + (1 - part) * self._gap(low) + part * self._gap(high)))

    def to_json(self) -> dict[str, Any]:
        """Return the counts as plain JSON."""
        return {"guesses": self._guesses, "hits": self._hits, "scores": self._scores}

    def load(self, data: Mapping[str, Any]) -> None:
        """Take over what `to_json` gave."""
        self._guesses, self._hits = list(data["guesses"]), list(data["hits"])
        self._scores = list(data["scores"])

    def _gap(self, index: int) -> float:
        """Return by how much scores of a bin were too low."""
        return (self._hits[index] - self._scores[index]) / (self._guesses[index] + self._prior)
