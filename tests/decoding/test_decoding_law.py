"""What is emitted follows the target's law exactly, whatever is drafted: every sequence of three of twelve tokens.

Pearson's chi-square compares 2,000 rows per setting with the exact law, for whole sequences and for each position's
token. The whole file raises a false alarm with probability 1e-3 at most (Bonferroni over all its comparisons), and its
seeds are fixed: what passes once always passes. That the same comparison finds wrong verifiers is tested too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import pytest
import torch
from agent_runtime.decoding.drafts.base import ROOT, Proposal
from agent_runtime.decoding.requests import Sampling
from agent_runtime.decoding.sampling import Masks, Sampler, draft_generator, draw
from agent_runtime.decoding.verify import Verified, verify
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from .conftest import law_p_values, sequence_law

TOKENS = 12
LENGTH = 3
ROWS = 2000
PROMPT = (3, 7, 7, 10)
CPU = torch.device("cpu")
Text = tuple[int, ...]

PROCESSORS: dict[str, dict[str, float]] = {
    "plain": {},
    "top-p": {"top_p": 0.85},
    "top-k": {"top_k": 5},
    "min-p": {"min_p": 0.08},
    "penalty": {"repetition_penalty": 1.8},
    "mask": {},
    "all": {"top_p": 0.95, "top_k": 8, "min_p": 0.02, "repetition_penalty": 1.3},
}
SHAPES = ["chain", "tree"]
KINDS = ["point mass", "q"]
TEMPERATURES = [0.7, 1.0]
SETTINGS = [
    (temperature, processors, shape, kind)
    for temperature in TEMPERATURES
    for processors in PROCESSORS
    for shape in SHAPES
    for kind in KINDS
]
# Siblings drawn without putting back have distributions of their own.
SETTINGS += [(1.0, processors, "tree", "q without repeats") for processors in ("plain", "all")]
COMPARISONS = len(SETTINGS) * (1 + LENGTH)
ALARM = 1e-3 / COMPARISONS


# -- the model and its law --------------------------------------------------------------------------------------


def _table(seed: int) -> Tensor:
    """Logits by the two tokens before: [TOKENS, TOKENS, TOKENS]."""
    return torch.randn(TOKENS, TOKENS, TOKENS, generator=torch.Generator().manual_seed(seed)) * 1.6


TARGET = _table(1)
DRAFT = TARGET + 0.8 * _table(2)
"""The draft's logits: near the target's, and its last two tokens are missing (a smaller vocabulary)."""


def allowed(text: Text) -> Tensor:
    """A grammar: what may follow depends on the token before."""
    mask = torch.ones(TOKENS, dtype=torch.bool)
    mask[[(text[-1] + shift) % TOKENS for shift in (0, 3, 4)]] = False
    return mask


def sampling_of(temperature: float, processors: str, seed: int | None = None) -> Sampling:
    return Sampling(temperature=temperature, seed=seed, **PROCESSORS[processors])  # type: ignore[arg-type]


def exact_law(temperature: float, processors: str) -> dict[Text, float]:
    """The law by the library's processors, computed apart from ours."""
    sampling = sampling_of(temperature, processors)
    warpers = LogitsProcessorList()
    warpers.append(TemperatureLogitsWarper(temperature))
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        warpers.append(MinPLogitsWarper(sampling.min_p))

    def following(begun: Text) -> list[float]:
        text = (*PROMPT, *begun)
        ids, scores = torch.tensor([text]), TARGET[text[-2], text[-1]][None].clone()
        if sampling.repetition_penalty != 1:
            scores = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)(ids, scores)
        if processors == "mask":
            scores = scores.masked_fill(~allowed(text), float("-inf"))
        found: list[float] = warpers(ids, scores)[0].double().softmax(-1).tolist()
        return found

    return sequence_law(following, LENGTH)


# -- drafts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DraftRow:
    """What the draft samples from after two tokens, prepared."""

    q: Tensor
    cumulative: list[float]
    likeliest: list[int]


