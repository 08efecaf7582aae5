"""One measured run as a value: how it ended, what it said, and its events, from which every figure follows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from agent_runtime.tools.values import (
    CallDemanded,
    CallFinished,
    CallStarted,
    Ending,
    GuessEnded,
    GuessStarted,
    canonical_json,
)
from agent_runtime.traces.events import (
    EVENT_ADAPTER,
    STREAM_ONLY,
    Event,
    GenerationFinished,
    TurnFinished,
    TurnStarted,
)
from agent_runtime.traces.ledger import Ledger, ledger
from agent_runtime.traces.messages import Message

SERIAL = "serial"
"""The mode without guessing: same runtime, calls started at block close, no probe."""
SPECULATIVE = "speculative"
"""The mode under test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What the agent waited for one boundary's result, in milliseconds after its demand."""

    turn: int
    ms: float
    served: Ending | None
    """`adopted` or `joined`; None where the tool ran after the demand."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run of one task in one mode. Durations are milliseconds."""

    index: int
    """The task's number, from 0."""
    task_id: str
    kind: str
    phrasing: str
    mode: str
    position: int
    """Whether this mode came first (0), second, ... in its round."""
    status: str
    output: str
    error: str | None
    success: bool | None
    """What the judge says; None where nobody judges."""
    reason: str
    """Why it is no success."""
    wall_ms: float
    reused_tokens: int
    prefilled_tokens: int
    transcript: str
    """Every message of the conversation, as `transcript_of` writes it."""
    writes: tuple[str, ...] | None
    """Writes that took effect, as compact JSON, in order; None where they can't be seen."""
    writes_pre_executed: int
    events: tuple[Event, ...]
    """Without deltas."""

    @cached_property
    def ledger(self) -> Ledger:
        """What guessing did in this run."""
        return ledger(self.events)

    @cached_property
    def message_ms(self) -> dict[int, float]:
        """Per turn, from its start to the end of its message: what the agent's user waits for the model."""
        began: dict[int, float] = {}
        took: dict[int, float] = {}
        for event in self.events:
            if isinstance(event, TurnStarted):
                began[event.turn] = event.at
            elif isinstance(event, GenerationFinished):
                took[event.turn] = (event.at - began[event.turn]) * 1000
        return took

    @cached_property
    def turn_ms(self) -> dict[int, float]:
        """Per turn, from its start to the last of its results."""
        began: dict[int, float] = {}
        took: dict[int, float] = {}
        for event in self.events:
            if isinstance(event, TurnStarted):
                began[event.turn] = event.at
            elif isinstance(event, TurnFinished):
                took[event.turn] = (event.at - began[event.turn]) * 1000
        return took

    @cached_property
    def waits(self) -> tuple[Wait, ...]:
        """Each boundary's way from its demand to its result, in order."""
        demanded: dict[int, float] = {}
        endings: dict[int, Ending] = {}
        waits: list[Wait] = []
        for event in self.events:
            if isinstance(event, CallDemanded) and event.index == 0:
                demanded[event.turn] = event.at
            elif isinstance(event, GuessEnded):
                endings[event.guess] = event.ending
            elif isinstance(event, CallFinished) and event.index == 0:
                served = endings.get(event.guess) if event.guess is not None else None
                ms = (event.at - demanded[event.turn]) * 1000
                waits.append(Wait(turn=event.turn, ms=ms, served=served))
        return tuple(waits)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        return plain | {"events": [EVENT_ADAPTER.dump_python(event, mode="json") for event in self.events]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunRecord:
        """Return the record that `to_json` described."""
        plain = {name: data[name] for name in _PLAIN}
        if plain["writes"] is not None:
            plain["writes"] = tuple(plain["writes"])
        return cls(**plain, events=tuple(EVENT_ADAPTER.validate_python(event) for event in data["events"]))


_PLAIN = tuple(field.name for field in fields(RunRecord) if field.name != "events")


def without_deltas(events: Iterable[Event]) -> tuple[Event, ...]:
    """Return the events that are kept."""
    return tuple(event for event in events if not isinstance(event, STREAM_ONLY))


def transcript_of(messages: Sequence[Message]) -> str:
    """Return a conversation as JSON, one message a line, in the order of its fields: made to be compared by bytes."""
    lines = [{"message": type(message).__name__, **asdict(message)} for message in messages]
    return "\n".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) for line in lines)


def write_text(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return one executed write as compact JSON."""
    return canonical_json({"name": tool, "arguments": dict(arguments)})


def writes_pre_executed(
    events: Iterable[Event], *, never_early: frozenset[str], executed: Mapping[str, int] | None
) -> int:
    """Return how many executions of the tools `never_early` no demand accounts for.

    `executed` is what the tools' own backend counted; without it the trace's word is taken.
    """
    if executed is None:
        return sum(isinstance(event, GuessStarted) and event.tool in never_early for event in events)
    announced = Counter(event.tool for event in events if isinstance(event, CallStarted))
    return sum(max(0, executed.get(tool, 0) - announced[tool]) for tool in never_early)
