"""A recorded run as people read it: turn by turn, each message with its calls and their results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from agent_runtime.tools.values import CallDemanded, CallFinished, MalformedCall, Outcome, ToolCall
from agent_runtime.traces import Ledger, LedgerFold, TurnLedger
from agent_runtime.traces.events import (
    Event,
    GenerationFinished,
    Prefilled,
    RunFinished,
    RunStarted,
    TurnFinished,
    TurnStarted,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """A call of the model and what it gave; `outcome` is None where the trace breaks off before the result."""

    index: int
    call: ToolCall | MalformedCall
    demanded_at: float | None = None
    outcome: Outcome | None = None
    finished_at: float | None = None
    guess: int | None = None
    """The guess that served it, if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedTurn:
    """One turn. Times are seconds since the run's start; `ended_at` is that of its last event."""

    turn: int
    started_at: float
    ended_at: float
    complete: bool
    prefilled: Prefilled | None
    generation: GenerationFinished | None
    calls: tuple[RecordedCall, ...]
    ledger: TurnLedger


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedRun:
    """A run, whole or broken off."""

    started: RunStarted | None
    turns: tuple[ReportedTurn, ...]
    finished: RunFinished | None
    ledger: Ledger
    seconds: float
    """Time of the last event."""

    @property
    def guessing(self) -> str | None:
        """Name of the predictor; `off` where the run's settings say so, None where they say nothing of guessing."""
        settings = self.started.settings if self.started else {}
        if "speculation" not in settings:
            return None
        speculation = settings["speculation"] or {}
        return str(speculation.get("predictor", "on")) if speculation else "off"


def read_run(events: Iterable[Event]) -> ReportedRun:
    """Fold the events of one run, in their order; they may break off anywhere."""
    started: RunStarted | None = None
    finished: RunFinished | None = None
    turns: dict[int, _Turn] = {}
    fold = LedgerFold()
    seconds = 0.0
    for event in events:
        fold.add(event)
        seconds = max(seconds, event.at)
        match event:
            case RunStarted():
                started = event
            case RunFinished():
                finished = event
            case _:
                turns.setdefault(event.turn, _Turn(event.turn, event.at)).add(event)
    ledger = fold.result()
    return ReportedRun(
        started=started,
        turns=tuple(turns[turn.turn].result(turn) for turn in ledger.turns),
        finished=finished,
        ledger=ledger,
        seconds=seconds,
    )


@dataclass(slots=True)
class _Turn:
    turn: int
    started_at: float
    ended_at: float = 0.0
    complete: bool = False
    prefilled: Prefilled | None = None
    generation: GenerationFinished | None = None
    calls: dict[int, RecordedCall] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        if not self.complete:  # a guess may end after its turn has
            self.ended_at = max(self.started_at, event.at)
        match event:
            case TurnStarted():
                self.started_at = event.at
            case Prefilled():
                self.prefilled = event
            case GenerationFinished():
                self.generation = event
                for index, call in enumerate(event.calls):
                    known = self.calls.get(index)
                    self.calls[index] = replace(known, call=call) if known else RecordedCall(index=index, call=call)
            case CallDemanded():
                self.calls[event.index] = RecordedCall(index=event.index, call=event.call, demanded_at=event.at)
            case CallFinished() if event.index in self.calls:
                self.calls[event.index] = replace(
                    self.calls[event.index], outcome=event.outcome, finished_at=event.at, guess=event.guess
                )
            case TurnFinished():
                self.complete = True
            case _:
                pass

    def result(self, ledger: TurnLedger) -> ReportedTurn:
        return ReportedTurn(
            turn=self.turn,
            started_at=self.started_at,
            ended_at=self.ended_at,
            complete=self.complete,
            prefilled=self.prefilled,
            generation=self.generation,
            calls=tuple(self.calls[index] for index in sorted(self.calls)),
            ledger=ledger,
        )
