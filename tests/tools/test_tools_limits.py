"""Guesses use spare capacity only: budgets, slots, rates, threads, back-off and staleness."""

import threading

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from agent_runtime.tools import (
    CallFinished,
    CallStarted,
    Gate,
    GuessLimits,
    GuessStarted,
    SharedLimits,
    ToolFailure,
    tool,
)
from agent_runtime.tools.versions import Versions


@tool(effect="read")
async def look(key: str, seconds: float = 1.0) -> str:
    await anyio.sleep(seconds)
    return key


def test_bounds_below_zero_are_refused():
    with pytest.raises(ValueError, match="in_flight=-1"):
        GuessLimits(in_flight=-1)


def test_wasted_calls_are_bounded(virtual, make_rig, guess):
    async def main():
        async with make_rig([look], limits=GuessLimits(wasted_calls=2)).running() as rig:
            for number in range(4):
                turn = rig.turn(number)
                turn.propose(guess("look", key="a"))
                await anyio.sleep(2)
                await turn.commit()
        assert rig.endings[2:] == [("refused", "wasted_calls_budget")] * 2
        assert rig.executed() == {"look": 2}

    virtual(main)


def test_wasted_seconds_are_bounded(virtual, make_rig, guess):
    async def main():
        async with make_rig([look], limits=GuessLimits(wasted_seconds=5)).running() as rig:
            for number in range(3):
                turn = rig.turn(number)
                turn.propose(guess("look", key="a", seconds=5))
                await anyio.sleep(5.5)
                await turn.commit()
        assert rig.endings[1:] == [("refused", "wasted_seconds_budget")] * 2

    virtual(main)


def test_a_hit_wastes_nothing(virtual, make_rig, guess, call):
    async def main():
        async with make_rig([look], limits=GuessLimits(wasted_calls=1)).running() as rig:
            for number in range(5):
                turn = rig.turn(number)
                turn.propose(guess("look", key="a"))
                await anyio.sleep(2)
                turn.demand(call("look", key="a"))
                await turn.commit()
        assert rig.endings == [("adopted", None)] * 5

    virtual(main)


def test_the_in_flight_budget_counts_tools_that_take_long_to_stop(virtual, make_rig, guess):
    async def main():
        @tool(effect="read")
        async def stubborn(key: str) -> str:
            try:
                await anyio.sleep(100)
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(10)
            return key

        async with make_rig([stubborn], limits=GuessLimits(in_flight=1)).running() as rig:
            turn = rig.turn()
            turn.propose(guess("stubborn", key="a"))
            await anyio.sleep(1)
            turn.propose(guess("stubborn", key="b"))
            await anyio.sleep(11)
            turn.propose(guess("stubborn", key="c"))
            await anyio.sleep(1)
            assert rig.dispatcher.statistics().in_flight == 1
        assert rig.endings == [
            ("cancelled", "superseded"),
            ("refused", "in_flight_budget"),
            ("cancelled", "closed"),
        ]
        assert rig.executed() == {"stubborn": 2}

    virtual(main)


def one_at_a_time():
    log = []

    @tool(effect="read", max_concurrency=1)
    async def single(key: str, seconds: float = 10.0) -> str:
        log.append(key)
        assert log.count("running") == 0, "two at the same time"
        log.append("running")
        try:
            await anyio.sleep(seconds)
        finally:
            log.remove("running")
        return key

    return single, log


def test_a_demanded_call_pre_empts_a_guess_of_another_run(virtual, make_rig, guess, call):
    async def main():
        single, log = one_at_a_time()
        shared = SharedLimits()
        async with make_rig([single], shared=shared).running() as one:
            async with make_rig([single], shared=shared).running() as two:
                first = one.turn()
                first.propose(guess("single", key="a"))
                await anyio.sleep(1)
                second = two.turn()
                second.demand(call("single", key="b"))
                (outcome,) = await second.commit()
                assert outcome.seconds == 10 and anyio.current_time() == two.dispatcher._wiring.zero + 11
                first.demand(call("single", key="a"))
                (outcome,) = await first.commit()
                assert outcome.status == "ok"
        assert one.endings == [("cancelled", "preempted")] and one.ended.matched
        assert log == ["a", "b", "a"]

    virtual(main)


