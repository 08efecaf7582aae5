from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from agent_runtime.tools.values import (
    CallDemanded,
    CallFinished,
    CallStarted,
    Ending,
    GuessEnded,
    GuessProposed,
    GuessStarted,
    Outcome,
    OutcomeStatus,
    ToolCall,
)
from agent_runtime.traces import TraceStore
from agent_runtime.traces.events import (
    Event,
    GenerationFinished,
    Prefilled,
    ProbeFinished,
    ProbeStarted,
    RunFinished,
    RunStarted,
    RunStatus,
    TurnFinished,
    TurnStarted,
)

SETTINGS: dict[str, Any] = {
    "speculation": {"predictor": "self", "placement": "auto"},
    "tools": [
        {
            "name": "find_order",
            "effect": "read",
            "pre_executable": True,
            "reason": "it only reads",
            "reads": ["orders"],
            "writes": [],
        }
    ],
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """One turn of a made-up run: it takes 1 s, its guess stands 0.6 s before the demand, its tool takes 0.4 s."""

    call: ToolCall | None = None
    guess: ToolCall | None = None
    ending: Ending = "adopted"
    reason: str | None = None
    thinking: str = ""
    text: str = ""
    result: str = '{"status":"shipped"}'
    status: OutcomeStatus = "ok"
    parallel: tuple[ToolCall, ...] = field(default=())


def events_of(
    steps: Sequence[Step],
    *,
    task: str = "Where is order 7?",
    output: str = "It left.",
    status: RunStatus = "done",
    settings: dict[str, Any] = SETTINGS,
    agent: str = "support",
    model: str = "pocket",
) -> list[Event]:
    """Return the events of a run that takes these turns."""
    events: list[Event] = [RunStarted(at=0.0, agent=agent, model=model, task=task, settings=settings)]
    at = 0.0
    for turn, step in enumerate(steps):
        events += turn_of(turn, at, step)
        at += 1.5
    events.append(RunFinished(at=at, status=status, output=output))
    return events


def turn_of(turn: int, at: float, step: Step) -> list[Event]:
    demanded = at + 1.0
    hit = step.guess is not None and step.guess == step.call
    events: list[Event] = [
        TurnStarted(turn=turn, at=at),
        ProbeStarted(turn=turn, at=at, probe=0, position=0, placement="beside"),
        Prefilled(turn=turn, at=at + 0.2, prompt_tokens=50, reused_tokens=40, prefilled_tokens=10),
        ProbeFinished(turn=turn, at=at + 0.4, probe=0, completed=True, call=step.guess, confidence=0.9, tokens=8),
    ]
    executed = step.ending in ("adopted", "joined", "discarded")
    if step.guess is not None:
        events.append(GuessProposed(turn=turn, at=at + 0.4, guess=turn, call=step.guess, confidence=0.9, source="self"))
        if executed:
            events.append(GuessStarted(turn=turn, at=at + 0.4, guess=turn, tool=step.guess.name))
    calls = (step.call, *step.parallel) if step.call is not None else ()
    for index, call in enumerate(calls):
        events.append(CallDemanded(turn=turn, at=demanded, index=index, call=call, pre_executable=True))
    if step.guess is not None:
        served = step.ending in ("adopted", "joined")
        events.append(
            GuessEnded(
                turn=turn,
                at=demanded,
                guess=turn,
                ending=step.ending,
                reason=step.reason,
                tool=step.guess.name,
                matched=hit,
                matched_name=hit,
                executed=executed,
                lead_ms=600.0 if executed else 0.0,
                saved_ms=400.0 if served else 0.0,
                wasted_ms=400.0 if executed and not served else 0.0,
            )
        )
    events.append(
        GenerationFinished(
            turn=turn,
            at=at + 1.1,
            thinking=step.thinking,
            text=step.text,
            calls=calls,
            finish_reason="calls" if calls else "stop",
            prompt_tokens=50,
            completion_tokens=20,
            thinking_tokens=5 if step.thinking else 0,
            forwards=10,
            generation_ms=1100.0,
            slowdown_ms=30.0,
        )
    )
    for index, call in enumerate(calls):
        early = index == 0 and hit and step.ending in ("adopted", "joined")
        began = at + 0.4 if early else demanded
        if not early:
            events.append(CallStarted(turn=turn, at=began, index=index, tool=call.name, effect="read"))
        outcome = Outcome(
            step.status, step.result, began, began + 0.4, error=None if step.status == "ok" else "not_found"
        )
        guess = turn if early else None
        events.append(CallFinished(turn=turn, at=at + 1.4, index=index, tool=call.name, outcome=outcome, guess=guess))
    events.append(TurnFinished(turn=turn, at=at + 1.5))
    return events


@pytest.fixture
def step() -> type[Step]:
    """The class of a turn."""
    return Step


@pytest.fixture
def build() -> Callable[..., list[Event]]:
    """Return the events of a run, given its turns."""
    return events_of


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "traces.db"


@pytest.fixture
def record(db: Path) -> Callable[[Sequence[Event]], str]:
    """Record events as a run and return its id."""

    def record(events: Sequence[Event]) -> str:
        async def write() -> str:
            started = events[0]
            assert isinstance(started, RunStarted)
            with TraceStore.open(db) as store:
                async with store.start_run(started) as writer:
                    for event in events:
                        writer.append(event)
                return writer.run_id

        return anyio.run(write)

    return record
