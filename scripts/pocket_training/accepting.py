"""How much of a draft's guesses the target accepts when it decodes greedily, counted on texts that it wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Counts over a text decoded in steps of one verification each."""

    tokens: int
    """Tokens emitted."""
    steps: int
    """Forward passes of the target."""
    accepted: tuple[int, ...]
    """Per position of the draft, how often it was accepted."""

    @property
    def mean_accepted_length(self) -> float:
        """Tokens per step, the target's own included."""
        return self.tokens / max(self.steps, 1)

    @property
    def by_position(self) -> list[float]:
        """Per position of the draft, the share of steps in which it was accepted."""
        return [round(count / max(self.steps, 1), 4) for count in self.accepted]

    def report(self) -> dict[str, object]:
        """Return the figures for the log."""
        return {"mean_accepted_length": round(self.mean_accepted_length, 4), "acceptance_by_position": self.by_position}


def walk(lengths: Iterable[int], accepted_at: Callable[[int, int], int], depth: int) -> Acceptance:
    """Decode texts with a draft.

    Args:
        lengths: tokens per text; the last token is emitted like any other.
        accepted_at: given a text's number and a position in it, how many guesses made for that position and those after
            it are right, at most `depth`. Position 0 has no draft: there the target reads the prompt.
        depth: tokens on the draft's longest path.
    """
    tokens, steps, accepted = 0, 0, [0] * depth
    for text, length in enumerate(lengths):
        at = 1  # the first token comes from reading the prompt
        while at < length:
            right = min(accepted_at(text, at), length - at)
            steps += 1
            for position in range(right):
                accepted[position] += 1
            tokens += min(right + 1, length - at)
            at += right + 1
    return Acceptance(tokens, steps, tuple(accepted))