def test_a_joined_guess_is_not_pre_empted(virtual, make_rig, guess, call):
    async def main():
        single, log = one_at_a_time()
        shared = SharedLimits()
        async with make_rig([single], shared=shared).running() as one:
            async with make_rig([single], shared=shared).running() as two:
                first = one.turn()
                first.propose(guess("single", key="a"))
                await anyio.sleep(1)
                first.demand(call("single", key="a"))
                second = two.turn()
                second.demand(call("single", key="b"))
                await second.commit()
                await first.commit()
        assert one.endings == [("joined", None)]
        assert log == ["a", "b"]

    virtual(main)


def test_a_pre_emption_from_another_loop_that_arrives_after_the_join_comes_too_late(make_rig, guess, call):
    finish, shared = threading.Event(), SharedLimits()
    asked_for_the_slot = threading.Event()

    @tool(effect="read", max_concurrency=1)
    async def single(key: str) -> str:
        while key == "a" and not finish.is_set():
            await anyio.lowlevel.checkpoint()
        return key

    async def other_loop():
        async with make_rig([single], shared=shared).running() as two:
            turn = two.turn()
            turn.demand(call("single", key="b"))
            while not shared.of(single)._waiting:
                await anyio.lowlevel.checkpoint()
            asked_for_the_slot.set()
            await turn.commit()

    async def main():
        async with make_rig([single], shared=shared).running() as one:
            turn = one.turn()
            turn.propose(guess("single", key="a"))
            while not one.of(GuessStarted):
                await anyio.lowlevel.checkpoint()
            thread = threading.Thread(target=anyio.run, args=[other_loop])
            thread.start()
            assert asked_for_the_slot.wait(10)  # this loop stands still: what the other asks of it waits in its queue
            turn.demand(call("single", key="a"))
            for _ in range(10):
                await anyio.lowlevel.checkpoint()
            finish.set()
            await turn.commit()
            await anyio.to_thread.run_sync(thread.join)
        assert one.endings == [("joined", None)]
        assert not one.of(CallStarted)

    anyio.run(main)


def test_a_guess_does_not_start_where_calls_wait_for_a_slot(virtual, make_rig, guess, call):
    async def main():
        single, _ = one_at_a_time()
        shared = SharedLimits()
        async with make_rig([single], shared=shared).running() as one:
            async with make_rig([single], shared=shared).running() as two:
                first = one.turn()
                first.demand(call("single", key="a"))
                await anyio.sleep(1)
                second = two.turn()
                second.propose(guess("single", key="b"))
                second.abandon()
                await first.commit()
        assert two.endings == [("refused", "no_free_slot")]

    virtual(main)


def test_concurrency_is_bounded_over_runs_and_served_in_order(virtual, make_rig, call):
    async def main():
        single, log = one_at_a_time()
        async with make_rig([single]).running() as rig:
            turn = rig.turn()
            for key in "abc":
                turn.demand(call("single", key=key))
                await anyio.sleep(0.1)
            outcomes = await turn.commit()
        assert [outcome.content for outcome in outcomes] == log == ["a", "b", "c"]

    virtual(main)


def test_a_call_that_finds_no_slot_within_its_timeout_says_so(virtual, make_rig, call):
    async def main():
        @tool(effect="read", max_concurrency=1, timeout=3)
        async def single() -> str:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(10)
            return ""

        async with make_rig([single]).running() as rig:
            turn = rig.turn()
            turn.demand(call("single"))
            await anyio.sleep(0.1)
            turn.demand(call("single"))
            outcomes = await turn.commit()
        assert outcomes[1].status == "limit"
        assert outcomes[1].content == '{"error":"busy","message":"single had no free slot within 3 s"}'
        assert len(rig.of(CallStarted)) == 1

    virtual(main)


def test_guesses_leave_a_token_of_the_rate_to_the_agent(virtual, make_rig, guess, call):
    async def main():
        times = []

        @tool(effect="read", rate=2)
        async def limited(key: str) -> str:
            times.append(anyio.current_time())
            return key

        async with make_rig([limited]).running() as rig:
            turn = rig.turn()
            turn.propose(guess("limited", key="a"))
            while not times:
                await anyio.lowlevel.checkpoint()
            turn.propose(guess("limited", key="b"))
            for key in "cde":
                turn.demand(call("limited", key=key))
            await turn.commit()
            assert ("refused", "rate") in rig.endings
            zero = rig.dispatcher._wiring.zero
            assert [time - zero for time in times] == pytest.approx([0, 0, 0.5, 1])

    virtual(main)


