"""What-if in virtual time: recorded trajectories through the real turn loop and dispatcher, on a clock that jumps.

One run of this runtime answers one message of the user, so a trajectory is played as its exchanges, each a run of its
own: what the user takes in between counts for nothing.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from agent_runtime.errors import LimitExceeded, MissingExtra
from agent_runtime.hooks import Hooks
from agent_runtime.limits import Limits
from agent_runtime.live import LiveEvents
from agent_runtime.loop import run_turns
from agent_runtime.run import Run
from agent_runtime.speculator.policy import Policy
from agent_runtime.speculator.predictors import NoPredictor, Predictor
from agent_runtime.speculator.settings import Speculation
from agent_runtime.tools import Dispatcher, GuessLimits, SharedLimits, Toolset
from agent_runtime.traces import Ledger, MemoryTrace, ledger, merge
from agent_runtime.traces.trajectory import Trajectory

from .forced import Answers
from .playback import PERCENT, Playback, RecordedGuesses, usual_seconds
from .timing import Timing
from .toolset import RecordedToolset

UNBOUNDED = 1 << 30
"""The recording itself bounds a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One point of a sweep."""

    source: str
    timing: Timing
    speculation: Speculation
    probe_ms: float | None = None
    """What each guess takes; None takes what it took on this machine when it was made."""
    slowdown: float = 0.0
    """By which share of a guess's time the agent's message gets longer when the guess is made beside it."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one point of a sweep. Durations are milliseconds of virtual time."""

    setting: Setting
    turns: int
    serial_ms: float
    speculative_ms: float
    ledger: Ledger

    @property
    def speedup(self) -> float | None:
        """Serial over speculative time; None where nothing took any."""
        return self.serial_ms / self.speculative_ms if self.speculative_ms > 0 else None

    @property
    def wasted_calls(self) -> int:
        """Executions that served nothing."""
        guesses = [guess for turn in self.ledger.turns for guess in turn.guesses]
        return sum(guess.executed and not guess.served for guess in guesses)

    def to_json(self) -> dict[str, Any]:
        """Return what was set and what came of it, as plain JSON."""
        setting, expected = self.setting, self.ledger.expected
        limits = setting.speculation.limits
        return {
            "predictor": setting.source,
            "tool_latency_ms": setting.timing.tool_latency_ms,
            "probe_ms": setting.probe_ms,
            "probe_slowdown": setting.slowdown,
            "min_confidence": setting.speculation.min_confidence,
            "in_flight": limits.in_flight,
            "wasted_calls_limit": limits.wasted_calls,
            "turns": self.turns,
            "serial_ms": self.serial_ms,
            "speculative_ms": self.speculative_ms,
            "speedup": self.speedup,
            "expected": {"speedup": expected.speedup, "closed_form": expected.closed_form.speedup},
            "hit_at_1": self.ledger.hit_at_1,
            "saved_ms": self.ledger.saved_ms,
            "slowdown_ms": self.ledger.slowdown_ms,
            "hidden_share": self.ledger.hidden_share,
            "wasted_ms": self.ledger.wasted_ms,
            "wasted_calls": self.wasted_calls,
            "endings": self.ledger.endings,
        }


def what_if(
    trajectories: Sequence[Trajectory],
    toolsets: Sequence[RecordedToolset],
    answers: Mapping[str, Sequence[Mapping[int, Answers]]],
    settings: Sequence[Setting],
) -> list[Outcome]:
    """Play trajectories without guesses and once for each setting, in virtual time. Runs an event loop of its own.

    Args:
        trajectories: What is played, in this order.
        toolsets: Their tools.
        answers: For each predictor's source, and each trajectory, the answers by turn.
        settings: The points of the sweep.

    Raises:
        MissingExtra: trio, whose clock it is, isn't installed.
    """
    if importlib.util.find_spec("trio") is None:
        raise MissingExtra("virtual time runs on trio's clock: pip install 'agent-runtime[trio]'")
    from trio.testing import MockClock

    async def play() -> list[Outcome]:
        return await _sweep(trajectories, toolsets, answers, settings)

    clock = MockClock(autojump_threshold=0)
    return anyio.run(play, backend="trio", backend_options={"clock": clock})


async def _sweep(
    trajectories: Sequence[Trajectory],
    toolsets: Sequence[RecordedToolset],
    answers: Mapping[str, Sequence[Mapping[int, Answers]]],
    settings: Sequence[Setting],
) -> list[Outcome]:
    alone: dict[Timing, float] = {}
    outcomes = []
    for setting in settings:
        usual = usual_seconds(trajectories, setting.timing)
        if setting.timing not in alone:
            serial = _Cast(None, usual)
            alone[setting.timing] = await serial.play_all(trajectories, toolsets, setting, [{}] * len(trajectories))
        cast = _Cast(setting.speculation, usual)
        elapsed = await cast.play_all(trajectories, toolsets, setting, answers[setting.source])
        outcomes.append(
            Outcome(
                setting=setting,
                turns=sum(len(trajectory.turns) for trajectory in trajectories),
                serial_ms=alone[setting.timing] * 1000,
                speculative_ms=elapsed * 1000,
                ledger=merge(cast.ledgers),
            )
        )
    return outcomes


