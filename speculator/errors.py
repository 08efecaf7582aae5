"""Errors of the speculator room.

SpeculatorError
├── GrammarUnsupported    a tool's schema can't be turned into a grammar
├── SpeculationInvalid    a setting of `Speculation` can't work (also a ValueError)
├── CounterInvalid        a setting or a saved file of the counter predictor can't be used (also a ValueError)
└── ScriptExhausted       a scripted predictor was asked more, or less, often than its script says (AssertionError)
"""

from __future__ import annotations

from agent_runtime.base_error import AgentRuntimeError


class SpeculatorError(AgentRuntimeError):
    """Base of the errors of the speculator room; none of them reaches the agent during a run."""


class GrammarUnsupported(SpeculatorError):
    """Raised when a tool's schema can't be turned into a grammar; the message names the tool."""


class SpeculationInvalid(SpeculatorError, ValueError):
    """Raised when a setting of `Speculation` can't work; the message names it and what it may be."""

    exit_code = 2


class CounterInvalid(SpeculatorError, ValueError):
    """Raised when a setting or a saved file of the counter predictor can't be used; the message says which and why."""

    exit_code = 2


class ScriptExhausted(SpeculatorError, AssertionError):
    """Raised when a scripted predictor was asked more, or less, often than its script says."""