@pytest.mark.parametrize("trouble", ["429", "503", "timeout", "slow"])
def test_trouble_stops_guessing_for_a_while(virtual, make_rig, guess, call, trouble):
    async def main():
        @tool(effect="read", timeout=5)
        async def shaky(key: str) -> str:
            if key != "a":
                return key
            if trouble == "timeout":
                raise TimeoutError("no answer")
            if trouble == "slow":
                await anyio.sleep(100)
            raise ToolFailure("busy", "busy", status=int(trouble))

        async with make_rig([shaky], limits=GuessLimits(back_off=30)).running() as rig:
            turn = rig.turn(0)
            turn.propose(guess("shaky", key="a"))
            await anyio.sleep(6)
            await turn.commit()
            for number, wait in ((1, 30), (2, 20)):
                turn = rig.turn(number)
                turn.propose(guess("shaky", key="b"))
                await anyio.sleep(wait)
                turn.demand(call("shaky", key="b"))
                await turn.commit()
        assert [ending for ending, _ in rig.endings] == ["failed", "refused", "adopted"]
        assert rig.endings[1] == ("refused", "backing_off")

    virtual(main)


def test_an_ordinary_error_does_not_stop_guessing(virtual, make_rig, guess):
    async def main():
        @tool(effect="read")
        async def picky(key: str) -> str:
            raise ToolFailure("not_found", key, status=404)

        async with make_rig([picky]).running() as rig:
            for number in range(3):
                turn = rig.turn(number)
                turn.propose(guess("picky", key="a"))
                await anyio.sleep(1)
                await turn.commit()
        assert rig.endings == [("failed", "not_found")] * 3

    virtual(main)


def test_retry_after_prolongs_the_back_off(virtual, make_rig, guess, call):
    async def main():
        @tool(effect="read")
        async def busy(key: str) -> str:
            raise ToolFailure("busy", "busy", status=503, retry_after=100)

        async with make_rig([busy]).running() as rig:
            turn = rig.turn(0)
            turn.demand(call("busy", key="a"))
            await turn.commit()
            await anyio.sleep(99)
            turn = rig.turn(1)
            turn.propose(guess("busy", key="a"))
        assert rig.endings == [("refused", "backing_off")]

    virtual(main)


def counting_service(allowed):
    """A service that answers 429 while more than `allowed` calls came in within 10 s."""
    seen = []

    @tool(effect="read")
    async def service(key: str) -> str:
        now = anyio.current_time()
        seen.append(now)
        if len([time for time in seen if now - time < 10]) > allowed:
            raise ToolFailure("too_many", "slow down", status=429, retry_after=10)
        await anyio.sleep(1)
        return key

    return service, seen


def test_a_429_provoked_by_guesses_is_retried_before_the_model_sees_it(virtual, make_rig, guess, call):
    async def main():
        service, seen = counting_service(allowed=1)
        async with make_rig([service]).running() as rig:
            turn = rig.turn()
            turn.propose(guess("service", key="a"))
            await anyio.sleep(0.5)
            turn.demand(call("service", key="b"))
            (outcome,) = await turn.commit()
        assert outcome.content == "b"
        assert [event.attempt for event in rig.of(CallStarted)] == [1, 2]
        assert len(rig.of(CallFinished)) == 1 and len(seen) == 3
        assert rig.executed() == {"service": 3}

    virtual(main)


def test_a_429_without_guesses_is_the_agents_own(virtual, make_rig, call):
    async def main():
        service, _ = counting_service(allowed=0)
        async with make_rig([service]).running() as rig:
            turn = rig.turn()
            turn.demand(call("service", key="b"))
            (outcome,) = await turn.commit()
        assert outcome.error == "too_many"
        assert len(rig.of(CallStarted)) == 1

    virtual(main)


def test_a_429_that_persists_reaches_the_model_after_one_retry(virtual, make_rig, guess, call):
    async def main():
        service, seen = counting_service(allowed=0)
        async with make_rig([service]).running() as rig:
            turn = rig.turn()
            turn.propose(guess("service", key="b"))
            await anyio.sleep(1)
            turn.demand(call("service", key="b"))
            (outcome,) = await turn.commit()
        assert outcome.error == "too_many"
        assert len(seen) == 3 and rig.endings == [("failed", "too_many")]

    virtual(main)


