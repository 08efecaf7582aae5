"""The tools' side of a cassette: tools that ask the session of their run what to do when they are run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from agent_runtime.tools import Tool, ToolContext


class ToolRuns(Protocol):
    """A session that records what tools give, or plays it."""

    def bind(
        self, tool: Tool, valid: Mapping[str, Any], context: ToolContext, function: Callable[[], Any]
    ) -> Callable[[], Any]:
        """Return what is run in place of `function`."""
        ...


CURRENT: ContextVar[ToolRuns | None] = ContextVar("agent_runtime_cassette_session", default=None)
"""The session of the run that the current task belongs to; set where a run opens it."""


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=False)
class CassetteTool(Tool):
    """A tool whose runs go through its run's session; outside of such a run it is the tool itself."""

    inner: Tool = field(repr=False)

    def bind(self, valid: Mapping[str, Any], context: ToolContext) -> Callable[[], Any]:
        """Return what runs the tool, or plays what it gave."""
        function = self.inner.bind(valid, context)
        session = CURRENT.get()
        return function if session is None else session.bind(self.inner, valid, context, function)


def on_cassette(tool: Tool, *, played: bool) -> CassetteTool:
    """Return the same tool, on a cassette; one that is only played needs no thread."""
    given = {item.name: getattr(tool, item.name) for item in fields(Tool)}
    given["is_async"] = tool.is_async or played
    return CassetteTool(**given, inner=tool)
