"""Guessing during a turn: when probes run, what is handed over, and that nothing escapes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import pytest
import trio
from agent_runtime.speculator.errors import ScriptExhausted
from agent_runtime.speculator.policy import Policy, Speculation
from agent_runtime.speculator.predictors import Guess, NoPredictor, Predictor, ScriptedPredictor, WrongPredictor
from agent_runtime.speculator.self_predictor import SelfPredictor
from agent_runtime.speculator.turn import (
    Guessing,
    Progress,
    guess_at_once,
    guess_later_calls,
    speculate,
    speculate_again,
)
from agent_runtime.tools.values import MalformedCall, Prediction, ToolCall
from agent_runtime.traces.events import Event, ProbeFinished, ProbeStarted
from agent_runtime.traces.messages import AssistantMessage, Message, UserMessage
from trio.testing import MockClock, wait_all_tasks_blocked

from agent_runtime.engines.base import ProbeResult

A, B = ToolCall("a", {"n": 1}), ToolCall("b")
TASK = (UserMessage("hi"),)


class Calls:
    """Records what is handed to the dispatcher."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.predictions: list[Prediction] = []
        self.withdrawn: list[int] = []
        self.without_room: list[ToolCall] = []
        """Calls whose guesses the dispatcher doesn't start."""
        self.suggested: list[ToolCall] = []

    def propose(self, prediction: Prediction) -> int:
        self.predictions.append(prediction)
        self.seen.append(("propose", prediction.call))
        return len(self.seen)

    def is_started(self, prediction: Prediction) -> bool:
        return ("propose", prediction.call) in self.seen and prediction.call not in self.without_room

    def withdraw(self, index: int) -> None:
        self.withdrawn.append(index)

    def refuse(self, prediction: Prediction, reason: str) -> int:
        self.predictions.append(prediction)
        self.seen.append(("refuse", prediction.call, reason))
        return len(self.seen)

    def late(self, prediction: Prediction) -> int:
        self.predictions.append(prediction)
        self.seen.append(("late", prediction.call))
        return len(self.seen)


@pytest.mark.anyio
async def test_a_guess_that_may_not_start_early_is_still_suggested_as_a_draft() -> None:
    made, calls, _ = guessing(ScriptedPredictor([Guess(call=ToolCall("look"), confidence=0.1)]))
    await speculate(made, "before")
    assert calls.seen == [("refuse", ToolCall("look"), "low_confidence")] and calls.suggested == [ToolCall("look")]


@pytest.mark.anyio
async def test_a_guess_after_the_demand_is_no_draft_any_more() -> None:
    made, calls, _ = guessing(ScriptedPredictor([ToolCall("look")]))
    made.progress.demand(ToolCall("look"))
    await speculate(made, "before")
    assert calls.seen == [("late", ToolCall("look"))] and calls.suggested == []


def guessing(predictor: Predictor, *, quick: Any = None, **settings: Any) -> tuple[Guessing, Calls, list[Event]]:
    calls, events = Calls(), list[Event]()
    made = Guessing(
        turn=3,
        messages=TASK,
        predictor=predictor,
        quick=quick,
        policy=Policy(Speculation(**settings)),
        calls=calls,
        suggest=lambda messages, call: calls.suggested.append(call),
        progress=Progress(),
        emit=events.append,
        now=anyio.current_time,
    )
    return made, calls, events


def virtual(function: Callable[[], Awaitable[None]]) -> None:
    trio.run(function, clock=MockClock(autojump_threshold=0))


@pytest.mark.anyio
async def test_a_first_guess_is_proposed_and_told() -> None:
    made, calls, events = guessing(ScriptedPredictor([Guess(call=A, confidence=0.8, tokens=5, co_decoded=True)]))
    await speculate(made, "before")
    assert calls.seen == [("propose", A)]
    started, finished = events
    assert isinstance(started, ProbeStarted) and isinstance(finished, ProbeFinished)
    assert (started.turn, started.probe, started.position, started.placement) == (3, 0, 0, "before")
    assert (finished.call, finished.confidence, finished.tokens, finished.co_decoded) == (A, 0.8, 5, True)
    assert finished.completed and finished.source == "scripted"


