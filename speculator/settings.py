"""How an agent guesses: one frozen value."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from agent_runtime.tools.limits import GuessLimits

from .errors import SpeculationInvalid
from .predictors import Predictor


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How an agent guesses its next call, and what it may start early.

    Raises:
        SpeculationInvalid: a value lies outside its range; the message names it.
    """

    placement: Literal["auto", "beside", "before"] = "auto"
    """When a turn's first guess is made: while the agent decodes, before it does, or whichever the policy expects to
    save more (then also: not at all)."""
    predictor: Literal["self", "counter", "both"] | Predictor = "self"
    """Who guesses: `self` is the agent's own model in speculator mode. `counter` counts what the agent did in earlier
    runs, those of this agent object: it costs no model time, knows nothing at first, and may guess with values from
    any of those runs, so let it only where they may know of each other. `both` asks the model where the counter is not
    sure."""
    min_confidence: float = 0.5
    """Guesses below this probability are not started."""
    reprobe: tuple[int, ...] = (16, 32, 64)
    """Guess again when the agent, still thinking, has generated this many tokens of the turn."""
    max_probe_tokens: int = 96
    """Tokens after which a probe of the agent's own model is cut off."""
    allow_idempotent: bool | Collection[str] = False
    """Let idempotent writes start early: all, or those named. A wrong guess leaves its write behind."""
    allow_open_world: bool | Collection[str] = False
    """Let reads whose arguments leave the machine start early: all, or those named."""
    limits: GuessLimits = field(default_factory=GuessLimits)
    """Bounds of guessing in one run."""

    def __post_init__(self) -> None:
        if self.placement not in ("auto", "beside", "before"):
            raise SpeculationInvalid(f"Speculation(placement={self.placement!r}): give 'auto', 'beside' or 'before'")
        if isinstance(self.predictor, str) and self.predictor not in ("self", "counter", "both"):
            raise SpeculationInvalid(
                f"Speculation(predictor={self.predictor!r}): give 'self', 'counter', 'both' or a predictor"
            )
        if not 0.0 <= self.min_confidence <= 1.0:
            raise SpeculationInvalid(f"Speculation(min_confidence={self.min_confidence}): give a number from 0 to 1")
        if self.max_probe_tokens < 1:
            raise SpeculationInvalid(f"Speculation(max_probe_tokens={self.max_probe_tokens}): give at least 1")
        object.__setattr__(self, "reprobe", tuple(self.reprobe))
        if list(self.reprobe) != sorted(set(self.reprobe)) or any(position < 1 for position in self.reprobe):
            raise SpeculationInvalid(f"Speculation(reprobe={self.reprobe}): give growing numbers of tokens, from 1")

    def to_json(self) -> dict[str, Any]:
        """Return the settings as plain JSON, for the trace."""
        return {
            "placement": self.placement,
            "predictor": self.predictor if isinstance(self.predictor, str) else self.predictor.source,
            "min_confidence": self.min_confidence,
            "reprobe": list(self.reprobe),
            "max_probe_tokens": self.max_probe_tokens,
            "allow_idempotent": _opted_in(self.allow_idempotent),
            "allow_open_world": _opted_in(self.allow_open_world),
            "limits": asdict(self.limits),
        }


def _opted_in(allowed: bool | Collection[str]) -> bool | list[str]:
    return allowed if isinstance(allowed, bool) else sorted([allowed] if isinstance(allowed, str) else allowed)
