"""Chat JSONL: one conversation per line, as `messages` and `tools` of the chat completions interface.

Two fields of ours are understood and written: `latency_s` of a tool message, `generation_s` of an assistant message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..trajectory import Trajectory
from .chat_messages import take_messages, tools_of
from .conversation import Conversation
from .errors import Broken
from .records import convert, read_records
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
