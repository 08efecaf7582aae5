"""What is asked of the model thread, and what it answers: plain values shared by the rows, the worker and engines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from .drafts.base import DraftKind
    from .tally import DraftCounts

StopReason = Literal["eos", "length", "stop_string", "constraint", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a token is chosen. Temperature 0 is greedy: the highest logit, the lowest id among equals.

    Raises:
        ValueError: a value lies outside its range; the message names it.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    """0 = off."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    """A run with the same seed draws the same tokens, whatever else the model does meanwhile."""
    stop: tuple[str, ...] = ()
    """The text ends before the first of these strings."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name, value, low, high in (
            ("temperature", self.temperature, 0.0, float("inf")),
            ("top_p", self.top_p, 0.0, 1.0),
            ("top_k", self.top_k, 0, float("inf")),
            ("min_p", self.min_p, 0.0, 1.0),
        ):
            if not low <= value <= high:
                raise ValueError(f"Sampling: {name} is {value}; it must lie between {low} and {high}.")
        if not self.repetition_penalty > 0:
            raise ValueError(f"Sampling: repetition_penalty is {self.repetition_penalty}; it must be above 0.")


class Constraint(Protocol):
    """A grammar's state beside one row. Advanced by the row's own tokens only; can be rolled back."""

    def allowed(self) -> torch.Tensor:
        """Return the mask of the next token: bool [vocab], True = allowed."""
        ...

    def forced(self) -> Sequence[int]:
        """Return tokens that must come next, in order, or an empty sequence; does not advance."""
        ...

    def advance(self, token: int) -> None:
        """Consume one token."""
        ...

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens."""
        ...

    def finished(self) -> bool:
        """Tell whether the text is complete and nothing may follow."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CallGrammar:
    """The grammar of a call on a row that is not constrained by it: what it forces there is only a draft."""

    opener: tuple[int, ...]
    """Tokens that open a call."""
    start: Callable[[], Constraint]
    """Makes the grammar's state right after the opener."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRequest:
    """One continuation to decode.

    `prompt` is the whole token sequence, from position 0; the worker finds the longest cached prefix itself.
    `background` rows (probes) give way to others when the model is short of memory or rows.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop_ids: frozenset[int] = frozenset()
    """Token ids that end the row (they are emitted as the last token)."""
    constraint: Constraint | None = None
    owner: str = ""
    """The conversation: rows of one owner re-use each other's cache first; fairness is between owners."""
    background: bool = False
    score_end: bool = True
    """False ends the row at its last choice: what the grammar forces from there to its end costs no forward pass, and
    gets log-probability 0 instead of the target's."""
    drafts: frozenset[DraftKind] | None = None
    """Which of the worker's drafts may propose tokens; None = all of them."""
    scope: str = ""
    """Whose earlier texts may be drafted from: rows that name the same scope share them; "" = the owner's own only."""
    suggestion: tuple[int, ...] = ()
    """A text that is expected somewhere in the answer, e.g. a guessed call; only ever a draft. `Row.suggest` sets it
    later."""
    call_grammar: CallGrammar | None = None
    """What the `grammar` draft follows on a row without a constraint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The prompt is in the cache. `bytes_copied` counts key/value bytes copied from another row's cache."""

    prompt_tokens: int
    reused_tokens: int
    bytes_copied: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Tokens that one step emitted, with natural-log probabilities of the unmasked, untempered target, one each."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The row is over.

    `forwards` counts forward passes after prefill in which the row took part; `shared_forwards` those in which
    a row of another request took part too. `slowdown_s` is the estimated decode time in seconds that background rows
    added to this row's steps.
    """

    reason: StopReason
    new_tokens: int
    forwards: int
    shared_forwards: int
    prefill_s: float
    decode_s: float
    slowdown_s: float
    tail: str = ""
    """Text before a stop string that belongs to no emitted token, because its token also holds the stop string."""
    drafting: tuple[DraftCounts, ...] = ()
    """What was drafted, by kind."""
    forward_s: float = 0.0
    """Seconds of forward passes after prefill in which the row took part."""
    verify_s: float = 0.0
    """Of these, of passes that verified a draft of the row."""


RowEvent = Ready | Tokens | Finished
