"""What a conversation has shown so far, kept up to date message by message.

Sources are plain tuples, so that they can be counted and written as JSON:

    ("result", tool, path)    a place in the results of a tool
    ("call", tool, argument)  an argument of earlier calls
    ("user", shape)           something of that shape in what the user wrote
    ("agent", shape)          the same in what the agent wrote
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.messages import AssistantMessage, Message, ToolMessage, UserMessage

from .counter_values import MOST_LEAVES, Key, key_of, leaves, parse, spans, words

Source = tuple[str, ...]

MOST_VALUES = 200
"""Values remembered of one source; the oldest go first."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a value was seen last in a source: number of the message, and place in it."""

    message: int
    place: int


@dataclass(slots=True)
class Conversation:
    """The state of one conversation. `extend` costs what the new messages cost, whatever came before."""

    messages: list[Message] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    """What happened, blurred: `user`, or a tool's name, with `!` behind it where its result was an error."""
    values: dict[Source, OrderedDict[Key, Seat]] = field(default_factory=dict)
    """Per source its values, the one seen last at the end."""
    origins: dict[Key, set[Source]] = field(default_factory=dict)
    """Per value the sources in which it was seen."""
    calls: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    """Arguments of the calls so far, by tool."""
    used: dict[Source, list[Key]] = field(default_factory=dict)
    """Per ("call", tool, argument) the values so far, in order."""
    user_words: list[str] = field(default_factory=list)
    """Words of what the user wrote last."""
    agent_words: list[str] = field(default_factory=list)
    """Words of what the agent wrote last."""
    result: str = ""
    """What the last result was like: `error`, `empty`, `list`, `object` or `text`; empty right after a user message."""
    last_user: int = -1
    last_agent: int = -1
    last_result: int = -1

    def extend(self, messages: Sequence[Message]) -> None:
        """Take in further messages."""
        for message in messages:
            number = len(self.messages)
            self.messages.append(message)
            match message:
                case UserMessage():
                    self.steps.append("user")
                    self.user_words = words(message.content)
                    self.result = ""
                    self.last_user = number
                    self._read_text("user", message.content, number)
                case AssistantMessage():
                    if message.text:
                        self.agent_words = words(message.text)
                        self.last_agent = number
                        self._read_text("agent", message.text, number)
                    for call in message.calls:
                        if isinstance(call, ToolCall):
                            self._take_call(call, number)
                case ToolMessage():
                    self._take_result(message, number)
                case _:
                    pass

    def matches(self, messages: Sequence[Message]) -> bool:
        """Tell whether `messages` begin with what was taken in."""
        count = len(self.messages)
        if count > len(messages):
            return False
        return count == 0 or (messages[count - 1] == self.messages[-1] and list(messages[:count]) == self.messages)

    def newest(self, source: Source) -> int:
        """Return the number of the message in which a source had a value last; -1 if it never had."""
        values = self.values.get(source)
        return next(reversed(values.values())).message if values else -1

    def _read_text(self, who: str, text: str, number: int) -> None:
        for place, (form, value) in enumerate(spans(text)):
            if place >= MOST_LEAVES:
                break
            self._see((who, form), key_of(value), number, place)
            if form == "9":
                self._see((who, "number"), key_of(int(value)), number, place)

    def _take_call(self, call: ToolCall, number: int) -> None:
        self.steps.append(call.name)
        self.calls.setdefault(call.name, []).append(call.arguments)
        for name, value in call.arguments.items():
            source = ("call", call.name, name)
            key = key_of(value)
            self.used.setdefault(source, []).append(key)
            self._see(source, key, number, 0)

    def _take_result(self, message: ToolMessage, number: int) -> None:
        document = parse(message.content)
        self.last_result = number
        self.result = _kind(message.content, document)
        if self.result == "error" and self.steps and self.steps[-1] == message.name:
            self.steps[-1] += "!"
        if document is None:
            if self.result == "text" and len(message.content) <= 60:
                self._see(("result", message.name, ""), key_of(message.content), number, 0)
            return
        for place, (path, value) in enumerate(leaves(document)):
            if place >= MOST_LEAVES:
                break
            self._see(("result", message.name, path), key_of(value), number, place)

    def _see(self, source: Source, key: Key, number: int, place: int) -> None:
        values = self.values.get(source)
        if values is None:
            values = self.values[source] = OrderedDict()
        seat = values.get(key)
        if seat is not None and seat.message == number:
            return  # its first place in a message counts
        values[key] = Seat(number, place)
        values.move_to_end(key)
        if len(values) > MOST_VALUES:
            values.popitem(last=False)
        self.origins.setdefault(key, set()).add(source)


def _kind(content: str, document: Any) -> str:
    if document is None:
        head = content.lstrip()[:40].lower()
        return "error" if head.startswith(("error", "exception", "traceback")) else "text" if head else "empty"
    if isinstance(document, Mapping):
        return "error" if "error" in document else "object"
    return "list" if document else "empty"