# --- synchronous tools, under a real clock ------------------------------------------------------------------------


class Gates:
    """Synchronous tools that stay in their threads until they are let go."""

    def __init__(self, **contract):
        self.entered = {}
        self.leave = threading.Event()
        self.calls = []

        @tool(effect="read", **contract)
        def block(key: str) -> str:
            self.calls.append(key)
            self.entered.setdefault(key, threading.Event()).set()
            assert self.leave.wait(30)
            return key

        self.tool = block

    async def inside(self, key):
        with anyio.fail_after(30):
            while not self.entered.setdefault(key, threading.Event()).is_set():
                await anyio.sleep(0.001)


async def drained(rig):
    with anyio.fail_after(30):
        while rig.dispatcher.statistics().in_flight:
            await anyio.sleep(0.001)


@pytest.mark.anyio
async def test_a_guess_in_a_thread_holds_its_slot_until_the_thread_ends(make_rig, guess):
    gates = Gates(max_concurrency=2)
    async with make_rig([gates.tool]).running() as rig:
        turn = rig.turn()
        turn.propose(guess("block", key="a"))
        await gates.inside("a")
        turn.propose(guess("block", key="b"))
        assert rig.endings == [("cancelled", "superseded")]
        assert rig.dispatcher.statistics().in_flight == 1
        gates.leave.set()
        await drained(rig)
        turn.propose(guess("block", key="c"))
        await gates.inside("c")
        turn.abandon()
    assert rig.endings[1:] == [("refused", "no_free_slot"), ("cancelled", "abandoned")]
    assert gates.calls == ["a", "c"]


@pytest.mark.anyio
async def test_a_synchronous_tool_of_one_slot_is_never_guessed(make_rig, guess):
    gates = Gates(max_concurrency=1)
    async with make_rig([gates.tool]).running() as rig:
        turn = rig.turn()
        turn.propose(guess("block", key="a"))
        turn.abandon()
    assert rig.endings == [("refused", "no_free_slot")] and gates.calls == []


@pytest.mark.anyio
async def test_threads_of_guesses_are_limited_apart_from_those_of_calls(make_rig, guess, call):
    gates = Gates()
    shared = SharedLimits(guess_threads=1)
    async with make_rig([gates.tool], shared=shared).running() as rig:
        turn = rig.turn()
        turn.propose(guess("block", key="a"))
        await gates.inside("a")
        turn.propose(guess("block", key="b"))
        turn.demand(call("block", key="c"))
        await gates.inside("c")
        gates.leave.set()
        (outcome,) = await turn.commit()
        assert outcome.content == "c"
    assert rig.endings == [("cancelled", "superseded"), ("refused", "no_free_slot")]


@pytest.mark.anyio
async def test_leaving_does_not_wait_for_a_thread_that_hangs(make_rig, guess, call):
    gates = Gates()
    shared = SharedLimits()
    try:
        async with make_rig([gates.tool], shared=shared).running() as rig:
            turn = rig.turn()
            turn.propose(guess("block", key="a"))
            await gates.inside("a")
            turn.demand(call("block", key="b"))
            await gates.inside("b")
        assert [event.outcome.error for event in rig.of(CallFinished)] == ["cancelled"]
        assert shared.guess_threads_used == 1, "the slot is still held"
    finally:
        gates.leave.set()
    with anyio.fail_after(30):
        while shared.guess_threads_used:
            await anyio.sleep(0.001)


@pytest.mark.anyio
async def test_a_synchronous_tool_times_out_and_its_thread_is_left_behind(make_rig, call):
    gates = Gates(timeout=0.01)
    try:
        async with make_rig([gates.tool]).running() as rig:
            turn = rig.turn()
            turn.demand(call("block", key="a"))
            (outcome,) = await turn.commit()
        assert outcome.status == "timeout"
    finally:
        gates.leave.set()


