"""What a policy has learned: recent durations and how often guesses turn out right.

Everything is a function of the events seen, in order; nothing reads a clock.
"""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Literal

WINDOW = 64
"""Durations kept of each kind; the mean over them is the moving average."""
BINS = 5
"""Bins of confidence whose hit rates are learned apart."""
PRIOR = 4.0
"""Weight of a bin's own confidence, in guesses, beside what was seen."""


class Recent:
    """The last `WINDOW` values of something, in milliseconds."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=WINDOW)

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        """Take one more value; the oldest goes."""
        self._values.append(value)

    @property
    def mean(self) -> float | None:
        """The moving average; None before the first value."""
        return sum(self._values) / len(self._values) if self._values else None

    @property
    def median(self) -> float | None:
        """The middle of the recent values, which one stall of the machine doesn't move; None before the first."""
        return statistics.median(self._values) if self._values else None

    def mean_lead_after(self, elapsed: float, *, start: float, at_most: float) -> float | None:
        """Return the mean of min(at_most, max(0, t - start)) over the values t above `elapsed`; None without any."""
        later = [value for value in self._values if value > elapsed]
        return sum(min(at_most, max(0.0, value - start)) for value in later) / len(later) if later else None


class Calibration:
    """How often guesses of a confidence are right: per bin, (hits + PRIOR * confidence) / (guesses + PRIOR)."""

    def __init__(self) -> None:
        self._guesses = [0] * BINS
        self._hits = [0] * BINS

    def add(self, confidence: float, hit: bool) -> None:
        """Count a guess whose outcome is known."""
        index = self._bin(confidence)
        self._guesses[index] += 1
        self._hits[index] += hit

    def probability(self, confidence: float) -> float:
        """Return the probability that a guess of this confidence is right."""
        index = self._bin(confidence)
        return (self._hits[index] + PRIOR * confidence) / (self._guesses[index] + PRIOR)

    @staticmethod
    def _bin(confidence: float) -> int:
        return min(BINS - 1, max(0, int(confidence * BINS)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedTurn:
    """What guessing did in one turn with a probe, and what it takes to tell what it would have done elsewhere."""

    beside: bool
    """Whether the first probe ran beside the agent."""
    first_right: bool
    """Whether the guess at the turn's start was the agent's call, sure enough, and of a tool that may start early."""
    generation_ms: float
    tool_ms: float
    """Execution time of the turn's first call; 0 without one."""
    saved_ms: float

    def saved_beside_ms(self, probe_ms: float) -> float:
        """Return what a probe beside the agent, `probe_ms` long, saved or would have saved."""
        if self.beside:
            return self.saved_ms
        return min(self.tool_ms, max(0.0, self.generation_ms - probe_ms)) if self.first_right else self.saved_ms

    def saved_before_ms(self) -> float:
        """Return what a probe before the agent saved or would have saved: its lead is all of the agent's time."""
        return min(self.tool_ms, self.generation_ms) if self.first_right else self.saved_ms


@dataclass(slots=True)
class Estimates:
    """All that a policy knows. Durations are milliseconds."""

    generation: Recent = field(default_factory=Recent)
    """T_gen of turns that made a call."""
    probe: dict[Literal["beside", "before"], Recent] = field(
        default_factory=lambda: {"beside": Recent(), "before": Recent()}
    )
    """T_probe by where it ran."""
    slowdown: Recent = field(default_factory=Recent)
    """Decode time that the probes of one turn beside the agent added to it."""
    tool: Recent = field(default_factory=Recent)
    """T_tool of boundaries that may be pre-executed."""
    tools: defaultdict[str, Recent] = field(default_factory=lambda: defaultdict(Recent))
    """T_tool by tool."""
    calibration: Calibration = field(default_factory=Calibration)
    turns: deque[ProbedTurn] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """The recent turns with a probe."""
    idle: int = 0
    """Turns in a row without a probe, by choice."""

    @property
    def served_rate(self) -> float:
        """Share of probed turns whose call a guess served; starts at 1 and counts that as one turn."""
        return (sum(turn.saved_ms > 0 or turn.first_right for turn in self.turns) + 1) / (len(self.turns) + 1)
