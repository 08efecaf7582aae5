"""The timeline of a run as plain values: lanes of spans, and an arrow from each guess that served to its adoption.

Nothing here is drawn; the page's script does that. Times are seconds since the run's start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from agent_runtime.tools.values import (
    CallDemanded,
    CallFinished,
    CallStarted,
    GuessEnded,
    GuessProposed,
    GuessStarted,
)
from agent_runtime.traces import LedgerFold
from agent_runtime.traces.events import (
    Event,
    GenerationFinished,
    Prefilled,
    ProbeFinished,
    ProbeStarted,
    RunFinished,
    RunStarted,
    ThinkingDelta,
    TurnFinished,
    TurnStarted,
)
from agent_runtime.traces.turns import SERVED

from .visible import call_text, duration, one_line, percent

Lane = Literal["model", "guesses", "tools", "probes"]
LANES: tuple[Lane, ...] = ("model", "guesses", "tools", "probes")

Kind = Literal[
    "prefill",
    "thinking",
    "writing",
    "demand",
    "served",
    "missed",
    "unused",
    "tool",
    "early_used",
    "early_wasted",
    "failed",
    "probe",
]

MOST_ROWS = 8
"""Rows of one lane; what would need more shares the last."""
LABEL = 64
"""Characters of a span's label; its facts hold more."""
FACT = 400
_SHORTEST = 1 / 400
"""Share of the run that a span takes up at least when rows are handed out: marks of no length are drawn wider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One activity; `end` is its start for what takes no time. Facts are pairs of name and text."""

    lane: Lane
    kind: Kind
    start: float
    end: float
    turn: int
    label: str
    facts: tuple[tuple[str, str], ...] = ()
    row: int = 0


@dataclass(frozen=True, slots=True)
class Arrow:
    """From a guess (its index among the spans) to the moment its result was handed over in the model's lane."""

    guess: int
    demanded: float
    label: str


