"""Messages as the chat completions interface has them: roles, `tool_calls`, `tool_call_id`."""

from __future__ import annotations

import json
from typing import Any

from agent_runtime.tools.values import MalformedCall, ToolCall

from ..trajectory import RecordedResult, RecordedTool
from .conversation import Call, Conversation
from .errors import Broken
from .json_text import loads
from .values import as_array, as_object, as_seconds, as_string, as_text, kind, label, without

_KNOWN = frozenset(
    {
        "role",
        "content",
        "tool_calls",
        "tool_call_id",
        "name",
        "latency_s",
        "failed",
        "generation_s",
        "reasoning_content",
    }
)


def take_messages(conversation: Conversation, messages: Any, what: str = "messages") -> dict[str, Any]:
    """Put an array of messages into a conversation; return the fields it can't hold, by the message's number.

    Raises:
        Broken: it is no array, or a message is none.
    """
    unknown: dict[str, Any] = {}
    for number, message in enumerate(as_array(messages, what)):
        place = f"message {number + 1}"
        take_message(conversation, as_object(message, place), place)
        if rest := without(message, _KNOWN):
            unknown[str(number)] = rest
    return unknown


def take_message(conversation: Conversation, message: dict[str, Any], place: str) -> None:
    """Put one message into a conversation.

    Raises:
        Broken: its role is unknown, or a field that matters is of the wrong kind.
    """
    role = message.get("role")
    if role in ("system", "developer"):
        conversation.system(as_text(message.get("content"), f"the content of {place}"))
    elif role == "user":
        conversation.user(as_text(message.get("content"), f"the content of {place}"))
    elif role == "assistant":
        conversation.assistant(
            as_text(message.get("content"), f"the content of {place}"),
            calls_of(message, place),
            thinking=thinking_of(message),
            generation_s=as_seconds(message.get("generation_s")),
        )
    elif role in ("tool", "function"):
        content = as_text(message.get("content"), f"the content of {place}")
        latency_s, failed = as_seconds(message.get("latency_s")), message.get("failed") is True
        result = RecordedResult(content=content, latency_s=latency_s, failed=failed)
        conversation.result(result, label(message.get("tool_call_id")))
    else:
        raise Broken(f"{place} has the role {role!r}" if isinstance(role, str) else f"{place} has no role")


def thinking_of(message: dict[str, Any]) -> str:
    """Return the model's thinking, under any of the names that servers give it."""
    for key in ("reasoning_content", "reasoning", "thinking"):
        value = message.get(key)
        if isinstance(value, str) and value:
            return value
    return ""


def calls_of(message: dict[str, Any], place: str) -> list[Call]:
    """Return the calls of a message, also of the older interface that had one `function_call`.

    Raises:
        Broken: they are no array of objects.
    """
    calls = [
        _call(as_object(call, f"a call of {place}"))
        for call in as_array(message.get("tool_calls"), f"tool_calls of {place}")
    ]
    old = message.get("function_call")
    if not calls and isinstance(old, dict):
        calls.append(Call(make_call(old.get("name"), old.get("arguments"))))
    return calls


def _call(call: dict[str, Any]) -> Call:
    function = call.get("function", call)
    if not isinstance(function, dict):
        return Call(MalformedCall(text=str(function), reason=f"function is {kind(function)}"), label(call.get("id")))
    return Call(make_call(function.get("name"), function.get("arguments")), label(call.get("id")))


def make_call(name: Any, arguments: Any) -> ToolCall | MalformedCall:
    """Return a call of JSON arguments, as an object or as the text the model wrote; malformed where they are none."""
    if not isinstance(name, str) or not name:
        return MalformedCall(text=as_written(arguments), reason="the call names no tool")
    if isinstance(arguments, str) and arguments.strip():
        try:
            arguments = loads(arguments)
        except Broken as broken:
            return MalformedCall(text=f"{name}({arguments})", reason=str(broken))
    if arguments is None or arguments == "" or (isinstance(arguments, str) and not arguments.strip()):
        arguments = {}
    if not isinstance(arguments, dict):
        return MalformedCall(text=f"{name}({as_written(arguments)})", reason=f"the arguments are {kind(arguments)}")
    return ToolCall(name, arguments)


def as_written(value: Any) -> str:
    """Return a string as it is, and everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def tools_of(value: Any) -> tuple[RecordedTool, ...]:
    """Return tools in any of the usual spellings; what names none is left out.

    Raises:
        Broken: they are no array.
    """
    tools = []
    for item in as_array(value, "tools"):
        if isinstance(item, str):
            tools.append(RecordedTool(name=item))
            continue
        if not isinstance(item, dict):
            continue
        function = item.get("function", item)
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            continue
        parameters = function.get("parameters") or function.get("input_schema") or {}
        tools.append(
            RecordedTool(
                name=function["name"],
                description=as_string(function.get("description"), "a tool's description"),
                parameters=parameters if isinstance(parameters, dict) else {},
            )
        )
    return tuple(tools)