@pytest.mark.anyio
async def test_a_write_whose_thread_was_left_behind_still_keeps_guesses_away(make_rig, guess, call):
    leave = threading.Event()

    @tool(writes=["x"], timeout=0.01)
    def write() -> str:
        leave.wait(30)
        return ""

    @tool(effect="read", reads=["x"])
    async def read() -> str:
        return ""

    shared = SharedLimits()
    async with make_rig([write, read], shared=shared).running() as rig:
        turn = rig.turn(0)
        turn.demand(call("write"))
        (outcome,) = await turn.commit()
        assert outcome.status == "timeout"
        turn = rig.turn(1)
        turn.propose(guess("read"))
        leave.set()
        with anyio.fail_after(30):
            while shared.versions.being_written({"x"}):
                await anyio.sleep(0.001)
        turn.propose(guess("read"))
        await anyio.lowlevel.checkpoint()
        turn.demand(call("read"))
        await turn.commit()
    assert rig.endings[0] == ("refused", "write_in_flight") and rig.endings[1][0] in ("adopted", "joined")


@pytest.mark.anyio
async def test_a_synchronous_tool_that_returns_a_coroutine_is_an_error(make_rig, call):
    async def inner() -> str:
        return ""

    @tool(effect="read")
    def wrong() -> object:
        return inner()

    async with make_rig([wrong]).running() as rig:
        turn = rig.turn()
        turn.demand(call("wrong"))
        (outcome,) = await turn.commit()
    assert outcome.error == "TypeError" and "async def" in outcome.content


