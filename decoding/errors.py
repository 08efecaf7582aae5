"""Errors of the decoding room.

DecodingError
├── PromptRejected        a request that cannot be decoded as it stands (also a ValueError)
├── KvBudgetExceeded      one row needs more key/value memory than the whole budget
├── ModelUnsupported      the model's cache or forward cannot be driven correctly
├── GrammarError          a grammar does not compile, or a constraint met a token it forbids
├── RowFailed             decoding of one row raised; the other rows go on
└── WorkerStopped         the model thread is closed or died; every row ends with it
"""

from __future__ import annotations

from agent_runtime.base_error import AgentRuntimeError


class DecodingError(AgentRuntimeError):
    """Base of the errors that this room raises on purpose."""


class PromptRejected(DecodingError, ValueError):
    """Raised when a request's prompt is empty or holds ids outside the model's vocabulary."""


class KvBudgetExceeded(DecodingError):
    """Raised when one row alone would need more key/value memory than the worker may use."""


class ModelUnsupported(DecodingError):
    """Raised when a model's forward or cache cannot be driven correctly by the chosen executor."""


class GrammarError(DecodingError):
    """Raised when a grammar does not compile or a constraint is fed a token that it forbids."""


class RowFailed(DecodingError):
    """Raised from a row's iterator when decoding that row raised; the cause is chained."""


class WorkerStopped(DecodingError):
    """Raised by rows and by `submit` when the model thread was closed or died; the cause is chained."""
