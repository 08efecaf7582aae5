"""The ledger of a run: pure functions over its events, whole or broken off.

Hit@1 is over all boundaries: a turn without a prediction, one whose prediction came late and one whose prediction the
gate refused all count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from .events import Event, RunFinished, RunStarted
from .expectation import Expectation, expectation
from .quantiles import Quantiles
from .turns import TurnFold, TurnLedger

K = TypeVar("K")


@dataclass(frozen=True, slots=True, kw_only=True)
class HitRate:
    """Counts over some boundaries, and the shares that follow from them (None over no boundary)."""

    boundaries: int
    predicted: int
    """Boundaries at whose demand a prediction stood."""
    hits: int
    hits_name: int

    @property
    def hit_at_1(self) -> float | None:
        """Share of the boundaries whose call was predicted exactly."""
        return _share(self.hits, self.boundaries)

    @property
    def hit_at_1_name(self) -> float | None:
        """Share of the boundaries whose tool was predicted."""
        return _share(self.hits_name, self.boundaries)

    @property
    def coverage(self) -> float | None:
        """Share of the boundaries at which a prediction stood."""
        return _share(self.predicted, self.boundaries)


@dataclass(frozen=True)
class Ledger:
    """What guessing did over some turns: of one run, or of many (`merge`). Durations are milliseconds."""

    turns: tuple[TurnLedger, ...] = ()
    runs: int = 0

    @cached_property
    def all(self) -> HitRate:
        """Over every boundary."""
        return _rate(turn for turn in self.turns if turn.boundary is not None)

    @cached_property
    def over_pre_executable(self) -> HitRate:
        """Over the boundaries whose call the gate would let start early."""
        return _rate(turn for turn in self.turns if turn.boundary is not None and turn.pre_executable)

    @cached_property
    def by_tool(self) -> dict[str, HitRate]:
        """Over the boundaries of each tool, by its name."""
        return self._split(lambda turn: turn.boundary.name if turn.boundary else "")

    @cached_property
    def by_thinking(self) -> dict[bool, HitRate]:
        """Over the boundaries with (True) and without (False) thinking before the call."""
        return self._split(lambda turn: turn.thought)

    @cached_property
    def endings(self) -> dict[str, int]:
        """Guesses by their ending; those the trace does not see end are left out."""
        counts = dict.fromkeys(
            ("refused", "late", "adopted", "joined", "discarded", "stale", "failed", "cancelled"), 0
        )  # in this order
        for turn in self.turns:
            for guess in turn.guesses:
                if guess.ending is not None:
                    counts[guess.ending] += 1
        return counts

    @property
    def boundaries(self) -> int:
        """Turns that made calls."""
        return self.all.boundaries

    @property
    def predicted(self) -> int:
        """Boundaries at whose demand a prediction stood."""
        return self.all.predicted

    @property
    def hit_at_1(self) -> float | None:
        """Share of all boundaries whose call was predicted exactly; None without boundaries."""
        return self.all.hit_at_1

    @property
    def hit_at_1_name(self) -> float | None:
        """Share of all boundaries whose tool was predicted; None without boundaries."""
        return self.all.hit_at_1_name

    @property
    def coverage(self) -> float | None:
        """Share of all boundaries at which a prediction stood; None without boundaries."""
        return self.all.coverage

    @cached_property
    def saved_ms(self) -> float:
        """Tool time that agents did not have to wait for."""
        return sum((turn.saved_ms for turn in self.turns), 0.0)

    @cached_property
    def wasted_ms(self) -> float:
        """Tool time spent for nothing."""
        return sum((turn.wasted_ms for turn in self.turns), 0.0)

    @cached_property
    def wasted_tokens(self) -> int:
        """Tokens of probes that led to no result an agent got."""
        return sum(turn.wasted_tokens for turn in self.turns)

    @cached_property
    def slowdown_ms(self) -> float:
        """Time that probes took from the agents' own generation."""
        return sum((turn.slowdown_ms for turn in self.turns), 0.0)

    @property
    def net_saved_ms(self) -> float:
        """Saved tool time less the slowdown it cost."""
        return self.saved_ms - self.slowdown_ms

    @cached_property
    def ceiling_ms(self) -> float:
        """The most that guesses made at the turns' starts can hide: min(T_tool, T_gen) where a turn makes one call."""
        return sum((turn.ceiling_ms for turn in self.turns), 0.0)

    @property
    def hidden_share(self) -> float | None:
        """Saved time over the ceiling, at most 1; None where nothing could be hidden.

        A lead counts from the wall clock, slowdown and all, which the ceiling leaves out: hence the bound.
        """
        return min(1.0, self.saved_ms / self.ceiling_ms) if self.ceiling_ms > 0 else None

    @cached_property
    def expected(self) -> Expectation:
        """What the turns should have taken without and with guessing, in both forms."""
        return expectation(self.turns)

    @cached_property
    def lead(self) -> Quantiles:
        """Distribution of the lead of predictions that were started and stood at a demand."""
        return Quantiles.of(turn.lead_ms for turn in self.turns if turn.lead_ms is not None)

    def summary(self) -> dict[str, Any]:
        """Return the `speculation` object that `agent run --json` promises."""
        endings = self.endings
        return {
            "boundaries": self.boundaries,
            "predicted": self.predicted,
            "hit_at_1": self.hit_at_1,
            "hit_at_1_name": self.hit_at_1_name,
            "adopted": endings["adopted"],
            "joined": endings["joined"],
            "discarded": endings["discarded"],
            "stale": endings["stale"],
            "late": endings["late"],
            "refused": endings["refused"],
            "saved_ms": self.saved_ms,
            "wasted_ms": self.wasted_ms,
            "slowdown_ms": self.slowdown_ms,
            "hidden_share": self.hidden_share,
        }

    def _split(self, key: Callable[[TurnLedger], K]) -> dict[K, HitRate]:
        groups: dict[K, list[TurnLedger]] = {}
        for turn in self.turns:
            if turn.boundary is not None:
                groups.setdefault(key(turn), []).append(turn)
        return {name: _rate(turns) for name, turns in groups.items()}


