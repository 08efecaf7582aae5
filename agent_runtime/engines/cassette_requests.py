"""Canonical requests: what a model was asked, without secrets, as a key to find it by and as text to compare.

The same conversation has the same key wherever it is held. Each message is redacted once, when it is first seen, by the
rules of the trace store; what is redacted once stays as it is, so a replayed conversation has the recorded keys.
"""

from __future__ import annotations

import difflib
import hashlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from agent_runtime.tools.values import ToolCall, canonical_json
from agent_runtime.traces.messages import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage

from .base import ToolSchema

if TYPE_CHECKING:
    from agent_runtime.decoding.requests import Sampling
    from agent_runtime.traces.redaction import Redactor

Plain = Mapping[str, Any]
"""A message as plain JSON."""

_LINES_SHOWN = 60
_CONTEXT = 2


class Conversation:
    """The messages of one session as they grow, redacted. May be used from tools' threads too.

    Args:
        redactor: Takes secrets out; it remembers those it met.
        tools: The tools that the model may call.
    """

    def __init__(self, redactor: Redactor, tools: Sequence[ToolSchema]) -> None:
        self._redactor = redactor
        self._lock = threading.Lock()
        self.tools: tuple[Plain, ...] = tuple(redactor.redact(tool.as_function()["function"]) for tool in tools)
        self.tools_id = _digest(list(self.tools))
        self._raw: list[Message] = []
        self._plain: list[Plain] = []

    def plain(self, messages: Sequence[Message]) -> tuple[Plain, ...]:
        """Return the messages as plain JSON without secrets."""
        same = 0
        for old, new in zip(self._raw, messages, strict=False):
            if old != new:
                break
            same += 1
        del self._raw[same:], self._plain[same:]
        for message in messages[same:]:
            self._raw.append(message)
            self._plain.append(self.redact(_plain(message)))
        return tuple(self._plain)

    def redact(self, value: Any) -> Any:
        """Return JSON values equal to `value` but for the secrets in it."""
        with self._lock:
            return self._redactor.redact(value)

    def text(self, text: str) -> str:
        """Return `text` without secrets."""
        with self._lock:
            return self._redactor.text(text)

    def key(self, messages: Sequence[Plain]) -> str:
        """Return what stands for these messages with this conversation's tools."""
        return conversation_key(self.tools, messages)

    def call_key(self, tool: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return what stands for a call with validated arguments, and the arguments without secrets."""
        call = self.redact({"name": tool, "arguments": dict(arguments)})
        return canonical_json(call), call["arguments"]


def conversation_key(tools: Sequence[Plain], messages: Sequence[Plain]) -> str:
    """Return what stands for messages to a model with these tools."""
    return _digest({"tools": list(tools), "messages": list(messages)})


def sampled(sampling: Sampling | None) -> dict[str, Any] | None:
    """Return how tokens are chosen as plain JSON."""
    if sampling is None:
        return None
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(sampling).items()}


def plain_assistant(message: AssistantMessage) -> dict[str, Any]:
    """Return a message of the model as plain JSON."""
    return {
        "role": "assistant",
        "thinking": message.thinking,
        "text": message.text,
        "calls": [
            {"name": call.name, "arguments": dict(call.arguments)}
            if isinstance(call, ToolCall)
            else {"malformed": call.text, "reason": call.reason}
            for call in message.calls
        ],
    }


def _plain(message: Message) -> dict[str, Any]:
    match message:
        case SystemMessage():
            return {"role": "system", "content": message.content}
        case UserMessage():
            return {"role": "user", "content": message.content}
        case AssistantMessage():
            return plain_assistant(message)
        case ToolMessage():
            return {"role": "tool", "name": message.name, "index": message.index, "content": message.content}


def _digest(value: object) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:24]


# --- comparing ------------------------------------------------------------------------------------------------


def first_difference(recorded: Sequence[Plain], asked: Sequence[Plain]) -> int:
    """Return the number of the first message that differs, from 0."""
    for number, (one, other) in enumerate(zip(recorded, asked, strict=False)):
        if one != other:
            return number
    return min(len(recorded), len(asked))


def diff(recorded: Iterable[str], asked: Iterable[str]) -> str:
    """Return a unified diff of two requests, cut where it gets long."""
    lines = list(difflib.unified_diff(list(recorded), list(asked), "recorded", "this run", lineterm="", n=_CONTEXT))
    if len(lines) > _LINES_SHOWN:
        lines[_LINES_SHOWN:] = [f"... {len(lines) - _LINES_SHOWN} more lines"]
    return "\n".join(lines)


def as_lines(tools: Sequence[Plain], messages: Sequence[Plain], sampling: Mapping[str, Any] | None) -> list[str]:
    """Return a request as lines of text for people to compare."""
    lines = [f"tool: {canonical_json(tool)}" for tool in tools]
    lines.append(f"sampling: {'defaults of the model' if sampling is None else canonical_json(sampling)}")
    for number, message in enumerate(messages):
        lines.append(f"--- message {number}: {describe(message)}")
        if message.get("role") == "assistant":
            for part in ("thinking", "text"):
                lines += [f"{part}: {line}" for line in message[part].splitlines()]
            lines += [f"call: {canonical_json(call)}" for call in message["calls"]]
        else:
            lines += message["content"].splitlines() or [""]
    return lines


def describe(message: Plain) -> str:
    """Return what a message is, in a few words."""
    role = message.get("role")
    if role == "tool":
        return f"result {message['index']}, of {message['name'] or 'a malformed call'}"
    return {"system": "instructions", "user": "user", "assistant": "assistant"}.get(str(role), str(role))
