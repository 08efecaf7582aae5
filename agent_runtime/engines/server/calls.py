"""A server's tool-call deltas put together; a call is announced once, when the server has closed it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_runtime.engines.parsing import as_call
from agent_runtime.tools.values import MalformedCall, ToolCall

_CUT = "the message was cut off inside this call"


@dataclass(slots=True)
class _Open:
    """A call whose arguments may go on."""

    index: int
    name: str = ""
    arguments: list[str] = field(default_factory=list)

    def closed(self, *, cut: bool) -> ToolCall | MalformedCall:
        text = "".join(self.arguments)
        written = json.dumps({"name": self.name}, ensure_ascii=False)[:-1] + f', "arguments": {text or "{}"}}}'
        if cut:
            return MalformedCall(written, _CUT)
        try:
            arguments = json.loads(text) if text.strip() else {}
        except (ValueError, RecursionError) as error:
            where = f": {error.msg} at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
            return MalformedCall(written, f"the arguments of {self.name or 'the call'} are not valid JSON{where}")
        return as_call({"name": self.name, "arguments": arguments}, written)


class CallAssembly:
    """Puts calls together from deltas.

    A delta says nothing of a call's end: arguments that parse may go on (`{"n": 4` becomes 42). So a call is closed by
    the next call's first delta, by text after it, or by the message's end, and never earlier.
    """

    def __init__(self) -> None:
        self._open: _Open | None = None
        self._last = -1
        self.count = 0
        """Calls closed so far."""

    def take(self, deltas: Sequence[Mapping[str, Any]]) -> Iterator[ToolCall | MalformedCall]:
        """Take the deltas of one chunk; yield the calls that they close."""
        for delta in deltas:
            index = delta.get("index")
            function = delta.get("function") or {}
            if not isinstance(index, int):  # some servers send whole calls without a number
                index = self._last if self._open is not None and not function.get("name") else self._last + 1
            if index < self._last or (index == self._last and self._open is None):
                continue  # about a call that is closed: it was announced, and stays as it was
            if self._open is None or self._open.index != index:
                yield from self.close()
                self._open, self._last = _Open(index), index
            if isinstance(function.get("name"), str):
                self._open.name += function["name"]
            arguments = function.get("arguments")
            if isinstance(arguments, Mapping):
                arguments = json.dumps(arguments, ensure_ascii=False)
            if isinstance(arguments, str):
                self._open.arguments.append(arguments)

    def close(self, *, cut: bool = False) -> Iterator[ToolCall | MalformedCall]:
        """Close the call that is open, if any: `cut` says that the message was broken off inside it."""
        if self._open is not None:
            call, self._open = self._open.closed(cut=cut), None
            self.count += 1
            yield call
