"""Codex's rollout files: JSONL of the items that went to the model and came from it. Best effort.

Lines that are no part of the conversation are kept under `extra["lines"]`. A latency is what the tool's own output says
it took, else the time between the lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from agent_runtime.tools.values import ToolCall

from ..trajectory import RecordedResult, Trajectory
from .chat_messages import make_call
from .conversation import Call, Conversation
from .errors import Broken
from .json_text import loads
from .moments import between, moment
from .records import read_records
from .source import Source
from .values import as_array, as_object, as_seconds, as_string, as_text, kind, label

TIMING = (
    "latencies as the tools' outputs say, else from the timestamps of the lines, "
    "which may include waiting for the user's leave"
)
_LINES = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})
_ITEMS = frozenset(
    {
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "local_shell_call",
    }
)
_SAID_TWICE = frozenset({"user_message", "agent_message", "agent_reasoning", "agent_reasoning_raw_content"})
"""Events that repeat what an item says."""
_WALL_TIME = re.compile(r"^Wall time: ([0-9.]{1,20}) seconds", re.M)
_EXIT_CODE = re.compile(r"^(?:Exit code:|Process exited with code) (-?[0-9]{1,10})", re.M)


def looks_like(record: dict[str, Any]) -> bool:
    """Tell whether an object is a line of a rollout, also of the first versions, which had bare items."""
    type = label(record.get("type"))
    if type in _LINES:
        return isinstance(record.get("payload"), dict)
    if type in _ITEMS:
        return "message" not in record
    return "type" not in record and {"id", "timestamp", "instructions"} <= record.keys()


def read_codex(source: Source) -> Iterator[Trajectory]:
    """Yield the conversation of a file; of several files in one, each."""
    rollout = _Rollout("line 1")
    for record in read_records(source):
        try:
            line = as_object(record.value, "the line")
            if _opens(line) and rollout.id is not None:
                yield from rollout.trajectory(source)
                rollout = _Rollout(record.place)
            rollout.take(line)
        except Broken as broken:
            source.fault(record.place, str(broken))
    yield from rollout.trajectory(source)


def _opens(line: dict[str, Any]) -> bool:
    return line.get("type") == "session_meta" or ("type" not in line and "instructions" in line)


class _Rollout:
    """One conversation, as its lines come in."""

    def __init__(self, place: str) -> None:
        self.id: str | None = None
        self._place = place
        self._conversation = Conversation()
        self._lines: list[Any] = []
        self._about: dict[str, Any] = {}
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[Call] = []
        self._asked_at: datetime | None = None
        self._said_at: datetime | None = None
        self._called_at: dict[str, datetime | None] = {}
        self._durations: dict[str, float | None] = {}

    def take(self, line: dict[str, Any]) -> None:
        """Take one line.

        Raises:
            Broken: a field that matters is of the wrong kind.
        """
        type, payload, at = label(line.get("type")), line.get("payload"), moment(line.get("timestamp"))
        if type == "response_item" and isinstance(payload, dict):
            self._take_item(payload, line, at)
        elif type in _ITEMS:
            self._take_item(line, line, at)
        elif _opens(line):
            about = payload if isinstance(payload, dict) else line
            self.id = label(about.get("id")) or self._place
            self._about |= about
        elif type == "event_msg" and isinstance(payload, dict):
            self._take_event(payload, line)
        else:
            if type == "turn_context" and isinstance(payload, dict) and isinstance(payload.get("model"), str):
                self._about["model"] = payload["model"]
            self._lines.append(line)

    def trajectory(self, source: Source) -> Iterator[Trajectory]:
        """Yield the conversation, if there was one."""
        self._close_message()
        if self._conversation.empty:
            return
        if notes := self._conversation.notes():
            source.fault(f"the rollout from {self._place}", notes)
        extra = {**self._about, "timing": TIMING}
        if self._lines:
            extra["lines"] = self._lines
        yield Trajectory(
            id=source.unique(self.id, self._place),
            format="codex",
            turns=self._conversation.turns(),
            after=self._conversation.after(),
            extra=extra,
        )

    def _take_event(self, event: dict[str, Any], line: dict[str, Any]) -> None:
        id, duration = label(event.get("call_id")), event.get("duration")
        if id is not None and isinstance(duration, dict):
            whole, rest = as_seconds(duration.get("secs")), as_seconds(duration.get("nanos"))
            self._durations[id] = None if whole is None else whole + (rest or 0.0) / 1e9
        if label(event.get("type")) not in _SAID_TWICE:
            self._lines.append(line)

    def _take_item(self, item: dict[str, Any], line: dict[str, Any], at: datetime | None) -> None:
        match item.get("type"):
            case "message" if item.get("role") == "assistant":
                self._texts.append(as_text(item.get("content"), "the content"))
            case "message":
                self._close_message()
                text = as_text(item.get("content"), "the content")
                (self._conversation.user if item.get("role") == "user" else self._conversation.system)(text)
                self._asked_at = at or self._asked_at
                return
            case "reasoning":
                self._thoughts += _thoughts(item)
            case "function_call":
                self._calls.append(Call(make_call(item.get("name"), item.get("arguments")), label(item.get("call_id"))))
            case "custom_tool_call":
                arguments = {"input": as_string(item.get("input"), "the input")}
                self._calls.append(Call(make_call(item.get("name"), arguments), label(item.get("call_id"))))
            case "local_shell_call":
                action = as_object(item.get("action"), "the action")
                arguments = {key: value for key, value in action.items() if key != "type"}
                self._calls.append(Call(ToolCall("local_shell", arguments), label(item.get("call_id"))))
            case "function_call_output" | "custom_tool_call_output":
                self._close_message()
                self._take_output(item, at)
                self._asked_at = at or self._asked_at
                return
            case _:
                self._lines.append(line)
                return
        self._said_at = at or self._said_at

    def _take_output(self, item: dict[str, Any], at: datetime | None) -> None:
        id = label(item.get("call_id"))
        content, latency_s, failed = _output(item.get("output"))
        if latency_s is None and id is not None:
            latency_s = self._durations.pop(id, None)
            if latency_s is None:
                latency_s = between(self._called_at.get(id), at)
        self._conversation.result(RecordedResult(content=content, latency_s=latency_s, failed=failed), id)

    def _close_message(self) -> None:
        """End the model's message: everything it wrote since it last was told something."""
        if not (self._texts or self._calls or self._thoughts):
            return
        self._conversation.assistant(
            "\n".join(self._texts),
            self._calls,
            thinking="\n".join(self._thoughts),
            generation_s=between(self._asked_at, self._said_at),
        )
        self._called_at |= {call.id: self._said_at for call in self._calls if call.id is not None}
        self._texts, self._thoughts, self._calls = [], [], []
        self._said_at = None


