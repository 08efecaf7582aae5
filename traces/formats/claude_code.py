"""Claude Code's session files: JSONL with a line per block of a message. The format is not published; best effort.

Lines that are no part of the conversation are kept under `extra["lines"]`. Times come from the lines' timestamps, so a
latency may hold the time in which a user was asked for leave. A subagent's lines become a trajectory of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from agent_runtime.tools.values import MalformedCall, ToolCall

from ..trajectory import RecordedResult, Trajectory
from .conversation import Call, Conversation
from .errors import Broken
from .moments import between, moment
from .records import read_records
from .source import Source
from .values import as_array, as_object, as_string, as_text, kind, label

_TYPES = frozenset(
    {"user", "assistant", "system", "summary", "file-history-snapshot", "queue-operation", "progress", "attachment"}
)
_SIGNS = frozenset({"sessionId", "parentUuid", "leafUuid", "isSidechain"})
_SYNTHETIC = "<synthetic>"
"""The model's name in messages that no model wrote, such as those about errors of the interface."""
TIMING = "from the timestamps of the lines; latencies may include waiting for the user's leave"


def looks_like(record: dict[str, Any]) -> bool:
    """Tell whether an object is a line of a session."""
    return label(record.get("type")) in _TYPES and not _SIGNS.isdisjoint(record)


def read_claude_code(source: Source) -> Iterator[Trajectory]:
    """Yield the conversations of a file: the session's, then those of its subagents."""
    sessions: dict[str | None, _Session] = {}
    for record in read_records(source):
        try:
            line = as_object(record.value, "the line")
            main = sessions.get(None)
            if main is not None and main.is_over(line):
                yield from _finish(source, sessions)
                sessions = {}
            _session_of(line, sessions, record.place).take(line)
        except Broken as broken:
            source.fault(record.place, str(broken))
    yield from _finish(source, sessions)


def _session_of(line: dict[str, Any], sessions: dict[str | None, _Session], place: str) -> _Session:
    agent = None
    if line.get("isSidechain") is True:
        agent = label(line.get("agentId"))
        if agent is None:  # older files name no agent: a line belongs where its parent does
            parent = label(line.get("parentUuid"))
            known = (key for key, session in sessions.items() if key is not None and parent in session.uuids)
            agent = next(known, None) or label(line.get("uuid")) or "sidechain"
    if agent not in sessions:
        sessions[agent] = _Session(agent, place)
    return sessions[agent]


def _finish(source: Source, sessions: dict[str | None, _Session]) -> Iterator[Trajectory]:
    for session in sessions.values():
        trajectory = session.trajectory(source)
        if trajectory is not None:
            yield trajectory


