"""What was drafted and what stood, in the words of vLLM's metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .drafts.base import DraftKind


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCounts:
    """Counts of one kind of draft, of a row or of a worker since its start."""

    kind: str
    drafts: int
    """Proposals that were verified."""
    draft_tokens: int
    """Tokens in them."""
    accepted_tokens: int
    accepted_per_position: tuple[int, ...]
    """Proposals whose first, second, ... token stood."""
    draft_s: float
    """Seconds that drafting took."""

    @property
    def mean_accepted_length(self) -> float | None:
        """Tokens that a verified block gave, the target's own included; None without any."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else None

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """Share of the proposals whose i-th token stood."""
        return tuple(count / self.drafts for count in self.accepted_per_position)


@dataclass(slots=True)
class Tally:
    """The running counts of one kind."""

    drafts: int = 0
    draft_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    draft_s: float = 0.0

    def add(self, proposed: int, accepted: int) -> None:
        """Count a verified proposal."""
        self.drafts += 1
        self.draft_tokens += proposed
        grow = accepted - len(self.accepted_per_position)
        self.accepted_per_position += [0] * grow
        for position in range(accepted):
            self.accepted_per_position[position] += 1

    def take(self, other: Tally) -> None:
        """Add another one's counts."""
        self.drafts += other.drafts
        self.draft_tokens += other.draft_tokens
        self.draft_s += other.draft_s
        self.accepted_per_position += [0] * (len(other.accepted_per_position) - len(self.accepted_per_position))
        for position, count in enumerate(other.accepted_per_position):
            self.accepted_per_position[position] += count

    def frozen(self, kind: str) -> DraftCounts:
        """Return the counts as a value."""
        return DraftCounts(
            kind=kind,
            drafts=self.drafts,
            draft_tokens=self.draft_tokens,
            accepted_tokens=sum(self.accepted_per_position),
            accepted_per_position=tuple(self.accepted_per_position),
            draft_s=self.draft_s,
        )


def frozen(tallies: Mapping[DraftKind, Tally]) -> tuple[DraftCounts, ...]:
    """Return the counts of every kind that proposed something."""
    return tuple(tally.frozen(kind) for kind, tally in tallies.items() if tally.drafts)


def total(counts: Iterable[DraftCounts], kind: str = "all") -> DraftCounts:
    """Return the sum over several kinds or rows."""
    together = Tally()
    for part in counts:
        together.take(Tally(part.drafts, part.draft_tokens, list(part.accepted_per_position), part.draft_s))
    return together.frozen(kind)
