"""Plain values of the tools room: calls, predictions, outcomes, and the life-cycle events of a dispatcher.

Values are frozen and equal by value. They hold no ids of a store and no behaviour that reaches outside.
`at` is always seconds since the run started, on the run's own clock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Effect = Literal["read", "idempotent", "write"]

Ending = Literal["refused", "late", "adopted", "joined", "discarded", "stale", "failed", "cancelled"]

RefusalReason = Literal[
    # the policy's own reasons (is it worth it?)
    "low_confidence",
    "not_worth_it",
    # the dispatcher's reasons (is it allowed?)
    "unknown_tool",
    "invalid_arguments",
    "effect",
    "destructive",
    "open_world",
    "requires_approval",
    "sequential",
    "barrier",
    "revoked",
    "write_in_flight",
    "backing_off",
    "rate",
    "no_free_slot",
    "in_flight_budget",
    "wasted_calls_budget",
    "wasted_seconds_budget",
    "same_as_standing",
    "closed",
]

OutcomeStatus = Literal["ok", "error", "invalid_arguments", "unknown_tool", "timeout", "cancelled", "denied", "limit"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool, as a model wrote it: a name and a JSON object of arguments."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def canonical(self) -> str:
        """Return the call as compact JSON with sorted keys (equality is decided on validated arguments)."""
        return canonical_json({"name": self.name, "arguments": dict(self.arguments)})


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """A call block whose text is no valid call; the model is told why and may try again."""

    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Prediction:
    """A guessed call. `confidence` is a probability in [0, 1] from unmasked model probabilities or counts."""

    call: ToolCall
    confidence: float
    source: str
    """`self`, `counter`, `scripted`, ..."""
    index: int = 0
    """Which call of its turn it guesses; 0 is the boundary."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one execution of a tool gave.

    `content` is the text the model reads. For `error` and the other unhappy states it is compact JSON
    `{"error": kind, "message": text}`.
    """

    status: OutcomeStatus
    content: str
    started_at: float
    ended_at: float
    error: str | None = None
    """The error's kind, e.g. `not_found`; None when `status` is `ok`.

    A call that was cancelled has the kind `cancelled` if its tool was called, and `not_run` if it was not.
    """

    @property
    def seconds(self) -> float:
        """Execution time in seconds."""
        return self.ended_at - self.started_at


# --- life-cycle events, emitted by the dispatcher without awaiting -------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessProposed:
    """A prediction reached the dispatcher. `guess` numbers the proposals of a run from 0."""

    type: Literal["guess_proposed"] = "guess_proposed"
    turn: int
    at: float
    guess: int
    call: ToolCall
    confidence: float
    source: str
    index: int = 0
    """Which call of the turn it guesses; 0 is the boundary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessStarted:
    """The guess was allowed and its tool was started."""

    type: Literal["guess_started"] = "guess_started"
    turn: int
    at: float
    guess: int
    tool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessEnded:
    """The one ending of a proposal.

    `lead_ms` = demand minus the guess's start (0 when it never started or nothing was demanded);
    `saved_ms` = min(tool time, lead) for adopted and joined, else 0: what this one call did not wait for (the turn
    saves less where another of its calls ends later). `wasted_ms` = tool time spent for nothing.
    `executed` tells whether the tool was called at all (a cancelled call counts).
    `matched` tells whether the guess stood at its call's demand and equalled that call, whatever became of it.
    """

    type: Literal["guess_ended"] = "guess_ended"
    turn: int
    at: float
    guess: int
    ending: Ending
    reason: str | None = None
    tool: str
    matched: bool = False
    matched_name: bool = False
    executed: bool = False
    lead_ms: float = 0.0
    saved_ms: float = 0.0
    wasted_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDemanded:
    """The agent's call is complete in its stream. `index` counts the calls of the turn from 0 (0 = the boundary).

    A malformed call appears as a call of the tool `""` (none has that name), its text as the argument `malformed`.
    """

    type: Literal["call_demanded"] = "call_demanded"
    turn: int
    at: float
    index: int
    call: ToolCall
    pre_executable: bool
    """Whether the gate would let a guess of this very call start early."""
    barrier: bool = False
    """Whether nothing else of the turn may run beside it: a write, or a tool declared `sequential`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStarted:
    """A tool is about to run for a demanded call (for a write this event is durable before the tool runs)."""

    type: Literal["call_started"] = "call_started"
    turn: int
    at: float
    index: int
    tool: str
    effect: Effect
    attempt: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFinished:
    """The one result of a demanded call. `guess` names the adopted or joined guess, if any served it."""

    type: Literal["call_finished"] = "call_finished"
    turn: int
    at: float
    index: int
    tool: str
    outcome: Outcome
    guess: int | None = None


DispatchEvent = GuessProposed | GuessStarted | GuessEnded | CallDemanded | CallStarted | CallFinished


def canonical_json(value: object) -> str:
    """Return compact JSON with sorted keys, the form in which arguments are compared (RFC 8785 in spirit)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