class _Session:
    """One conversation, as its lines come in."""

    def __init__(self, agent: str | None, place: str) -> None:
        self.uuids: set[str] = set()
        self._agent = agent
        self._place = place
        self._id: str | None = None
        self._conversation = Conversation()
        self._lines: list[Any] = []
        self._about: dict[str, Any] = {}
        self._message: _Message | None = None
        self._asked_at: datetime | None = None
        self._called_at: dict[str, datetime] = {}

    def is_over(self, line: dict[str, Any]) -> bool:
        """Tell whether a line begins another session: it has another id and no parent here."""
        id = label(line.get("sessionId"))
        return None not in (id, self._id) and id != self._id and label(line.get("parentUuid")) not in self.uuids

    def take(self, line: dict[str, Any]) -> None:
        """Take one line.

        Raises:
            Broken: a field that matters is of the wrong kind.
        """
        if (uuid := label(line.get("uuid"))) is not None:
            self.uuids.add(uuid)
        self._id = self._id or label(line.get("sessionId"))
        for key in ("cwd", "gitBranch", "version"):
            if isinstance(line.get(key), str):
                self._about.setdefault(key, line[key])
        message, at = line.get("message"), moment(line.get("timestamp"))
        if line.get("type") == "assistant" and isinstance(message, dict) and message.get("model") != _SYNTHETIC:
            self._take_assistant(message, at)
        elif line.get("type") == "user" and isinstance(message, dict):
            self._take_user(line, message, at)
        else:
            self._lines.append(line)

    def trajectory(self, source: Source) -> Trajectory | None:
        """Return the conversation; None where there was none."""
        self._close_message()
        if self._conversation.empty:
            return None
        if notes := self._conversation.notes():
            source.fault(f"the session from {self._place}", notes)
        extra: dict[str, Any] = {**self._about, "timing": TIMING}
        if self._agent is not None:
            extra["agent"] = self._agent
        if self._lines:
            extra["lines"] = self._lines
        parts = [part for part in (self._id, self._agent) if part is not None]
        return Trajectory(
            id=source.unique("/".join(parts) or None, self._place),
            format="claude-code",
            turns=self._conversation.turns(),
            after=self._conversation.after(),
            extra=extra,
        )

    def _take_assistant(self, message: dict[str, Any], at: datetime | None) -> None:
        """Take one or more blocks: a message's lines follow each other and share its id."""
        id = label(message.get("id"))
        if self._message is None or id is None or self._message.id != id:
            self._close_message()
            self._message = _Message(id, self._asked_at)
        if isinstance(message.get("model"), str):
            self._about.setdefault("model", message["model"])
        self._message.take(message.get("content"), at)

    def _take_user(self, line: dict[str, Any], message: dict[str, Any], at: datetime | None) -> None:
        self._close_message()
        content = message.get("content")
        blocks = content if isinstance(content, list) else []
        results = [block for block in blocks if isinstance(block, dict) and block.get("type") == "tool_result"]
        for block in results:
            self._take_result(line, block, at)
        others = [block for block in blocks if block not in results] if results else content
        if others or not results:
            self._conversation.user(as_text(others, "the content"))
        self._asked_at = at or self._asked_at

    def _take_result(self, line: dict[str, Any], block: dict[str, Any], at: datetime | None) -> None:
        id = label(block.get("tool_use_id"))
        called_at = self._called_at.get(id) if id is not None else None
        self._conversation.result(
            RecordedResult(
                content=as_text(block.get("content"), "the result"),
                latency_s=between(called_at, at),
                failed=block.get("is_error") is True,
            ),
            id,
        )

    def _close_message(self) -> None:
        message, self._message = self._message, None
        if message is None:
            return
        self._conversation.assistant(
            "\n".join(message.texts),
            message.calls,
            thinking="\n".join(message.thoughts),
            generation_s=between(message.asked_at, message.ended_at),
        )
        for call in message.calls:
            if call.id is not None and message.ended_at is not None:
                self._called_at[call.id] = message.ended_at


class _Message:
    """A message of the model, as its blocks come in."""

    def __init__(self, id: str | None, asked_at: datetime | None) -> None:
        self.id = id
        self.asked_at = asked_at
        self.ended_at: datetime | None = None
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.calls: list[Call] = []

    def take(self, content: Any, at: datetime | None) -> None:
        """Take the blocks of one line."""
        self.ended_at = at or self.ended_at
        if isinstance(content, str):
            self.texts.append(content)
            return
        for item in as_array(content, "the content"):
            block = as_object(item, "a block")
            match block.get("type"):
                case "text":
                    self.texts.append(as_string(block.get("text"), "a text"))
                case "thinking":
                    self.thoughts.append(as_string(block.get("thinking"), "a thought"))
                case "tool_use" | "server_tool_use":
                    self.calls.append(_call(block))
                case _:
                    pass  # redacted thinking, images: nothing that can be read


def _call(block: dict[str, Any]) -> Call:
    name, arguments = block.get("name"), block.get("input", {})
    call: ToolCall | MalformedCall
    if isinstance(name, str) and name and isinstance(arguments, dict):
        call = ToolCall(name, arguments)
    else:
        what = "names no tool" if not name else f"has {kind(arguments)} for arguments"
        call = MalformedCall(text=f"{name}({arguments})"[:1000], reason=f"the call {what}")
    return Call(call, label(block.get("id")))