class LedgerFold:
    """Folds the events of one run as they come; at any time `result` says what they come to."""

    def __init__(self) -> None:
        self._turns: dict[int, TurnFold] = {}

    def add(self, event: Event) -> None:
        """Take the run's next event."""
        if isinstance(event, RunStarted | RunFinished):
            return
        fold = self._turns.get(event.turn)
        if fold is None:
            fold = self._turns[event.turn] = TurnFold(event.turn)
        fold.add(event)

    def turn(self, turn: int) -> TurnLedger:
        """Return the ledger of one turn that has begun."""
        return self._turns[turn].result()

    def result(self) -> Ledger:
        """Return the ledger of the events so far."""
        return Ledger(tuple(self._turns[turn].result() for turn in sorted(self._turns)), runs=1)


def ledger(events: Iterable[Event]) -> Ledger:
    """Return the ledger of one run's events, in their order; they may break off anywhere."""
    fold = LedgerFold()
    for event in events:
        fold.add(event)
    return fold.result()


def merge(ledgers: Iterable[Ledger]) -> Ledger:
    """Return one ledger over the turns of many."""
    ledgers = tuple(ledgers)
    return Ledger(tuple(turn for one in ledgers for turn in one.turns), runs=sum(one.runs for one in ledgers))


def _rate(turns: Iterable[TurnLedger]) -> HitRate:
    turns = tuple(turns)
    return HitRate(
        boundaries=len(turns),
        predicted=sum(turn.standing is not None for turn in turns),
        hits=sum(turn.hit for turn in turns),
        hits_name=sum(turn.hit_name for turn in turns),
    )


def _share(count: int, of: int) -> float | None:
    return count / of if of else None