@cache
def draft_row(before: int, last: int, temperature: float) -> DraftRow:
    logits = DRAFT[before, last].clone()
    logits[-2:] = float("-inf")
    q = (logits / temperature).softmax(-1)
    # The draft's own nucleus, so that q has zeros where the target may have mass.
    ordered, order = q.sort(descending=True)
    q[order[ordered.cumsum(0) - ordered > 0.9]] = 0
    q /= q.sum()
    return DraftRow(q, list(accumulate(q.double().tolist())), q.argsort(descending=True).tolist())


def propose(text: Text, shape: str, kind: str, uniforms: list[float], temperature: float, length: int) -> Proposal:
    """Guesses for `text`: a chain of `length`, or a binary tree of that depth (at most 2)."""
    width, depth = (1, length) if shape == "chain" else (2, min(length, 2))
    tokens: list[int] = []
    parents: list[int] = []
    rows: list[Tensor] = []
    level: list[tuple[int, Text]] = [(ROOT, text)]
    for _ in range(depth):
        following: list[tuple[int, Text]] = []
        for parent, path in level:
            row = draft_row(path[-2], path[-1], temperature)
            q, cumulative = row.q, row.cumulative
            for rank in range(width):
                token = row.likeliest[rank]
                if kind != "point mass":
                    token = bisect_right(cumulative, uniforms[len(tokens)] * cumulative[-1])
                following.append((len(tokens), (*path, token)))
                tokens.append(token)
                parents.append(parent)
                rows.append(q)
                if kind == "q without repeats" and rank + 1 < width:
                    drawn = torch.tensor([token])
                    q = q.index_fill(0, drawn, 0.0)
                    q = q / q.sum() if q.sum() > 0 else torch.ones(TOKENS).index_fill(0, drawn, 0.0) / (TOKENS - 1)
                    cumulative = list(accumulate(q.double().tolist()))
        level = following
    q_of_all = None if kind == "point mass" else torch.stack(rows)
    return Proposal("model", tuple(tokens), () if shape == "chain" else tuple(parents), q_of_all)


def paths_of(text: Text, proposal: Proposal) -> list[Text]:
    """The text at every position of the block."""
    paths = [text]
    for index, token in enumerate(proposal.tokens):
        parent = proposal.parents[index] if proposal.parents else index - 1
        paths.append((*paths[1 + parent], token))
    return paths


# -- rows -------------------------------------------------------------------------------------------------------

Verifier = Callable[[Tensor, Proposal, Sampler, Masks | None, list[float]], Verified]


def right(logits: Tensor, proposal: Proposal, sampler: Sampler, masks: Masks | None, drafted: list[float]) -> Verified:
    return verify(logits, proposal, sampler, masks)


def emit(temperature: float, processors: str, shape: str, kind: str, seed: int, verifier: Verifier = right) -> Text:
    """Decode one row; draft and acceptance share its seed."""
    sampler = Sampler(sampling_of(temperature, processors, seed), vocab_size=TOKENS, device=CPU, prompt=PROMPT)
    generator = draft_generator(seed, 0, CPU)
    text: Text = PROMPT
    while len(text) < len(PROMPT) + LENGTH:
        uniforms = torch.rand(6, generator=generator, dtype=torch.float64).tolist()
        proposal = propose(text, shape, kind, uniforms, temperature, 1 + (seed + len(text)) % 3)
        paths = paths_of(text, proposal)
        logits = torch.stack([TARGET[path[-2], path[-1]] for path in paths])
        masks = [allowed(path) for path in paths] if processors == "mask" else None
        for token in verifier(logits, proposal, sampler, masks, uniforms).tokens:
            sampler.observe(token)
            text = (*text, token)
    return text[len(PROMPT) :][:LENGTH]


def draw_rows(temperature: float, processors: str, shape: str, kind: str, verifier: Verifier = right) -> Counter[Text]:
    with torch.inference_mode():
        return Counter(emit(temperature, processors, shape, kind, seed, verifier) for seed in range(ROWS))


@pytest.mark.parametrize(("temperature", "processors", "shape", "kind"), SETTINGS)
def test_emitted_sequences_follow_the_targets_law(temperature: float, processors: str, shape: str, kind: str) -> None:
    counts = draw_rows(temperature, processors, shape, kind)
    assert min(law_p_values(counts, exact_law(temperature, processors))) > ALARM


