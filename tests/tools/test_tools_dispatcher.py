"""The life of guesses and calls: what is started when, what serves what, and how each of them ends."""

import anyio
import pytest
import trio
from agent_runtime.tools import (
    CallDemanded,
    CallFinished,
    CallStarted,
    Dispatcher,
    DispatcherError,
    Gate,
    GuessEnded,
    GuessProposed,
    GuessStarted,
    MalformedCall,
    SharedLimits,
    ToolCall,
    ToolContext,
    ToolDefinitionError,
    ToolFailure,
    as_tools,
    tool,
)

pytestmark = pytest.mark.anyio


class Backend:
    """Tools that count how often they were called, and what was alive at the same time."""

    def __init__(self):
        self.log = []
        self.alive = 0
        self.most_alive = 0

        @tool(effect="read", reads=["items"])
        async def read(key: str, seconds: float = 1.0) -> str:
            return await self.work("read", key, seconds)

        @tool(effect="write", writes=["items"])
        async def write(key: str, seconds: float = 1.0) -> str:
            return await self.work("write", key, seconds)

        @tool(effect="idempotent", writes=["items"])
        async def put(key: str, seconds: float = 1.0) -> str:
            return await self.work("put", key, seconds)

        @tool(effect="read", sequential=True)
        async def lonely(key: str) -> str:
            return await self.work("lonely", key, 1.0)

        @tool(effect="read", timeout=5)
        async def hang(key: str = "") -> str:
            return await self.work("hang", key, 10_000)

        @tool(effect="read", requires_approval=True)
        async def guarded(key: str) -> str:
            return await self.work("guarded", key, 1.0)

        self.tools = [read, write, put, lonely, hang, guarded]

    async def work(self, name, key, seconds):
        self.log.append((name, key))
        self.alive += 1
        self.most_alive = max(self.most_alive, self.alive)
        try:
            await anyio.sleep(seconds)
        finally:
            self.alive -= 1
        return f"{name} {key}"


@pytest.fixture
def backend():
    return Backend()


def test_a_guess_that_is_ready_at_demand_is_adopted(virtual, make_rig, backend, guess, call):
    async def main():
        async with make_rig(backend.tools).running() as rig:
            turn = rig.turn()
            number = turn.propose(guess("read", key="a"))
            await anyio.sleep(3)
            assert turn.demand(call("read", key="a", seconds=1)) == 0
            (outcome,) = await turn.commit()
        assert outcome.status == "ok" and outcome.content == "read a"
        assert backend.log == [("read", "a")]
        ended = rig.ended
        assert (ended.ending, ended.matched, ended.executed) == ("adopted", True, True)
        assert (ended.lead_ms, ended.saved_ms, ended.wasted_ms) == (3000, 1000, 0)
        assert rig.of(CallFinished)[0].guess == number
        assert not rig.of(CallStarted)
        assert [type(event) for event in rig.events] == [
            GuessProposed,
            GuessStarted,
            CallDemanded,
            GuessEnded,
            CallFinished,
        ]

    virtual(main)


def test_a_guess_in_flight_at_demand_is_joined(virtual, make_rig, backend, guess, call):
    async def main():
        async with make_rig(backend.tools).running() as rig:
            turn = rig.turn()
            turn.propose(guess("read", key="a", seconds=4))
            await anyio.sleep(3)
            turn.demand(call("read", key="a", seconds=4))
            (outcome,) = await turn.commit()
            assert anyio.current_time() - rig.dispatcher._wiring.zero == pytest.approx(4)
        assert outcome.seconds == pytest.approx(4)
        assert backend.log == [("read", "a")]
        assert rig.ended.ending == "joined"
        assert (rig.ended.lead_ms, rig.ended.saved_ms) == pytest.approx((3000, 3000))

    virtual(main)


