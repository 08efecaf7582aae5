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
    from agent_runtime.engines.base import Engine, Session
    from agent_runtime.engines.cassette import Cassette
    from agent_runtime.engines.local import LocalEngine
    from agent_runtime.engines.scripted import ScriptedEngine
    from agent_runtime.engines.server import ServerEngine, ServerSettings
    from agent_runtime.errors import (
        AgentRuntimeError,
        CassetteUnusable,
        ContextOverflow,
        EngineClosed,
        EngineFailed,
        LimitExceeded,
        MissingExtra,
        ModelNotFound,
        ModelUnsupported,
        ReplayDiverged,
        RunFailed,
        UsageError,
    )
    from agent_runtime.hooks import Hooks
    from agent_runtime.limits import Limits
    from agent_runtime.result import RunResult, Usage
    from agent_runtime.speculator.predictors import Guess, NoPredictor, Predictor, ScriptedPredictor
    from agent_runtime.speculator.settings import Speculation
    from agent_runtime.tools import GuessLimits, Tool, ToolContext, ToolFailure, ToolsError, tool
    from agent_runtime.tools.mcp import MCPTools
    from agent_runtime.tools.values import (
        CallDemanded,
        CallFinished,
        CallStarted,
        GuessEnded,
        GuessProposed,
        GuessStarted,
        MalformedCall,
        Outcome,
        Prediction,
        ToolCall,
    )
    from agent_runtime.traces import TracesError, TraceStore
    from agent_runtime.traces.events import (
        Event,
        GenerationFinished,
        Prefilled,
        ProbeFinished,
        ProbeStarted,
        RunFinished,
        RunStarted,
        TextDelta,
        ThinkingDelta,
        TurnFinished,
        TurnStarted,
    )
    from agent_runtime.traces.ledger import Ledger
    from agent_runtime.traces.messages import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage

_HOMES = {
    "Agent": "agent_runtime.agent",
    "AgentRuntimeError": "agent_runtime.errors",
    "AssistantMessage": "agent_runtime.traces.messages",
    "CallDemanded": "agent_runtime.tools.values",
    "CallFinished": "agent_runtime.tools.values",
    "CallStarted": "agent_runtime.tools.values",
    "Cassette": "agent_runtime.engines.cassette",
    "CassetteUnusable": "agent_runtime.errors",
    "ContextOverflow": "agent_runtime.errors",
    "Engine": "agent_runtime.engines.base",
    "EngineClosed": "agent_runtime.errors",
    "EngineFailed": "agent_runtime.errors",
    "Event": "agent_runtime.traces.events",
    "GenerationFinished": "agent_runtime.traces.events",
    "Guess": "agent_runtime.speculator.predictors",
    "GuessEnded": "agent_runtime.tools.values",
    "GuessLimits": "agent_runtime.tools",
    "GuessProposed": "agent_runtime.tools.values",
    "GuessStarted": "agent_runtime.tools.values",
    "Hooks": "agent_runtime.hooks",
    "Ledger": "agent_runtime.traces.ledger",
    "LimitExceeded": "agent_runtime.errors",
    "Limits": "agent_runtime.limits",
    "LocalEngine": "agent_runtime.engines.local",
    "MCPTools": "agent_runtime.tools.mcp",
    "MalformedCall": "agent_runtime.tools.values",
    "Message": "agent_runtime.traces.messages",
    "MissingExtra": "agent_runtime.errors",
    "ModelNotFound": "agent_runtime.errors",
    "ModelUnsupported": "agent_runtime.errors",
    "NoPredictor": "agent_runtime.speculator.predictors",
    "Outcome": "agent_runtime.tools.values",
    "Prediction": "agent_runtime.tools.values",
    "Predictor": "agent_runtime.speculator.predictors",
    "Prefilled": "agent_runtime.traces.events",
    "ProbeFinished": "agent_runtime.traces.events",
    "ProbeStarted": "agent_runtime.traces.events",
    "ReplayDiverged": "agent_runtime.errors",
    "RunFailed": "agent_runtime.errors",
    "RunFinished": "agent_runtime.traces.events",
    "RunResult": "agent_runtime.result",
    "RunStarted": "agent_runtime.traces.events",
    "RunStream": "agent_runtime.agent",
    "Sampling": "agent_runtime.decoding.requests",
    "ScriptedEngine": "agent_runtime.engines.scripted",
    "ScriptedPredictor": "agent_runtime.speculator.predictors",
    "ServerEngine": "agent_runtime.engines.server",
    "ServerSettings": "agent_runtime.engines.server",
    "Session": "agent_runtime.engines.base",
    "Speculation": "agent_runtime.speculator.settings",
    "SystemMessage": "agent_runtime.traces.messages",
    "TextDelta": "agent_runtime.traces.events",
    "ThinkingDelta": "agent_runtime.traces.events",
    "Tool": "agent_runtime.tools",
    "ToolCall": "agent_runtime.tools.values",
    "ToolContext": "agent_runtime.tools",
    "ToolFailure": "agent_runtime.tools",
    "ToolMessage": "agent_runtime.traces.messages",
    "ToolsError": "agent_runtime.tools",
    "TraceStore": "agent_runtime.traces",
    "TracesError": "agent_runtime.traces",
    "TurnFinished": "agent_runtime.traces.events",
    "TurnStarted": "agent_runtime.traces.events",
    "Usage": "agent_runtime.result",
    "UsageError": "agent_runtime.errors",
    "UserMessage": "agent_runtime.traces.messages",
    "tool": "agent_runtime.tools",
}

__all__ = [
    "Agent",
    "AgentRuntimeError",
    "AssistantMessage",
    "CallDemanded",
    "CallFinished",
    "CallStarted",
    "Cassette",
    "CassetteUnusable",
    "ContextOverflow",
    "Engine",
    "EngineClosed",
    "EngineFailed",
    "Event",
    "GenerationFinished",
    "Guess",
    "GuessEnded",
    "GuessLimits",
    "GuessProposed",
    "GuessStarted",
    "Hooks",
    "Ledger",
    "LimitExceeded",
    "Limits",
    "LocalEngine",
    "MCPTools",
    "MalformedCall",
    "Message",
    "MissingExtra",
    "ModelNotFound",
    "ModelUnsupported",
    "NoPredictor",
    "Outcome",
    "Prediction",
    "Predictor",
    "Prefilled",
    "ProbeFinished",
    "ProbeStarted",
    "ReplayDiverged",
    "RunFailed",
    "RunFinished",
    "RunResult",
    "RunStarted",
    "RunStream",
    "Sampling",
    "ScriptedEngine",
    "ScriptedPredictor",
    "ServerEngine",
    "ServerSettings",
    "Session",
    "Speculation",
    "SystemMessage",
    "TextDelta",
    "ThinkingDelta",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolFailure",
    "ToolMessage",
    "ToolsError",
    "TraceStore",
    "TracesError",
    "TurnFinished",
    "TurnStarted",
    "Usage",
    "UsageError",
    "UserMessage",
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
