"""Errors that users of agents and engines see.

AgentRuntimeError               exit code 1
├── UsageError                  2   what was asked for cannot be done as it was asked
│   ├── ModelNotFound           2   no model of this name, in this folder or file
│   ├── ModelUnsupported        2   the model is there but cannot run an agent
│   ├── MissingExtra            2   an optional package is needed
│   └── CassetteUnusable        2   a cassette can't be read or written, or isn't one
├── RunFailed                   1   a run ended without an answer
├── EngineFailed                1   the model, or what runs it, broke
│   ├── ContextOverflow         1   a conversation does not fit the model's context
│   └── EngineClosed            1   the engine was closed while it was needed
├── LimitExceeded               3   a run used up its turns, calls or tokens
├── ReplayDiverged              4   a run asked for what its cassette doesn't hold
├── ToolsError                      of the tools room, e.g. a tool that can't be described to a model
├── TracesError                     of the traces room, e.g. a database that can't be written
├── SpeculatorError                 of the speculator room, e.g. a setting out of range
└── DecodingError                   of the decoding room, e.g. a grammar that can't be compiled

`exit_code` is what the `agent` command ends with. `result` holds what there is of the run that met the error.
"""

from __future__ import annotations

from .base_error import AgentRuntimeError

__all__ = [
    "AgentRuntimeError",
    "CassetteUnusable",
    "ContextOverflow",
    "EngineClosed",
    "EngineFailed",
    "LimitExceeded",
    "MissingExtra",
    "ModelNotFound",
    "ModelUnsupported",
    "ReplayDiverged",
    "RunFailed",
    "UsageError",
]


class UsageError(AgentRuntimeError):
    """Raised when an argument or a setting can't be used; the message names it."""

    exit_code = 2


class ModelNotFound(UsageError):
    """Raised when a model's folder, file or hub id can't be found or read."""


class ModelUnsupported(UsageError):
    """Raised when a model was found but can't run an agent, e.g. because it has no chat template."""


class MissingExtra(UsageError):
    """Raised when an optional package is missing; the message says how to install it."""


class CassetteUnusable(UsageError):
    """Raised when a cassette can't be read or written, or is no cassette; the message names the file and the line."""


class RunFailed(AgentRuntimeError):
    """Raised when a run ended without an answer."""


class EngineFailed(AgentRuntimeError):
    """Raised when the model, or what runs it, broke; the cause is chained."""


class ContextOverflow(EngineFailed):
    """Raised before any decoding when a conversation leaves the model's context no room for a message.

    `prompt_tokens`, `needed_tokens` (the least room for a message) and `context_tokens` are counts of tokens.
    """

    def __init__(self, prompt_tokens: int, needed_tokens: int, context_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.needed_tokens = needed_tokens
        self.context_tokens = context_tokens
        super().__init__(
            f"the conversation has {prompt_tokens} tokens and its next message needs room for {needed_tokens}, "
            f"but the model's context holds {context_tokens}: shorten the task or the tools' results, "
            "or take a model with a longer context"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.prompt_tokens, self.needed_tokens, self.context_tokens))


class EngineClosed(EngineFailed):
    """Raised when an engine or a session is used after it was closed."""


class LimitExceeded(AgentRuntimeError):
    """Raised when a run used up a limit: `limit` names it (`turns`, `calls`, `tokens`), `value` is its bound."""

    exit_code = 3

    def __init__(self, limit: str, value: int) -> None:
        self.limit = limit
        self.value = value
        super().__init__(f"the run used up its {value} {limit}: raise the bound with Limits(...), or simplify the task")

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.limit, self.value))


class ReplayDiverged(AgentRuntimeError):
    """Raised when a replayed run asks for what its cassette doesn't hold.

    `diff` compares the recorded request that is closest with the one that was made, as a unified diff.
    """

    exit_code = 4

    def __init__(self, message: str, diff: str = "") -> None:
        self.diff = diff
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.diff))
