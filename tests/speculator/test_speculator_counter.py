from __future__ import annotations

import json

import pytest
from agent_runtime.speculator.counter import CounterPredictor
from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.messages import AssistantMessage, ToolMessage, UserMessage
from agent_runtime.traces.trajectory import RecordedResult, RecordedTurn, Trajectory


def support_case(number: int, orders: list[str]) -> Trajectory:
    """A user names an id, the agent looks the customer up and walks through the orders."""
    calls = [ToolCall("find_customer", {"customer": f"c_{number}"})]
    results = [json.dumps({"orders": orders})]
    for order in orders:
        calls.append(ToolCall("get_order", {"order": order}))
        results.append(json.dumps({"status": "sent"}))
    turns = [
        RecordedTurn(
            before=(UserMessage(f"I am c_{number}, where are my orders?"),) if index == 0 else (),
            message=AssistantMessage(calls=(call,)),
            results=(RecordedResult(content=result),),
        )
        for index, (call, result) in enumerate(zip(calls, results, strict=True))
    ]
    turns.append(RecordedTurn(message=AssistantMessage("All sent.")))
    return Trajectory(id=str(number), format="test", group=str(number), turns=tuple(turns))


@pytest.fixture
def learned() -> CounterPredictor:
    predictor = CounterPredictor(threshold=0.0)
    for number in range(1, 7):
        predictor.learn(support_case(number, [f"O-{number}{index}7" for index in range(2 + number % 2)]))
    return predictor


def test_an_id_in_the_users_text_is_recognised_by_its_shape(learned: CounterPredictor) -> None:
    guess = learned.guess([UserMessage("Hello, c_98 here, where are my orders?")])
    assert guess.call == ToolCall("find_customer", {"customer": "c_98"})


def test_a_list_is_walked_through_its_unused_values(learned: CounterPredictor) -> None:
    messages = [
        UserMessage("I am c_98, where are my orders?"),
        AssistantMessage(calls=(ToolCall("find_customer", {"customer": "c_98"}),)),
        ToolMessage("find_customer", json.dumps({"orders": ["O-5", "O-3", "O-4"]})),
    ]
    for order in ("O-5", "O-3"):
        call = ToolCall("get_order", {"order": order})
        assert learned.guess(messages).call == call
        messages += [AssistantMessage(calls=(call,)), ToolMessage("get_order", '{"status": "sent"}')]
    assert learned.guess(messages).call == ToolCall("get_order", {"order": "O-4"})


def test_without_knowledge_it_abstains() -> None:
    assert CounterPredictor(threshold=0.0).guess([UserMessage("Hello")]).call is None
