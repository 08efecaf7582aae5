"""A server's own counters, read from its Prometheus page: prefix cache and token-level speculation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from agent_runtime.traces.events import Drafting

KIND = "server"
"""How a server's drafts are called beside those of the local engine."""
_SAMPLE = re.compile(r"(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'(?P<name>\w+)="(?P<value>(?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCounters:
    """A server's counters since it started, over all its clients; None where it doesn't tell."""

    prefix_queries: int | None = None
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int | None = None
    """Prompt tokens found there."""
    drafting: Drafting | None = None
    """What was drafted token by token and verified; None where nothing is."""

    def since(self, earlier: ServerCounters) -> ServerCounters:
        """Return what was counted since `earlier`; a server that started anew in between counts from its start."""
        drafting, before = self.drafting, earlier.drafting
        if drafting is not None and before is not None and drafting.drafts >= before.drafts:
            then = before.accepted_per_position + (0,) * len(drafting.accepted_per_position)
            drafting = replace(
                drafting,
                drafts=drafting.drafts - before.drafts,
                draft_tokens=drafting.draft_tokens - before.draft_tokens,
                accepted_per_position=tuple(
                    count - past for count, past in zip(drafting.accepted_per_position, then, strict=False)
                ),
            )
        return ServerCounters(
            prefix_queries=_difference(self.prefix_queries, earlier.prefix_queries),
            prefix_hits=_difference(self.prefix_hits, earlier.prefix_hits),
            drafting=drafting,
        )


def _difference(now: int | None, before: int | None) -> int | None:
    return now if now is None or before is None or now < before else now - before


def read_counters(page: str, *, model: str | None = None) -> ServerCounters:
    """Return the counters on a metrics page, summed over the engines that serve `model` (all models without it)."""
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    for name, labels, value in _samples(page.splitlines()):
        if model is not None and labels.get("model_name", model) != model:
            continue
        if name == "vllm:spec_decode_num_accepted_tokens_per_pos_total" and labels.get("position", "").isdigit():
            position = int(labels["position"])
            positions[position] = positions.get(position, 0.0) + value
        else:
            sums[name] = sums.get(name, 0.0) + value

    def count(*names: str) -> int | None:
        return next((round(sums[name]) for name in names if name in sums), None)

    drafts = count("vllm:spec_decode_num_drafts_total")
    return ServerCounters(
        prefix_queries=count("vllm:prefix_cache_queries_total", "sglang:prompt_tokens_total"),
        prefix_hits=count("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total"),
        drafting=None
        if drafts is None
        else Drafting(
            kind=KIND,
            drafts=drafts,
            draft_tokens=count("vllm:spec_decode_num_draft_tokens_total") or 0,
            accepted_per_position=tuple(round(positions.get(at, 0.0)) for at in range(max(positions, default=-1) + 1)),
        ),
    )


def _samples(lines: Iterable[str]) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield the samples of a page in Prometheus' text format; what can't be read is left out."""
    for line in lines:
        found = _SAMPLE.fullmatch(line)
        if found is None:
            continue
        try:
            value = float(found["value"])
        except ValueError:
            continue
        if value == value and abs(value) != float("inf"):
            yield found["name"], {each["name"]: each["value"] for each in _LABEL.finditer(found["labels"] or "")}, value


def of_request(metrics: object) -> Drafting | None:
    """Return what a server said of one request's drafts (vLLM's `metrics.speculative_decoding`), or None."""
    found = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
    if not isinstance(found, dict):
        return None
    try:
        # Index j counts the drafts of which exactly j tokens stood.
        histogram = [int(count) for count in found["acceptance_histogram"]]
        return Drafting(
            kind=KIND,
            drafts=int(found["num_spec_steps"]),
            draft_tokens=int(found["num_draft_tokens"]),
            accepted_per_position=tuple(sum(histogram[stood:]) for stood in range(1, len(histogram))),
        )
    except (KeyError, TypeError, ValueError):
        return None