def test_slots_are_shared_between_event_loops_in_different_threads(make_rig, call):
    running, most = 0, 0
    lock = threading.Lock()

    @tool(effect="read", max_concurrency=1)
    async def single() -> str:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        await anyio.sleep(0.001)
        with lock:
            running -= 1
        return ""

    shared = SharedLimits()
    outcomes = []

    async def one_run():
        async with make_rig([single], shared=shared).running() as rig:
            for number in range(5):
                turn = rig.turn(number)
                turn.demand(call("single"))
                outcomes.extend(await turn.commit())

    threads = [
        threading.Thread(target=anyio.run, args=(one_run,), kwargs={"backend": backend})
        for backend in ("asyncio", "trio", "asyncio")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert most == 1 and len(outcomes) == 15


# --- staleness ----------------------------------------------------------------------------------------------------


def shop(**options):
    @tool(effect="read", reads=["orders"], **options)
    async def orders(seconds: float = 1.0) -> str:
        await anyio.sleep(seconds)
        return "orders"

    @tool(effect="read", reads=[])
    async def add(a: int) -> str:
        return str(a)

    @tool(effect="read")
    async def anything() -> str:
        return "anything"

    @tool(writes=["orders"])
    async def order(how: str = "ok") -> str:
        await anyio.sleep(1)
        if how == "error":
            raise ToolFailure("refused", "no")
        return "ordered"

    @tool(writes=["stock"])
    async def restock() -> str:
        return "done"

    @tool
    async def whatever() -> str:
        return "done"

    return [orders, add, anything, order, restock, whatever]


@pytest.mark.parametrize(
    ("read", "write", "ending"),
    [
        ("orders", "order", "stale"),
        ("orders", "restock", "adopted"),
        ("orders", "whatever", "stale"),
        ("add", "order", "adopted"),
        ("add", "whatever", "adopted"),
        ("anything", "restock", "stale"),
    ],
)
def test_a_write_in_another_run_makes_what_it_touches_stale(virtual, make_rig, guess, call, read, write, ending):
    arguments = {"a": 1} if read == "add" else {}

    async def main():
        shared = SharedLimits()
        async with make_rig(shop(), shared=shared).running() as one:
            async with make_rig(shop(), shared=shared).running() as two:
                turn = one.turn()
                turn.propose(guess(read, **arguments))
                await anyio.sleep(2)
                writing = two.turn()
                writing.demand(call(write))
                await writing.commit()
                turn.demand(call(read, **arguments))
                (outcome,) = await turn.commit()
                assert outcome.status == "ok"
        assert one.endings == [(ending, "written" if ending == "stale" else None)]
        assert one.ended.matched
        assert len(one.of(CallStarted)) == (ending == "stale")

    virtual(main)


@pytest.mark.parametrize("how", ["ok", "error", "cancelled", "abandoned"])
def test_a_write_counts_whatever_its_outcome(virtual, make_rig, guess, call, how):
    async def main():
        shared = SharedLimits()
        async with make_rig(shop(), shared=shared).running() as one:
            turn = one.turn()
            turn.propose(guess("orders"))
            await anyio.sleep(2)
            with anyio.move_on_after(0.5 if how == "cancelled" else None):
                async with make_rig(shop(), shared=shared).running() as two:
                    writing = two.turn()
                    writing.demand(call("order", how=how))
                    if how == "abandoned":
                        writing.abandon()
                    else:
                        await writing.commit()
            turn.demand(call("orders"))
            await turn.commit()
        assert one.endings == ([("adopted", None)] if how == "abandoned" else [("stale", "written")])
        assert not shared.versions.being_written(None)

    virtual(main)


def test_a_guess_does_not_start_while_a_write_to_its_keys_is_in_flight(virtual, make_rig, guess, call):
    async def main():
        shared = SharedLimits()
        async with make_rig(shop(), shared=shared).running() as one, anyio.create_task_group() as tasks:
            writer = make_rig(shop(), shared=shared)

            async def write():
                async with writer.running():
                    writing = writer.turn()
                    writing.demand(call("order"))
                    await writing.commit()

            tasks.start_soon(write)
            await anyio.sleep(0.5)
            turn = one.turn()
            turn.propose(guess("orders"))
            turn.propose(guess("add", a=1))
            await anyio.sleep(0.1)
            turn.demand(call("add", a=1))
            await turn.commit()
        assert one.endings == [("refused", "write_in_flight"), ("adopted", None)]

    virtual(main)


def test_a_result_is_handed_over_only_while_it_is_fresh(virtual, make_rig, guess, call):
    async def main():
        for wait, ending in ((9, ("adopted", None)), (11, ("stale", "expired"))):
            async with make_rig(shop(fresh_for=10)).running() as rig:
                turn = rig.turn()
                turn.propose(guess("orders", seconds=5))
                await anyio.sleep(wait)
                turn.demand(call("orders", seconds=5))
                await turn.commit()
            assert rig.endings == [ending]

    virtual(main)


def test_a_stale_guess_in_flight_is_stopped_and_not_joined(virtual, make_rig, guess, call):
    async def main():
        shared = SharedLimits()
        async with make_rig(shop(), shared=shared).running() as rig:
            turn = rig.turn()
            turn.propose(guess("orders", seconds=100))
            await anyio.sleep(1)
            shared.versions.begin_write({"orders"}).end()
            turn.demand(call("orders", seconds=100))
            (outcome,) = await turn.commit()
            assert outcome.seconds == 100
        assert rig.endings == [("stale", "written")] and rig.ended.wasted_ms == 1000

    virtual(main)


def test_an_idempotent_guess_makes_others_stale_even_when_discarded(virtual, make_rig, guess, call):
    async def main():
        @tool(effect="idempotent", writes=["orders"])
        async def put(key: str) -> str:
            return key

        shared = SharedLimits()
        tools = [*shop(), put]
        async with make_rig(tools, shared=shared).running() as one:
            async with make_rig(tools, shared=shared, gate=Gate(allow_idempotent=True)).running() as two:
                reading = one.turn()
                reading.propose(guess("orders"))
                await anyio.sleep(2)
                putting = two.turn()
                putting.propose(guess("put", key="a"))
                await anyio.sleep(1)
                await putting.commit()
                reading.demand(call("orders"))
                await reading.commit()
        assert one.endings == [("stale", "written")]
        assert two.endings == [("discarded", "no_call")]

    virtual(main)


def test_versions_know_what_was_written_since():
    versions = Versions()
    stamp = versions.now()
    assert not versions.moved_since(stamp, None)
    write = versions.begin_write({"a"})
    assert versions.moved_since(stamp, {"a"}) and versions.moved_since(stamp, None)
    assert not versions.moved_since(stamp, {"b"}) and not versions.moved_since(stamp, set())
    assert versions.being_written({"a"}) and versions.being_written(None) and not versions.being_written({"b"})
    started = versions.now()
    write.end()
    write.end()
    assert versions.moved_since(started, {"a"}) and not versions.being_written(None)
    everything = versions.begin_write(None)
    assert versions.being_written({"b"}) and not versions.being_written(set())
    everything.end()
    assert versions.moved_since(started, {"b"}) and not versions.moved_since(versions.now(), None)
