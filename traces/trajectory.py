"""A recorded trajectory, from whichever agent it came: turns of one message each, with the results of its calls.

Times are seconds and None where the recording has none. Nothing here was measured by this runtime unless the format is
its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .messages import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTool:
    """A tool as the recording describes it to its model."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """JSON Schema of the arguments; empty where the recording names the tool only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedResult:
    """What a recorded call gave."""

    content: str
    latency_s: float | None = None
    """Seconds the tool took, as the recording says."""
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTurn:
    """One message of the model, what came before it since the turn before, and the results of its calls."""

    before: tuple[SystemMessage | UserMessage, ...] = ()
    message: AssistantMessage
    results: tuple[RecordedResult | None, ...] = ()
    """One per call of the message, in order; None where the recording holds no result."""
    generation_s: float | None = None
    """Seconds the model took for the message."""

    def tool_messages(self) -> list[ToolMessage]:
        """Return the results as the messages that the model read, in the order of the calls."""
        return [
            ToolMessage(name=getattr(call, "name", ""), content=result.content, index=index)
            for index, (call, result) in enumerate(zip(self.message.calls, self.results, strict=True))
            if result is not None
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One recorded run of an agent."""

    id: str
    """Unique within its file."""
    format: str
    """The format it was read from, e.g. `tau-bench`."""
    group: str | None = None
    """The task it belongs to, where several trajectories try one task: what a leave-one-out fit leaves out."""
    tools: tuple[RecordedTool, ...] = ()
    turns: tuple[RecordedTurn, ...] = ()
    after: tuple[SystemMessage | UserMessage, ...] = ()
    """What the user said after the last turn."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What the format holds beyond this (reward, model name, unknown fields), as plain JSON."""

    def messages_before(self, turn: int) -> list[Message]:
        """Return the conversation that the model saw at the start of turn number `turn`."""
        messages: list[Message] = []
        for recorded in self.turns[:turn]:
            messages += [*recorded.before, recorded.message, *recorded.tool_messages()]
        if turn < len(self.turns):
            messages += self.turns[turn].before
        return messages