@pytest.mark.anyio
async def test_before_asks_once_and_beside_asks_again_while_the_agent_thinks() -> None:
    script = ScriptedPredictor([A, Guess(call=None, confidence=0.3), Guess(call=B, confidence=0.2), B])
    made, calls, events = guessing(script)
    async with anyio.create_task_group() as group:
        group.start_soon(speculate, made, "beside")
        for tokens in (5, 16, 40, 64, 80):
            await anyio.wait_all_tasks_blocked()
            made.progress.advance(tokens, thinking=True)
    assert [position for _, position in script.asked] == [0, 16, 32, 64]
    assert calls.seen == [("propose", A), ("refuse", B, "low_confidence"), ("propose", B)]
    assert [event.probe for event in events if isinstance(event, ProbeStarted)] == [0, 1, 2, 3]
    script.assert_complete()


@pytest.mark.anyio
@pytest.mark.parametrize("end", ["text", "demand"])
async def test_no_further_probe_once_the_thinking_or_the_turn_is_over(end: str) -> None:
    script = ScriptedPredictor([A, B])
    made, calls, _ = guessing(script)
    async with anyio.create_task_group() as group:
        group.start_soon(speculate, made, "beside")
        await anyio.wait_all_tasks_blocked()
        made.progress.advance(9, thinking=True)
        made.progress.advance(20, thinking=False) if end == "text" else made.progress.demand(ToolCall("look"))
    assert len(script.asked) == 1 and calls.seen == [("propose", A)]


@pytest.mark.anyio
async def test_a_guess_before_the_turn_can_be_followed_by_others_beside_it() -> None:
    script = ScriptedPredictor([A, B])
    made, calls, events = guessing(script, reprobe=(4,))
    await speculate(made, "before")
    made.progress.advance(4, thinking=True)
    await speculate_again(made)
    assert calls.seen == [("propose", A), ("propose", B)]
    assert [event.placement for event in events if isinstance(event, ProbeStarted)] == ["before", "beside"]


def test_a_prediction_that_comes_after_the_demand_is_late() -> None:
    async def main() -> None:
        made, calls, events = guessing(ScriptedPredictor([A], delay=2.0))
        async with anyio.create_task_group() as group:
            group.start_soon(speculate, made, "beside")
            await anyio.sleep(1)
            made.progress.demand(ToolCall("look"))
        assert calls.seen == [("late", A)]
        assert isinstance(events[-1], ProbeFinished) and events[-1].probe_ms == pytest.approx(2000)

    virtual(main)


def test_a_cancelled_probe_is_told_as_not_completed_and_proposes_nothing() -> None:
    async def main() -> None:
        made, calls, events = guessing(ScriptedPredictor([A], delay=5.0))
        with anyio.move_on_after(1):
            await speculate(made, "beside")
        assert calls.seen == []
        assert isinstance(events[-1], ProbeFinished) and not events[-1].completed
        assert (events[-1].at, events[-1].call) == (1, None)

    virtual(main)


@pytest.mark.anyio
async def test_a_predictor_that_breaks_ends_guessing_for_the_turn_and_nothing_else(caplog: Any) -> None:
    script = ScriptedPredictor([ValueError("boom"), A])
    made, calls, events = guessing(script)
    made.progress.advance(64, thinking=True)
    with caplog.at_level(logging.WARNING, logger="agent_runtime"):
        await speculate(made, "beside")
    assert len(script.asked) == 1 and calls.seen == []
    assert isinstance(events[-1], ProbeFinished) and not events[-1].completed
    assert "boom" in caplog.text


@pytest.mark.anyio
async def test_no_call_and_an_answer_cut_off_are_no_predictions() -> None:
    cut = Guess(call=None, confidence=0.0, completed=False)
    made, calls, events = guessing(ScriptedPredictor([Guess(call=None, confidence=0.3), cut]), reprobe=(4,))
    made.progress.advance(4, thinking=True)
    await speculate(made, "beside")
    assert calls.seen == []
    assert [event.completed for event in events if isinstance(event, ProbeFinished)] == [True, False]