class _Cast:
    """Plays trajectories in one mode, one after the other; the policy learns from each for the next."""

    def __init__(self, speculation: Speculation | None, usual: Mapping[str, float]) -> None:
        self._speculation = speculation
        self._policy = Policy(speculation)
        self._usual = usual
        self._tools: dict[int, _Tools] = {}
        self.ledgers: list[Ledger] = []

    async def play_all(
        self,
        trajectories: Sequence[Trajectory],
        toolsets: Sequence[RecordedToolset],
        setting: Setting,
        answers: Sequence[Mapping[int, Answers]],
    ) -> float:
        """Return the seconds that all runs took together."""
        positions = self._speculation.reprobe if self._speculation is not None else ()
        seconds = 0.0
        for trajectory, toolset, known in zip(trajectories, toolsets, answers, strict=True):
            playback = Playback(trajectory, toolset, setting.timing, usual=self._usual, positions=positions)
            predictor: Predictor = NoPredictor()
            if self._speculation is not None:
                predictor = RecordedGuesses(
                    setting.source,
                    known,
                    playback,
                    probe_s=None if setting.probe_ms is None else setting.probe_ms / 1000,
                    slowdown=setting.slowdown,
                )
            tools = self._tools.setdefault(id(toolset), _Tools(toolset))
            tools.playback = playback
            for first, turns in exchanges(trajectory):
                seconds += await self._play(playback, tools.running, predictor, first=first, turns=turns)
        return seconds

    async def _play(self, playback: Playback, tools: Toolset, predictor: Predictor, *, first: int, turns: int) -> float:
        """Run one exchange; return the seconds it took."""
        zero = anyio.current_time()
        live = LiveEvents()
        live.detach()  # nobody watches
        dispatcher = Dispatcher(
            tools,
            gate=playback.toolset.gate,
            limits=self._speculation.limits if self._speculation is not None else GuessLimits(),
            emit=lambda event: run.emit(event),
            zero=zero,
            shared=SharedLimits(),
            worker_threads=False,
        )
        run = Run(
            session=playback,
            dispatcher=dispatcher,
            predictor=predictor,
            policy=self._policy.for_run(),
            trace=MemoryTrace(),
            live=live,
            limits=Limits(turns=turns, calls=UNBOUNDED, turn_tokens=UNBOUNDED),
            sampling=None,
            hooks=Hooks(),
            messages=playback.trajectory.messages_before(first),
            zero=zero,
        )
        async with dispatcher:
            try:
                await run_turns(run)
            except LimitExceeded:
                pass  # the recording ends with calls
            elapsed = run.now()
        self.ledgers.append(ledger(run.events))
        return elapsed


class _Tools:
    """The tools of one toolset, which play whatever trajectory is on."""

    def __init__(self, toolset: RecordedToolset) -> None:
        self.playback: Playback | None = None
        self.running = toolset.running(self._run)

    async def _run(self, name: str, arguments: Mapping[str, Any]) -> str:
        assert self.playback is not None
        return await self.playback.run(name, arguments)


def exchanges(trajectory: Trajectory) -> list[tuple[int, int]]:
    """Return the trajectory's exchanges: number of the first turn, and how many turns until a message without calls."""
    found, first = [], 0
    for number, turn in enumerate(trajectory.turns):
        if not turn.message.calls:
            found.append((first, number + 1 - first))
            first = number + 1
    if first < len(trajectory.turns):
        found.append((first, len(trajectory.turns) - first))
    return found


def sweep(
    sources: Sequence[str],
    timings: Sequence[Timing],
    *,
    min_confidence: Sequence[float],
    in_flight: Sequence[int],
    wasted_calls: Sequence[int],
    positions: Mapping[str, Sequence[float]],
    probe_ms: Mapping[str, float | None],
    slowdown: Mapping[str, float],
) -> list[Setting]:
    """Return every combination, in the order of the arguments.

    Args:
        sources: Predictors.
        timings: Tool latencies.
        min_confidence: Confidence below which a guess isn't started.
        in_flight: Guessed executions at the same time.
        wasted_calls: Executions per run that may serve nothing.
        positions: By source: shares of the thinking at which it is asked again.
        probe_ms: By source: what a guess takes.
        slowdown: By source: what a guess beside the agent costs it.
    """
    return [
        Setting(
            source=source,
            timing=timing,
            speculation=Speculation(
                predictor=NoPredictor(),
                min_confidence=least,
                reprobe=_reprobe(positions.get(source, ())),
                limits=GuessLimits(in_flight=flying, wasted_calls=wasted, wasted_seconds=math.inf),
            ),
            probe_ms=probe_ms.get(source),
            slowdown=slowdown.get(source, 0.0),
        )
        for source in sources
        for timing in timings
        for least in min_confidence
        for flying in in_flight
        for wasted in wasted_calls
    ]


def _reprobe(positions: Sequence[float]) -> tuple[int, ...]:
    """Return positions after the start and before the thinking's end, in hundredths."""
    return tuple(sorted({round(position * PERCENT) for position in positions if 0 < position < 1}))
