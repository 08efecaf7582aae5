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
ENOUGH = 2
"""Messages of a kind from which on its own pace counts."""
PRIOR = 4.0
"""Weight of a bin's own confidence, in guesses, beside what was seen."""
PLACE_WINDOW = 24
"""Turns kept of each place."""
PLACE_PRIOR = 3.0
"""Weight of what turns gain anywhere, in turns, beside what they gained at the same place of the conversation."""


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


Arm = Literal["beside", "before"] | None
"""What can be done about a turn: probe beside the agent, before it, or not at all."""


Kind = tuple[bool, bool]
"""Whether a message makes calls, and whether it thinks: what it is made of decides how quickly it can be drafted."""


class PlainPace:
    """How long messages take when nothing is probed: milliseconds per token, over the recent turns without a probe.

    Kept for each kind of message apart, and over all of them for kinds that were hardly seen.
    """

    def __init__(self) -> None:
        self._turns: dict[Kind | None, deque[tuple[int, float]]] = {}

    def add(self, kind: Kind, tokens: int, milliseconds: float) -> None:
        """Take one more message."""
        for key in (kind, None):
            self._turns.setdefault(key, deque(maxlen=WINDOW)).append((tokens, milliseconds))

    def expected_ms(self, kind: Kind, tokens: int) -> float | None:
        """Return what a message of `tokens` tokens should take; None before the first."""
        own = self._turns.get(kind, ())
        turns = own if len(own) >= ENOUGH else self._turns.get(None, ())
        known = sum(count for count, _ in turns)
        return tokens * sum(milliseconds for _, milliseconds in turns) / known if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedTurn:
    """What a turn with a probe brought, and what it took."""

    arm: Arm
    place: str = ""
    """Where the conversation stood: the tool whose result came last, or nothing after the user's message."""
    served: bool
    """Whether a guess served the call, or the first guess was the call, sure enough, and may start early."""
    saved_ms: float
    """Tool time that the agent did not wait for."""
    waited_ms: float
    """What the agent waited for the probe."""
    generation_ms: float
    kind: Kind
    tokens: int
    slowdown_ms: float
    """What the engine says that the probe's rows added to the message."""
    tool_ms: float

    def gain_ms(self, pace: PlainPace) -> float:
        """Return by how much the turn was shorter than without a probe.

        A message that the guess has helped to draft is shorter than usual, one decoded beside a probe longer: both show
        in its duration against the usual pace. Until that is known, the engine's own account of the slowdown serves.
        """
        usual = pace.expected_ms(self.kind, self.tokens)
        lengthened = self.slowdown_ms if usual is None else self.generation_ms - usual
        most = self.tool_ms + (self.generation_ms if usual is None else usual)  # a stall of the machine says no more
        return max(-most, self.saved_ms - self.waited_ms - lengthened)


@dataclass(slots=True)
class Estimates:
    """All that a policy knows. Durations are milliseconds."""

    generation: Recent = field(default_factory=Recent)
    """T_gen of turns that made a call."""
    probe: Recent = field(default_factory=Recent)
    """T_probe beside the agent."""
    slowdown: Recent = field(default_factory=Recent)
    """Decode time that a probe beside the agent added to the agent's message."""
    tool: Recent = field(default_factory=Recent)
    """T_tool of boundaries that may be pre-executed."""
    tools: defaultdict[str, Recent] = field(default_factory=lambda: defaultdict(Recent))
    """T_tool by tool."""
    calibration: Calibration = field(default_factory=Calibration)
    pace: PlainPace = field(default_factory=PlainPace)
    turns: dict[Arm, deque[ProbedTurn]] = field(
        default_factory=lambda: {"beside": deque(maxlen=WINDOW), "before": deque(maxlen=WINDOW)}
    )
    """The recent turns with a probe, by where it ran."""
    places: defaultdict[tuple[Arm, str], deque[ProbedTurn]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=PLACE_WINDOW))
    )
    """The same, also by where the conversation stood."""
    started: int = 0
    """Turns that began."""

    def add(self, turn: ProbedTurn) -> None:
        """Take one more turn with a probe."""
        self.turns[turn.arm].append(turn)
        self.places[turn.arm, turn.place].append(turn)

    @property
    def served_rate(self) -> float:
        """Share of probed turns whose call a guess served; starts at 1 and counts that as one turn."""
        turns = [turn for of_arm in self.turns.values() for turn in of_arm]
        return (sum(turn.served for turn in turns) + 1) / (len(turns) + 1)

    def gain_ms(self, arm: Arm, place: str) -> float | None:
        """Return the expected gain of a turn in that arm and place; None while nothing is known of the arm.

        After one tool's result comes a call that can be guessed, after another's a long thought or the answer.
        """
        turns = self.turns.get(arm, ())
        if not turns:
            return None
        anywhere = sum(turn.gain_ms(self.pace) for turn in turns) / len(turns)
        here = self.places.get((arm, place), ())
        return (sum(turn.gain_ms(self.pace) for turn in here) + PLACE_PRIOR * anywhere) / (len(here) + PLACE_PRIOR)
