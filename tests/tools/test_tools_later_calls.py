"""Guesses of a turn's later calls: each serves the call it is of, and none the one behind a barrier."""

from __future__ import annotations

import anyio
import pytest
from agent_runtime.tools import (
    CallFinished,
    Gate,
    GuessEnded,
    GuessLimits,
    GuessStarted,
    MalformedCall,
    Prediction,
    ToolCall,
    tool,
)


@pytest.fixture
def desk():
    """A read, a sequential read and a write of the same thing, and what was really called."""
    called = []

    @tool(effect="read", reads=["desk"])
    async def look(at: str) -> str:
        """Look."""
        called.append(("look", at))
        await anyio.sleep(10)
        return at

    @tool(effect="read", sequential=True)
    async def count() -> int:
        """Count."""
        called.append(("count", ""))
        await anyio.sleep(10)
        return len(called)

    @tool(writes=["desk"])
    async def move(what: str) -> str:
        """Move."""
        called.append(("move", what))
        await anyio.sleep(10)
        return what

    return [look, count, move], called


@pytest.fixture
def play(virtual, make_rig, desk):
    """Play one turn under a virtual clock and return the dispatcher with what it told; the turn is left as it is."""

    def played(script, tools=desk[0], **options):
        rig = make_rig(tools, **options)

        async def main():
            async with rig.running():
                await script(rig.turn())

        virtual(main)
        return rig

    return played


def look(at: str) -> ToolCall:
    return ToolCall("look", {"at": at})


def guess(call: ToolCall, index: int, confidence: float = 0.9) -> Prediction:
    return Prediction(call, confidence, "scripted", index)


def test_each_guess_serves_the_call_it_is_of(play, desk):
    _, called = desk

    async def script(turn):
        turn.propose(guess(look("a"), 0))
        turn.propose(guess(look("b"), 1))
        await anyio.sleep(5)
        turn.demand(look("a"))
        await anyio.sleep(7)
        turn.demand(look("b"))
        assert [outcome.content for outcome in await turn.commit()] == ["a", "b"]

    rig = play(script)
    assert max(event.at for event in rig.of(CallFinished)) == pytest.approx(12)
    assert rig.endings == [("joined", None), ("adopted", None)]
    assert [event.guess for event in rig.of(CallFinished)] == [0, 1]
    assert sorted(called) == [("look", "a"), ("look", "b")]


def test_a_miss_of_the_first_call_leaves_the_guess_of_the_second(play):
    async def script(turn):
        turn.propose(guess(look("x"), 0))
        turn.propose(guess(look("b"), 1))
        await anyio.sleep(11)
        turn.demand(look("a"))
        turn.demand(look("b"))
        await turn.commit()

    rig = play(script)
    assert rig.endings == [("discarded", "miss"), ("adopted", None)]
    assert [event.matched for event in rig.of(GuessEnded)] == [False, True]


def test_a_guess_serves_no_other_call_than_its_own_even_if_equal(play, desk):
    _, called = desk

    async def script(turn):
        turn.propose(guess(look("a"), 1))
        await anyio.sleep(11)
        turn.demand(look("a"))
        await turn.commit()

    rig = play(script)
    assert rig.endings == [("discarded", "no_call")]
    assert called == [("look", "a"), ("look", "a")]


def test_of_each_call_the_latest_proposal_stands_until_that_call_is_demanded(play):
    async def script(turn):
        turn.propose(guess(look("b"), 1))
        turn.propose(guess(look("b"), 1))
        turn.propose(guess(look("c"), 1))
        turn.demand(look("a"))
        turn.propose(guess(look("a"), 0))
        turn.propose(guess(look("d"), 1))
        turn.demand(look("d"))
        turn.propose(guess(look("d"), 1))
        await turn.commit()

    rig = play(script)
    assert rig.endings == [
        ("refused", "same_as_standing"),
        ("cancelled", "superseded"),
        ("late", None),
        ("cancelled", "superseded"),
        ("late", None),
        ("joined", None),
    ]


@pytest.mark.parametrize("barrier", [ToolCall("move", {"what": "x"}), ToolCall("count")])
def test_no_guess_serves_a_call_behind_a_barrier(play, desk, barrier):
    """What it read may be older than the barrier, and a sequential tool wants nothing beside it."""
    _, called = desk

    async def script(turn):
        turn.propose(guess(look("b"), 1))
        await anyio.sleep(11)
        turn.demand(barrier)
        turn.propose(guess(look("b"), 1))
        turn.demand(look("b"))
        await turn.commit()

    rig = play(script)
    assert rig.endings == [("cancelled", "barrier"), ("refused", "barrier")]
    assert called == [("look", "b"), (barrier.name, barrier.arguments.get("what", "")), ("look", "b")]


