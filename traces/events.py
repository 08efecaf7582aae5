"""The event schema: everything that happens in a run, as one flat union of frozen values.

`at` is seconds since the run started, on the run's own clock. Events carry no run id and no sequence number:
those belong to the store. Deltas are for live consumers; the store leaves them out, since `GenerationFinished`
holds the whole text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from agent_runtime.tools.values import (
    CallDemanded,
    CallFinished,
    CallStarted,
    GuessEnded,
    GuessProposed,
    GuessStarted,
    MalformedCall,
    ToolCall,
)
from pydantic import Field, TypeAdapter

RunStatus = Literal["running", "done", "failed", "limit", "cancelled", "interrupted"]
FinishReason = Literal["stop", "length", "stop_string", "calls"]
ProbePlacement = Literal["beside", "before"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """A run began. `settings` holds plain JSON: speculation, limits, sampling, tool contracts."""

    type: Literal["run_started"] = "run_started"
    at: float
    agent: str
    model: str
    task: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted:
    """A turn began: the conversation is about to be rendered and prefilled. Turns count from 0."""

    type: Literal["turn_started"] = "turn_started"
    turn: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefilled:
    """The prompt is in the cache: `prompt_tokens = reused_tokens + prefilled_tokens`."""

    type: Literal["prefilled"] = "prefilled"
    turn: int
    at: float
    prompt_tokens: int
    reused_tokens: int
    prefilled_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingDelta:
    """More of the model's thinking."""

    type: Literal["thinking_delta"] = "thinking_delta"
    turn: int
    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """More of the model's visible text."""

    type: Literal["text_delta"] = "text_delta"
    turn: int
    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeStarted:
    """A probe began at `position` tokens after the turn's start (0 = before any thinking)."""

    type: Literal["probe_started"] = "probe_started"
    turn: int
    at: float
    probe: int
    position: int
    placement: ProbePlacement


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFinished:
    """A probe ended with a call, with "no call" (`call` None), or was cut off (`completed` False).

    `probe_ms` is from its start to its end, `tokens` what it decoded, `bytes_copied` what the fork copied,
    `co_decoded` whether its rows shared forward passes with the agent's.
    """

    type: Literal["probe_finished"] = "probe_finished"
    turn: int
    at: float
    probe: int
    completed: bool
    call: ToolCall | None = None
    confidence: float = 0.0
    source: str = "self"
    probe_ms: float = 0.0
    tokens: int = 0
    bytes_copied: int = 0
    co_decoded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """What one kind of draft proposed in a generation, counted as vLLM's metrics count.

    `kind` is a draft of the local engine (`call`, `lookup`, ...) or `server` for what a server's own metrics tell.
    """

    kind: str
    drafts: int
    """Proposals that were verified."""
    draft_tokens: int
    """Tokens in them."""
    accepted_per_position: tuple[int, ...] = ()
    """Proposals whose first, second, ... token stood."""
    draft_ms: float = 0.0
    """Time spent on drafting."""

    @property
    def accepted_tokens(self) -> int:
        """Drafted tokens that stood."""
        return sum(self.accepted_per_position)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationFinished:
    """The model's message of a turn is complete.

    `generation_ms` is from the start of the agent's own generation to here, so a probe that it waited for is left out;
    `slowdown_ms` the extra decode time caused by probe rows.
    `forwards` counts forward passes in which the agent's row took part after prefill. `drafting` holds what was drafted
    for it, by kind; `verify_ms` is the time of those passes that verified something, `host_ms` that of decoding beside
    forward passes and drafting. `reused_later` counts tokens of the prompt that turned out to have come from a cache,
    after `Prefilled` had told them as read anew (a server says so at a message's end).
    """

    type: Literal["generation_finished"] = "generation_finished"
    turn: int
    at: float
    thinking: str
    text: str
    calls: tuple[ToolCall | MalformedCall, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    thinking_tokens: int
    forwards: int
    generation_ms: float
    slowdown_ms: float
    drafting: tuple[Drafting, ...] = ()
    verify_ms: float = 0.0
    host_ms: float = 0.0
    reused_later: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFinished:
    """Every result of the turn is in the conversation."""

    type: Literal["turn_finished"] = "turn_finished"
    turn: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """The run ended. `error` is one line where `status` is not `done`."""

    type: Literal["run_finished"] = "run_finished"
    at: float
    status: RunStatus
    output: str
    error: str | None = None


Event = (
    RunStarted
    | TurnStarted
    | Prefilled
    | ThinkingDelta
    | TextDelta
    | ProbeStarted
    | ProbeFinished
    | GuessProposed
    | GuessStarted
    | GuessEnded
    | CallDemanded
    | CallStarted
    | CallFinished
    | GenerationFinished
    | TurnFinished
    | RunFinished
)
"""One thing that happened in a run; the `type` field tells which."""

EVENT_ADAPTER: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="type")])
"""Dumps and loads events as JSON objects: `EVENT_ADAPTER.dump_json(event)`, `.validate_json(text)`."""

STREAM_ONLY = (ThinkingDelta, TextDelta)
"""Events that live consumers see and the store leaves out."""
