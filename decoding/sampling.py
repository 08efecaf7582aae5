"""Choosing a token: the library's processors, one random stream per row, log-probabilities of the raw target."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .requests import Sampling

NEVER = float("-inf")


class Sampler:
    """One row's processors and random stream.

    Order and meaning follow `transformers`: repetition penalty over prompt and new tokens, then the grammar's mask,
    then temperature, top-k, top-p, min-p. Without a seed the stream starts anywhere.
    """

    def __init__(self, sampling: Sampling, *, vocab_size: int, device: torch.device, prompt: Sequence[int]) -> None:
        self.sampling = sampling
        self._generator: torch.Generator | None = None
        if sampling.temperature > 0:
            self._generator = torch.Generator(device=device)
            if sampling.seed is None:
                self._generator.seed()
            else:
                self._generator.manual_seed(sampling.seed)
        self._seen: Tensor | None = None  # bool [vocab]
        if sampling.repetition_penalty != 1.0:
            self._seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)
            self._seen[torch.tensor(prompt, dtype=torch.long, device=device)] = True

    @property
    def is_plain_greedy(self) -> bool:
        """Whether the choice is the highest raw logit (unless a grammar masks it)."""
        return self._generator is None and self._seen is None

    def observe(self, token: int) -> None:
        """Count a token as seen for the repetition penalty."""
        if self._seen is not None:
            self._seen[token] = True

    def choose(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        """Return the chosen id as a 0-dim tensor; `logits`: fp32 [vocab], `allowed`: bool [vocab]."""
        scores = self.processed(logits, allowed)
        if self._generator is None:
            return scores.argmax()  # the first, so the lowest id, among equals
        return torch.multinomial(scores.softmax(-1), 1, generator=self._generator)[0]

    def processed(self, logits: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Return the scores after every processor; removed ids hold -inf. `logits` is left as it is."""
        sampling, scores = self.sampling, logits
        if self._seen is not None:
            penalty = sampling.repetition_penalty
            penalised = torch.where(scores < 0, scores * penalty, scores / penalty)
            scores = torch.where(self._seen, penalised, scores)
        if allowed is not None:
            scores = scores.masked_fill(~fit(allowed, scores), NEVER)
        if self._generator is None:
            return scores
        scores = scores / sampling.temperature
        if sampling.top_k > 0:
            kth = torch.topk(scores, min(sampling.top_k, scores.shape[-1])).values[-1]
            scores = scores.masked_fill(scores < kth, NEVER)
        if sampling.top_p < 1.0:
            ascending, order = torch.sort(scores)
            remove = ascending.softmax(-1).cumsum(-1) <= 1 - sampling.top_p
            remove[-1] = False
            scores = scores.masked_fill(torch.zeros_like(remove).scatter(0, order, remove), NEVER)
        if sampling.min_p > 0.0:
            probabilities = scores.softmax(-1)
            remove = probabilities < sampling.min_p * probabilities.amax()
            remove[probabilities.argmax()] = False
            scores = scores.masked_fill(remove, NEVER)
        return scores


def fit(allowed: Tensor, scores: Tensor) -> Tensor:
    """Bring a grammar's mask to the scores' device and vocabulary; ids that the grammar doesn't know are forbidden."""
    mask = allowed.to(scores.device)
    size = scores.shape[-1]
    if mask.shape[0] >= size:
        return mask[:size]
    return torch.cat([mask, mask.new_zeros(size - mask.shape[0])])


def pick(logits: Tensor, samplers: Sequence[Sampler], masks: Sequence[Tensor | None]) -> tuple[list[int], list[float]]:
    """Choose one token per row and score it.

    Args:
        logits: raw target logits, fp32 [rows, vocab].
        samplers: one per row.
        masks: a grammar's bool [vocab] per row, or None.

    Returns:
        The ids, and their natural-log probabilities under the raw target (no mask, no temperature).
    """
    ids = logits.argmax(-1)  # [rows]
    for row, (sampler, mask) in enumerate(zip(samplers, masks, strict=True)):
        if mask is not None or not sampler.is_plain_greedy:
            ids[row] = sampler.choose(logits[row], mask)
    return ids.tolist(), score(logits, ids).tolist()


def score(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the raw natural-log probability of `ids` [n] under fp32 `logits` [n, vocab]."""
    return logits.gather(-1, ids[:, None])[:, 0] - logits.logsumexp(-1)