def _thoughts(item: dict[str, Any]) -> list[str]:
    """Return what can be read of the model's thinking: mostly a summary, the rest is encrypted."""
    texts = []
    for key in ("summary", "content"):
        for part in as_array(item.get(key), f"the {key} of reasoning"):
            text = as_object(part, "a part of reasoning").get("text")
            if isinstance(text, str):
                texts.append(text)
    return texts


def _output(output: Any) -> tuple[str, float | None, bool]:
    """Return what the model was told, the seconds the tool took by its own account, and whether it failed."""
    failed = False
    if isinstance(output, dict):
        failed = output.get("success") is False
        output = output.get("content")
    if not isinstance(output, str | list | None):
        raise Broken(f"the output is {kind(output)}")
    content = as_text(output, "the output")
    metadata = _metadata(content)
    latency_s = as_seconds(metadata.get("duration_seconds"))
    exit_code: Any = metadata.get("exit_code")
    if latency_s is None and (said := _WALL_TIME.search(content)):
        latency_s = as_seconds(said[1])
    if exit_code is None and (said := _EXIT_CODE.search(content)):
        exit_code = int(said[1])
    return content, latency_s, failed or exit_code not in (None, 0)


def _metadata(content: str) -> dict[str, Any]:
    if not content.startswith("{"):
        return {}
    try:
        value = loads(content)
    except Broken:
        return {}
    metadata = value.get("metadata")
    return metadata if isinstance(metadata, dict) else {}