def test_a_guess_of_a_barrier_stops_guesses_behind_it(play):
    async def script(turn):
        turn.propose(guess(ToolCall("move", {"what": "x"}), 0))
        turn.propose(guess(look("b"), 1))
        await anyio.sleep(11)
        turn.demand(look("a"))
        turn.demand(look("b"))
        await turn.commit()

    rig = play(script)
    assert rig.endings == [("refused", "barrier"), ("refused", "effect")]
    assert rig.of(GuessStarted) == []


def test_an_idempotent_write_is_not_started_before_the_reads_ahead_of_it(play):
    """Opted in, it may start early as a turn's first call; behind others it would change what they read."""
    state = ["old"]

    @tool(effect="read")
    async def get() -> str:
        """Get."""
        return state[0]

    @tool(effect="idempotent")
    async def put(value: str) -> str:
        """Put."""
        state[0] = value
        return "done"

    async def script(turn):
        turn.propose(guess(ToolCall("get"), 0))
        turn.propose(guess(ToolCall("put", {"value": "new"}), 1))
        await anyio.sleep(1)
        turn.demand(ToolCall("get"))
        turn.demand(ToolCall("put", {"value": "new"}))
        assert [outcome.content for outcome in await turn.commit()] == ["old", "done"]

    rig = play(script, [get, put], gate=Gate(allow_idempotent=True))
    assert rig.endings == [("refused", "barrier"), ("adopted", None)]


def test_guesses_of_later_calls_leave_a_place_for_another_of_the_first(play):
    async def script(turn):
        for index, at in enumerate("abc"):
            turn.propose(guess(look(at), index))
        assert [turn.is_started(guess(look(at), index)) for index, at in enumerate("abc")] == [True, True, False]
        await anyio.sleep(1)
        turn.propose(guess(look("d"), 0))
        assert turn.is_started(guess(look("d"), 0)) and not turn.is_started(guess(look("a"), 0))
        await anyio.sleep(1)
        turn.demand(look("d"))
        turn.propose(guess(look("e"), 2))
        assert turn.is_started(guess(look("e"), 2)), "the first call needs no place any more"
        turn.demand(look("b"))
        turn.demand(look("e"))
        await turn.commit()

    rig = play(script, limits=GuessLimits(in_flight=3))
    assert rig.endings == [
        ("cancelled", "superseded"),
        ("refused", "in_flight_budget"),
        *[("joined", None)] * 3,
    ]


def test_guesses_that_follow_from_a_wrong_one_can_be_withdrawn(play):
    async def script(turn):
        for index, at in enumerate("abc"):
            turn.propose(guess(look(at), index))
        await anyio.sleep(1)
        turn.demand(look("a"))
        turn.withdraw(2)
        turn.demand(look("b"))
        await turn.commit()

    rig = play(script)
    assert rig.endings == [("cancelled", "withdrawn"), ("joined", None), ("joined", None)]


def test_a_guess_before_a_write_of_the_turn_is_served(play):
    async def script(turn):
        turn.propose(guess(look("a"), 0))
        turn.propose(guess(look("b"), 1))
        await anyio.sleep(11)
        for call in (look("a"), look("b"), ToolCall("move", {"what": "x"})):
            turn.demand(call)
        await turn.commit()

    rig = play(script)
    assert rig.endings == [("adopted", None), ("adopted", None)]


@pytest.mark.parametrize("end", ["commit", "abandon", "close"])
def test_every_guess_that_was_not_asked_for_ends_with_the_turn(play, end):
    async def script(turn):
        for index, at in enumerate("abc"):
            turn.propose(guess(look(at), index))
        await anyio.sleep(1)
        turn.demand(MalformedCall("{", "no JSON"))
        if end == "commit":
            await turn.commit()
        elif end == "abandon":
            turn.abandon()

    rig = play(script)
    ending = {
        "commit": ("discarded", "no_call"),
        "abandon": ("cancelled", "abandoned"),
        "close": ("cancelled", "closed"),
    }[end]
    assert rig.endings == [("discarded", "miss"), ending, ending]
    assert rig.dispatcher.statistics().in_flight == 0
