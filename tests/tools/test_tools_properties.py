"""The life cycle under random schedules: slow, failing and hanging tools, retries, cancellation, several runs at once.

Whatever happens: each proposal has one ending, each demanded call has one result, the tools' own counters equal
what the events say was executed, no write is started early, and nothing is alive afterwards.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import anyio
import pytest
import trio
from agent_runtime.tools import (
    CallDemanded,
    CallFinished,
    CallStarted,
    Contract,
    Dispatcher,
    Gate,
    GuessEnded,
    GuessLimits,
    GuessProposed,
    GuessStarted,
    MalformedCall,
    Prediction,
    SharedLimits,
    Tool,
    ToolCall,
    ToolFailure,
    tool,
)
from anyio.lowlevel import checkpoint
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

KEYS = st.sampled_from(["a", "b"])
HOW = st.sampled_from(["ok", "ok", "ok", "fail", "429", "500", "hang", "slow end", "odd end"])
STEPS = st.integers(0, 6)
NAMES = st.sampled_from(
    ["read", "read", "read", "single", "single", "write", "write", "put", "lonely", "guarded", "remote", "nothing"]
)
CALLS = st.builds(
    lambda name, key, how, steps: ToolCall(name, {"key": key, "how": how, "steps": steps}), NAMES, KEYS, HOW, STEPS
)
BAD_CALLS = st.sampled_from([MalformedCall("{", "no JSON"), ToolCall("read", {"key": 3}), ToolCall("write", {})])
WRITES = frozenset({"write", "remote"})
BARRIERS = WRITES | {"put", "lonely"}
PAUSE = st.tuples(st.just("pause"), st.integers(0, 8))
INDEX = st.sampled_from([0, 0, 0, 1, 1, 2])
PROPOSAL = st.tuples(st.sampled_from(["propose", "propose", "propose", "refuse", "late"]), st.tuples(CALLS, INDEX))
DEMAND = st.tuples(st.just("demand"), st.one_of(CALLS, CALLS, CALLS, BAD_CALLS))


@st.composite
def turns(draw):
    """A turn: perhaps guesses that come true, then anything in any order, then its end."""
    actions = draw(st.lists(st.one_of(PAUSE, PROPOSAL, DEMAND), max_size=7))
    calls = draw(st.lists(CALLS, max_size=3))
    guesses = [("propose", (call, index)) for index, call in enumerate(calls)]
    demands = [action for call in calls for action in (("pause", draw(st.integers(0, 8))), ("demand", call))]
    actions = [*guesses, *demands, *actions]
    return actions, draw(st.sampled_from(["commit", "commit", "commit", "abandon"]))


RUNS = st.lists(st.lists(turns(), min_size=1, max_size=4), min_size=1, max_size=3)
STOPS = st.one_of(st.none(), st.integers(0, 60))


@dataclass
class World:
    """The tools' side: what was really called, and what is alive."""

    pause: object
    calls: Counter[str] = field(default_factory=Counter)
    alive: int = 0

    async def work(self, name, key, how, steps):
        self.calls[name] += 1
        self.alive += 1
        try:
            await self.pause(steps)
            if how == "fail":
                raise ToolFailure("failed", "as asked")
            if how in ("429", "500"):
                raise ToolFailure("busy", "as asked", status=int(how))
            if how == "hang":
                await anyio.sleep_forever()
            return f"{name} {key}"
        except BaseException:
            if how == "slow end":
                with anyio.CancelScope(shield=True):
                    await self.pause(3)
            if how == "odd end":
                raise ValueError("while being cancelled") from None
            raise
        finally:
            self.alive -= 1

    def tools(self, timeout) -> list[Tool]:
        def make(name, **contract):
            async def function(key: str, how: str = "ok", steps: int = 0) -> str:
                return await self.work(name, key, how, steps)

            return tool(name=name, timeout=timeout, **contract)(function)

        async def remote(arguments):
            return await self.work(
                "remote", arguments.get("key"), arguments.get("how", "ok"), int(arguments.get("steps", 0))
            )

        lie = Contract.from_hints({"readOnlyHint": True, "openWorldHint": False})  # it is a write
        return [
            make("read", effect="read", reads=["x"]),
            make("single", effect="read", reads=["y"], max_concurrency=1),
            make("write", effect="write", writes=["x"]),
            make("put", effect="idempotent", writes=["y"]),
            make("lonely", effect="read", sequential=True),
            make("guarded", effect="read", requires_approval=True),
            Tool.from_schema("remote", "", {"type": "object"}, remote, replace(lie, timeout=timeout), trusted=False),
        ]


