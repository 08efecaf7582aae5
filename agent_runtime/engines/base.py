"""The seam between the turn loop and a model: `Engine.open(tools) -> Session`, which generates and probes.

An engine serves many sessions at once; a session owns one conversation's cache.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from agent_runtime.decoding.requests import Sampling
from agent_runtime.tools.values import MalformedCall, ToolCall
from agent_runtime.traces.events import Drafting, FinishReason
from agent_runtime.traces.messages import AssistantMessage, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSchema:
    """What a model is told of a tool: its name, its purpose and the JSON Schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    def as_function(self) -> dict[str, Any]:
        """Return the tool in the form that chat templates and OpenAI-compatible servers take."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": dict(self.parameters),
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptReady:
    """The conversation is in the cache; decoding starts."""

    prompt_tokens: int
    reused_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """More text. `tokens` counts the tokens of this generation so far: a probe may start at that position."""

    kind: Literal["thinking", "text"]
    text: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallClosed:
    """A call's block closed in the stream. Emitted once per call, in order, never before its closing mark."""

    call: ToolCall | MalformedCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """The message is complete; always the last item of a stream that wasn't closed early."""

    message: AssistantMessage
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    thinking_tokens: int
    forwards: int
    slowdown_ms: float
    drafting: tuple[Drafting, ...] = ()
    """What was drafted for the message and verified, by kind."""
    verify_ms: float = 0.0
    """Time of forward passes that verified drafts."""
    host_ms: float = 0.0
    """Time of decoding beside forward passes and drafting."""
    reused_later: int = 0
    """Tokens of the prompt that a cache served, known only now: `PromptReady` counted them as read anew."""


EngineEvent = PromptReady | Delta | CallClosed | Generated


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """What speculator mode answered. `call` is None for "no call"; `confidence` is of the answer up to its last choice.

    `bytes_copied` is what the fork copied; `co_decoded` whether its rows shared forward passes with the agent's.
    `completed` is False where the answer was cut off (by `max_tokens` or the context): `call` is None then.
    """

    call: ToolCall | None
    confidence: float
    tokens: int
    bytes_copied: int = 0
    co_decoded: bool = False
    completed: bool = True


class Session(Protocol):
    """One conversation with a model."""

    def generate(
        self, messages: Sequence[Message], *, sampling: Sampling | None = None, max_tokens: int
    ) -> AbstractAsyncContextManager[AsyncIterator[EngineEvent]]:
        """Generate the next assistant message. Leaving the context early cancels the generation.

        `sampling=None` takes the model's own generation defaults.

        Raises:
            ContextOverflow: the context has no room left for a message; raised before any decoding. Where it has
                some, but less than `max_tokens`, the message may be that long.
        """
        ...

    async def probe(self, messages: Sequence[Message], *, position: int = 0, max_tokens: int) -> ProbeResult:
        """Ask speculator mode for the next call, at `position` tokens into the generation that is running.

        With no generation running (`position` 0) the conversation is prefilled first, and the generation that
        follows re-uses it. Cancelling the caller cancels the probe. The agent's cache stays as it was.
        """
        ...

    def suggest(self, messages: Sequence[Message], call: ToolCall) -> None:
        """Tell that the message after `messages` is expected to make `call`: a draft of its tokens, never more.

        What the model says does not depend on it.
        """
        ...

    def statistics(self) -> SessionStatistics:
        """Return counts of this session so far."""
        ...

    async def aclose(self) -> None:
        """Give the session's memory back; cancels what still runs."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatistics:
    """Counts since the session opened (tokens, bytes)."""

    turns: int
    prompt_tokens: int
    reused_tokens: int
    prefilled_tokens: int
    completion_tokens: int
    probes: int
    probe_tokens: int
    bytes_copied: int


class Engine(Protocol):
    """A model that can hold conversations."""

    @property
    def name(self) -> str:
        """The model's name for people and traces."""
        ...

    async def open(self, tools: Sequence[ToolSchema]) -> Session:
        """Open a conversation in which the model may call `tools`; loads the model on first use."""
        ...

    async def aclose(self) -> None:
        """Stop the model's thread and free its memory."""
        ...