def test_a_guess_proposed_in_the_same_instant_is_joined_without_a_lead(virtual, make_rig, backend, guess, call):
    async def main():
        async with make_rig(backend.tools).running() as rig:
            turn = rig.turn()
            turn.propose(guess("read", key="a"))
            turn.demand(call("read", key="a"))
            await turn.commit()
        assert backend.log == [("read", "a")]
        assert (rig.ended.ending, rig.ended.lead_ms, rig.ended.saved_ms) == ("joined", 0, 0)

    virtual(main)


def test_a_miss_is_discarded_and_the_real_call_runs(virtual, make_rig, backend, guess, call):
    async def main():
        async with make_rig(backend.tools).running() as rig:
            turn = rig.turn()
            turn.propose(guess("read", key="a", seconds=100))
            await anyio.sleep(2)
            turn.demand(call("read", key="b"))
            (outcome,) = await turn.commit()
            assert backend.alive == 0, "the discarded guess was stopped"
        assert outcome.content == "read b"
        assert rig.endings == [("discarded", "miss")]
        assert (rig.ended.matched, rig.ended.matched_name) == (False, True)
        assert (rig.ended.lead_ms, rig.ended.wasted_ms, rig.ended.saved_ms) == (2000, 2000, 0)
        assert rig.dispatcher.statistics().wasted_seconds == 2
        assert rig.dispatcher.statistics().wasted_calls == 1

    virtual(main)


def test_a_guess_discarded_before_its_tool_was_called_never_calls_it(virtual, make_rig, backend, guess, call):
    async def main():
        async with make_rig(backend.tools).running() as rig:
            turn = rig.turn()
            turn.propose(guess("read", key="a"))
            turn.demand(call("read", key="b"))
            await turn.commit()
            assert rig.dispatcher.statistics().in_flight == 0
        assert backend.log == [("read", "b")]
        assert rig.ended.executed is False
        assert rig.dispatcher.statistics().wasted_calls == 0

    virtual(main)


def test_a_turn_without_calls_discards_its_guess(virtual, make_rig, backend, guess):
    async def main():
        async with make_rig(backend.tools).running() as rig:
            turn = rig.turn()
            turn.propose(guess("read", key="a"))
            await anyio.sleep(5)
            assert await turn.commit() == []
        assert rig.endings == [("discarded", "no_call")]
        assert rig.ended.wasted_ms == 1000

    virtual(main)


def test_only_the_first_call_of_a_turn_can_be_served_by_a_guess(virtual, make_rig, backend, guess, call):
    async def main():
        async with make_rig(backend.tools).running() as rig:
            turn = rig.turn()
            turn.propose(guess("read", key="b"))
            await anyio.sleep(2)
            turn.demand(call("read", key="a"))
            turn.demand(call("read", key="b"))
            await turn.commit()
        assert sorted(backend.log) == [("read", "a"), ("read", "b"), ("read", "b")]
        assert rig.endings == [("discarded", "miss")]

    virtual(main)


def test_a_prediction_after_the_demand_is_late(virtual, make_rig, backend, guess, call):
    async def main():
        async with make_rig(backend.tools).running() as rig:
            turn = rig.turn()
            turn.demand(call("read", key="a"))
            turn.propose(guess("read", key="a"))
            turn.late(guess("read", key="a"))
            turn.refuse(guess("read", key="a"), "low_confidence")
            await turn.commit()
            turn.propose(guess("read", key="a"))
        assert rig.endings == [("late", None)] * 4
        assert not any(event.matched for event in rig.of(GuessEnded))
        assert backend.log == [("read", "a")]

    virtual(main)


def test_of_several_proposals_the_latest_stands(virtual, make_rig, backend, guess, call):
    async def main():
        async with make_rig(backend.tools).running() as rig:
            turn = rig.turn()
            turn.propose(guess("read", key="a", seconds=50))
            await anyio.sleep(1)
            turn.propose(guess("read", key="a", seconds=50.0))
            await anyio.sleep(1)
            turn.propose(guess("read", key="b"))
            await anyio.sleep(2)
            turn.demand(call("read", key="b"))
            await turn.commit()
        assert rig.endings == [("refused", "same_as_standing"), ("cancelled", "superseded"), ("adopted", None)]
        assert backend.log == [("read", "a"), ("read", "b")]

    virtual(main)


