"""Why a boundary was missed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from agent_runtime.tools.values import MalformedCall, ToolCall
from agent_runtime.traces.messages import AssistantMessage, Message

from .forced import ForcedTurn

Cause = Literal["no_guess", "wrong_tool", "unseen_text", "wrong_argument"]
"""Nothing was guessed; another tool was; the right tool, but an argument that was wrong needs text which nobody had
written yet; the right tool, and every wrong argument could have been copied from the conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """One missed boundary."""

    cause: Cause
    unseen: bool
    """Whether the call holds text that was nowhere in the conversation, whatever the guess was."""
    arguments: tuple[str, ...] = ()
    """Names of the wrong arguments, where the tool was right."""


class SeenText:
    """The text of a conversation, to look values up in."""

    def __init__(self, messages: Iterable[Message]) -> None:
        self._text = "\n".join(_texts(messages)).casefold()

    def holds(self, value: Any) -> bool:
        """Tell whether every text and number inside a JSON value stands in the conversation.

        Truth values, nulls and empty texts are choices, not copies: they count as seen.
        """
        return all(self._holds_one(leaf) for leaf in _leaves(value))

    def _holds_one(self, leaf: str | float) -> bool:
        if isinstance(leaf, str):
            text = leaf.strip().casefold()
            return text in self._text or json.dumps(text)[1:-1] in self._text
        spelled = (
            {str(leaf), str(int(leaf))} if leaf == leaf and abs(leaf) < 1e300 and leaf == int(leaf) else {str(leaf)}
        )
        return any(re.search(rf"(?<![\w.]){re.escape(text)}(?!\w|\.\d)", self._text) for text in spelled)


def explain(turn: ForcedTurn, guess: ToolCall | None, seen: SeenText) -> Miss:
    """Return why `guess` is not the turn's boundary."""
    boundary = turn.boundary
    assert boundary is not None
    if isinstance(boundary, MalformedCall):
        return Miss(cause="no_guess" if guess is None else "wrong_tool", unseen=False)
    unseen = not seen.holds(_chosen(turn, boundary))
    if guess is None:
        return Miss(cause="no_guess", unseen=unseen)
    if guess.name != boundary.name:
        return Miss(cause="wrong_tool", unseen=unseen)
    wrong = wrong_arguments(turn, guess, boundary)
    needed = [boundary.arguments[name] for name in wrong if name in boundary.arguments]
    copied = all(seen.holds(value) for value in needed)
    return Miss(cause="wrong_argument" if copied else "unseen_text", unseen=unseen, arguments=wrong)


def wrong_arguments(turn: ForcedTurn, guess: ToolCall, boundary: ToolCall) -> tuple[str, ...]:
    """Return the names of the arguments in which two calls of one tool differ, sorted."""

    def one(call: ToolCall, name: str) -> Any:
        return turn.toolset.canonical_value(call, name)

    names = set(guess.arguments) | set(boundary.arguments)
    return tuple(sorted(name for name in names if one(guess, name) != one(boundary, name)))


def _chosen(turn: ForcedTurn, call: ToolCall) -> list[Any]:
    """Return the argument values that a model has to find; those of a closed list in the schema are told to it."""
    tool = turn.toolset.tools.get(call.name)
    properties = tool.parameters.get("properties") if tool is not None else None
    known = properties if isinstance(properties, Mapping) else {}

    def listed(name: str) -> bool:
        schema = known.get(name)
        return isinstance(schema, Mapping) and ("enum" in schema or "const" in schema)

    return [value for name, value in call.arguments.items() if not listed(name)]


def _leaves(value: Any) -> Iterator[str | float]:
    match value:
        case bool() | None:
            return
        case str():
            if value.strip():
                yield value
        case int() | float():
            yield value
        case Mapping():
            for item in value.values():
                yield from _leaves(item)
        case list() | tuple():
            for item in value:
                yield from _leaves(item)


def _texts(messages: Iterable[Message]) -> Iterator[str]:
    for message in messages:
        if isinstance(message, AssistantMessage):
            yield message.thinking
            yield message.text
            for call in message.calls:
                yield call.text if isinstance(call, MalformedCall) else json.dumps(dict(call.arguments), default=dict)
        else:
            yield message.content