class Run:
    """One run that plays a script and writes down what it saw."""

    def __init__(self, world, script, shared, timeout, opted_in):
        self.world = world
        self.script = script
        self.events = []
        self.hooked = []
        self.committed = {}
        self.dispatcher = Dispatcher(
            world.tools(timeout),
            gate=Gate(allow_idempotent=opted_in, allow_open_world=True),
            limits=GuessLimits(wasted_calls=6, back_off=5, retry_pause=1),
            emit=self.events.append,
            shared=shared,
            before_write=checkpoint,
            before_call=self.before,
            after_call=self.after,
            approve=self.approve,
        )
        self.turn = 0

    async def before(self, call, tool):
        self.hooked.append(self.turn)
        await checkpoint()

    async def after(self, call, outcome):
        self.hooked.append(self.turn)

    async def approve(self, call, tool):
        self.hooked.append(self.turn)
        return call.arguments["key"] == "a"

    async def play(self):
        async with self.dispatcher:
            for number, (actions, end) in enumerate(self.script):
                self.turn = number
                calls = self.dispatcher.open_turn(self.turn)
                demanded = []
                for action, what in actions:
                    if action == "pause":
                        await self.world.pause(what)
                    elif action == "demand":
                        demanded.append(what)
                        assert calls.demand(what) == len(demanded) - 1
                    elif action == "refuse":
                        calls.refuse(Prediction(what[0], 0.2, "scripted", what[1]), "low_confidence")
                    else:
                        getattr(calls, action)(Prediction(what[0], 0.9, "scripted", what[1]))
                if end == "abandon":
                    calls.abandon()
                    continue
                self.committed[self.turn] = None
                outcomes = await calls.commit()
                self.committed[self.turn] = outcomes
                assert len(outcomes) == len(demanded)
                for call, outcome in zip(demanded, outcomes, strict=True):
                    self.check_outcome(call, outcome)

    def check_outcome(self, call, outcome):
        """An error reaches the agent only if the agent's own call has it."""
        assert outcome.status != "cancelled"
        if isinstance(call, MalformedCall) or "how" not in call.arguments:
            assert outcome.status == "invalid_arguments"
        elif call.name == "nothing":
            assert outcome.status == "unknown_tool"
        elif call.name == "guarded" and call.arguments["key"] != "a":
            assert outcome.status == "denied"
        elif outcome.status == "ok":
            assert call.arguments["how"] in ("ok", "slow end", "odd end")
            assert outcome.content == f"{call.name} {call.arguments['key']}"
        elif call.arguments["how"] == "ok":
            assert outcome.status in ("timeout", "limit")

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    def executed(self):
        count = Counter(event.tool for event in self.of(GuessStarted))
        count += Counter(event.tool for event in self.of(CallStarted))
        started = {(event.turn, event.index) for event in self.of(CallStarted)}
        for event in self.of(CallFinished):
            if event.outcome.error == "not_run" and (event.turn, event.index) in started:
                count[event.tool] -= 1
        return count

    def barriers_before(self, turn, index):
        """Return the calls of the turn that nothing may pass."""
        calls = [event.call for event in self.of(CallDemanded) if event.turn == turn and event.index < index]
        return [call for call in calls if call.name in BARRIERS and isinstance(call.arguments.get("key"), str)]

    def check(self, opted_in):
        proposed = {event.guess: event for event in self.of(GuessProposed)}
        assert len(self.of(GuessProposed)) == len(proposed)
        ended = {event.guess: event for event in self.of(GuessEnded)}
        assert len(self.of(GuessEnded)) == len(ended) and set(proposed) == set(ended)
        demanded = [(event.turn, event.index) for event in self.of(CallDemanded)]
        finished = {(event.turn, event.index): event for event in self.of(CallFinished)}
        assert len(self.of(CallFinished)) == len(finished) and set(demanded) == set(finished)

        started = Counter((event.turn, event.index) for event in self.of(CallStarted))
        served = {event.guess: key for key, event in finished.items() if event.guess is not None}
        guessed = {event.guess for event in self.of(GuessStarted)}
        for number, event in ended.items():
            hit = event.ending in ("adopted", "joined")
            assert hit == (number in served)
            assert event.executed == (number in guessed)
            if hit:
                assert event.matched and not started[served[number]]
                assert served[number] == (event.turn, proposed[number].index)
                assert not self.barriers_before(*served[number]), "what it read may be older than the barrier"
                assert 0 <= event.saved_ms <= event.lead_ms and event.wasted_ms == 0
            else:
                assert event.saved_ms == 0 and event.wasted_ms >= 0
            assert not event.matched or event.matched_name
            if event.ending in ("refused", "late"):
                assert not event.executed
        assert all(count <= 2 for count in started.values())
        for event in self.of(GuessStarted):
            assert event.tool not in WRITES, "a write was started early"
            assert event.tool in ("read", "single") or (event.tool == "put" and opted_in)
        committed = set(self.committed)
        assert set(self.hooked) <= committed, "a hook fired for a call that never committed"
        assert {event.turn for event in self.of(CallStarted) if event.effect != "read"} <= committed

        statistics = self.dispatcher.statistics()
        assert statistics.proposals == len(proposed) == sum(statistics.endings.values())
        assert statistics.in_flight == 0
        assert statistics.wasted_calls <= 6
        assert statistics.demanded == len(demanded)
        assert Counter(statistics.executed) == +self.executed()


