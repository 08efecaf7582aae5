"""An async agent runtime that hides tool latency.

The same model that runs the agent guesses its next tool call; safe guesses start early. Names load on first use,
so that importing the package stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_runtime.agent import Agent, RunStream
    from agent_runtime.decoding.requests import Sampling
    from agent_runtime.engines.local import LocalEngine
    from agent_runtime.engines.scripted import ScriptedEngine
    from agent_runtime.errors import AgentRuntimeError, ContextOverflow, EngineFailed, LimitExceeded, RunFailed
    from agent_runtime.hooks import Hooks
    from agent_runtime.limits import Limits
    from agent_runtime.result import RunResult, Usage
    from agent_runtime.speculator.settings import Speculation
    from agent_runtime.tools import Tool, ToolContext, ToolFailure, tool
    from agent_runtime.traces import TraceStore
    from agent_runtime.traces.events import Event
    from agent_runtime.traces.ledger import Ledger

_HOMES = {
    "Agent": "agent_runtime.agent",
    "AgentRuntimeError": "agent_runtime.errors",
    "ContextOverflow": "agent_runtime.errors",
    "EngineFailed": "agent_runtime.errors",
    "Event": "agent_runtime.traces.events",
    "Hooks": "agent_runtime.hooks",
    "Ledger": "agent_runtime.traces.ledger",
    "LimitExceeded": "agent_runtime.errors",
    "Limits": "agent_runtime.limits",
    "LocalEngine": "agent_runtime.engines.local",
    "RunFailed": "agent_runtime.errors",
    "RunResult": "agent_runtime.result",
    "RunStream": "agent_runtime.agent",
    "Sampling": "agent_runtime.decoding.requests",
    "ScriptedEngine": "agent_runtime.engines.scripted",
    "Speculation": "agent_runtime.speculator.settings",
    "Tool": "agent_runtime.tools",
    "ToolContext": "agent_runtime.tools",
    "ToolFailure": "agent_runtime.tools",
    "TraceStore": "agent_runtime.traces",
    "Usage": "agent_runtime.result",
    "tool": "agent_runtime.tools",
}

__all__ = [
    "Agent",
    "AgentRuntimeError",
    "ContextOverflow",
    "EngineFailed",
    "Event",
    "Hooks",
    "Ledger",
    "LimitExceeded",
    "Limits",
    "LocalEngine",
    "RunFailed",
    "RunResult",
    "RunStream",
    "Sampling",
    "ScriptedEngine",
    "Speculation",
    "Tool",
    "ToolContext",
    "ToolFailure",
    "TraceStore",
    "Usage",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
