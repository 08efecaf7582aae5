"""Chat JSONL: one conversation per line, as `messages` and `tools` of the chat completions interface.

Fields of ours are understood and written: `latency_s` and `failed` of a tool message, `generation_s` of an assistant
message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from agent_runtime.tools.values import MalformedCall, ToolCall

from ..messages import SystemMessage, UserMessage
from ..trajectory import RecordedTurn, Trajectory
from .chat_messages import take_messages, tools_of
from .conversation import Conversation
from .errors import Broken
from .records import convert, read_records
from .runs import RecordedRun, trajectory_of
from .source import Source
from .values import as_object, first_label, without

_KNOWN = frozenset({"id", "messages", "tools", "functions"})
_IDS = ("id", "conversation_id", "session_id")
_GROUPS = ("group", "task_id", "question_id", "instance_id")


def looks_like(record: dict[str, Any]) -> bool:
    """Tell whether an object is a record of this format."""
    return isinstance(record.get("messages"), list)


def read_chat(source: Source) -> Iterator[Trajectory]:
    """Yield the conversations of a file."""

    def conversation(value: Any, place: str) -> Trajectory:
        return _trajectory(source, value, place)

    return convert(source, read_records(source), conversation)


def _trajectory(source: Source, value: Any, place: str) -> Trajectory:
    record = as_object(value, "the record")
    if "messages" not in record:
        raise Broken("it has no messages")
    conversation = Conversation()
    unknown = take_messages(conversation, record["messages"])
    extra = without(record, _KNOWN)
    if unknown:
        extra["message_fields"] = unknown
    if notes := conversation.notes():
        source.fault(place, notes)
    return Trajectory(
        id=source.unique(first_label(record, _IDS), place),
        format="chat",
        group=first_label(record, _GROUPS),
        tools=tools_of(record.get("tools") or record.get("functions")),
        turns=conversation.turns(),
        after=conversation.after(),
        extra=extra,
    )


def write_chat(runs: Iterable[RecordedRun], file: TextIO) -> None:
    """Write the conversations of runs, one per line; what guessing did is left out."""
    for run in runs:
        file.write(json.dumps(to_chat(trajectory_of(run.info, run.events)), ensure_ascii=False) + "\n")


def to_chat(trajectory: Trajectory) -> dict[str, Any]:
    """Return a trajectory as one conversation; what the format has no field for stands beside `messages`."""
    messages: list[dict[str, Any]] = []
    for number, turn in enumerate(trajectory.turns):
        messages += map(_said, turn.before)
        messages += _turn(number, turn)
    messages += map(_said, trajectory.after)
    tools = [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)},
        }
        for tool in trajectory.tools
    ]
    extra = {key: value for key, value in trajectory.extra.items() if key != "message_fields"}
    return {**extra, "id": trajectory.id, "group": trajectory.group, "messages": messages, "tools": tools}


def _said(message: SystemMessage | UserMessage) -> dict[str, Any]:
    return {"role": "system" if isinstance(message, SystemMessage) else "user", "content": message.content}


def _turn(number: int, turn: RecordedTurn) -> Iterator[dict[str, Any]]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.message.text}
    if turn.message.thinking:
        message["reasoning_content"] = turn.message.thinking
    if turn.message.calls:
        message["tool_calls"] = [
            {"id": f"call_{number}_{index}", "type": "function", "function": _function(call)}
            for index, call in enumerate(turn.message.calls)
        ]
    if turn.generation_s is not None:
        message["generation_s"] = turn.generation_s
    yield message
    for index, (call, result) in enumerate(zip(turn.message.calls, turn.results, strict=True)):
        if result is None:
            continue
        told: dict[str, Any] = {"role": "tool", "tool_call_id": f"call_{number}_{index}", "content": result.content}
        if isinstance(call, ToolCall):
            told["name"] = call.name
        if result.latency_s is not None:
            told["latency_s"] = result.latency_s
        if result.failed:
            told["failed"] = True
        yield told


def _function(call: ToolCall | MalformedCall) -> dict[str, str]:
    if isinstance(call, MalformedCall):
        return {"name": "", "arguments": call.text}
    return {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)}
