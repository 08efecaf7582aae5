"""Messages of a conversation, as values: equal by value, without ids or provider fields."""

from __future__ import annotations

from dataclasses import dataclass

from agent_runtime.tools.values import MalformedCall, ToolCall


@dataclass(frozen=True, slots=True)
class SystemMessage:
    """The agent's instructions."""

    content: str


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What the user asked."""

    content: str


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """One message of the model: its thinking, its visible text and its calls, in order."""

    text: str = ""
    thinking: str = ""
    calls: tuple[ToolCall | MalformedCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The result of call `index` (from 0) of the assistant message before it."""

    name: str
    content: str
    index: int = 0


Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage
"""One message; the class tells the role."""
