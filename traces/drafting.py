"""How much of a text was drafted, over many generations: mean accepted length and acceptance by position."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .events import Drafting, Event, GenerationFinished


def drafting_of(events: Iterable[Event]) -> dict[str, Drafting]:
    """Return what was drafted in the generations among `events`, by kind."""
    parts = [part for event in events if isinstance(event, GenerationFinished) for part in event.drafting]
    return {kind: total((part for part in parts if part.kind == kind), kind) for kind in _in_order(parts)}


def total(parts: Iterable[Drafting], kind: str = "all") -> Drafting:
    """Return the sum of `parts`."""
    drafts = draft_tokens = 0
    draft_ms = 0.0
    accepted: list[int] = []
    for part in parts:
        drafts += part.drafts
        draft_tokens += part.draft_tokens
        draft_ms += part.draft_ms
        accepted += [0] * (len(part.accepted_per_position) - len(accepted))
        for position, count in enumerate(part.accepted_per_position):
            accepted[position] += count
    return Drafting(
        kind=kind, drafts=drafts, draft_tokens=draft_tokens, accepted_per_position=tuple(accepted), draft_ms=draft_ms
    )


def mean_accepted_length(drafting: Drafting) -> float | None:
    """Return the tokens that a verified block gave, the target's own included; None where nothing was verified."""
    return 1 + drafting.accepted_tokens / drafting.drafts if drafting.drafts else None


def acceptance_by_position(drafting: Drafting) -> list[float]:
    """Return the share of the proposals whose first, second, ... token stood."""
    return [count / drafting.drafts for count in drafting.accepted_per_position]


def decoding_summary(events: Iterable[Event]) -> dict[str, Any]:
    """Return the `decoding` object that `agent run --json` promises.

    `mean_accepted_length` is over all steps, drafted or not: tokens per forward pass, where each message's first token
    comes from the pass that ends its prefill. Under `draft` it is over the steps that verified that kind.
    """
    generations = [event for event in events if isinstance(event, GenerationFinished)]
    tokens = sum(event.completion_tokens for event in generations)
    forwards = sum(event.forwards for event in generations)
    kinds = drafting_of(generations)
    passes = forwards + len(generations)
    return {
        "tokens": tokens,
        "forwards": forwards,
        "mean_accepted_length": tokens / passes if passes else None,
        "acceptance_by_position": acceptance_by_position(total(kinds.values())) if kinds else [],
        "draft": {kind: _summary(part) for kind, part in kinds.items()} or None,
        "draft_ms": sum(part.draft_ms for part in kinds.values()),
        "verify_ms": sum(event.verify_ms for event in generations),
        "host_ms": sum(event.host_ms for event in generations),
        "lossless": True,
    }


def _summary(part: Drafting) -> dict[str, Any]:
    return {
        "drafts": part.drafts,
        "draft_tokens": part.draft_tokens,
        "accepted_tokens": part.accepted_tokens,
        "mean_accepted_length": mean_accepted_length(part),
        "acceptance_by_position": acceptance_by_position(part),
        "draft_ms": part.draft_ms,
    }


def _in_order(parts: Iterable[Drafting]) -> list[str]:
    return list(dict.fromkeys(part.kind for part in parts))