def test_a_prediction_that_policy_refuses_still_counts_as_right_or_wrong(virtual, make_rig, backend, guess, call):
    async def main():
        async with make_rig(backend.tools).running() as rig:
            turn = rig.turn()
            turn.refuse(guess("read", key="a"), "low_confidence")
            await anyio.sleep(1)
            turn.demand(call("read", key="a"))
            await turn.commit()
        assert rig.endings == [("refused", "low_confidence")]
        assert rig.ended.matched and not rig.ended.executed
        assert rig.dispatcher.statistics().refusals == {"low_confidence": 1}
        assert backend.log == [("read", "a")]

    virtual(main)


def test_a_refused_prediction_does_not_displace_a_guess_that_runs(virtual, make_rig, backend, guess, call):
    async def main():
        async with make_rig(backend.tools).running() as rig:
            turn = rig.turn()
            turn.propose(guess("read", key="a"))
            turn.refuse(guess("read", key="b"), "low_confidence")
            turn.propose(guess("nothing"))
            turn.propose(guess("read", wrong=1))
            await anyio.sleep(2)
            turn.demand(call("read", key="a"))
            await turn.commit()
        assert rig.endings == [
            ("refused", "low_confidence"),
            ("refused", "unknown_tool"),
            ("refused", "invalid_arguments"),
            ("adopted", None),
        ]

    virtual(main)


def test_a_guess_refused_before_may_start_when_it_is_proposed_again(virtual, make_rig, backend, guess, call):
    async def main():
        async with make_rig(backend.tools).running() as rig:
            turn = rig.turn()
            turn.refuse(guess("read", key="a", confidence=0.1), "low_confidence")
            turn.propose(guess("read", key="a"))
            await anyio.sleep(2)
            turn.demand(call("read", key="a"))
            await turn.commit()
        assert rig.endings == [("refused", "low_confidence"), ("adopted", None)]

    virtual(main)


def test_a_guess_of_a_write_is_refused_by_the_gate_but_measured(virtual, make_rig, backend, guess, call):
    async def main():
        async with make_rig(backend.tools).running() as rig:
            for number, name in enumerate(["write", "put", "lonely", "guarded"]):
                turn = rig.turn(number)
                turn.propose(guess(name, key="a"))
                await anyio.sleep(5)
                assert backend.log == []
                turn.demand(call(name, key="a"))
                turn.abandon()
        reasons = ["effect", "effect", "sequential", "requires_approval"]
        assert rig.endings == [("refused", reason) for reason in reasons]
        assert all(event.matched for event in rig.of(GuessEnded))
        assert [event.pre_executable for event in rig.of(CallDemanded)] == [False] * 4

    virtual(main)


def test_a_guess_that_failed_is_never_shown_and_the_real_call_runs_once(virtual, make_rig, guess, call):
    async def main():
        runs = []

        @tool(effect="read")
        async def flaky(key: str) -> str:
            runs.append(key)
            await anyio.sleep(1)
            if len(runs) == 1:
                raise ToolFailure("down", "try later")
            return "fine"

        for wait in (0.5, 3):  # joined, then failed; and failed before the demand
            runs.clear()
            async with make_rig([flaky]).running() as rig:
                turn = rig.turn()
                turn.propose(guess("flaky", key="a"))
                await anyio.sleep(wait)
                turn.demand(call("flaky", key="a"))
                (outcome,) = await turn.commit()
            assert outcome.content == "fine" and outcome.status == "ok"
            assert runs == ["a", "a"]
            assert rig.endings == [("failed", "down")]
            assert rig.ended.matched and rig.ended.executed
            assert rig.of(CallFinished)[0].guess is None

    virtual(main)