@dataclass(frozen=True, slots=True)
class Band:
    """The time of one turn, and whether its prediction `hit` (None where there was nothing to predict)."""

    turn: int
    start: float
    end: float
    hit: bool | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """Everything the picture shows."""

    seconds: float
    rows: dict[str, int]
    """Rows by lane."""
    bands: tuple[Band, ...]
    spans: tuple[Span, ...]
    arrows: tuple[Arrow, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return asdict(self)


def timeline(events: Iterable[Event]) -> Timeline:
    """Fold the events of one run, in their order; what the trace doesn't see end lasts to its end."""
    fold = _Fold()
    for event in events:
        fold.add(event)
    return fold.result()


@dataclass(slots=True)
class _Guess:
    proposed: GuessProposed
    started: float | None = None
    ended: GuessEnded | None = None


@dataclass(slots=True)
class _Fold:
    now: float = 0.0
    spans: list[Span] = field(default_factory=list)
    turns: dict[int, list[float]] = field(default_factory=dict)
    ledger: LedgerFold = field(default_factory=LedgerFold)
    prefilled: dict[int, Prefilled] = field(default_factory=dict)
    thought_until: dict[int, float] = field(default_factory=dict)
    generated: set[int] = field(default_factory=set)
    probes: dict[tuple[int, int], ProbeStarted] = field(default_factory=dict)
    guesses: dict[int, _Guess] = field(default_factory=dict)
    demands: dict[tuple[int, int], CallDemanded] = field(default_factory=dict)
    running: dict[tuple[int, int], CallStarted] = field(default_factory=dict)
    served: dict[int, CallFinished] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        self.now = max(self.now, event.at)
        self.ledger.add(event)
        match event:
            case RunStarted() | RunFinished():
                return
            case TurnStarted():
                self.turns[event.turn] = [event.at, event.at, 0.0]
            case TurnFinished():
                self._reach(event.turn, event.at)[2] = 1.0
            case Prefilled():
                self.prefilled[event.turn] = event
            case ThinkingDelta():
                self.thought_until[event.turn] = event.at
            case GenerationFinished():
                self._generation(event)
            case ProbeStarted():
                self.probes[event.turn, event.probe] = event
            case ProbeFinished():
                self._probe(event)
            case GuessProposed():
                self.guesses[event.guess] = _Guess(event)
            case GuessStarted() if event.guess in self.guesses:
                self.guesses[event.guess].started = event.at
            case GuessEnded() if event.guess in self.guesses:
                self.guesses[event.guess].ended = event
            case CallDemanded():
                self._demand(event)
            case CallStarted():
                self.running.setdefault((event.turn, event.index), event)
            case CallFinished():
                self._call(event)
            case _:
                pass
        self._reach(event.turn, event.at)

    def _reach(self, turn: int, at: float) -> list[float]:
        band = self.turns.setdefault(turn, [at, at, 0.0])
        if not band[2]:  # a guess may end after its turn has
            band[1] = max(band[1], at)
        return band

    def _generation(self, event: GenerationFinished) -> None:
        turn, end = event.turn, event.at
        self.generated.add(turn)
        began = max(self._reach(turn, end)[0], end - event.generation_ms / 1000)
        prefilled = self.prefilled.get(turn)
        if prefilled is not None:
            self._prefill(prefilled, began)
            began = max(began, prefilled.at)
        calls = " and ".join(call_text(call, LABEL) for call in event.calls[:2])
        more = f" and {len(event.calls) - 2} more" if len(event.calls) > 2 else ""
        kinds = ", ".join(one_line(draft.kind, 40) for draft in event.drafting)
        stood = sum(draft.accepted_tokens for draft in event.drafting)
        drafted = sum(draft.draft_tokens for draft in event.drafting)
        facts = (
            ("tokens", f"{event.completion_tokens}, {event.thinking_tokens} of them thinking"),
            ("forward passes", str(event.forwards)),
            *((("drafts", f"{stood} of {drafted} tokens stood ({kinds})"),) if drafted else ()),
            ("slowed down by probes", duration(event.slowdown_ms)),
            ("calls" if calls else "says", (calls + more) or one_line(event.text, FACT)),
        )
        thought = self.thought_until.get(turn)
        if thought is not None:
            self._span("model", "thinking", began, thought, turn, "thinks", (("text", one_line(event.thinking, FACT)),))
            began = thought
        thinks = event.thinking_tokens > 0 and thought is None
        label = ("thinks, then " if thinks else "") + ("calls " + calls + more if calls else "answers")
        self._span("model", "thinking" if thinks else "writing", began, end, turn, label, facts)

    def _prefill(self, event: Prefilled, began: float) -> None:
        facts = (
            ("prompt", f"{event.prompt_tokens} tokens"),
            ("from the cache", f"{event.reused_tokens} tokens"),
            ("read anew", f"{event.prefilled_tokens} tokens"),
        )
        self._span("model", "prefill", began, event.at, event.turn, "reads", facts)

    def _demand(self, event: CallDemanded) -> None:
        self.demands[event.turn, event.index] = event
        early = "yes" if event.pre_executable else "no"
        facts = (("may start early", early), ("call", call_text(event.call, FACT)))
        self._span("model", "demand", event.at, event.at, event.turn, "asks for " + event.call.name, facts)

    def _probe(self, event: ProbeFinished) -> None:
        started = self.probes.pop((event.turn, event.probe), None)
        begin = started.at if started else event.at - event.probe_ms / 1000
        if event.call is not None:
            found = f"{call_text(event.call, FACT)}, {percent(event.confidence)} sure"
        else:
            found = f"no call, {percent(event.confidence)} sure" if event.completed else "cut off"
        facts = (
            ("found", found),
            ("placed", f"{started.placement} the agent, at token {started.position}" if started else "–"),
            ("tokens", str(event.tokens)),
            ("copied for the branch", f"{event.bytes_copied / 1e6:.1f} MB"),
            ("shared forward passes", "yes" if event.co_decoded else "no"),
        )
        label = one_line(event.call.name, LABEL) if event.call else "no call" if event.completed else "cut off"
        self._span("probes", "probe", begin, event.at, event.turn, label, facts)

    def _call(self, event: CallFinished) -> None:
        if event.guess is not None and event.guess in self.guesses:
            self.served[event.guess] = event
            self.running.pop((event.turn, event.index), None)
            return
        began = self.running.pop((event.turn, event.index), None)
        outcome, demand = event.outcome, self.demands.get((event.turn, event.index))
        good = outcome.status == "ok"
        start = began.at if began else event.at
        facts = (
            ("started", "when the model asked"),
            ("result", outcome.status if outcome.error is None else f"{outcome.status}: {one_line(outcome.error, 80)}"),
            ("call", call_text(demand.call, FACT) if demand else one_line(event.tool, FACT)),
            ("gave", one_line(outcome.content, FACT)),
        )
        end = max(start, outcome.ended_at) if began else event.at
        name = one_line(event.tool, LABEL) or "malformed call"
        self._span("tools", "tool" if good else "failed", start, end, event.turn, name, facts)

    def _span(
        self, lane: Lane, kind: Kind, start: float, end: float, turn: int, label: str, facts: Sequence[tuple[str, str]]
    ) -> None:
        end = max(start, end)
        took = (("took", duration(1000 * (end - start))),) if end > start else ()
        at = ("at", f"{start:.3f} s")
        self.spans.append(
            Span(lane=lane, kind=kind, start=start, end=end, turn=turn, label=label, facts=(at, *took, *facts))
        )

    def _guess(self, number: int, guess: _Guess) -> Arrow | None:
        """Add the spans of a guess; return its arrow where its result was handed over."""
        proposed, ended = guess.proposed, guess.ended
        name, text = one_line(proposed.call.name, LABEL), call_text(proposed.call, FACT)
        served = ended is not None and ended.ending in SERVED
        facts = [
            ("guessed", text),
            ("sure", f"{percent(proposed.confidence)}, by {one_line(proposed.source, 40)}"),
            ("ending", ending_text(ended)),
        ]
        if ended is not None and ended.executed:
            facts += [("lead", duration(ended.lead_ms))]
            facts += [("saved", duration(ended.saved_ms)) if served else ("in vain", duration(ended.wasted_ms))]
        end = ended.at if ended else self.now
        kind: Kind = "served" if served else "missed" if ended and ended.executed else "unused"
        self._span("guesses", kind, proposed.at, end, proposed.turn, name, facts)
        arrow = None
        finished = self.served.get(number)
        if served and finished is not None:
            demand = self.demands.get((finished.turn, finished.index))
            if demand is not None:
                arrow = Arrow(len(self.spans) - 1, demand.at, f"{name} {ended.ending if ended else ''}")
        if guess.started is not None:
            self._early(guess, finished, served=served, text=text)
        return arrow

    def _early(self, guess: _Guess, finished: CallFinished | None, *, served: bool, text: str) -> None:
        assert guess.started is not None
        name, start, ended = one_line(guess.proposed.call.name, LABEL), guess.started, guess.ended
        if served and finished is not None:
            end = finished.outcome.ended_at
            facts = [("call", text), ("gave", one_line(finished.outcome.content, FACT))]
            kind: Kind = "early_used" if finished.outcome.status == "ok" else "failed"
        else:
            wasted = start + ended.wasted_ms / 1000 if ended is not None and ended.wasted_ms > 0 else None
            end = wasted if wasted is not None else ended.at if ended is not None else self.now
            facts, kind = [("call", text)], "early_wasted"
        self._span("tools", kind, start, end, guess.proposed.turn, name, (("started", "early, by a guess"), *facts))

    def result(self) -> Timeline:
        for turn, (began, _, complete) in self.turns.items():
            if turn not in self.generated and not complete:
                self._span("model", "writing", began, self.now, turn, "was at work when the trace ended", ())
        for probe in self.probes.values():
            self._span("probes", "probe", probe.at, self.now, probe.turn, "unfinished", ())
        for call in self.running.values():
            self._span("tools", "failed", call.at, self.now, call.turn, f"{one_line(call.tool, LABEL)}, unfinished", ())
        arrows = [arrow for number, guess in self.guesses.items() if (arrow := self._guess(number, guess))]
        spans, rows = _pack(self.spans, self.now)
        hits = {turn.turn: turn.hit for turn in self.ledger.result().turns if turn.boundary is not None}
        bands = (Band(turn, band[0], band[1], hits.get(turn)) for turn, band in sorted(self.turns.items()))
        return Timeline(self.now, rows, tuple(bands), spans, tuple(arrows))


def ending_text(ended: GuessEnded | None) -> str:
    """Return how a guess ended, in a few words."""
    if ended is None:
        return "unknown: the trace ends before it"
    reason = one_line((ended.reason or "").replace("_", " "), 60)
    text = {
        "adopted": "adopted: its result was ready when the model asked",
        "joined": "joined: it was still running when the model asked",
        "discarded": "discarded: the model asked for something else",
        "refused": "refused",
        "late": "late: the model had asked already",
    }.get(ended.ending, ended.ending)
    if ended.ending == "refused" and ended.matched:
        text = "refused, though it was right"
    return f"{text} ({reason})" if reason else text


def _pack(spans: Sequence[Span], seconds: float) -> tuple[tuple[Span, ...], dict[str, int]]:
    """Give spans of a lane that overlap rows of their own; the model's lane has one."""
    rows: dict[str, int] = dict.fromkeys(LANES, 1)
    packed = list(spans)
    free: dict[str, list[float]] = {lane: [] for lane in LANES}
    shortest = seconds * _SHORTEST
    for index in sorted(range(len(spans)), key=lambda index: spans[index].start):
        span = spans[index]
        if span.lane == "model":
            continue
        ends = free[span.lane]
        row = next((row for row, end in enumerate(ends) if end <= span.start), len(ends))
        row = min(row, MOST_ROWS - 1)
        end = max(span.end, span.start + (shortest if span.end == span.start else 0.0))
        if row == len(ends):
            ends.append(end)
        else:
            ends[row] = max(ends[row], end)
        packed[index] = replace(span, row=row)
        rows[span.lane] = max(rows[span.lane], row + 1)
    return tuple(packed), rows
