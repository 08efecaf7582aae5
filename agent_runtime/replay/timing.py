"""What recorded turns and calls took: as recorded, or injected where the user says so or the recording is silent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agent_runtime.errors import UsageError
from agent_runtime.tools.values import MalformedCall
from agent_runtime.traces.messages import AssistantMessage
from agent_runtime.traces.trajectory import RecordedTurn, Trajectory

GENERATION_MS = 1000.0
"""What a message takes where neither the recording nor the user says it."""

Source = Literal["recorded", "injected", "recorded and injected"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Where times come from.

    Raises:
        UsageError: a time is negative or not finite.
    """

    tool_latency_ms: float | None = None
    """Injected into every call; None takes the recorded latencies, and 0 where there is none."""
    generation_ms: float = GENERATION_MS
    """Injected into messages whose generation time the recording doesn't hold."""

    def __post_init__(self) -> None:
        for option, value in (("--tool-latency", self.tool_latency_ms), ("--generation-ms", self.generation_ms)):
            if value is not None and not 0 <= value < float("inf"):
                raise UsageError(f"{option} {value}: give milliseconds, at least 0")

    def generation_s(self, turn: RecordedTurn) -> float:
        """Return the seconds that a turn's message takes."""
        return self.generation_ms / 1000 if turn.generation_s is None else max(0.0, turn.generation_s)

    def tool_s(self, turn: RecordedTurn, index: int) -> float:
        """Return the seconds that call number `index` of a turn takes."""
        if self.tool_latency_ms is not None:
            return self.tool_latency_ms / 1000
        result = turn.results[index] if index < len(turn.results) else None
        return max(0.0, result.latency_s) if result is not None and result.latency_s is not None else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSources:
    """How many times of some trajectories are recorded; counts are of calls and of messages."""

    calls: int
    calls_timed: int
    messages: int
    messages_timed: int

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory]) -> TimeSources:
        """Count the recorded times."""
        turns = [turn for trajectory in trajectories for turn in trajectory.turns]
        results = [result for turn in turns for result in turn.results]
        return cls(
            calls=len(results),
            calls_timed=sum(result is not None and result.latency_s is not None for result in results),
            messages=len(turns),
            messages_timed=sum(turn.generation_s is not None for turn in turns),
        )

    def tool_source(self, timing: Timing) -> Source | None:
        """Return where the calls' times come from; None if there are none, recorded or injected."""
        if timing.tool_latency_ms is not None:
            return "injected"
        return "recorded" if self.calls_timed else None

    def generation_source(self) -> Source:
        """Return where the messages' times come from."""
        if self.messages_timed == 0:
            return "injected"
        return "recorded" if self.messages_timed == self.messages else "recorded and injected"

    def to_json(self, timing: Timing) -> dict[str, Any]:
        """Return the labels that every figure in milliseconds carries."""
        return {
            "source": self.tool_source(timing),
            "tool_latency_ms": timing.tool_latency_ms,
            "calls_without_latency": 0 if timing.tool_latency_ms is not None else self.calls - self.calls_timed,
            "generation_source": self.generation_source(),
            "generation_ms": None if self.messages_timed == self.messages else timing.generation_ms,
        }


@dataclass(frozen=True, slots=True)
class Shares:
    """How far a message is, as shares of its time, when its parts are complete.

    A recording holds no more than the time of the whole message, so that time is spread over its characters.
    """

    thinking: float
    text: float
    calls: tuple[float, ...]

    @classmethod
    def of(cls, message: AssistantMessage) -> Shares:
        """Return the shares of a message."""
        sizes = [len(message.thinking), len(message.text), *(_written(call) for call in message.calls)]
        total, done, ends = sum(sizes) or 1, 0, []
        for size in sizes:
            done += size
            ends.append(done / total)
        return cls(ends[0], ends[1], tuple(ends[2:]))


def _written(call: Any) -> int:
    if isinstance(call, MalformedCall):
        return len(call.text)
    return len(call.name) + len(json.dumps(dict(call.arguments), default=dict))