def test_a_joined_guess_gets_its_timeout_anew(virtual, make_rig, guess, call):
    async def main():
        @tool(effect="read", timeout=5)
        async def slow() -> str:
            await anyio.sleep(8)
            return "done"

        async with make_rig([slow]).running() as rig:
            turn = rig.turn()
            turn.propose(guess("slow"))
            await anyio.sleep(4)
            turn.demand(call("slow"))
            (outcome,) = await turn.commit()
        assert outcome.content == "done"
        assert rig.endings == [("joined", None)]

    virtual(main)


def test_timeouts_are_enforced_and_readable(virtual, make_rig, backend, call):
    async def main():
        async with make_rig(backend.tools).running() as rig:
            turn = rig.turn()
            turn.demand(call("hang"))
            (outcome,) = await turn.commit()
            assert outcome.status == "timeout" and outcome.seconds == 5
            assert outcome.content == '{"error":"timeout","message":"hang did not answer within 5 s"}'
            assert backend.alive == 0

    virtual(main)


def test_reads_start_when_demanded_and_run_beside_each_other(virtual, make_rig, backend, call):
    async def main():
        async with make_rig(backend.tools).running() as rig:
            turn = rig.turn()
            turn.demand(call("read", key="a", seconds=3))
            await anyio.sleep(1)
            turn.demand(call("read", key="b", seconds=1))
            await anyio.sleep(4)
            assert [event.index for event in rig.of(CallFinished)] == [1, 0]
            outcomes = await turn.commit()
        assert [outcome.content for outcome in outcomes] == ["read a", "read b"], "results come in the calls' order"
        assert backend.most_alive == 2

    virtual(main)


def test_a_write_waits_for_the_whole_message_and_is_a_barrier(virtual, make_rig, backend, call):
    async def main():
        async with make_rig(backend.tools).running() as rig:
            turn = rig.turn()
            turn.demand(call("read", key="a", seconds=5))
            turn.demand(call("write", key="b"))
            turn.demand(call("read", key="c"))
            turn.demand(call("read", key="d"))
            await anyio.sleep(20)
            assert backend.log == [("read", "a")]
            await turn.commit()
        assert backend.log[:2] == [("read", "a"), ("write", "b")]
        assert sorted(backend.log[2:]) == [("read", "c"), ("read", "d")]
        started = {event.index: event.at for event in rig.of(CallStarted)}
        finished = {event.index: event.at for event in rig.of(CallFinished)}
        assert finished[0] <= started[1] and finished[1] <= started[2] == started[3]

    virtual(main)


def test_a_sequential_read_is_a_barrier_but_does_not_wait_for_the_message(virtual, make_rig, backend, call):
    async def main():
        async with make_rig(backend.tools).running() as rig:
            turn = rig.turn()
            for name in ("read", "lonely", "read"):
                turn.demand(call(name, key=name))
            await anyio.sleep(10)
            assert backend.log == [("read", "read"), ("lonely", "lonely"), ("read", "read")]
            assert backend.most_alive == 1
            await turn.commit()

    virtual(main)


def test_invalid_calls_get_outcomes_the_model_can_read_and_block_nobody(virtual, make_rig, backend, call, contents):
    async def main():
        async with make_rig(backend.tools).running() as rig:
            turn = rig.turn()
            turn.demand(call("wrote", key="a"))
            turn.demand(MalformedCall("{oops", "the arguments are no JSON"))
            turn.demand(call("write", key=5))
            turn.demand(call("read", key="a"))
            await anyio.sleep(2)
            outcomes = await turn.commit()
        assert [outcome.status for outcome in outcomes] == [
            "unknown_tool",
            "invalid_arguments",
            "invalid_arguments",
            "ok",
        ]
        assert contents(outcomes)[:3] == [
            '{"error":"unknown_tool","message":"no tool is called \'wrote\'; tools: '
            'read, write, put, lonely, hang, guarded"}',
            '{"error":"malformed_call","message":"the arguments are no JSON"}',
            '{"error":"invalid_arguments","message":"key: Input should be a valid string, got 5"}',
        ]
        assert [event.index for event in rig.of(CallFinished)] == [0, 1, 2, 3]
        assert len(rig.of(CallDemanded)) == 4 and len(rig.of(CallStarted)) == 1

    virtual(main)


