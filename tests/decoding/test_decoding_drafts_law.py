"""End to end, one law per kind of draft: what the worker says is distributed as plain sampling from the target.

A random model of 12 tokens; every sequence of three tokens is enumerated with the library's own forward and this file's
own processors. Pearson's test on whole sequences and on every position; cells that expect fewer than 5 are merged. The
file's false-alarm rate is `ALARM`, shared equally by its comparisons (Bonferroni); seeds are fixed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import anyio
import pytest
import torch
from agent_runtime.decoding.drafts.base import Draft
from agent_runtime.decoding.drafts.call import CallDraft
from agent_runtime.decoding.drafts.grammar import GrammarDraft
from agent_runtime.decoding.drafts.layers import LayersDraft
from agent_runtime.decoding.drafts.lookup import LookupDraft
from agent_runtime.decoding.drafts.medusa import MedusaDraft, MedusaHeads, chain_choices
from agent_runtime.decoding.drafts.model import ModelDraft
from agent_runtime.decoding.drafts.suffix import SuffixDraft
from agent_runtime.decoding.requests import CallGrammar, RowRequest, Sampling
from agent_runtime.decoding.worker import ModelWorker
from transformers import Qwen3Config

from .conftest import BASE, build, collect, law_p_values, sequence_law

pytestmark = pytest.mark.anyio

ALARM = 1e-3
VOCAB = 12
ROWS = 1200
PROMPT = (1, 5, 2, 5, 2, 7, 5, 2)
SAMPLING = Sampling(temperature=0.8, top_p=0.9)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@cache
def target(seed: int = 0) -> Any:
    """A model that is undecided between its few tokens."""
    model = build(Qwen3Config(**{**BASE, "vocab_size": VOCAB}, head_dim=16), seed)
    model.get_output_embeddings().weight.data.mul_(0.25)
    return model


def following(said: tuple[int, ...]) -> list[float]:
    """The target's law of the next token: temperature, then the smallest set of at least `top_p`."""
    model = target()
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[*PROMPT, *said]]), use_cache=False).logits[0, -1].double()
    p = (logits / SAMPLING.temperature).softmax(-1)
    ascending, order = p.sort()
    p[order[ascending.cumsum(-1) <= 1 - SAMPLING.top_p]] = 0
    return [float(x) for x in p / p.sum()]


class ForcesOne:
    """A grammar that forces one token after the opener, whatever the row really says."""

    def allowed(self) -> torch.Tensor:
        return torch.ones(VOCAB, dtype=torch.bool)

    def forced(self) -> list[int]:
        return [3, 4]

    def advance(self, token: int) -> None:
        pass

    def rollback(self, count: int) -> None:
        pass

    def finished(self) -> bool:
        return False


def heads(tree: bool) -> MedusaDraft:
    torch.manual_seed(4)
    model = target()
    weight = 0.3 * torch.randn(2, 1, 64, 64)
    made = MedusaHeads(weight, torch.zeros(2, 1, 64), model.get_output_embeddings().weight.detach())
    return MedusaDraft(made, choices=((0,), (1,), (0, 0), (0, 1)) if tree else chain_choices(2))


KINDS: dict[str, Callable[[], Draft | Callable[[Any], Draft]]] = {
    "call": CallDraft,
    "lookup": LookupDraft,
    "suffix": lambda: SuffixDraft(floor=0.0),
    "grammar": GrammarDraft,
    "model, its likeliest tokens": lambda: ModelDraft(target(1)),
    "model, sampled": lambda: ModelDraft(target(1), sampled=True),
    "layers": lambda: lambda executor: LayersDraft(executor, [0]),
    "medusa, chain": lambda: heads(False),
    "medusa, tree": lambda: heads(True),
}
COMPARISONS = len(KINDS) * 4


@cache
def law() -> dict[tuple[int, ...], float]:
    return sequence_law(following)


@pytest.mark.parametrize("kind", KINDS)
async def test_sampled_texts_follow_the_targets_law(kind: str) -> None:
    counts: Counter[tuple[int, ...]] = Counter()
    first_token = max(range(VOCAB), key=following(()).__getitem__)
    accepted = drafted = 0

    async def decode(worker: ModelWorker, seed: int) -> None:
        nonlocal accepted, drafted
        request = RowRequest(
            prompt=PROMPT,
            max_new_tokens=3,
            sampling=Sampling(temperature=SAMPLING.temperature, top_p=SAMPLING.top_p, seed=seed),
            owner=str(seed % 7),
            suggestion=(first_token, 2, 7),
            call_grammar=CallGrammar(opener=(first_token,), start=ForcesOne),
        )
        run = await collect(worker, request)
        counts[tuple(run.ids)] += 1
        assert run.finished is not None
        accepted += sum(part.accepted_tokens for part in run.finished.drafting)
        drafted += sum(part.draft_tokens for part in run.finished.drafting)

    with ModelWorker(target(), drafts=[KINDS[kind]()], draft_tokens=4 if "tree" in kind else 2) as worker:
        for first in range(0, ROWS, 40):
            async with anyio.create_task_group() as group:
                for seed in range(first, first + 40):
                    group.start_soon(decode, worker, seed)
    assert drafted > ROWS / 8 and 0 < accepted < drafted  # there was something to verify, right and wrong
    assert min(law_p_values(counts, law())) > ALARM / COMPARISONS