# -- the comparison has power -----------------------------------------------------------------------------------


def textbook(
    *,
    q_of: Callable[[Proposal, Tensor], Tensor] = lambda proposal, q: q,
    reuse: bool = False,
    residual: bool = True,
    bonus_from_q: bool = False,
    penalty_sees_guesses: bool = True,
) -> Verifier:
    """Accept-reject along a chain, one token at a time, with a fault if asked for."""

    def verifier(
        logits: Tensor, proposal: Proposal, sampler: Sampler, masks: Masks | None, drafted: list[float]
    ) -> Verified:
        assert proposal.q is not None
        q = q_of(proposal, proposal.q)
        guesses = proposal.tokens
        p = sampler.distribution(logits, guesses, masks)
        if not penalty_sees_guesses:
            p = torch.cat([sampler.distribution(row[None]) for row in logits])
        fresh = sampler.choice_uniforms(range(2 * len(logits)), CPU)
        tokens: list[int] = []
        for at, guess in enumerate(guesses):
            u = drafted[at] if reuse else float(sampler.acceptance_uniforms(0, [at], CPU))
            if u * float(q[at, guess]) < float(p[at, guess]):
                tokens.append(guess)
                continue
            left = (p[at] - q[at]).clamp_min(0) if residual else p[at]
            tokens.append(int(draw(left[None], fresh[at : at + 1])))
            break
        else:
            last = q[-1:] if bonus_from_q else p[-1:]
            tokens.append(int(draw(last, fresh[len(guesses) : len(guesses) + 1])))
        return Verified(tuple(tokens), len(tokens) - 1, (), (0.0,) * len(tokens))

    return verifier


def unwarped(proposal: Proposal, q: Tensor) -> Tensor:
    """Mix q with a flat distribution: no longer what the guesses were sampled from."""
    return 0.7 * q + 0.3 / TOKENS


FAULTS: dict[str, tuple[str, Verifier]] = {
    "q is not what was sampled from": ("plain", textbook(q_of=unwarped)),
    "acceptance uses the draft's random numbers": ("plain", textbook(reuse=True)),
    "a rejected guess is replaced by a draw from p": ("plain", textbook(residual=False)),
    "the bonus token comes from q": ("plain", textbook(bonus_from_q=True)),
    "the penalty doesn't see accepted guesses": ("penalty", textbook(penalty_sees_guesses=False)),
}


def test_the_comparison_passes_accept_reject_written_out() -> None:
    counts = draw_rows(1.0, "plain", "chain", "q", textbook())
    assert min(law_p_values(counts, exact_law(1.0, "plain"))) > ALARM


@pytest.mark.parametrize("fault", FAULTS)
def test_the_comparison_finds(fault: str) -> None:
    processors, verifier = FAULTS[fault]
    counts = draw_rows(1.0, processors, "chain", "q", verifier)
    assert min(law_p_values(counts, exact_law(1.0, processors))) < ALARM


def test_the_comparison_finds_siblings_that_are_tried_against_the_whole_target() -> None:
    def verifier(
        logits: Tensor, proposal: Proposal, sampler: Sampler, masks: Masks | None, drafted: list[float]
    ) -> Verified:
        """One level: each child against p, without the residual in between."""
        assert proposal.q is not None
        p = sampler.distribution(logits[:1])[0]
        for guess in (0, 1):
            token, q = proposal.tokens[guess], proposal.q[guess]
            if float(sampler.acceptance_uniforms(guess, [0], CPU)) * float(q[token]) < float(p[token]):
                return Verified((token,), 0, (), (0.0,))
        left = (p - proposal.q[0]).clamp_min(0)
        return Verified((int(draw(left[None], sampler.choice_uniforms([0], CPU))),), 0, (), (0.0,))

    counts = draw_rows(1.0, "plain", "tree", "q", verifier)
    assert min(law_p_values(counts, exact_law(1.0, "plain"))) < ALARM
