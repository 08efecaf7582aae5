"""A model's text as it streams, taken apart into thinking, text and calls.

The regions are found by the library's own streaming parser from a response template. Two things are added around it.
Inside a JSON string every character that could begin a closing mark is fed as its JSON escape, so that a literal
`</tool_call>` in an argument doesn't end the block; the parsed value is the same. And a block that can't be parsed
becomes a `MalformedCall` with a reason, instead of an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from transformers.utils.chat_parsing import ResponseParser
from transformers.utils.chat_parsing.response_templates import ResponseTemplate, load_response_template

from agent_runtime.tools.values import MalformedCall, ToolCall
from agent_runtime.traces.messages import AssistantMessage

from .bare_calls import BareCalls

Part = tuple[Literal["thinking", "text"], str] | ToolCall | MalformedCall
"""A piece of a message: more thinking, more text, or a call whose block has closed."""

_KINDS: Mapping[str, Literal["thinking", "text"]] = {"reasoning_content": "thinking", "thinking": "thinking"}
_CALLS = "tool_calls"
_QUOTES = {"json": '"', "python-call-list": "\"'"}
"""Content types whose strings may hold a closing mark, with their quotation marks."""
_EXCERPT = 200
_PIECES = re.compile(r"(?:[^\W_]|\s)+|.", re.DOTALL)
"""Characters that may matter come one by one: whether a string is open must be known at each of them."""


class MessageParser:
    """Takes the text of one message in pieces of any size; the result doesn't depend on where it was split.

    Args:
        template: The model's response template.
        prefix: What the prompt already wrote of the message, from the template's start anchor on.
        tools: The tools as function schemas, for templates whose arguments carry no types.
        bare: Names of tools whose calls count also as bare or fenced JSON in the text; None if they never do.
    """

    def __init__(
        self,
        template: Mapping[str, Any] | ResponseTemplate,
        *,
        prefix: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
        bare: frozenset[str] | None = None,
    ) -> None:
        loaded = load_response_template(template)  # type: ignore[arg-type]
        self._parser = _ForgivingParser(loaded, prefix=prefix, tools=[dict(tool) for tool in tools])
        self._guards = {
            name: _QUOTES[field.content] for name, field in loaded.fields.items() if field.content in _QUOTES
        }
        self._strings = _Strings("")
        self._region = ""
        self._body = ""
        self._bare = BareCalls(bare) if bare else None
        self._thinking = _Trimmed()
        self._text = _Trimmed()
        self._calls: list[ToolCall | MalformedCall] = []
        self._read(self._parser.initial_events, ended=None)

    def feed(self, text: str) -> list[Part]:
        """Take more text; return the parts that became certain."""
        parts: list[Part] = []
        for piece in _PIECES.findall(text):
            fed = self._strings.guard(piece)
            events: Sequence[Mapping[str, Any]] = self._parser.feed(fed)
            if fed != piece:
                events = [_unguarded(event, fed, piece) for event in events]
            parts += self._read(events, ended=None)
        return merged(parts)

    def finish(self, *, whole: bool = True) -> list[Part]:
        """Take the end of the text; return the last parts.

        `whole` tells whether the model ended the message itself. A call block without its end is a call only then,
        and only if it can be read; in a message that was cut off it is malformed.
        """
        _, events = self._parser.finalize()
        parts = self._read(events, ended="whole" if whole else "cut")
        if self._bare is not None:
            parts += self._from_bare(self._bare.finish(whole=whole))
        return merged(parts)

    @property
    def message(self) -> AssistantMessage:
        """The message so far. Its texts are exactly the concatenated parts."""
        return AssistantMessage(text=self._text.written, thinking=self._thinking.written, calls=tuple(self._calls))

    @property
    def is_thinking(self) -> bool:
        """Whether the model is writing its thinking just now."""
        return _KINDS.get(self._region) == "thinking"

    def _read(self, events: Sequence[Mapping[str, Any]], *, ended: Literal["whole", "cut"] | None) -> list[Part]:
        parts: list[Part] = []
        for event in events:
            match event["type"]:
                case "region_open":
                    self._region, self._body = event["field"], ""
                    self._strings = _Strings(self._guards.get(self._region, ""))
                case "region_chunk":
                    self._body += event["text"]
                    self._strings.follow(event["text"])
                    parts += self._chunk(event["field"], event["text"])
                case "region_close":
                    if event["field"] == _CALLS:
                        parts += self._call(event, cut=ended == "cut")
                    self._region, self._strings = "", _Strings("")
        return parts

    def _chunk(self, field: str, text: str) -> Iterator[Part]:
        if field == _CALLS:
            return
        if _KINDS.get(field, "text") == "thinking":
            if new := self._thinking.add(text):
                yield ("thinking", new)
        elif field == "content" and self._bare is not None:
            yield from self._from_bare(self._bare.feed(text))
        elif field == "content" and (new := self._text.add(text)):
            yield ("text", new)

    def _from_bare(self, items: Sequence[str | ToolCall]) -> Iterator[Part]:
        for item in items:
            if isinstance(item, ToolCall):
                self._calls.append(item)
                yield item
            elif new := self._text.add(item):
                yield ("text", new)

    def _call(self, event: Mapping[str, Any], *, cut: bool) -> list[Part]:
        problem = event.get("problem")
        calls: list[ToolCall | MalformedCall]
        if cut:
            calls = [MalformedCall(self._body.strip(), "the message was cut off inside this call")]
        elif problem is not None:
            calls = [MalformedCall(self._body.strip(), problem)]
        else:
            value = event["value"]
            calls = [as_call(item, self._body.strip()) for item in (value if isinstance(value, list) else [value])]
        self._calls += calls
        return list(calls)


def as_call(value: Any, text: str) -> ToolCall | MalformedCall:
    """Return a parsed block as a call, or say in words for the model what is missing in it."""
    function = value.get("function", value) if isinstance(value, dict) else value
    if not isinstance(function, dict):
        return MalformedCall(text, 'a call must be a JSON object {"name": ..., "arguments": {...}}')
    name = function.get("name")
    if not isinstance(name, str) or not name:
        return MalformedCall(text, 'the call has no "name"; give the name of a tool as a string')
    arguments = function.get("arguments", function.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return MalformedCall(text, f'the "arguments" of {name} must be a JSON object, not a string')
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return MalformedCall(text, f'the "arguments" of {name} must be a JSON object')
    return ToolCall(name, arguments)


def merged(parts: Sequence[Part]) -> list[Part]:
    """Join neighbouring pieces of text of the same kind."""
    merged: list[Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, tuple) and isinstance(last, tuple) and last[0] == part[0]:
            merged[-1] = (part[0], last[1] + part[1])
        else:
            merged.append(part)
    return merged


def _unguarded(event: Mapping[str, Any], fed: str, piece: str) -> Mapping[str, Any]:
    """Return the event with the text as the model wrote it."""
    if event["type"] != "region_chunk" or not event["text"].endswith(fed):
        return event
    return {**event, "text": event["text"].removesuffix(fed) + piece}


class _Strings:
    """Follows a region's text to know whether the next character is inside a JSON string."""

    def __init__(self, quotes: str) -> None:
        self._quotes = quotes
        self._open = ""
        self._escaped = False

    def guard(self, piece: str) -> str:
        """Return a piece as it is fed: inside a string, marks of any kind as their JSON escape."""
        if not self._open or self._escaped or len(piece) > 1 or piece.isalnum() or piece.isspace():
            return piece
        if piece == self._open or piece == "\\" or not piece.isascii():
            return piece
        return f"\\u{ord(piece):04x}"

    def follow(self, text: str) -> None:
        """Take the text that reached the region."""
        if not self._quotes:
            return
        for character in text:
            if self._escaped:
                self._escaped = False
            elif self._open:
                if character == "\\":
                    self._escaped = True
                elif character == self._open or character == "\n":
                    # JSON strings hold no raw line break: this one was never closed. Leaving it here keeps the
                    # damage to this block.
                    self._open = ""
            elif character in self._quotes:
                self._open = character


