"""Whether guessing slows the agents down: their time per token with and without probes, measured at each load.

Probes and agents share a server. Where it has room, a probe costs the agents nothing; where it is full, every probe's
token is an agent's token that comes later. So the agents' own streams are measured: the time per token while probes of
this process are in flight, and while none is. Loads are compared only with their like (the number of agents at once, in
powers of two), since time per token grows with the load itself.

At each load guessing is on until the ratio passes the limit, and then off until a trial finds it well below: the two
bounds are apart, so that a value in between changes nothing. Without probes there is nothing to compare with, and
beside many agents some probe is always in flight, so either side is sampled on purpose when it lacks fresh blocks.
"""

from __future__ import annotations

import logging
import statistics
from collections import deque
from dataclasses import dataclass, field

_log = logging.getLogger(__name__)

BLOCK = 32
"""Tokens whose time is one sample: chunks come in bursts, so single intervals say little."""
NEEDED = 4
"""Blocks of each side before they are compared."""
KEPT = 16
"""Blocks that are remembered of each side."""
FIRST = 16
"""Blocks with probes after which guessing pauses for the first blocks without; short runs have those by themselves."""
FRESH = 64
"""Blocks with probes after which guessing pauses for `NEEDED` without, so that the comparison is of now."""
TRIAL_AFTER = 64
"""Blocks without probes after which guessing is tried again where it was off; doubles with each trial that fails."""
TRIAL_AFTER_MOST = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadStatistics:
    """What was measured with a number of agents at once; times per token in milliseconds, None while unknown."""

    agents: str
    quiet_ms: float | None
    busy_ms: float | None
    guessing: bool
    switched: int
    """How often guessing went off or on again here."""
    ratio: float | None
    """Time per token beside probes over that without, when it was last compared."""


class _Samples:
    """Times per token of one side: recent blocks of `BLOCK` tokens, in seconds."""

    def __init__(self) -> None:
        self._blocks: deque[float] = deque(maxlen=KEPT)
        self._seconds = 0.0
        self._tokens = 0
        self.taken = 0
        """Blocks since it was last set back."""

    def add(self, seconds: float, tokens: int) -> bool:
        """Take some tokens' time; tell whether they completed a block."""
        self._seconds += seconds
        self._tokens += tokens
        if self._tokens < BLOCK:
            return False
        self._blocks.append(self._seconds / self._tokens)
        self._seconds, self._tokens = 0.0, 0
        self.taken += 1
        return True

    @property
    def known(self) -> bool:
        """Whether there are enough blocks to compare."""
        return len(self._blocks) >= NEEDED

    @property
    def seconds(self) -> float | None:
        """The median time per token."""
        return statistics.median(self._blocks) if self._blocks else None

    def latest(self, count: int) -> float:
        """Return the median time per token of the last `count` blocks."""
        return statistics.median(list(self._blocks)[-count:])


@dataclass(slots=True)
class _Load:
    """What is known at one load."""

    quiet: _Samples = field(default_factory=_Samples)
    busy: _Samples = field(default_factory=_Samples)
    on: bool = True
    trying: bool = False
    trial_after: int = TRIAL_AFTER
    switched: int = 0
    ratio: float | None = None


class Pacing:
    """Judges one server; give it every agent's tokens and every probe's start and end.

    Args:
        limit: Ratio of the agents' times per token above which guessing stops; it starts again below half the excess.
    """

    def __init__(self, limit: float = 1.5) -> None:
        self._off_above = limit
        self._on_below = 1 + (limit - 1) / 2
        self._loads: dict[int, _Load] = {}
        self.agents = 0
        """Agents' streams that are open."""
        self.probes = 0
        """Probes in flight."""
        self.probes_begun = 0
        self.declined = 0
        """Probes that were not made, because guessing was off or a comparison needed a pause."""

    def may_probe(self) -> bool:
        """Tell whether a probe may be made now, beside the agents that decode."""
        load = self._load()
        if load.on:
            allowed = load.busy.taken < (FRESH if load.quiet.known else FIRST)  # else: a pause, to compare with
        else:
            allowed = load.trying
        self.declined += not allowed
        return allowed

    def probe_began(self) -> None:
        """Note that a probe is in flight."""
        self.probes += 1
        self.probes_begun += 1

    def probe_ended(self) -> None:
        """Note that a probe is over."""
        self.probes -= 1

    def step(self, seconds: float, tokens: int, *, busy: bool) -> float:
        """Take the `seconds` that `tokens` tokens of an agent took, `busy` if a probe was in flight meanwhile.

        Returns:
            The seconds of them that probes are taken to have added.
        """
        load = self._load()
        side = load.busy if busy else load.quiet
        if side.add(seconds, tokens):
            self._judge(load, busy=busy)
        quiet = load.quiet.seconds if load.quiet.known else None
        return max(0.0, seconds - quiet * tokens) if busy and quiet is not None else 0.0

    def statistics(self) -> tuple[LoadStatistics, ...]:
        """Return what was measured, by load."""
        return tuple(
            LoadStatistics(
                agents=_range(level),
                quiet_ms=_milliseconds(load.quiet.seconds),
                busy_ms=_milliseconds(load.busy.seconds),
                guessing=load.on,
                switched=load.switched,
                ratio=load.ratio,
            )
            for level, load in sorted(self._loads.items())
        )

    def _load(self) -> _Load:
        return self._loads.setdefault(max(1, self.agents).bit_length(), _Load())

    def _judge(self, load: _Load, *, busy: bool) -> None:
        """Look at a load again, after one more block of either side."""
        quiet, beside = load.quiet, load.busy
        if not busy:
            if load.on and quiet.taken >= NEEDED:  # something fresh to compare with: no pause is needed for a while
                quiet.taken = beside.taken = 0
            elif not load.on and not load.trying and quiet.taken >= load.trial_after:
                load.trying, beside.taken = True, 0
            return
        if not (load.on or load.trying):
            return  # the last of the probes that were in flight when guessing stopped
        if not quiet.known or (beside.taken < NEEDED and not (load.on and beside.known)):
            return
        ratio = load.ratio = beside.latest(NEEDED if load.trying else KEPT) / max(quiet.seconds or 0.0, 1e-9)
        if load.on and ratio > self._off_above:
            self._switch(load, on=False, ratio=ratio)
        elif load.trying and ratio < self._on_below:
            self._switch(load, on=True, ratio=ratio)
        elif load.trying:
            load.trying, quiet.taken = False, 0
            load.trial_after = min(TRIAL_AFTER_MOST, load.trial_after * 2)

    def _switch(self, load: _Load, *, on: bool, ratio: float) -> None:
        load.on, load.trying, load.switched = on, False, load.switched + 1
        load.quiet.taken = load.busy.taken = 0
        if on:
            load.trial_after = TRIAL_AFTER
        words = "on again" if on else "off"
        _log.info("guessing is %s with %d agents at once: beside probes, tokens take %.2fx", words, self.agents, ratio)


def _range(level: int) -> str:
    low, high = 1 << (level - 1), (1 << level) - 1
    return str(low) if low == high else f"{low}-{high}"


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
