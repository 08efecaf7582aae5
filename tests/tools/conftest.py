"""What the tests of the tools room share: a virtual clock and a recorded dispatcher."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
import trio
from agent_runtime.tools import Dispatcher, Outcome, Prediction, SharedLimits, ToolCall
from agent_runtime.tools.values import CallFinished, CallStarted, GuessEnded, GuessStarted
from trio.testing import MockClock


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture
def virtual() -> Callable[[Callable[[], Awaitable[object]]], object]:
    """Run an async function under a clock that jumps to the next deadline as soon as everybody waits."""

    def run(function):
        return trio.run(function, clock=MockClock(autojump_threshold=0))

    return run


class Rig:
    """A dispatcher whose events are recorded, with short forms for tests."""

    def __init__(self, tools, **options):
        options.setdefault("shared", SharedLimits())
        self.events = []
        self.dispatcher = Dispatcher(tools, emit=self.events.append, **options)

    @asynccontextmanager
    async def running(self):
        with anyio.fail_after(1000):
            async with self.dispatcher:
                yield self

    def turn(self, number=0):
        return self.dispatcher.open_turn(number)

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def endings(self):
        return [(event.ending, event.reason) for event in self.of(GuessEnded)]

    @property
    def ended(self) -> GuessEnded:
        (event,) = self.of(GuessEnded)
        return event

    def executed(self) -> Counter[str]:
        """What the events say was executed, by tool."""
        count = Counter(event.tool for event in self.of(GuessStarted))
        count += Counter(event.tool for event in self.of(CallStarted))
        started = {(event.turn, event.index): event for event in self.of(CallStarted)}
        for event in self.of(CallFinished):
            if event.outcome.error == "not_run" and (event.turn, event.index) in started:
                count[event.tool] -= 1
        return +count


@pytest.fixture
def make_rig():
    return Rig


def guess_of(name, confidence=0.9, source="scripted", **arguments):
    return Prediction(ToolCall(name, arguments), confidence, source)


@pytest.fixture
def guess():
    return guess_of


@pytest.fixture
def call():
    return lambda name, **arguments: ToolCall(name, arguments)


@pytest.fixture
def contents():
    def read(outcomes: list[Outcome]) -> list[str]:
        return [outcome.content for outcome in outcomes]

    return read