@pytest.mark.anyio
async def test_the_models_own_predictor_passes_questions_and_answers_through() -> None:
    asked: list[Any] = []

    class Session:
        async def probe(self, messages: Any, *, position: int = 0, max_tokens: int) -> ProbeResult:
            asked.append((messages, position, max_tokens))
            return ProbeResult(call=A, confidence=0.7, tokens=9, bytes_copied=64, co_decoded=True)

    predictor = SelfPredictor(Session(), max_tokens=33)
    guess = await predictor.predict(TASK, position=16)
    assert asked == [(TASK, 16, 33)] and predictor.source == "self"
    assert guess == Guess(call=A, confidence=0.7, tokens=9, bytes_copied=64, co_decoded=True)


@pytest.mark.anyio
async def test_the_predictors_that_need_no_model() -> None:
    assert (await NoPredictor().predict(TASK, position=0)).call is None
    wrong = await WrongPredictor(A).predict(TASK, position=0)
    assert (wrong.call, wrong.confidence) == (A, 1.0)
    assert (await WrongPredictor().predict(TASK, position=0)).call is not None
    scripted = ScriptedPredictor([A])
    with pytest.raises(ScriptExhausted, match="0 of 1"):
        scripted.assert_complete()
    await scripted.predict(TASK, position=0)
    with pytest.raises(ScriptExhausted, match="question 2 has no answer"):
        await scripted.predict(TASK, position=0)


class Quick:
    """Knows what follows what; a value is a call and its chance."""

    source = "quick"

    def __init__(self, **follows: tuple[ToolCall, float]) -> None:
        self.follows = follows
        self.asked: list[tuple[str, ...]] = []

    def guess(self, messages: Sequence[Message], after: Sequence[ToolCall] = ()) -> Guess:
        names = tuple(call.name for call in after)
        self.asked.append(names)
        call, chance = self.follows.get("_".join(names) or "first", (None, 1.0))
        return Guess(call=call, confidence=chance)

    def observe(self, messages: Sequence[Message], message: AssistantMessage) -> None:
        raise NotImplementedError


C = ToolCall("c")


