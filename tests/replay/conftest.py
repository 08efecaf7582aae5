"""What the tests of the replay share: small recordings, and predictors whose answers are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from agent_runtime.speculator.predictors import Guess
from agent_runtime.tools import Catalogue
from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.messages import AssistantMessage, SystemMessage, UserMessage
from agent_runtime.traces.trajectory import RecordedResult, RecordedTool, RecordedTurn, Trajectory

from agent_runtime.replay.forced import Answer, Answers, ForcedTurn

CATALOGUE = Catalogue({"find": {"effect": "read"}, "look": {"effect": "read"}, "buy": {"effect": "write"}})


def recorded_turn(
    *calls: ToolCall,
    user: str | None = None,
    text: str = "",
    thinking: str = "",
    results: Sequence[str | RecordedResult | None] = (),
    latency_s: float | None = None,
    generation_s: float | None = None,
) -> RecordedTurn:
    """Return a turn whose calls each gave `results` (texts take `latency_s`)."""
    given = [*results, *[""] * (len(calls) - len(results))]
    made = tuple(
        RecordedResult(content=result, latency_s=latency_s) if isinstance(result, str) else result for result in given
    )
    return RecordedTurn(
        before=() if user is None else (UserMessage(user),),
        message=AssistantMessage(text=text, thinking=thinking, calls=tuple(calls)),
        results=made,
        generation_s=generation_s,
    )


def recorded(
    *turns: RecordedTurn, id: str = "t", group: str | None = None, tools: Sequence[RecordedTool] = ()
) -> Trajectory:
    """Return a trajectory of those turns."""
    return Trajectory(id=id, format="test", group=group, turns=tuple(turns), tools=tuple(tools))


def find(query: Any) -> ToolCall:
    """Return a call of the read tool `find`."""
    return ToolCall("find", {"query": query})


class Known:
    """A forced predictor whose answers are given by turn; a call stands for a sure answer at the turn's start."""

    def __init__(
        self, answers: Mapping[int, ToolCall | Answers | None], *, source: str = "known", confidence: float = 1.0
    ) -> None:
        self.source = source
        self.revealed: list[int] = []
        self.closed = False
        self._answers = answers
        self._confidence = confidence

    async def begin(self, trajectory: Trajectory, toolset: object) -> None:
        pass

    async def answer(self, turn: ForcedTurn) -> Answers:
        assert turn.number not in self.revealed
        answer = self._answers.get(turn.number)
        if isinstance(answer, tuple):
            return answer
        return (Answer(guess=Guess(call=answer, confidence=self._confidence)),)

    async def reveal(self, turn: ForcedTurn) -> None:
        self.revealed.append(turn.number)

    async def aclose(self) -> None:
        self.closed = True


def shopping() -> Trajectory:
    """Return a trajectory with two exchanges: find, look, an answer; then buy and an answer."""
    return recorded(
        recorded_turn(
            find("red shoes"), user="I want red shoes.", results=["item 17"], latency_s=0.4, generation_s=1.0
        ),
        recorded_turn(ToolCall("look", {"item": 17}), results=["in stock"], latency_s=2.0, generation_s=1.0),
        recorded_turn(text="There is item 17.", generation_s=1.0),
        recorded_turn(ToolCall("buy", {"item": 17}), user="Buy it.", results=["done"], latency_s=0.5, generation_s=1.0),
        recorded_turn(text="Bought.", generation_s=1.0),
    )


@pytest.fixture
def shared_data() -> Path:
    folder = Path(__file__).parents[3] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the shared recordings are not there")
    return folder


@pytest.fixture
def make() -> Any:
    """The makers above by name, since test modules can't import this file."""

    class Makers:
        turn = staticmethod(recorded_turn)
        trajectory = staticmethod(recorded)
        find = staticmethod(find)
        shopping: Callable[[], Trajectory] = staticmethod(shopping)
        catalogue = CATALOGUE
        known = Known
        system = SystemMessage

    return Makers


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param
