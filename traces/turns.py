"""One turn's ledger: what was guessed, what the agent then called, and how long everything took.

A pure fold over events: `TurnFold` takes the events of one turn in order and says at any time what they come to.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from agent_runtime.tools.values import (
    CallDemanded,
    CallFinished,
    Ending,
    GuessEnded,
    GuessProposed,
    GuessStarted,
    ToolCall,
)

from .events import Event, GenerationFinished, ProbeFinished, ProbePlacement, ProbeStarted, TurnFinished, TurnStarted
from .waiting import Waiting

SERVED: tuple[Ending, ...] = ("adopted", "joined")
"""Endings of guesses whose result the agent got."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessRecord:
    """One proposal and what became of it; `ending` is None where the trace breaks off before it."""

    guess: int
    call: ToolCall
    confidence: float
    source: str
    index: int = 0
    """Which call of the turn it guesses."""
    at_ms: float
    """From the turn's start to the proposal."""
    started: bool = False
    ending: Ending | None = None
    reason: str | None = None
    matched: bool = False
    matched_name: bool = False
    executed: bool = False
    lead_ms: float = 0.0
    saved_ms: float = 0.0
    wasted_ms: float = 0.0

    @property
    def served(self) -> bool:
        """Whether the agent got this guess's result."""
        return self.ending in SERVED


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLedger:
    """What one turn took and what its guesses did. Durations are milliseconds.

    With a boundary, `t_gen_ms` ends at its demand, else at the end of generation. It is what the agent alone would
    have taken: `slowdown_ms` is left out of it, which also holds the time of probes that the agent waited for. Further
    calls are demanded in the `t_more_ms` after it, and `t_wait_ms` begins with the last of them.
    """

    turn: int
    complete: bool = False
    """Whether the trace holds the turn to its end."""
    t_gen_ms: float = 0.0
    t_probe_ms: float = 0.0
    """All probes of the turn together."""
    t_tool_ms: float | None = None
    """Execution of the boundary's call, however early it began; None without a boundary or a result."""
    t_more_ms: float = 0.0
    """From the first demand to the last; 0 with one call."""
    t_wait_ms: float = 0.0
    """What the agent would have waited for all results after its last demand, had no guess served: with one call
    `t_tool_ms`."""
    saved_ms: float = 0.0
    """By how much guesses made that wait shorter. Calls run beside each other, so a guess which serves one of them
    saves nothing where another takes as long."""
    ceiling_ms: float = 0.0
    """By how much guesses of every call that may start early, all begun at the turn's start, could have made it
    shorter."""
    all_served: bool = False
    """Whether each call before the turn's first write was served by a guess."""
    slowdown_ms: float = 0.0
    placement: ProbePlacement | None = None
    probes: int = 0
    probe_tokens: int = 0
    wasted_tokens: int = 0
    """Tokens of the probes that led to no result the agent got."""
    predicted_no_call: bool = False
    """Whether the last finished probe before demand said that no call follows."""
    thinking_tokens: int = 0
    boundary: ToolCall | None = None
    calls: int = 0
    pre_executable: bool = False
    """Whether the gate would let a guess of the boundary's call start early."""
    guesses: tuple[GuessRecord, ...] = ()
    standing: GuessRecord | None = None
    """The prediction that stood at the boundary's demand; see `TurnFold`."""
    hit: bool = False
    hit_name: bool = False

    @property
    def thought(self) -> bool:
        """Whether the agent thought before its message."""
        return self.thinking_tokens > 0

    @property
    def served(self) -> GuessRecord | None:
        """The guess whose result the agent got for the boundary's call, if any."""
        return next((guess for guess in self.guesses if guess.served and guess.index == 0), None)

    @property
    def source(self) -> str | None:
        """Who made the standing prediction."""
        return self.standing.source if self.standing else None

    @property
    def confidence(self) -> float | None:
        """Confidence of the standing prediction."""
        return self.standing.confidence if self.standing else None

    @property
    def shown(self) -> GuessRecord | None:
        """The standing prediction, else the last guess of the first call."""
        return self.standing or next((guess for guess in reversed(self.guesses) if guess.index == 0), None)

    @property
    def ending(self) -> Ending | None:
        """How the standing prediction ended, else the last guess of the first call."""
        shown = self.shown
        return shown.ending if shown else None

    @property
    def reason(self) -> str | None:
        """Why the guess that `ending` speaks of was refused, or ended as it did."""
        shown = self.shown
        return shown.reason if shown else None

    @property
    def lead_ms(self) -> float | None:
        """Lead of the standing prediction; None where none was started before demand."""
        return self.standing.lead_ms if self.standing and self.standing.started else None

    @property
    def wasted_ms(self) -> float:
        """Tool time spent for nothing."""
        return sum((guess.wasted_ms for guess in self.guesses), 0.0)

    def to_json(self) -> dict[str, Any]:
        """Return the fields, and what follows from them, as plain JSON values."""
        return {**self.figures(), **asdict(self)}

    def figures(self) -> dict[str, Any]:
        """Return the fields, and what follows from them, by name."""
        shown = ("source", "confidence", "ending", "reason", "lead_ms", "wasted_ms", "thought")
        return {name: getattr(self, name) for name in (*(field.name for field in fields(self)), *shown)}