async def play_all(world, scripts, stop, timeout, opted_in):
    shared = SharedLimits()
    runs = [Run(world, script, shared, timeout, opted_in) for script in scripts]
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def cancel_later():
                await world.pause(stop)
                scope.cancel()

            async def all_runs():
                async with anyio.create_task_group() as playing:
                    for run in runs:
                        playing.start_soon(run.play)
                tasks.cancel_scope.cancel()

            if stop is not None:
                tasks.start_soon(cancel_later)
            tasks.start_soon(all_runs)
    assert world.alive == 0, "a tool outlived its run"
    for run in runs:
        run.check(opted_in)
    executed: Counter[str] = sum((run.executed() for run in runs), Counter())
    assert +executed == world.calls, "the events tell what was executed"
    assert not shared.versions.being_written(None)
    assert shared.guess_threads_used == 0
    for run in runs:
        for item in run.dispatcher.tools:
            limits = shared.of(item)
            assert limits._running == 0 and not limits._guesses and not limits._waiting and not limits._draining


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scripts=RUNS, stop=STOPS, opted_in=st.booleans())
def test_the_life_cycle_holds_under_random_schedules_of_a_virtual_clock(scripts, stop, opted_in):
    async def main():
        with anyio.fail_after(10_000):
            await play_all(World(anyio.sleep), scripts, stop, 10, opted_in)

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def steps(count):
    for _ in range(count):
        await checkpoint()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scripts=RUNS, stop=st.integers(0, 80), opted_in=st.booleans())
def test_the_life_cycle_holds_when_cancelled_at_any_await(backend, scripts, stop, opted_in):
    async def main():
        with anyio.fail_after(60):
            await play_all(World(steps), scripts, stop, None, opted_in)

    anyio.run(main, backend=backend)


# Contracts as an untrusted server may state them, and agents as careless as they can be.
LIES = st.fixed_dictionaries(
    {},
    optional={
        name: st.sampled_from([True, False])
        for name in ("readOnlyHint", "idempotentHint", "destructiveHint", "openWorldHint")
    },
)
GATES = st.builds(
    Gate,
    allow_idempotent=st.sampled_from([True, False, frozenset({"tool0", "tool1"})]),
    allow_open_world=st.sampled_from([True, False, frozenset({"tool0", "tool1"})]),
)


@settings(max_examples=60, deadline=None)
@given(
    sources=st.lists(st.tuples(st.sampled_from(["untrusted", "plain", "declared"]), LIES), min_size=1, max_size=4),
    gate=GATES,
    order=st.lists(st.integers(0, 3), min_size=1, max_size=8),
)
def test_no_write_is_ever_started_early_whatever_its_source_claims(sources, gate, order):
    """Counted at the backend: everything here writes, so nothing may run that was only proposed."""
    written = []

    def make(number, source, hints):
        name = f"tool{number}"

        async def remote(arguments):
            written.append(name)

        async def local() -> None:
            written.append(name)

        if source == "untrusted":
            return Tool.from_schema(name, "", {}, remote, Contract.from_hints(hints), trusted=False)
        if source == "plain":
            return Tool.from_function(local, name=name)
        return tool(name=name, effect="write", open_world=False, pre_execute=True)(local)

    tools = [make(number, *source) for number, source in enumerate(sources)]

    async def main():
        events = []
        async with Dispatcher(tools, gate=gate, emit=events.append, shared=SharedLimits()) as dispatcher:
            expected = []
            for number, choice in enumerate(order):
                name = tools[choice % len(tools)].name
                turn = dispatcher.open_turn(number)
                turn.propose(Prediction(ToolCall(name), 1.0, "scripted"))
                await anyio.sleep(10)
                assert written == expected, "a write ran before the agent asked"
                turn.demand(ToolCall(name))
                await anyio.sleep(10)
                assert written == expected, "a write ran before the message was complete"
                if number % 3 == 2:
                    turn.abandon()
                else:
                    await turn.commit()
                    expected.append(name)
                assert written == expected
        assert not [event for event in events if isinstance(event, GuessStarted)]
        reasons = {event.reason for event in events if isinstance(event, GuessEnded)}
        assert reasons <= {"effect", "destructive"}

    trio.run(main, clock=MockClock(autojump_threshold=0))