def test_a_malformed_first_call_discards_the_guess(virtual, make_rig, backend, guess):
    async def main():
        async with make_rig(backend.tools).running() as rig:
            turn = rig.turn()
            turn.propose(guess("read", key="a"))
            await anyio.sleep(0.5)
            turn.demand(MalformedCall("{", "no JSON"))
            await turn.commit()
        assert rig.endings == [("discarded", "miss")]

    virtual(main)


def test_an_idempotent_guess_runs_only_where_the_author_opts_in(virtual, make_rig, backend, guess, call):
    async def main():
        async with make_rig(backend.tools, gate=Gate(allow_idempotent={"put"})).running() as rig:
            turn = rig.turn()
            turn.propose(guess("put", key="a"))
            await anyio.sleep(2)
            assert backend.log == [("put", "a")]
            turn.demand(call("put", key="a"))
            (outcome,) = await turn.commit()
            assert outcome.content == "put a"
        assert rig.endings == [("adopted", None)], "its own write doesn't make it stale"

    virtual(main)


def test_an_abandoned_turn_cancels_everything_and_writes_nothing(virtual, make_rig, backend, guess, call):
    async def main():
        async with make_rig(backend.tools).running() as rig:
            turn = rig.turn()
            turn.propose(guess("read", key="a", seconds=100))
            await anyio.sleep(1)
            turn.demand(call("read", key="a", seconds=100))
            turn.demand(call("read", key="b", seconds=100))
            turn.demand(call("write", key="c"))
            await anyio.sleep(1)
            turn.abandon()
            turn.abandon()
            assert [event.outcome.status for event in rig.of(CallFinished)] == ["cancelled"] * 3
            assert [event.outcome.error for event in rig.of(CallFinished)] == ["not_run", "cancelled", "not_run"]
            await anyio.sleep(1)
            assert backend.alive == 0
        assert backend.log == [("read", "a"), ("read", "b")]
        assert rig.endings == [("cancelled", "abandoned")]
        assert rig.ended.matched

    virtual(main)


def test_leaving_the_dispatcher_ends_every_guess_and_call(virtual, make_rig, backend, guess, call):
    async def main():
        async with make_rig(backend.tools).running() as rig:
            first = rig.turn()
            first.propose(guess("read", key="a", seconds=100))
            await anyio.sleep(1)
        assert rig.endings == [("cancelled", "closed")]
        assert backend.alive == 0 and rig.dispatcher.statistics().in_flight == 0
        first.propose(guess("read", key="a"))
        assert rig.endings[1:] == [("refused", "closed")]
        with pytest.raises(DispatcherError):
            first.demand(call("read", key="a"))
        with pytest.raises(DispatcherError):
            rig.turn(1)

    virtual(main)


def test_cancelling_the_run_ends_every_started_call(virtual, make_rig, backend, guess, call):
    async def main():
        rig = make_rig(backend.tools)
        with anyio.move_on_after(2):
            async with rig.dispatcher:
                turn = rig.turn()
                turn.propose(guess("read", key="a", seconds=100))
                await anyio.sleep(1)
                turn.demand(call("read", key="a", seconds=100))
                turn.demand(call("read", key="b", seconds=100))
                turn.demand(call("write", key="c"))
                await turn.commit()
        assert anyio.current_time() == rig.dispatcher._wiring.zero + 2
        assert backend.alive == 0
        assert sorted(event.index for event in rig.of(CallFinished)) == [0, 1, 2]
        assert rig.endings == [("cancelled", "abandoned")]

    virtual(main)


def test_the_order_of_use_is_checked(virtual, make_rig, backend, call):
    async def main():
        rig = make_rig(backend.tools)
        with pytest.raises(DispatcherError, match="isn't running"):
            rig.turn()
        async with rig.running():
            turn = rig.turn()
            with pytest.raises(DispatcherError, match="still open"):
                rig.turn(1)
            await turn.commit()
            with pytest.raises(DispatcherError, match="already committed"):
                await turn.commit()
            with pytest.raises(DispatcherError, match="is over"):
                turn.demand(call("read", key="a"))
        with pytest.raises(DispatcherError, match="one run"):
            async with rig.dispatcher:
                pass

    virtual(main)


