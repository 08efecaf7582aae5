"""Traps that others fell into, one test each."""

import anyio
import pytest
from agent_runtime.tools import CallFinished, CallStarted, GuessEnded, GuessStarted, MalformedCall, tool


@pytest.fixture
def ledger():
    """A backend whose entries show what really happened, with a read and a write of it."""
    entries = []

    @tool(effect="read", reads=["ledger"])
    async def show(key: int = 0) -> str:
        """Show the ledger."""
        await anyio.sleep(1)
        return ",".join(entries)

    @tool(writes=["ledger"])
    async def enter(text: str) -> str:
        """Enter a line."""
        entries.append(text)
        await anyio.sleep(1)
        return "entered"

    return entries, [show, enter]


def test_a_retried_stream_that_announces_the_same_write_again_runs_it_once(virtual, make_rig, ledger, call):
    entries, tools = ledger

    async def main():
        async with make_rig(tools).running() as rig:
            broken = rig.turn(0)
            broken.demand(call("enter", text="a"))
            await anyio.sleep(10)
            broken.abandon()
            again = rig.turn(0)
            again.demand(call("enter", text="a"))
            await again.commit()
        assert entries == ["a"]
        assert len(rig.of(CallStarted)) == 1

    virtual(main)


def test_a_stale_read_is_not_adopted_after_a_write_of_the_same_response(virtual, make_rig, ledger, guess, call):
    _, tools = ledger

    async def main():
        async with make_rig(tools).running() as rig:
            turn = rig.turn()
            turn.propose(guess("show"))
            await anyio.sleep(5)
            turn.demand(call("enter", text="a"))
            turn.demand(call("show"))
            outcomes = await turn.commit()
        assert outcomes[1].content == "a", "the read sees the write before it"
        assert rig.endings == [("discarded", "miss")]

    virtual(main)


def test_a_read_adopted_before_a_write_leaves_the_read_after_it_to_run(virtual, make_rig, ledger, guess, call):
    _, tools = ledger

    async def main():
        async with make_rig(tools).running() as rig:
            turn = rig.turn()
            turn.propose(guess("show"))
            await anyio.sleep(5)
            turn.demand(call("show"))
            turn.demand(call("enter", text="a"))
            turn.demand(call("show"))
            outcomes = await turn.commit()
        assert [outcome.content for outcome in outcomes] == ["", "entered", "a"]
        assert rig.endings == [("adopted", None)]
        assert [event.guess for event in rig.of(CallFinished)] == [0, None, None]

    virtual(main)


def test_every_call_that_was_started_is_in_the_results(virtual, make_rig, ledger, call):
    _, tools = ledger

    async def main():
        async with make_rig(tools).running() as rig:
            turn = rig.turn()
            for key in range(5):
                turn.demand(call("show", key=key))
                await anyio.sleep(0.3)
            turn.demand(MalformedCall("{", "cut off"))
            outcomes = await turn.commit()
        assert len(outcomes) == 6 == len(rig.of(CallFinished))
        assert len(rig.of(CallStarted)) == 5

    virtual(main)


def test_hooks_do_not_fire_for_calls_that_never_commit(virtual, make_rig, ledger, guess, call):
    _, tools = ledger
    fired = []

    async def hook(*arguments):
        fired.append(arguments)

    async def main():
        async with make_rig(tools, before_call=hook, after_call=hook).running() as rig:
            turn = rig.turn()
            turn.propose(guess("show"))
            await anyio.sleep(5)
            turn.demand(call("show"))
            turn.demand(call("show", key=1))
            await anyio.sleep(5)
            turn.abandon()
        assert len(rig.of(CallFinished)) == 2 and fired == []

    virtual(main)


def test_arguments_that_parse_before_their_end_start_nothing(virtual, make_rig, guess, call):
    """`{"key": 4` may become 42: only `demand`, at the block's end, starts the agent's call."""
    seen = []

    @tool(effect="read")
    async def show(key: int) -> str:
        seen.append(key)
        return str(key)

    async def main():
        async with make_rig([show]).running() as rig:
            turn = rig.turn()
            await anyio.sleep(5)
            assert seen == []
            turn.demand(call("show", key=42))
            (outcome,) = await turn.commit()
            assert outcome.content == "42"
        assert seen == [42]

    virtual(main)


def test_results_are_the_same_with_a_predictor_that_is_always_right_always_wrong_or_absent(
    virtual, make_rig, ledger, guess, call
):
    entries, tools = ledger

    async def main():
        seen = []
        for prediction in (None, guess("show"), guess("show", key=9), guess("enter", text="x"), guess("nothing")):
            entries.clear()
            async with make_rig(tools).running() as rig:
                turn = rig.turn()
                if prediction is not None:
                    turn.propose(prediction)
                await anyio.sleep(3)
                turn.demand(call("show"))
                turn.demand(call("enter", text="a"))
                turn.demand(call("show"))
                seen.append([outcome.content for outcome in await turn.commit()])
            assert entries == ["a"]
            assert len(rig.of(GuessEnded)) == (prediction is not None)
            assert all(event.tool == "show" for event in rig.of(GuessStarted))
        assert seen == [["", "entered", "a"]] * 5

    virtual(main)
