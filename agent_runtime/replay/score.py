"""What a predictor's answers come to: Hit@1 in every cut, coverage, and why misses missed."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.ledger import HitRate
from agent_runtime.traces.proportion import Proportion
from agent_runtime.traces.quantiles import Quantiles

from .forced import After, Answer, AnsweredTurn
from .misses import Cause, Miss, SeenText, explain

BINS = 10
"""Bins of the reliability table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One boundary and the answer that a predictor gave for it at one position."""

    tool: str
    after: After
    pre_executable: bool
    position: float
    predicted: bool
    hit: bool
    hit_name: bool
    confidence: float
    miss: Miss | None = None


@dataclass(frozen=True)
class Score:
    """What one predictor's answers come to. `at_start` are those given at the turn's start, one per boundary."""

    source: str
    at_start: tuple[Judged, ...] = ()
    by_position: dict[float, tuple[Judged, ...]] = field(default_factory=dict)
    silent_turns: int = 0
    """Turns without a call."""
    false_alarms: int = 0
    """Of these, turns for which a call was guessed."""
    seconds: tuple[float, ...] = ()
    """What each guess took, by the wall clock of this machine."""

    def rate(self, keep: Callable[[Judged], bool] = lambda judged: True) -> HitRate:
        """Return the counts over those boundaries that `keep` wants."""
        return rate([judged for judged in self.at_start if keep(judged)])

    @property
    def all(self) -> HitRate:
        """Over every boundary."""
        return self.rate()

    @property
    def over_reads(self) -> HitRate:
        """Over the boundaries whose call may start early."""
        return self.rate(lambda judged: judged.pre_executable)

    def to_json(self) -> dict[str, Any]:
        """Return the promised keys and the finer cuts, as plain JSON."""
        rates, reads = self.all, self.over_reads
        return {
            "predictor": self.source,
            "boundaries": rates.boundaries,
            "hit_at_1": {
                "exact": rates.hit_at_1,
                "name": rates.hit_at_1_name,
                "exact_over_reads": reads.hit_at_1,
                "reads": reads.boundaries,
                "name_over_reads": reads.hit_at_1_name,
                "intervals": _intervals(rates, "exact", "name") | {"exact_over_reads": _interval(reads)},
            },
            "coverage": rates.coverage,
            "by_tool": self._cut(lambda judged: judged.tool),
            "by_position": {f"{position:.2f}": _row(judged) for position, judged in sorted(self.by_position.items())},
            "after": self._cut(lambda judged: judged.after),
            "misses": misses_json(self.at_start),
            "turns_without_call": {"turns": self.silent_turns, "guessed_a_call": self.false_alarms},
            "confidence": reliability(self.at_start),
            "guess_ms": Quantiles.of(seconds * 1000 for seconds in self.seconds).to_json(),
        }

    def _cut(self, key: Callable[[Judged], str]) -> dict[str, Any]:
        groups: dict[str, list[Judged]] = {}
        for judged in self.at_start:
            groups.setdefault(key(judged), []).append(judged)
        return {name: _row(group) for name, group in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))}


class Scorer:
    """Judges the answers of one predictor, turn by turn."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._judged: dict[float, list[Judged]] = {}
        self._silent = 0
        self._alarms = 0
        self._seconds: list[float] = []

    def add(self, turns: Sequence[AnsweredTurn]) -> None:
        """Judge the answers in some turns."""
        for answered in turns:
            answers = answered.answers[self._source]
            # One guess may answer for several positions.
            made = {id(answer.guess): answer.seconds for answer in answers}
            self._seconds += made.values()
            if answered.turn.boundary is None:
                self._silent += 1
                self._alarms += answers[0].guess.call is not None
                continue
            seen: SeenText | None = None
            for answer in answers:
                judged, seen = _judge(answered, answer, seen)
                self._judged.setdefault(answer.position, []).append(judged)

    def result(self) -> Score:
        """Return what the answers so far come to."""
        by_position = {position: tuple(judged) for position, judged in self._judged.items()}
        return Score(
            source=self._source,
            at_start=by_position.get(0.0, ()),
            by_position=by_position,
            silent_turns=self._silent,
            false_alarms=self._alarms,
            seconds=tuple(self._seconds),
        )


def rate(judged: Sequence[Judged]) -> HitRate:
    """Return the counts over some boundaries."""
    return HitRate(
        boundaries=len(judged),
        predicted=sum(one.predicted for one in judged),
        hits=sum(one.hit for one in judged),
        hits_name=sum(one.hit_name for one in judged),
    )


def _judge(answered: AnsweredTurn, answer: Answer, seen: SeenText | None) -> tuple[Judged, SeenText | None]:
    turn, call = answered.turn, answer.guess.call
    boundary = turn.boundary
    assert boundary is not None
    hit = call is not None and turn.toolset.canonical(call) == turn.toolset.canonical(boundary)
    if not hit and seen is None:
        seen = SeenText(turn.messages)
    judged = Judged(
        tool=boundary.name if isinstance(boundary, ToolCall) else "",
        after=turn.after,
        pre_executable=turn.toolset.is_pre_executable(boundary),
        position=answer.position,
        predicted=call is not None,
        hit=hit,
        hit_name=call is not None and isinstance(boundary, ToolCall) and call.name == boundary.name,
        confidence=answer.guess.confidence,
        miss=None if hit or seen is None else explain(turn, call, seen),
    )
    return judged, seen


def misses_json(judged: Sequence[Judged]) -> dict[str, Any]:
    """Return why boundaries were missed: by cause, by wrong argument, and how many held text not yet seen."""
    missed = [(one, one.miss) for one in judged if one.miss is not None]
    causes: Counter[Cause] = Counter(miss.cause for _, miss in missed)
    arguments = Counter(f"{one.tool}.{name}" for one, miss in missed for name in miss.arguments)
    return {
        "missed": len(missed),
        "by_cause": {
            cause: causes.get(cause, 0) for cause in ("no_guess", "wrong_tool", "unseen_text", "wrong_argument")
        },
        "wrong_arguments": dict(arguments.most_common()),
        "call_holds_unseen_text": sum(miss.unseen for _, miss in missed),
    }


def reliability(judged: Sequence[Judged]) -> dict[str, Any]:
    """Return how confidence and hits agree: a table of bins, and the expected calibration error over guesses."""
    bins: list[list[Judged]] = [[] for _ in range(BINS)]
    guesses = [one for one in judged if one.predicted]
    for one in guesses:
        bins[min(BINS - 1, max(0, int(one.confidence * BINS)))].append(one)
    table, error = [], 0.0
    for group in filter(None, bins):
        mean, hits = statistics.fmean(one.confidence for one in group), sum(one.hit for one in group)
        error += abs(mean - hits / len(group)) * len(group)
        table.append({"confidence": mean, "guesses": len(group), "hits": hits, "hit_share": hits / len(group)})
    return {"ece": error / len(guesses) if guesses else None, "table": table}


def _row(judged: Sequence[Judged]) -> dict[str, Any]:
    rates = rate(judged)
    return {
        "boundaries": rates.boundaries,
        "exact": rates.hit_at_1,
        "name": rates.hit_at_1_name,
        "coverage": rates.coverage,
        "intervals": _intervals(rates, "exact", "name"),
    }


def _intervals(rates: HitRate, exact: str, name: str) -> dict[str, Any]:
    return {exact: _interval(rates), name: _interval(rates, by_name=True)}


def _interval(rates: HitRate, *, by_name: bool = False) -> list[float] | None:
    ends = Proportion(rates.hits_name if by_name else rates.hits, rates.boundaries).interval
    return list(ends) if ends is not None else None