def test_hooks_and_approvals_see_committed_calls_only_and_in_order(virtual, make_rig, backend, guess, call):
    async def main():
        seen = []

        async def before(call, tool):
            seen.append(("before", call.arguments["key"], tool.name))

        async def after(call, outcome):
            seen.append(("after", call.arguments["key"], outcome.status))

        async def approve(call, tool):
            seen.append(("approve", call.arguments["key"]))
            return {"no": False, "why": "not on a Sunday"}.get(call.arguments["key"], True)

        options = {"before_call": before, "after_call": after, "approve": approve}
        async with make_rig(backend.tools, **options).running() as rig:
            turn = rig.turn()
            turn.propose(guess("read", key="a"))
            turn.demand(call("read", key="b"))
            turn.demand(call("guarded", key="b"))
            await anyio.sleep(10)
            turn.abandon()
            assert seen == []
            turn = rig.turn()
            turn.propose(guess("read", key="a"))
            await anyio.sleep(2)
            turn.demand(call("read", key="a"))
            turn.demand(call("guarded", key="yes"))
            turn.demand(call("guarded", key="no"))
            turn.demand(call("guarded", key="why"))
            turn.demand(call("missing", key="x"))
            outcomes = await turn.commit()
        assert [outcome.status for outcome in outcomes] == ["ok", "ok", "denied", "denied", "unknown_tool"]
        assert outcomes[3].content == '{"error":"denied","message":"not on a Sunday"}'
        assert [entry[:2] for entry in seen if entry[0] != "after"] == [
            ("before", "a"),
            ("before", "yes"),
            ("approve", "yes"),
            ("before", "no"),
            ("approve", "no"),
            ("before", "why"),
            ("approve", "why"),
        ]
        assert [entry[1] for entry in seen if entry[0] == "after"] == ["a", "yes", "no", "why", "x"]
        assert ("guarded", "no") not in backend.log and ("guarded", "yes") in backend.log

    virtual(main)


def test_without_an_approver_guarded_calls_are_denied(virtual, make_rig, backend, call):
    async def main():
        async with make_rig(backend.tools).running() as rig:
            turn = rig.turn()
            turn.demand(call("guarded", key="a"))
            (outcome,) = await turn.commit()
        assert outcome.status == "denied" and "nobody is there" in outcome.content
        assert backend.log == []

    virtual(main)


def test_a_dynamic_approval_rule_is_asked_about_the_validated_arguments(virtual, make_rig, call):
    async def main():
        asked = []

        @tool(effect="write", requires_approval=lambda arguments: arguments["amount"] > 100)
        async def pay(amount: int) -> str:
            return "paid"

        async def approve(call, tool):
            asked.append(call.arguments["amount"])
            return True

        async with make_rig([pay], approve=approve).running() as rig:
            turn = rig.turn()
            turn.demand(call("pay", amount=50))
            turn.demand(call("pay", amount=150.0))
            outcomes = await turn.commit()
        assert [outcome.content for outcome in outcomes] == ["paid", "paid"]
        assert asked == [150.0]

    virtual(main)


def test_a_hook_that_raises_fails_the_commit_and_ends_every_call(virtual, make_rig, backend, call):
    async def main():
        async def before(call, tool):
            if call.name == "write":
                raise LookupError("no")

        async with make_rig(backend.tools, before_call=before).running() as rig:
            turn = rig.turn()
            turn.demand(call("read", key="a"))
            turn.demand(call("write", key="b"))
            with pytest.raises(LookupError):
                await turn.commit()
        assert backend.log == [("read", "a")]
        assert sorted(event.index for event in rig.of(CallFinished)) == [0, 1]

    virtual(main)


