"""A recorded run that has everything in it, for the tests of formats."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from agent_runtime.tools.values import (
    CallDemanded,
    CallFinished,
    CallStarted,
    GuessEnded,
    GuessProposed,
    GuessStarted,
    MalformedCall,
    Outcome,
    ToolCall,
)
from agent_runtime.traces import RunRow, ledger
from agent_runtime.traces.events import (
    Drafting,
    Event,
    GenerationFinished,
    Prefilled,
    ProbeFinished,
    ProbeStarted,
    RunFinished,
    RunStarted,
    TurnFinished,
    TurnStarted,
)
from agent_runtime.traces.formats import RecordedRun


@pytest.fixture
def recorded() -> RecordedRun:
    """Return a run in which guesses were adopted, discarded and refused, and calls malformed and failed."""
    lamp, kettle = ToolCall("find", {"name": "lamp"}), ToolCall("find", {"name": "kettle", "n": 2})
    drafted = Drafting(kind="call", drafts=2, draft_tokens=8, accepted_per_position=(2, 1), draft_ms=0.5)
    broken = MalformedCall("find(name=", "no JSON")
    started_at = datetime(2026, 3, 4, 5, 6, 7, 891011, tzinfo=UTC)
    settings = {"tools": [{"name": "find", "effect": "read"}], "instructions": "Be brief."}

    def generated(turn: int, at: float, *, ms: float, **fields: Any) -> GenerationFinished:
        counts = {"prompt_tokens": 10, "completion_tokens": 5, "thinking_tokens": 2, "forwards": 5, "slowdown_ms": 1.5}
        texts = {"thinking": "", "text": "", "calls": (), "finish_reason": "calls"}
        return GenerationFinished(turn=turn, at=at, generation_ms=ms, **{**counts, **texts, **fields})

    def finished(turn: int, at: float, index: int, start: float, end: float, **fields: Any) -> CallFinished:
        outcome = {"status": "ok", "content": "{}", "error": None} | fields
        guess = outcome.pop("guess", None)
        result = Outcome(started_at=start, ended_at=end, **outcome)
        return CallFinished(turn=turn, at=at, index=index, tool="find", outcome=result, guess=guess)

    def proposed(turn: int, at: float, guess: int, call: ToolCall) -> GuessProposed:
        return GuessProposed(turn=turn, at=at, guess=guess, call=call, confidence=0.75, source="self")

    def demanded(turn: int, at: float, index: int, call: ToolCall) -> CallDemanded:
        return CallDemanded(turn=turn, at=at, index=index, call=call, pre_executable=True)

    events: list[Event] = [
        RunStarted(at=0.0, agent="shop", model="pocket", task="Find a lamp \N{ELECTRIC LIGHT BULB}", settings=settings),
        TurnStarted(turn=0, at=0.0),
        ProbeStarted(turn=0, at=0.01, probe=0, position=0, placement="beside"),
        Prefilled(turn=0, at=0.02, prompt_tokens=10, reused_tokens=4, prefilled_tokens=6),
        ProbeFinished(turn=0, at=0.1, probe=0, completed=True, call=lamp, confidence=0.75, probe_ms=90.0, tokens=7),
        proposed(0, 0.1, 0, lamp),
        GuessStarted(turn=0, at=0.11, guess=0, tool="find"),
        demanded(0, 0.3, 0, lamp),
        GuessEnded(turn=0, at=0.3, guess=0, ending="adopted", tool="find", matched=True, matched_name=True,
                   executed=True, lead_ms=190.0, saved_ms=140.0),
        finished(0, 0.3, 0, 0.11, 0.25, content='{"id": 1}', guess=0),
        generated(0, 0.31, ms=290.0, thinking="a lamp", text="Looking.", calls=(lamp,), drafting=(drafted,),
                  reused_later=1),
        TurnFinished(turn=0, at=0.31),
        TurnStarted(turn=1, at=0.31),
        proposed(1, 0.35, 1, kettle),
        GuessStarted(turn=1, at=0.35, guess=1, tool="find"),
        proposed(1, 0.36, 2, lamp),
        GuessEnded(turn=1, at=0.36, guess=2, ending="refused", reason="no_free_slot", tool="find"),
        demanded(1, 0.5, 0, lamp),
        CallStarted(turn=1, at=0.5, index=0, tool="find", effect="read"),
        GuessEnded(turn=1, at=0.5, guess=1, ending="discarded", reason="miss", tool="find", executed=True,
                   lead_ms=150.0, wasted_ms=150.0),
        demanded(1, 0.55, 1, ToolCall("", {"malformed": broken.text})),
        demanded(1, 0.56, 2, kettle),
        CallStarted(turn=1, at=0.56, index=2, tool="find", effect="read"),
        generated(1, 0.6, ms=290.0, calls=(lamp, broken, kettle)),
        finished(1, 0.6, 1, 0.6, 0.6, status="invalid_arguments", content='{"error": "malformed"}', error="malformed"),
        finished(1, 0.9, 2, 0.56, 0.9, status="error", content='{"error": "not_found"}', error="not_found"),
        finished(1, 1.0, 0, 0.5, 1.0, content="[1, 2]"),
        TurnFinished(turn=1, at=1.0),
        TurnStarted(turn=2, at=1.0),
        ProbeStarted(turn=2, at=1.0, probe=0, position=0, placement="beside"),
        ProbeFinished(turn=2, at=1.1, probe=0, completed=True, call=None, confidence=1.0, probe_ms=100.0, tokens=1),
        generated(2, 1.25, ms=250.0, text="There are two.", finish_reason="stop"),
        TurnFinished(turn=2, at=1.25),
        RunFinished(at=1.25, status="done", output="There are two."),
    ]  # fmt: skip
    info = RunRow(
        run_id="02qmsmh6arr",
        agent="shop",
        model="pocket",
        task="Find a lamp \N{ELECTRIC LIGHT BULB}",
        status="done",
        started_at=started_at,
        ended_at=started_at + timedelta(seconds=1.25),
        heartbeat_at=started_at + timedelta(seconds=1.25),
        host="somewhere",
        pid=4711,
        output="There are two.",
        error=None,
        wall_ms=1250.0,
        summary=ledger(events).summary(),
    )
    return RecordedRun(info, tuple(events))
