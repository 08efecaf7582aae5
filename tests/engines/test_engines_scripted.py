"""The scripted engine: plays what it is told, at the times it is told."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
import trio
from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.messages import AssistantMessage, UserMessage
from trio.testing import MockClock

from agent_runtime.engines.base import CallClosed, Delta, Generated, PromptReady
from agent_runtime.engines.scripted import Break, Call, Probe, Say, ScriptedEngine, Think, Turn
from agent_runtime.errors import EngineFailed

TASK = (UserMessage("hi"),)
LOOK = ToolCall("look", {"n": 1})


async def play(session: Any, messages: Any = TASK, max_tokens: int = 100) -> list[tuple[float, Any]]:
    start = anyio.current_time()
    async with session.generate(messages, max_tokens=max_tokens) as stream:
        return [(anyio.current_time() - start, event) async for event in stream]


def virtual(function: Any) -> None:
    trio.run(function, clock=MockClock(autojump_threshold=0))


@pytest.mark.anyio
async def test_a_turn_is_played_item_by_item() -> None:
    engine = ScriptedEngine([[Think("let me see"), "Looking.", LOOK], "Done now."])
    session = await engine.open(())
    events = [event for _, event in await play(session)]
    message = AssistantMessage("Looking.", "let me see", (LOOK,))
    assert isinstance(events[0], PromptReady) and events[-1].message == message
    assert [event.text for event in events if isinstance(event, Delta)] == ["let", " me", " see", "Looking."]
    assert [event.call for event in events if isinstance(event, CallClosed)] == [LOOK]
    assert (events[-1].finish_reason, events[-1].completion_tokens, events[-1].thinking_tokens) == ("calls", 12, 3)
    with pytest.raises(AssertionError, match="1 of 2 turns"):
        engine.assert_complete()
    assert (await play(session, (*TASK, message)))[-1][1].message == AssistantMessage("Done now.")
    engine.assert_complete()
    assert engine.conversations == [TASK, (*TASK, message)]
    with pytest.raises(EngineFailed, match="asked for one more"):
        await play(session)
    assert session.statistics().turns == 2


def test_delays_follow_the_clock_of_the_event_loop() -> None:
    async def main() -> None:
        engine = ScriptedEngine([Turn(items=(Think("a b", 0.5), Say("c"), Call(LOOK, 2.0)), prefill=1.0)], delays=0.25)
        times = [at for at, event in await play(await engine.open(())) if not isinstance(event, Generated)]
        assert times == pytest.approx([1.0, 1.5, 2.0, 2.25, 4.25])

    virtual(main)


def test_probes_answer_beside_and_before_the_turn() -> None:
    async def main() -> None:
        turn = Turn(items=(Think("a b c", 1.0), LOOK), probes=(Probe(LOOK, 0.9, 0.5), Probe(None, 0.4)))
        session = await (engine := ScriptedEngine([turn, Turn(probes=(Probe(error=ValueError("x")),))])).open(())
        first = await session.probe(TASK, max_tokens=9)
        assert (first.call, first.confidence, anyio.current_time()) == (LOOK, 0.9, 0.5)
        await play(session)
        assert (await session.probe(TASK, position=2, max_tokens=9)).confidence == 0.4
        assert (await session.probe(TASK, position=3, max_tokens=9)).call is None  # beyond the script
        with pytest.raises(ValueError, match="x"):
            await session.probe((*TASK, UserMessage("more")), max_tokens=9)
        assert [position for _, position in engine.probed] == [0, 2, 3, 0]

    virtual(main)


@pytest.mark.anyio
async def test_a_stream_can_break_and_a_message_can_be_cut_off() -> None:
    session = await ScriptedEngine([["a b", Break(OSError("gone"))], "one two three"]).open(())
    with pytest.raises(OSError, match="gone"):
        await play(session)
    last = (await play(session, max_tokens=2))[-1][1]
    assert (last.message.text, last.finish_reason) == ("one two", "length")
