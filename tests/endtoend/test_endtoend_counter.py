"""An agent that guesses by counting what it did in earlier runs, alone or before its model is asked."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest
from agent_runtime.speculator.counter import CounterPredictor
from agent_runtime.speculator.errors import SpeculationInvalid
from agent_runtime.tools import ToolCall, tool
from agent_runtime.tools.values import GuessEnded, GuessProposed, GuessStarted
from agent_runtime.traces.events import ProbeStarted
from agent_runtime.traces.messages import ToolMessage

from agent_runtime import RunResult, Speculation
from agent_runtime.engines.scripted import Call, Probe, Think, Turn


def task(key: str, *, probe: ToolCall | None = None) -> list[Turn]:
    """The model's part of one run: a second of thought, the call for what the user named, and an answer."""
    call = ToolCall("lookup", {"key": key})
    probes = () if probe is None else (Probe(probe, delay=0.2), Probe(None))
    return [Turn(items=(Think("hm", delay=1.0), Call(call)), probes=probes), Turn(items=(f"{key} is there.",))]


async def runs(agent: Any, *keys: str) -> list[RunResult]:
    return [await agent.run(f"What is {key}?") for key in keys]


def proposed(result: RunResult) -> list[tuple[str, str]]:
    return [(event.source, event.call.arguments["key"]) for event in result.events if isinstance(event, GuessProposed)]


def endings(result: RunResult) -> list[str]:
    return [event.ending for event in result.events if isinstance(event, GuessEnded)]


def probes(result: RunResult) -> int:
    return sum(isinstance(event, ProbeStarted) for event in result.events)


KEYS = [f"K-{number}{number}" for number in range(12)]


def test_what_earlier_runs_did_is_guessed_at_once_and_without_the_model(virtual, lookup, scripted):
    tool, asked = lookup(0.8)
    turns = [turn for key in KEYS for turn in task(key)]
    agent = scripted(*turns, tools=[tool], speculation=Speculation(predictor="counter"))
    results = virtual(lambda: runs(agent, *KEYS))
    assert proposed(results[0]) == []
    assert proposed(results[-1]) == [("counter", KEYS[-1])]
    assert endings(results[-1]) == ["adopted"]
    assert results[-1].wall_ms == pytest.approx(1000)  # the tool's 800 ms lie within the thought
    assert results[0].wall_ms == pytest.approx(1800)
    assert asked == KEYS
    assert sum(map(probes, results)) == 0


def test_the_model_is_asked_only_where_counting_is_not_sure(virtual, lookup, scripted):
    tool, _ = lookup(0.8)
    turns = [turn for key in KEYS for turn in task(key, probe=ToolCall("lookup", {"key": key}))]
    both = Speculation(predictor="both", placement="beside", reprobe=())
    agent = scripted(*turns, tools=[tool], speculation=both)
    results = virtual(lambda: runs(agent, *KEYS))
    assert proposed(results[0]) == [("self", KEYS[0])]
    assert proposed(results[-1]) == [("counter", KEYS[-1])]
    assert probes(results[0]) == 2
    assert probes(results[-1]) < 2


def test_the_second_call_of_a_turn_is_guessed_and_started_as_well(virtual, lookup, scripted):
    """Both calls take 0.8 s and stand in the message after 1 s and 1.5 s."""

    def both(key: str) -> list[Turn]:
        first, second = (ToolCall("lookup", {"key": f"{key}-{place}"}) for place in (1, 2))
        items = (Think("hm", delay=1.0), Call(first), Think("and", delay=0.5), Call(second))
        return [Turn(items=items), Turn(items=("Both are there.",))]

    async def all_runs() -> list[RunResult]:
        return [await agent.run(f"What is {key}-1, and what is {key}-2?") for key in keys]

    keys = [f"K-{number}{number}" for number in range(12)]
    tool, asked = lookup(0.8)
    turns = [turn for key in keys for turn in both(key)]
    agent = scripted(*turns, tools=[tool], speculation=Speculation(predictor="counter"))
    results = virtual(all_runs)
    assert results[0].wall_ms == pytest.approx(2300)
    assert results[-1].wall_ms == pytest.approx(1500)
    indexes = [event.index for event in results[-1].events if isinstance(event, GuessProposed)]
    assert indexes == [0, 1] and endings(results[-1]) == ["adopted", "adopted"]
    assert results[-1].ledger.saved_ms == pytest.approx(800)
    assert len(asked) == 2 * len(keys)
    assert [message.content for message in results[-1].messages if isinstance(message, ToolMessage)] == [
        f"value of {keys[-1]}-1",
        f"value of {keys[-1]}-2",
    ]


def test_a_read_behind_a_write_of_the_same_message_is_never_started_early(virtual, scripted):
    """However often the agent has made just these calls: what it reads must be what the write left."""
    notes: list[str] = []

    @tool(effect="write")
    async def note(text: str) -> str:
        """Write a note down."""
        notes.append(text)
        await anyio.sleep(0.5)
        return "noted"

    @tool(effect="read")
    async def read_notes() -> str:
        """Read all notes."""
        await anyio.sleep(0.5)
        return " ".join(notes)

    async def all_runs() -> list[RunResult]:
        return [await agent.run(f"Note {key}.") for key in KEYS]

    turns = []
    for key in KEYS:
        items = (Call(ToolCall("note", {"text": key})), Think("hm", delay=1.0), Call(ToolCall("read_notes")))
        turns += [Turn(items=items), Turn(items=("Done.",))]
    agent = scripted(*turns, tools=[note, read_notes], speculation=Speculation(predictor="counter"))
    results = virtual(all_runs)
    assert notes == KEYS
    for number, result in enumerate(results):
        told = [message.content for message in result.messages if isinstance(message, ToolMessage)]
        assert told == ["noted", " ".join(KEYS[: number + 1])]
        assert not any(isinstance(event, GuessStarted) for event in result.events)
    refused = [event.reason for event in results[-1].events if isinstance(event, GuessEnded)]
    assert "barrier" in refused


def test_other_settings_begin_to_count_anew_and_the_same_go_on(virtual, lookup, scripted):
    tool, _ = lookup(0.8)
    turns = [turn for key in [*KEYS, "K-3", "K-4"] for turn in task(key)]
    agent = scripted(*turns, tools=[tool], speculation=Speculation(predictor="counter"))

    async def all_runs() -> list[RunResult]:
        await runs(agent, *KEYS)
        (kept,) = await runs(agent.replace(traces=False), "K-3")
        (fresh,) = await runs(agent.replace(speculation=Speculation(predictor="counter")), "K-4")
        return [kept, fresh]

    kept, fresh = virtual(all_runs)
    assert proposed(kept) == [("counter", "K-3")]
    assert proposed(fresh) == []


@pytest.mark.parametrize("method", ["guess", "observe"])
def test_a_counter_that_breaks_ends_no_run(virtual, lookup, scripted, monkeypatch, caplog, method: str):
    def broken(*_: Any) -> Any:
        raise RuntimeError("miscounted")

    monkeypatch.setattr(CounterPredictor, method, broken)
    tool, _ = lookup(0.1)
    agent = scripted(*task("a"), tools=[tool], speculation=Speculation(predictor="counter"))
    with caplog.at_level(logging.WARNING):
        (result,) = virtual(lambda: runs(agent, "a"))
    assert (result.status, result.output) == ("done", "a is there.")
    assert "miscounted" in caplog.text


def test_a_predictor_that_does_not_exist_is_named():
    with pytest.raises(SpeculationInvalid, match="'self', 'counter', 'both' or a predictor"):
        Speculation(predictor="oracle")  # type: ignore[arg-type]