class _Trimmed:
    """Text without white space at its ends, given out as early as that allows."""

    def __init__(self) -> None:
        self.written = ""
        self._held = ""

    def add(self, text: str) -> str:
        """Take more text; return what may be given out."""
        text = self._held + text
        if not self.written:
            text = text.lstrip()
        new = text.rstrip()
        self._held = text[len(new) :]
        self.written += new
        return new


class _ForgivingParser(ResponseParser):
    """The library's parser, but a region whose content can't be parsed closes with a `problem` instead of an error."""

    def _close_current(self, events: list[dict[str, Any]]) -> None:
        try:
            super()._close_current(events)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            events.append({"type": "region_close", "field": self._current, "problem": _in_words(self._body, error)})
            self._reset_to_implicit()

    def finalize(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """End the stream; fields that the template demands and the model left out are no error."""
        events: list[dict[str, Any]] = []
        self._process(events, eos=True)
        return {}, events


def _in_words(body: str, error: Exception) -> str:
    """Say for the model what is wrong with a block."""
    try:
        json.loads(body)
    except RecursionError:
        return "the call is nested too deeply"
    except json.JSONDecodeError as problem:
        if body.lstrip().startswith("{"):
            return f"the call is not valid JSON: {problem.msg} at character {problem.pos}"
    return f"the call can't be read: {str(error).partition(chr(10))[0][:_EXCERPT]}"
