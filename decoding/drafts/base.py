"""The one contract of every draft: `(tokens, parents, q or None)`, proposed for a row, verified by the target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from agent_runtime.decoding.executor import RowCache
    from agent_runtime.decoding.requests import RowRequest
    from torch import Tensor

DraftKind = Literal["call", "lookup", "suffix", "grammar", "model", "layers", "medusa"]

ROOT = -1
"""The parent of a proposal's first tokens: the row's last token."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens that may come next.

    `parents[i]` is the index of the token that token `i` follows, `ROOT` for the row's last token; parents come before
    their children. Empty means a chain. `q` is None for a deterministic guess (a point mass); otherwise it holds the
    distribution that each token was really sampled from, after every processor: fp32 [len(tokens), vocab].
    """

    kind: DraftKind
    tokens: tuple[int, ...]
    parents: tuple[int, ...] = ()
    q: Tensor | None = None
    strength: int = 0
    """A small class of evidence within the kind (e.g. how long a match was): acceptance is learned for each apart."""

    @property
    def is_chain(self) -> bool:
        """Whether every token follows the one before it."""
        return all(parent == index - 1 for index, parent in enumerate(self.parents))

    def cut(self, length: int) -> Proposal:
        """Return the first `length` tokens; nothing of what follows them was looked at for that."""
        if length >= len(self.tokens):
            return self
        q = None if self.q is None else self.q[:length]
        return Proposal(self.kind, self.tokens[:length], self.parents[:length], q, self.strength)


class DraftedRow(Protocol):
    """What a draft may see of a row, on the model thread."""

    number: int
    """Unique within a worker."""
    request: RowRequest
    tokens: list[int]
    """Prompt and everything chosen or forced so far, in order. Not to be changed."""
    prompt_tokens: int
    cache: RowCache | None
    """The target's own keys and values; holds `cache.length` of `tokens`."""
    hidden: Tensor | None
    """The target's state after its final norm [width] at the position before the last token; None before the first
    step, and where no draft of the row taps it."""


class Draft(Protocol):
    """Proposes tokens for rows. Called from the model thread only, between forwards of the target.

    Rows may lose tokens at their end only in the sense that proposed tokens are not accepted: `row.tokens` itself grows
    and never shrinks, so state per row can follow it.
    """

    kind: DraftKind
    needs_hidden: bool
    """Whether it looks at `DraftedRow.hidden`."""

    def propose(self, row: DraftedRow, limit: int) -> Proposal | None:
        """Return up to `limit` tokens to follow `row.tokens`, or None where there is nothing to say."""
        ...

    def forget(self, row: DraftedRow) -> None:
        """Drop what is kept for a row that is over."""
        ...


def chain_parents(length: int) -> tuple[int, ...]:
    """Return the parents of a chain of `length` tokens, written out."""
    return tuple(range(-1, length - 1))
