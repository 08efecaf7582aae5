"""The counter predictor on turns of several calls: each later call is guessed to follow those before it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from agent_runtime.speculator.counter import CounterPredictor
from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.messages import AssistantMessage, Message, ToolMessage, UserMessage


def pairs(predictor: CounterPredictor) -> CounterPredictor:
    """Teach an agent that looks up all orders the user names in one message, and the policy where money is meant."""
    for number in range(36):
        orders = [f"O-{number}{place}7" for place in range(1 + number % 3)]
        calls = [ToolCall("get_order", {"order": order}) for order in orders]
        request = f"Where is {' and '.join(orders)}?"
        if number % 2:
            calls.append(ToolCall("get_policy", {"topic": "refund"}))
            request = f"Money back for {' and '.join(orders)}!"
        predictor.observe([UserMessage(request)], AssistantMessage(calls=tuple(calls)))
        predictor.observe(
            [UserMessage(request), AssistantMessage(calls=tuple(calls)), ToolMessage("get_order", "{}")],
            AssistantMessage("It is on its way."),
        )
    return predictor


def after(predictor: CounterPredictor, request: str) -> list[ToolCall]:
    """Return the calls that are guessed for one turn, each to follow those before it."""
    calls: list[ToolCall] = []
    while len(calls) < 6 and (call := predictor.guess([UserMessage(request)], calls).call) is not None:
        calls.append(call)
    return calls


def test_the_later_calls_of_a_turn_are_guessed_and_so_is_its_end() -> None:
    predictor = pairs(CounterPredictor())
    first, second = (ToolCall("get_order", {"order": order}) for order in ("O-777", "O-888"))
    assert after(predictor, "Where is O-777 and O-888?") == [first, second]
    assert after(predictor, "Money back for O-777 and O-888!")[:2] == [first, second]
    assert ToolCall("get_policy", {"topic": "refund"}) in after(predictor, "Money back for O-777!")


def test_what_a_turn_has_called_so_far_decides_and_not_what_was_guessed() -> None:
    predictor = pairs(CounterPredictor(threshold=0.0))
    messages = [UserMessage("Where is O-777 and O-888?")]
    made = [ToolCall("get_order", {"order": "O-888"})]
    assert predictor.guess(messages, made).call == ToolCall("get_order", {"order": "O-777"})


def test_before_any_turn_was_seen_no_later_call_is_guessed() -> None:
    guess = CounterPredictor(threshold=0.0).guess([UserMessage("Hello")], [ToolCall("get_order", {"order": "O-1"})])
    assert guess.call is None


def test_guessing_later_calls_leaves_the_conversation_as_it_was() -> None:
    asked, spared = pairs(CounterPredictor(threshold=0.0)), pairs(CounterPredictor(threshold=0.0))
    messages: list[Message] = [UserMessage("Where is O-777 and O-888?")]
    for _ in range(3):
        asked.guess(messages, [ToolCall("get_order", {"order": "O-777"}), ToolCall("new", {"order": [1], "x": None})])
    assert asked.guess(messages) == spared.guess(messages)
    assert asked.to_json() == spared.to_json()


def test_guesses_are_the_same_in_every_process() -> None:
    """Words are a set, whose order differs from process to process."""
    script = (
        "from tests_counter import pairs, CounterPredictor; import hashlib, json;"
        "print(hashlib.sha256(json.dumps(pairs(CounterPredictor()).to_json()).encode()).hexdigest())"
    )
    path = Path(__file__)
    code = f"import importlib.util, sys; spec = importlib.util.spec_from_file_location('tests_counter', {str(path)!r});"
    code += "module = importlib.util.module_from_spec(spec); sys.modules['tests_counter'] = module;"
    code += f"spec.loader.exec_module(module); exec({script!r})"
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2, 3)
    }
    assert len(told) == 1
