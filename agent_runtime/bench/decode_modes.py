"""The modes in which a prompt is decoded, and what one decoding came to. Durations are seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from agent_runtime.decoding.requests import Finished, RowRequest, Tokens

if TYPE_CHECKING:
    from agent_runtime.decoding.drafts.base import DraftKind
    from agent_runtime.decoding.tally import DraftCounts
    from agent_runtime.decoding.worker import ModelWorker

HF_GENERATE, HF_PROMPT_LOOKUP, HF_ASSISTANT = "hf_generate", "hf_prompt_lookup", "hf_assistant"
BASELINES = (HF_GENERATE, HF_PROMPT_LOOKUP, HF_ASSISTANT)
"""Modes of the library's own `generate`, on a copy of the model that nobody has touched."""
NONE, CALL, COMBINED = "none", "call", "combined"


@dataclass(frozen=True, slots=True)
class Mode:
    """Which drafts may propose tokens; with `shared`, `suffix` draws on what this mode decoded in other conversations.

    Modes never learn from each other's texts: they are all the same.
    """

    name: str
    drafts: frozenset[DraftKind] = frozenset()
    shared: bool = False


def modes(kinds: frozenset[DraftKind]) -> list[Mode]:
    """Return the modes of a model worker that has drafts of these kinds."""
    single = [Mode(kind, frozenset({kind})) for kind in _ORDER if kind in kinds]
    several = [Mode(COMBINED, kinds), Mode("combined_shared", kinds, shared=True)]
    shared = [Mode("suffix_shared", frozenset({"suffix"}), shared=True)]
    return [Mode(NONE), *single, *shared, *several]


_ORDER: tuple[DraftKind, ...] = ("call", "lookup", "suffix", "grammar", "model", "layers", "medusa")
OURS = (NONE, *_ORDER, "suffix_shared", COMBINED, "combined_shared")
"""The names of all modes of the model worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """One prompt decoded in one mode.

    `seconds` and `forwards` (of the target) are those that gave its tokens, the first included, behind a prompt of
    which all but the last token had been read.
    """

    mode: str
    ids: tuple[int, ...]
    seconds: float
    forwards: int
    steps: tuple[int, ...] = ()
    """Tokens that each pass gave; known for the model worker only."""
    drafting: tuple[DraftCounts, ...] = ()
    parts: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the `first` step, and after it of `forward` passes, of those of them that `verify`, and of the `host`
    between them; of `draft` in all."""

    @property
    def rate(self) -> float | None:
        """Tokens per second; None where that can't be told."""
        return len(self.ids) / self.seconds if self.ids and self.seconds > 0 else None


async def read(worker: ModelWorker, request: RowRequest) -> None:
    """Read a request's prompt, so that decoding finds it in its conversation's cache."""
    await decode(worker, "", RowRequest(prompt=request.prompt, max_new_tokens=0, owner=request.owner))


async def decode(worker: ModelWorker, mode: str, request: RowRequest) -> Decoded:
    """Decode a request to its end."""
    row = worker.submit(request)
    steps: list[int] = []
    finished: Finished | None = None
    try:
        async for event in row:
            match event:
                case Tokens():
                    steps.append(len(event.ids))
                case Finished():
                    finished = event
                case _:
                    pass
    finally:
        with anyio.CancelScope(shield=True):
            await row.aclose()
    assert finished is not None, "a row ends with Finished"
    drafting_s = sum(counts.draft_s for counts in finished.drafting)
    return Decoded(
        mode=mode,
        ids=row.tokens_so_far,
        seconds=finished.prefill_s + finished.decode_s,
        forwards=finished.forwards + 1,  # the worker counts from the prompt's end, whose pass gives the first token
        steps=tuple(steps),
        drafting=finished.drafting,
        parts={
            "first": finished.prefill_s,
            "draft": drafting_s,
            "forward": finished.forward_s,
            "verify": finished.verify_s,
            "host": max(0.0, finished.decode_s - finished.forward_s - drafting_s),
        },
    )