def test_a_write_runs_only_after_its_start_is_durable(virtual, make_rig, backend, call):
    async def main():
        async def before_write():
            assert rig.of(CallStarted)[-1].tool == "write"
            assert backend.log == [("read", "a")]
            await anyio.sleep(3)
            assert backend.log == [("read", "a")]

        rig = make_rig(backend.tools, before_write=before_write)
        async with rig.running():
            turn = rig.turn()
            turn.demand(call("read", key="a"))
            turn.demand(call("write", key="b"))
            await turn.commit()
        assert backend.log == [("read", "a"), ("write", "b")]

    virtual(main)


def test_a_write_cancelled_while_its_start_is_made_durable_did_not_run(virtual, make_rig, backend, call):
    async def main():
        async def before_write():
            await anyio.sleep(3)

        rig = make_rig(backend.tools, before_write=before_write)
        with anyio.move_on_after(1):
            async with rig.dispatcher:
                turn = rig.turn()
                turn.demand(call("write", key="b"))
                await turn.commit()
        assert backend.log == []
        assert rig.of(CallFinished)[0].outcome.error == "not_run"
        assert rig.executed() == {}

    virtual(main)


def test_tools_learn_their_run_and_principal_but_not_whether_they_are_guessed(virtual, make_rig, guess, call):
    async def main():
        seen = []

        @tool(effect="read")
        async def look(context: ToolContext, key: str) -> str:
            seen.append(context)
            return ""

        async with make_rig([look], run_id="r1", principal="ada").running() as rig:
            turn = rig.turn(7)
            turn.propose(guess("look", key="a"))
            await anyio.sleep(1)
            turn.demand(call("look", key="b"))
            await turn.commit()
        assert seen == [ToolContext(run_id="r1", turn=7, principal="ada")] * 2

    virtual(main)


def test_a_guess_is_bound_to_its_tool_object(virtual, make_rig, backend, guess, call):
    async def main():
        async with make_rig(backend.tools).running() as rig:
            turn = rig.turn()
            turn.propose(guess("read", key="a"))
            await anyio.sleep(2)
            rig.dispatcher._wiring.tools = as_tools(Backend().tools)  # as a server does that changes its tools
            turn.demand(call("read", key="a"))
            await turn.commit()
        assert rig.endings == [("discarded", "miss")]

    virtual(main)


async def test_results_are_rendered_for_the_model(make_rig, call, contents):
    from pydantic import BaseModel

    class Item(BaseModel):
        name: str
        price: float

    @tool(effect="read")
    async def give(what: str) -> object:
        return {
            "text": "plain ä",
            "none": None,
            "list": [1, 2.5, {"ä": True}],
            "model": Item(name="Ü", price=3),
            "nan": [float("nan")],
            "object": object(),
        }[what]

    async with make_rig([give]).running() as rig:
        turn = rig.turn()
        for what in ("text", "none", "list", "model", "nan", "object"):
            turn.demand(call("give", what=what))
        outcomes = await turn.commit()
    assert contents(outcomes)[:5] == ["plain ä", "null", '[1,2.5,{"ä":true}]', '{"name":"Ü","price":3.0}', '["NaN"]']
    assert outcomes[5].status == "error" and "PydanticSerializationError" in outcomes[5].content


async def test_what_a_tool_raises_becomes_an_error_the_model_can_read(make_rig, call, contents):
    class Response:
        def __init__(self):
            self.status_code = 503
            self.headers = {"retry-after": "2"}

    class HTTPStatusError(Exception):
        response = Response()

    errors = {
        "failure": ToolFailure("not_found", "no order 7"),
        "value": ValueError("first line\nsecond line"),
        "empty": KeyError(),
        "http": HTTPStatusError("503 for url"),
        "group": ExceptionGroup("unhandled", [OSError("gone")]),
        "exit": SystemExit(3),
    }

    @tool(effect="read")
    async def fail(how: str) -> str:
        raise errors[how]

    @tool(effect="read")
    def fail_in_thread(how: str) -> str:
        raise errors[how]

    for name in ("fail", "fail_in_thread"):
        async with make_rig([fail, fail_in_thread]).running() as rig:
            turn = rig.turn()
            for how in errors:
                turn.demand(call(name, how=how))
            outcomes = await turn.commit()
        assert contents(outcomes) == [
            '{"error":"not_found","message":"no order 7"}',
            '{"error":"ValueError","message":"first line"}',
            '{"error":"KeyError","message":"no message"}',
            '{"error":"HTTPStatusError","message":"503 for url"}',
            '{"error":"OSError","message":"gone"}',
            '{"error":"SystemExit","message":"3"}',
        ]
        assert [outcome.error for outcome in outcomes][:2] == ["not_found", "ValueError"]
        assert {outcome.status for outcome in outcomes} == {"error"}


