"""The model in speculator mode over recordings: a probe of recorded thinking is a probe of a running generation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.messages import AssistantMessage, SystemMessage, UserMessage
from agent_runtime.traces.trajectory import RecordedTool, Trajectory

from agent_runtime.engines.base import Generated, ToolSchema
from agent_runtime.engines.local import LocalEngine
from agent_runtime.engines.scripted import Probe, ScriptedEngine, Turn
from agent_runtime.engines.teacher_forcing import TeacherForcing
from agent_runtime.replay.replaying import replay
from agent_runtime.replay.self_probe import ForcedSelf
from agent_runtime.replay.timing import Timing

TOOLS = tuple(
    ToolSchema(
        name=name,
        description="",
        parameters={"type": "object", "properties": {key: {"type": "string"}}, "required": [key]},
    )
    for name, key in (("find_customer", "email"), ("get_order", "order_id"))
)


@pytest.fixture(scope="module")
def pocket() -> Path:
    from agent_runtime.demo.agent import POCKET

    if not (POCKET / "model.safetensors").exists():
        pytest.skip("the demo's weights are not there: make pocket")
    return POCKET


def opening() -> list[Any]:
    from agent_runtime.demo.shop.instructions import INSTRUCTIONS

    return [SystemMessage(INSTRUCTIONS), UserMessage("My email is marta.haas@example.org. Where is my newest order?")]


def test_probing_recorded_thinking_gives_what_probing_the_generation_itself_gives(pocket):
    async def main() -> None:
        engine = LocalEngine(pocket, device="cpu", threads=1)
        session = await engine.open(TOOLS)
        messages = opening()
        async with session.generate(messages, max_tokens=64) as stream:
            async for event in stream:
                if isinstance(event, Generated):
                    message = event.message
        assert message.calls or message.thinking
        live = [await session.probe(messages, position=position, max_tokens=64) for position in (0, 3)]
        forcing = TeacherForcing(session)
        if message.thinking:
            written = forcing.thinking_ids(message)
        else:  # any text serves: the comparison is of tokens
            written = session._turn.row.tokens_so_far
        forced = [await forcing.probe(messages, written[:position], max_tokens=64) for position in (0, 3)]
        assert [answer.call for answer in forced] == [answer.call for answer in live]
        assert [answer.confidence for answer in forced] == pytest.approx(
            [answer.confidence for answer in live], rel=1e-3
        )
        await session.aclose()
        await engine.aclose()

    anyio.run(main)


def test_thinking_is_written_with_the_mark_that_the_model_would_have_written(pocket):
    async def main() -> None:
        engine = LocalEngine(pocket, device="cpu", threads=1)
        session = await engine.open(TOOLS)
        forcing = TeacherForcing(session)
        decode = session._model.decode
        assert decode(forcing.thinking_ids(AssistantMessage(thinking="two lamps"))) == "<think>\ntwo lamps"
        assert decode(forcing.thinking_ids(AssistantMessage(text="Let me see."))) == "Let me see."
        assert forcing.thinking_ids(AssistantMessage()) == ()
        await engine.aclose()

    anyio.run(main)


def test_a_model_is_asked_at_every_share_of_the_thinking_and_once_where_there_is_none(pocket, make):
    thinking = "the customer comes first, by the email that was given."
    email = "marta.haas@example.org"
    turns = [
        make.turn(ToolCall("find_customer", {"email": email}), user=opening()[1].content, thinking=thinking),
        make.turn(ToolCall("get_order", {"order_id": "O-1"}), results=["{}"]),
    ]
    tools = [RecordedTool(name=tool.name, parameters=tool.parameters) for tool in TOOLS]
    trajectory = Trajectory(id="t", format="test", turns=tuple(turns), tools=tuple(tools))
    asked: list[int] = []

    async def main() -> dict[str, Any]:
        engine = LocalEngine(pocket, device="cpu", threads=1)
        forced = ForcedSelf(pocket, engine=engine)
        try:
            done = await replay([trajectory], [forced])
        finally:
            await forced.aclose()
        asked.extend(len(turn.answers["self"]) for turn in done.answered[0])
        assert engine.statistics() is not None  # an engine that was handed in stays open
        await engine.aclose()
        return done.to_json(timing=Timing(), model=forced.name)

    report = anyio.run(main)
    assert report["model"] == "pocket"
    assert asked == [5, 5]
    assert list(report["by_position"]) == ["0.00", "0.25", "0.50", "0.75", "1.00"]
    assert report["by_position"]["0.00"]["boundaries"] == 2
    assert report["hit_at_1"]["exact"] == report["by_position"]["0.00"]["exact"]
    assert report["guess_ms"]["count"] == 5 + 1


def test_a_model_that_is_not_local_is_asked_at_the_turns_start(make):
    call = ToolCall("find", {"query": "a"})
    engine = ScriptedEngine([Turn(probes=(Probe(call, confidence=0.7),))])
    trajectory = make.trajectory(make.turn(call, user="?", thinking="hm"))

    async def main() -> Any:
        return await replay([trajectory], [ForcedSelf(engine=engine)])

    done = anyio.run(main)
    (answer,) = done.answered[0][0].answers["self"]
    assert (answer.position, answer.guess.confidence) == (0.0, 0.7)
    assert done.scores["self"].all.hit_at_1 == 1.0
    assert [tool.name for tool in engine.tools[0]] == ["find"]