async def lead_through(made: Guessing, *calls: ToolCall | MalformedCall) -> None:
    """Let the message make its calls, one after the other."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(guess_later_calls, made)
        for call in calls:
            await wait_all_tasks_blocked()
            made.progress.demand(call)
        await wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()


def proposed(calls: Calls) -> list[tuple[str, int, float]]:
    return [(one.call.name, one.index, pytest.approx(one.confidence)) for one in calls.predictions]


@pytest.mark.anyio
async def test_what_follows_a_guess_is_guessed_with_the_chance_of_all_of_it() -> None:
    quick = Quick(first=(A, 0.9), a=(B, 0.8), a_b=(C, 0.9))
    made, calls, _ = guessing(NoPredictor(), quick=quick)
    assert guess_at_once(made)
    assert proposed(calls) == [("a", 0, 0.9), ("b", 1, 0.72), ("c", 2, 0.648)]
    assert calls.suggested == [A]


def test_a_chain_that_gets_too_unlikely_is_taken_up_once_its_beginning_has_come_true() -> None:
    async def main() -> None:
        quick = Quick(first=(A, 0.6), a=(B, 0.6))
        made, calls, _ = guessing(NoPredictor(), quick=quick)
        guess_at_once(made)
        assert [kind for kind, *_ in calls.seen] == ["propose", "refuse"]
        assert calls.withdrawn == [2], "what is put aside may still turn out right"
        await lead_through(made, A, B)
        assert [kind for kind, *_ in calls.seen] == ["propose", "refuse", "propose"]
        assert proposed(calls)[2:] == [("b", 1, 0.6)]
        assert calls.suggested == [A, B]
        assert quick.asked == [(), ("a",), ("a",), ("a", "b")]

    virtual(main)


def test_a_chain_grows_as_its_beginning_comes_true() -> None:
    """c is too unlikely while a may not come, and is not once it has, long before b is there."""

    async def main() -> None:
        quick = Quick(first=(A, 0.8), a=(B, 0.8), a_b=(C, 0.75))
        made, calls, _ = guessing(NoPredictor(), quick=quick)
        guess_at_once(made)
        assert [kind for kind, *_ in calls.seen] == ["propose", "propose", "refuse"]
        await lead_through(made, A)
        assert [kind for kind, *_ in calls.seen[3:]] == ["propose"]
        assert proposed(calls)[3:] == [("c", 2, 0.6)]

    virtual(main)


def test_after_another_call_than_the_guessed_one_its_own_followers_are_guessed() -> None:
    async def main() -> None:
        quick = Quick(first=(A, 0.9), a=(B, 0.9), c=(A, 0.9), c_a=(B, 0.9))
        made, calls, _ = guessing(NoPredictor(), quick=quick)
        guess_at_once(made)
        await lead_through(made, C)
        assert proposed(calls) == [("a", 0, 0.9), ("b", 1, 0.81), ("a", 1, 0.9), ("b", 2, 0.81)]
        assert calls.suggested == [A, A]
        assert calls.withdrawn == [2, 3], (
            "what followed from the wrong guess is given up, but for what is guessed again"
        )

    virtual(main)


def test_what_was_guessed_is_not_asked_for_again_when_it_comes_true() -> None:
    async def main() -> None:
        quick = Quick(first=(A, 0.9), a=(B, 0.9))
        made, calls, _ = guessing(NoPredictor(), quick=quick)
        guess_at_once(made)
        await lead_through(made, A, B)
        assert quick.asked == [(), ("a",), ("a", "b")]
        assert len(calls.predictions) == 2
        assert calls.suggested == [A, B]

    virtual(main)


def test_nothing_is_guessed_after_a_malformed_call() -> None:
    async def main() -> None:
        quick = Quick(a=(B, 0.9))
        made, calls, _ = guessing(NoPredictor(), quick=quick)
        await lead_through(made, MalformedCall("{", "no JSON"), A)
        assert (calls.seen, quick.asked) == ([], [])

    virtual(main)


@pytest.mark.anyio
async def test_calls_without_end_are_guessed_up_to_a_bound() -> None:
    class Always(Quick):
        def guess(self, messages: Sequence[Message], after: Sequence[ToolCall] = ()) -> Guess:
            return Guess(call=A, confidence=1.0)

    made, calls, _ = guessing(NoPredictor(), quick=Always())
    guess_at_once(made)
    assert [one.index for one in calls.predictions] == list(range(8))


@pytest.mark.anyio
async def test_a_call_that_the_model_guessed_is_followed_by_what_counting_knows() -> None:
    made, calls, _ = guessing(ScriptedPredictor([Guess(call=A, confidence=0.8)]), quick=Quick(a=(B, 0.9)))
    assert not guess_at_once(made)
    await speculate(made, "before")
    assert [(one.source, one.index) for one in calls.predictions] == [("scripted", 0), ("quick", 1)]


@pytest.mark.anyio
async def test_a_counter_that_breaks_in_the_middle_of_a_turn_is_told_and_ends_nothing(caplog: Any) -> None:
    class Broken(Quick):
        def guess(self, messages: Sequence[Message], after: Sequence[ToolCall] = ()) -> Guess:
            if after:
                raise RuntimeError("miscounted")
            return Guess(call=A, confidence=0.9)

    made, calls, _ = guessing(NoPredictor(), quick=Broken())
    with caplog.at_level(logging.WARNING):
        assert guess_at_once(made)
    assert len(calls.predictions) == 1 and "miscounted" in caplog.text


def test_a_guess_for_which_there_was_no_room_is_tried_again_when_its_turn_comes() -> None:
    async def main() -> None:
        quick = Quick(first=(A, 0.9), a=(B, 0.9), a_b=(C, 0.9))
        made, calls, _ = guessing(NoPredictor(), quick=quick)
        calls.without_room.append(B)
        guess_at_once(made)
        assert proposed(calls) == [("a", 0, 0.9), ("b", 1, 0.81)], "nothing is built on what wasn't started"
        calls.without_room.clear()
        await lead_through(made, A)
        assert proposed(calls)[2:] == [("b", 1, 0.9), ("c", 2, 0.81)]

    virtual(main)


def test_calls_that_are_complete_at_the_same_moment_are_looked_at_once() -> None:
    async def main() -> None:
        quick = Quick(a_b=(C, 0.4))
        made, calls, _ = guessing(NoPredictor(), quick=quick)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(guess_later_calls, made)
            await wait_all_tasks_blocked()
            made.progress.demand(A)
            made.progress.demand(B)
            await wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        assert quick.asked == [("a", "b")]
        assert calls.seen == [("refuse", C, "low_confidence")]

    virtual(main)
