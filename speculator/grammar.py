"""The text that a probe may write, as a grammar: exactly one call in the model's own format, or "no call".

The grammar fixes everything but the choices: the tool, and its arguments in the order of the schema with the
model's own separators. Whatever is fixed comes as forced tokens, which cost no choice and few forward passes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_runtime.tools.values import ToolCall
from llguidance import LLMatcher

from .errors import GrammarUnsupported

_DATA = ("enum", "const", "default", "examples")
"""Keywords whose values are data, not schemas."""
_SEPARATORS = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """How a model writes a call: `opening + name + between + arguments + closing`, name and arguments as JSON.

    `lead_in` is the part of the opening before the JSON object, e.g. `<tool_call>` and a line break.
    """

    lead_in: str = "<tool_call>\n"
    before_name: str = '{"name": '
    between: str = ', "arguments": '
    closing: str = "}\n</tool_call>"
    item_separator: str = ", "
    key_separator: str = ": "

    @property
    def opening(self) -> str:
        """The text before the name."""
        return self.lead_in + self.before_name

    def write(self, call: ToolCall) -> str:
        """Return `call` as the model would write it."""
        arguments = json.dumps(
            dict(call.arguments), ensure_ascii=False, separators=(self.item_separator, self.key_separator)
        )
        return f"{self.opening}{json.dumps(call.name)}{self.between}{arguments}{self.closing}"

    def read(self, text: str) -> ToolCall | None:
        """Return the call that `text` is; None if it isn't one whole call and nothing else.

        `text` may leave out the lead-in (a probe's suffix may have written it already).
        """
        body = text.removeprefix(self.lead_in)
        if not body.startswith(self.before_name) or not body.endswith(self.closing):
            return None
        decoder = json.JSONDecoder()
        try:
            name, end = decoder.raw_decode(body, len(self.before_name))
            if not body.startswith(self.between, end):
                return None
            arguments, end = decoder.raw_decode(body, end + len(self.between))
        except ValueError:
            return None
        if body[end:] != self.closing or not isinstance(name, str) or not isinstance(arguments, dict):
            return None
        return ToolCall(name, arguments)


def call_grammar(
    tools: Sequence[tuple[str, Mapping[str, Any]]],
    *,
    form: CallFormat = CallFormat(),
    marks: Mapping[str, int],
    no_call: int,
    opened: bool = False,
) -> str:
    """Return the llguidance grammar (Lark) of one call of one of `tools`, or the single token `no_call`.

    Args:
        tools: Names and JSON Schemas of arguments.
        form: How the model writes a call.
        marks: Added tokens by their text: a grammar names them by id, since their text alone doesn't match them.
        no_call: The token that says "no call".
        opened: Whether the lead-in is already written.

    Raises:
        GrammarUnsupported: a schema isn't one that can be turned into a grammar, in any reading.
    """
    rules = [f"start: call | <[{no_call}]>" if tools else f"start: <[{no_call}]>"]
    if tools:
        opening = _literal(form.before_name if opened else form.opening, marks)
        choices = " | ".join(f"tool_{index}" for index in range(len(tools)))
        rules.append(f"call: {opening} ({choices}) {_literal(form.closing, marks)}")
    for index, (name, parameters) in enumerate(tools):
        head = _literal(json.dumps(name) + form.between, marks)
        rules.append(f"tool_{index}: {head} %json {json.dumps(_arguments(name, parameters, form))}")
    return "\n".join(rules) + "\n"


def _literal(text: str, marks: Mapping[str, int]) -> str:
    """Return `text` as Lark, its added tokens by id."""
    longest_first = sorted((mark for mark in marks if mark), key=len, reverse=True)
    pieces = re.split("(" + "|".join(map(re.escape, longest_first)) + ")", text) if longest_first else [text]
    return " ".join(f"<[{marks[piece]}]>" if piece in marks else json.dumps(piece) for piece in pieces if piece)


def _arguments(name: str, parameters: Mapping[str, Any], form: CallFormat) -> dict[str, Any]:
    """Return the schema of a tool's arguments for the grammar: closed, in the model's spacing.

    A schema that the grammar engine can't express is read leniently (what it doesn't know is left out); the guess
    is validated against the tool's real schema later anyway.
    """
    spacing = _SEPARATORS | {"item_separator": form.item_separator, "key_separator": form.key_separator}
    closed = _closed(dict(parameters)) | {"type": "object"}
    readings: tuple[dict[str, Any], ...] = (
        {**closed, "x-guidance": spacing},
        {**closed, "x-guidance": {**spacing, "lenient": True}},
        {"type": "object", "x-guidance": spacing},
    )
    problems = []
    for reading in readings:
        problem = LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(json.dumps(reading)))
        if not problem:
            return reading
        problems.append(problem)
    raise GrammarUnsupported(f"the schema of tool {name!r} can't be turned into a grammar: {problems[0]}")


def _closed(schema: Any) -> Any:
    """Return the schema without extra properties wherever it names its properties and doesn't ask for more."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: value if key in _DATA else _closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type", "object") == "object":
        closed["properties"] = {key: _closed(value) for key, value in schema["properties"].items()}
        closed.setdefault("additionalProperties", False)
    return closed