async def test_a_tool_that_awaits_something_cancelled_fails_alone(make_rig, call, anyio_backend):
    if anyio_backend == "trio":
        pytest.skip("only asyncio's tasks can be cancelled by anybody")
    import asyncio

    @tool(effect="read")
    async def careless() -> str:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        return await future

    async with make_rig([careless]).running() as rig:
        turn = rig.turn()
        turn.demand(call("careless"))
        (outcome,) = await turn.commit()
    assert outcome.status == "error" and outcome.error == "CancelledError"


async def test_guess_and_call_work_on_both_backends(make_rig, guess, call):
    ready = anyio.Event()

    @tool(effect="read")
    async def read(key: str) -> str:
        ready.set()
        return key

    @tool
    def write(key: str) -> str:
        return key

    async with make_rig([read, write]).running() as rig:
        turn = rig.turn()
        turn.propose(guess("read", key="a"))
        await ready.wait()
        turn.demand(call("read", key="a"))
        turn.demand(call("write", key="b"))
        outcomes = await turn.commit()
    assert [outcome.content for outcome in outcomes] == ["a", "b"]
    assert rig.endings[0][0] in ("adopted", "joined")


def test_synchronous_tools_are_refused_where_the_clock_is_virtual():
    def plain() -> str:
        return ""

    with pytest.raises(ToolDefinitionError, match="'plain' is synchronous"):
        Dispatcher([plain], worker_threads=False)


def test_statistics_are_a_frozen_snapshot(virtual, make_rig, backend, guess, call):
    async def main():
        async with make_rig(backend.tools).running() as rig:
            turn = rig.turn()
            turn.propose(guess("read", key="a"))
            await anyio.sleep(0.5)
            before = rig.dispatcher.statistics()
            turn.demand(call("read", key="b"))
            await turn.commit()
            after = rig.dispatcher.statistics()
        assert (before.in_flight, before.proposals, before.demanded) == (1, 1, 0)
        assert before.guessed == {"read": 1} and before.endings == {}
        assert (after.in_flight, after.demanded, after.executed) == (0, 1, {"read": 2})
        assert after.endings == {"discarded": 1}

    virtual(main)


def test_two_runs_share_nothing_but_limits_and_versions(virtual, make_rig, backend, guess, call):
    async def main():
        shared = SharedLimits()
        async with make_rig(backend.tools, shared=shared).running() as one:
            async with make_rig(backend.tools, shared=shared).running() as two:
                first, second = one.turn(), two.turn()
                first.propose(guess("read", key="a"))
                await anyio.sleep(2)
                second.demand(ToolCall("read", {"key": "a"}))
                await second.commit()
                first.demand(call("read", key="a"))
                await first.commit()
        assert backend.log == [("read", "a"), ("read", "a")], "a guess is never handed to another run"
        assert not two.of(GuessEnded) and one.endings == [("adopted", None)]

    virtual(main)


def test_the_clock_starts_where_the_run_says(virtual, make_rig, backend, guess):
    async def main():
        zero = anyio.current_time()
        await trio.sleep(5)
        async with make_rig(backend.tools, zero=zero).running() as rig:
            turn = rig.turn()
            turn.propose(guess("read", key="a"))
            await turn.commit()
        assert rig.of(GuessProposed)[0].at == pytest.approx(5)

    virtual(main)
