"""Bounds of guessing for one run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessLimits:
    """How much one run may guess. Guesses never count against the user's own limits.

    Raises:
        ValueError: a bound is negative.
    """

    in_flight: int = 4
    """Guessed executions at the same time, those included that were given up and still run in a thread. Guesses of a
    turn's later calls leave one of the places free until the first call is there."""
    wasted_calls: int = 32
    """Executions that served nothing; then guessing stops."""
    wasted_seconds: float = 120.0
    """Tool time that served nothing; then guessing stops."""
    back_off: float = 30.0
    """Seconds without guesses of a tool after a 429, a 5xx or a timeout; a longer `Retry-After` counts."""
    drain: float = 5.0
    """Seconds that a demanded call, turned away with 429 because of guesses, waits for them to end."""
    retry_pause: float = 1.0
    """Seconds after the drain until that call is tried again; `Retry-After` counts instead, at most `back_off`."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) >= 0:
                raise ValueError(f"GuessLimits({name}={getattr(self, name)}): give a number, at least 0")
