"""How much one run may use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one run. Guesses never count against them.

    Raises:
        ValueError: a bound is below 1.
    """

    turns: int = 20
    """Model generations."""
    calls: int = 50
    """Tool calls that the model makes, failed and malformed ones included."""
    tokens: int | None = None
    """Tokens that the model generates over all turns; None = no bound."""
    turn_tokens: int = 1024
    """Tokens that the model generates in one turn."""

    def __post_init__(self) -> None:
        for name in ("turns", "calls", "tokens", "turn_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"Limits({name}={value}): give a number of at least 1")

    def next_turn_tokens(self, used: int) -> int:
        """Return how many tokens the next turn may generate after `used` tokens (0 = none are left)."""
        left = self.turn_tokens if self.tokens is None else min(self.turn_tokens, self.tokens - used)
        return max(0, left)