@dataclass(slots=True)
class TurnFold:
    """Folds the events of one turn.

    The standing prediction is decided without looking at the agent's call: it is the newest proposal that had not ended
    when the boundary was demanded, which is the one the dispatcher holds, started or kept aside as refused. Where all
    had ended, it is the newest: one that was refused on the spot is a prediction all the same. What was proposed after
    demand is late and never stands.
    """

    turn: int
    _began: float | None = None
    _ended: bool = False
    _generation: GenerationFinished | None = None
    _demanded: CallDemanded | None = None
    _finished: CallFinished | None = None
    _calls: int = 0
    _placements: dict[int, ProbePlacement] = field(default_factory=dict)
    _probes: list[ProbeFinished] = field(default_factory=list)
    _no_call: bool = False
    _guesses: dict[int, GuessRecord] = field(default_factory=dict)
    _before_demand: tuple[GuessRecord, ...] = ()
    """Of the boundary's call."""
    _waiting: Waiting = field(default_factory=Waiting)

    def add(self, event: Event) -> None:
        """Take the next event of the turn."""
        self._waiting.add(event)
        match event:
            case TurnStarted():
                self._began = event.at
            case ProbeStarted():
                self._placements[event.probe] = event.placement
            case ProbeFinished():
                self._probes.append(event)
                if event.completed and self._demanded is None:
                    self._no_call = event.call is None
            case GuessProposed():
                self._guesses[event.guess] = GuessRecord(
                    guess=event.guess,
                    call=event.call,
                    confidence=event.confidence,
                    source=event.source,
                    index=event.index,
                    at_ms=self._since_start(event.at),
                )
            case GuessStarted() if event.guess in self._guesses:
                self._guesses[event.guess] = replace(self._guesses[event.guess], started=True)
            case GuessEnded() if event.guess in self._guesses:
                self._end(event)
            case CallDemanded():
                self._calls += 1
                if self._demanded is None:
                    self._demanded = event
                    self._before_demand = tuple(guess for guess in self._guesses.values() if guess.index == 0)
            case CallFinished():
                if self._demanded is not None and event.index == self._demanded.index:
                    self._finished = event
            case GenerationFinished():
                self._generation = event
            case TurnFinished():
                self._ended = True
            case _:
                pass

    def result(self) -> TurnLedger:
        """Return what the events so far come to."""
        demanded, generation = self._demanded, self._generation
        standing = self._standing()
        guesses = tuple(self._guesses.values())
        waited = sum(probe.probe_ms for probe in self._probes if self._placements.get(probe.probe) == "before")
        slowdown = waited + (generation.slowdown_ms if generation else 0.0)
        calls = self._waiting.result(began=(self._began or 0.0) + slowdown / 1000)
        return TurnLedger(
            turn=self.turn,
            complete=self._ended,
            t_gen_ms=max(0.0, self._generation_ms() - slowdown),
            t_probe_ms=sum((probe.probe_ms for probe in self._probes), 0.0),
            t_tool_ms=self._finished.outcome.seconds * 1000 if self._finished else None,
            t_more_ms=calls.writing * 1000,
            t_wait_ms=calls.without * 1000,
            saved_ms=calls.saved * 1000,
            ceiling_ms=calls.ceiling * 1000,
            all_served=calls.whole,
            slowdown_ms=slowdown,
            placement=next(iter(self._placements.values()), None),
            probes=max(len(self._probes), len(self._placements)),
            probe_tokens=sum(probe.tokens for probe in self._probes),
            wasted_tokens=self._wasted_tokens(guesses),
            predicted_no_call=self._no_call,
            thinking_tokens=generation.thinking_tokens if generation else 0,
            boundary=demanded.call if demanded else None,
            calls=self._calls,
            pre_executable=demanded.pre_executable if demanded else False,
            guesses=guesses,
            standing=standing,
            hit=_is_hit(standing, demanded),
            hit_name=_is_hit_by_name(standing, demanded),
        )

    def _end(self, event: GuessEnded) -> None:
        self._guesses[event.guess] = replace(
            self._guesses[event.guess],
            ending=event.ending,
            reason=event.reason,
            matched=event.matched,
            matched_name=event.matched_name,
            executed=event.executed,
            lead_ms=event.lead_ms,
            saved_ms=event.saved_ms,
            wasted_ms=event.wasted_ms,
        )

    def _standing(self) -> GuessRecord | None:
        if self._demanded is None:
            return None
        now = [self._guesses[guess.guess] for guess in self._before_demand]
        for guess in now:
            if guess.served:
                return guess
        held = [guess.guess for guess in self._before_demand if guess.ending is None]
        if held:
            return self._guesses[held[-1]]
        return next((guess for guess in reversed(now) if guess.ending != "late"), None)

    def _generation_ms(self) -> float:
        """Return milliseconds from the turn's start to the boundary's demand, else to the end of generation."""
        end = self._demanded or self._generation
        return 0.0 if end is None else self._since_start(end.at)

    def _wasted_tokens(self, guesses: tuple[GuessRecord, ...]) -> int:
        served = {guess.call.canonical() for guess in guesses if guess.served and guess.index == 0}
        wasted = 0
        for probe in self._probes:
            key = probe.call.canonical() if probe.completed and probe.call is not None else None
            if key in served:
                served.discard(key)  # a later probe that says the same has added nothing
            else:
                wasted += probe.tokens
        return wasted

    def _since_start(self, at: float) -> float:
        return (at - self._began) * 1000 if self._began is not None else 0.0


def _is_hit(standing: GuessRecord | None, demanded: CallDemanded | None) -> bool:
    """Tell whether the standing prediction equals the boundary's call.

    The dispatcher says so where it held the guess; a refused one is compared here.
    """
    if standing is None or demanded is None:
        return False
    return standing.matched or standing.served or standing.call.canonical() == demanded.call.canonical()


def _is_hit_by_name(standing: GuessRecord | None, demanded: CallDemanded | None) -> bool:
    if standing is None or demanded is None:
        return False
    return standing.matched_name or standing.served or standing.call.name == demanded.call.name
