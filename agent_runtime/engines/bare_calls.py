"""Calls that small models write as plain JSON, alone on its lines or in a code fence, instead of in a marked block.

A call counts only if its name is that of a tool and nothing else stands on its lines.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal

from agent_runtime.tools.values import ToolCall

_LINE_START = re.compile(r"[ \t]*")
_FIRST_KEYS = ("name", "arguments", "parameters", "type", "function", "id")
_FENCED = ("", "json", "tool_call", "tool")
_FENCE = "```"
_FENCE_END = re.compile(r"\n[ \t]*```[ \t]*(?=\n|\Z)")


class BareCalls:
    """Scans text in pieces of any size for such calls; everything else passes through.

    Args:
        names: The tools' names.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._held = ""  # begins at a line's start while `_at_start`
        self._at_start = True
        self._quoted = False  # inside a code fence that holds no call

    def feed(self, text: str) -> list[str | ToolCall]:
        """Take more text; return text and calls that became certain, in order."""
        self._held += text
        return self._scan(end=False, whole=False)

    def finish(self, *, whole: bool) -> list[str | ToolCall]:
        """Take the end of the text; a call that isn't followed by its line's end counts only if `whole`."""
        return self._scan(end=True, whole=whole)

    def _scan(self, *, end: bool, whole: bool) -> list[str | ToolCall]:
        found: list[str | ToolCall] = []
        while self._held:
            if not self._at_start:
                line, newline, rest = self._held.partition("\n")
                found.append(line + newline)
                self._held, self._at_start = rest, bool(newline)
                continue
            if _FENCE.startswith(self._held.strip(" \t")) and not end:
                break  # perhaps a fence
            if self._held.lstrip(" \t").startswith(_FENCE):
                if self._quoted:
                    self._quoted, self._at_start = False, False
                    continue
            elif self._quoted:
                self._at_start = False
                continue
            verdict = self._candidate(end=end, whole=whole)
            if verdict == "wait":
                break
            if verdict == "text":
                self._at_start = False
                self._quoted = self._held.lstrip(" \t").startswith(_FENCE)
                continue
            calls, length = verdict
            found += calls
            self._held = self._held[length:]
        return found

    def _candidate(self, *, end: bool, whole: bool) -> Literal["wait", "text"] | tuple[list[ToolCall], int]:
        """Judge what stands at the line's start: calls and the length they take, plain text, or not decided yet."""
        text = self._held
        fence = _opens_fence(text)
        if fence is None and not end:
            return "wait"
        if fence:
            closing = _FENCE_END.search(text, fence - 1)
            # A fence at the text's edge may go on ("```" and more letters) until its line has ended.
            if closing is None or (closing.end() == len(text) and not end):
                return "text" if end else "wait"
            calls = self._calls(text[fence : closing.start() + 1])
            return (calls, closing.end()) if calls and (whole or not end) else "text"
        bare = _opens_call(text)
        if not bare:
            return "text" if bare is False or end else "wait"
        length = _object_end(text)
        if length is None:
            return "text" if end else "wait"
        tail = _LINE_START.match(text, length)
        assert tail is not None
        if tail.end() == len(text):
            if not end:
                return "wait"
        elif text[tail.end()] != "\n":
            return "text"
        calls = self._calls(text[:length])
        return (calls, length) if calls and (whole or not end or tail.end() < len(text)) else "text"

    def _calls(self, text: str) -> list[ToolCall]:
        """Return the calls that `text` is: one JSON object, a list of them, or one on each line; else none."""
        try:
            values: Any = json.loads(text)
        except (ValueError, RecursionError):
            try:
                values = [json.loads(line) for line in text.splitlines() if line.strip()]
            except (ValueError, RecursionError):
                return []
        calls = [self._call(value) for value in (values if isinstance(values, list) else [values])]
        return [call for call in calls if call is not None] if all(calls) else []

    def _call(self, value: Any) -> ToolCall | None:
        function = value.get("function", value) if isinstance(value, dict) else None
        if not isinstance(function, dict):
            return None
        name, arguments = function.get("name"), function.get("arguments", function.get("parameters"))
        if not isinstance(name, str) or name not in self._names or not isinstance(arguments, dict):
            return None
        return ToolCall(name, arguments)


def _opens_fence(text: str) -> int | None:
    """Return where the body of a fence that may hold calls begins; 0 if there is none, None if that is open."""
    line, newline, body = text.partition("\n")
    line = line.strip(" \t")
    if newline:
        return len(text) - len(body) if line.startswith(_FENCE) and line[3:].strip() in _FENCED else 0
    if _FENCE.startswith(line[:3]) and (len(line) < 3 or any(info.startswith(line[3:].strip()) for info in _FENCED)):
        return None
    return 0


def _opens_call(text: str) -> bool | None:
    """Tell whether a JSON object that may be a call begins here; None if that is open."""
    text = text.lstrip()
    if not text.startswith("{"):
        return None if not text else False
    key = text[1:].lstrip()
    if not key.startswith('"'):
        return None if not key else False
    name, closed, rest = key[1:].partition('"')
    if not closed:
        return None if any(first.startswith(name) for first in _FIRST_KEYS) else False
    if name not in _FIRST_KEYS:
        return False
    return rest.lstrip().startswith(":") if rest.strip() else None


def _object_end(text: str) -> int | None:
    """Return where the JSON object at the start of `text` ends; None while it is open."""
    depth, string, escaped = 0, False, False
    for index, character in enumerate(text):
        if escaped:
            escaped = False
        elif string:
            escaped = character == "\\"
            string = character != '"'
        elif character == '"':
            string = True
        elif character in "{[":
            depth += 1
        elif character in "}]":
            depth -= 1
            if depth == 0:
                return index + 1
    return None
