"""What a request used, in the several places where servers say it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestUsage:
    """Tokens of one request; None where the server didn't tell."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """Tokens of the prompt that a cache served."""
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None

    def plus(self, chunk: dict[str, Any]) -> RequestUsage:
        """Return the usage after one more chunk; what it tells replaces what was told before."""
        usage = chunk.get("usage")
        if not isinstance(usage, dict):
            usage = {}
        details, spent = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
        timings = chunk.get("timings")  # llama.cpp
        cached = _count(details, "cached_tokens")
        if cached is None:
            cached = _count(timings, "cache_n")
        reasoning = _count(spent, "reasoning_tokens")
        return RequestUsage(
            prompt_tokens=_first(_count(usage, "prompt_tokens"), self.prompt_tokens),
            cached_tokens=_first(cached, self.cached_tokens),
            completion_tokens=_first(_count(usage, "completion_tokens"), self.completion_tokens),
            reasoning_tokens=_first(reasoning, _count(usage, "reasoning_tokens"), self.reasoning_tokens),
        )


def _count(values: Any, name: str) -> int | None:
    value = values.get(name) if isinstance(values, dict) else None
    return value if isinstance(value, int) and value >= 0 else None


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)
