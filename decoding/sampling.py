"""Choosing tokens: the library's processors at every position of a block, one random number per emitted position.

What a row draws at a position depends on its seed and on that position alone, never on how many positions one forward
gave logits for. So a seed gives the same tokens however much of them was guessed (see `verify`), and plain decoding is
nothing but a block of one position.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from hashlib import blake2b

import torch
from torch import Tensor

from .requests import Sampling

NEVER = float("-inf")
PARTIAL_SORT = 256
"""Top-p looks at this many of the highest scores, and sorts all of them only where these do not reach the mass."""
Masks = Sequence[Tensor | None]
"""A grammar's mask per position: bool [vocab], True = allowed; None = everything."""


class UniformStream:
    """Uniform numbers in [0, 1), one for every position of a text. Without state: asking twice gives the same.

    Streams of different names are independent, also under one seed. A keyed hash of the position serves as a
    counter-based generator (the idea of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
    """

    def __init__(self, seed: int, name: str) -> None:
        self._hash = blake2b(f"{name}:{seed}".encode(), digest_size=6)

    def at(self, positions: Sequence[int]) -> list[float]:
        """Return the numbers of `positions`; multiples of 2^-48, so that u * x < x holds in fp64 for every x > 0."""
        found: list[float] = []
        for position in positions:
            state = self._hash.copy()
            state.update(b"@%d" % position)
            found.append(int.from_bytes(state.digest(), "little") * 2.0**-48)
        return found


def draft_generator(seed: int | None, number: int, device: torch.device | str) -> torch.Generator:
    """Return a generator for drafting, independent of what the target's tokens are chosen and accepted with.

    Args:
        seed: the row's seed; None starts anywhere.
        number: tells several drafts of one row apart. A number that depends on what else the worker does would make
            sampled drafts, and with them a seeded row's tokens, depend on it too.
        device: where the draft's distributions lie.
    """
    source = secrets.randbits(64) if seed is None else seed
    generator = torch.Generator(device=device)
    digest = blake2b(f"draft/{number}:{source}".encode(), digest_size=8).digest()
    return generator.manual_seed(int.from_bytes(digest, "little") >> 1)


class Sampler:
    """One row's processors and random streams.

    Order and meaning follow `transformers`: repetition penalty over prompt and new tokens, then the grammar's mask,
    then temperature, top-k, top-p, min-p. Without a seed the streams start anywhere.

    Every method takes the logits of a block: row 0 is the position after the row's last token, row 1 + i the one after
    guessed token i, which sees that token and its ancestors as if they had been emitted.
    """

    def __init__(self, sampling: Sampling, *, vocab_size: int, device: torch.device, prompt: Sequence[int]) -> None:
        self.sampling = sampling
        self.position = 0
        """Tokens emitted so far: the index of the random numbers that choose the next one."""
        self.is_greedy = sampling.temperature == 0
        self._seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
        self._choices = UniformStream(self._seed, "choice")
        self._acceptances: list[UniformStream] = []
        self._seen: Tensor | None = None  # bool [vocab]
        if sampling.repetition_penalty != 1.0:
            self._seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)
            self._seen[torch.tensor(prompt, dtype=torch.long, device=device)] = True

    @property
    def is_plain_greedy(self) -> bool:
        """Whether the choice is the highest raw logit (unless a grammar masks it)."""
        return self.is_greedy and self._seen is None

    def observe(self, token: int) -> None:
        """Count a token as emitted: the repetition penalty sees it, and the random streams move on."""
        self.position += 1
        if self._seen is not None:
            self._seen[token] = True

    # -- random numbers -----------------------------------------------------------------------------------------

    def choice_uniforms(self, depths: Sequence[int], device: torch.device) -> Tensor:
        """Return the numbers that choose at `depths` tokens beyond the present position: fp64 [len(depths)]."""
        return self._uniforms(self._choices, depths, device)

    def acceptance_uniforms(self, rank: int, depths: Sequence[int], device: torch.device) -> Tensor:
        """Return the numbers that accept the guess of that `rank` among its siblings: fp64 [len(depths)]."""
        while len(self._acceptances) <= rank:
            self._acceptances.append(UniformStream(self._seed, f"acceptance/{len(self._acceptances)}"))
        return self._uniforms(self._acceptances[rank], depths, device)

    def _uniforms(self, stream: UniformStream, depths: Sequence[int], device: torch.device) -> Tensor:
        numbers = stream.at([self.position + depth for depth in depths])
        return torch.tensor(numbers, dtype=torch.float64, device=device)

    # -- distributions ------------------------------------------------------------------------------------------

    def choose(
        self, logits: Tensor, drafted: Sequence[int] = (), masks: Masks | None = None, parents: Sequence[int] = ()
    ) -> Tensor:
        """Return the id that the target chooses at every position [n], each as if the text led there.

        See `distribution` for the arguments. Where a mask allows nothing, the id has no meaning.
        """
        if self.is_greedy:
            return self.processed(logits, drafted, masks, parents).argmax(-1)  # the first, so the lowest id, of equals
        probabilities = self.distribution(logits, drafted, masks, parents)
        return draw(probabilities, self.choice_uniforms(depths(logits.shape[0], parents), logits.device))

    def distribution(
        self, logits: Tensor, drafted: Sequence[int] = (), masks: Masks | None = None, parents: Sequence[int] = ()
    ) -> Tensor:
        """Return what the target's tokens are drawn from: fp32 probabilities [n, vocab], after every processor.

        Args:
            logits: raw target logits, fp32 [n, vocab].
            drafted: guessed tokens, at least n - 1.
            masks: a grammar's mask per position [n].
            parents: of the guessed tokens, as in `Proposal`; empty = a chain.
        """
        scores = self.processed(logits, drafted, masks, parents)
        if self.is_greedy:
            return torch.zeros_like(scores).scatter(-1, scores.argmax(-1, keepdim=True), 1.0)
        return scores.softmax(-1)

    def processed(
        self, logits: Tensor, drafted: Sequence[int] = (), masks: Masks | None = None, parents: Sequence[int] = ()
    ) -> Tensor:
        """Return the scores after every processor [n, vocab]; removed ids hold -inf. `logits` is left as it is."""
        sampling, scores = self.sampling, logits
        if self._seen is not None:
            penalty = sampling.repetition_penalty
            penalised = torch.where(scores < 0, scores * penalty, scores / penalty)
            seen = _seen_along(self._seen, logits.shape[0], drafted, parents)
            scores = torch.where(seen, penalised, scores)
        if masks is not None:
            scores = _mask(scores, masks)
        if self.is_greedy:
            return scores
        return warp(scores, sampling)


def warp(scores: Tensor, sampling: Sampling) -> Tensor:
    """Apply temperature (above 0), top-k, top-p and min-p to scores [n, vocab]; removed ids hold -inf.

    Each of the three removes what lies below some score, so one floor per position says it all.
    """
    if sampling.temperature != 1.0:
        scores = scores / sampling.temperature
    floors: list[Tensor] = []  # each [n, 1]
    if sampling.top_k > 0:
        highest = scores.topk(min(sampling.top_k, scores.shape[-1])).values
        floors.append(highest[:, -1:])
        if sampling.top_p < 1.0:
            floors.append(_top_p_floor(highest, highest.logsumexp(-1, keepdim=True), sampling.top_p)[0])
    elif sampling.top_p < 1.0:
        floors.append(_top_p_floor_of_all(scores, sampling.top_p))
    if sampling.min_p > 0.0:
        # p < min_p * max(p), whatever p was normalised over.
        floors.append(scores.amax(-1, keepdim=True) + math.log(sampling.min_p))
    if not floors:
        return scores
    floor = floors[0]
    for other in floors[1:]:
        floor = torch.maximum(floor, other)
    return scores.masked_fill(scores < floor, NEVER)


def _top_p_floor(descending: Tensor, total: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """Return the lowest kept score [n, 1], and how many of `descending` [n, m] are kept [n, 1].

    Kept is what has less than `top_p` of the mass above it, and the highest score always; `total` [n, 1] is the
    logarithm of the whole mass.
    """
    mass = (descending - total).exp()
    above = mass.cumsum(-1, dtype=torch.float64) - mass
    kept = (above < top_p).sum(-1, keepdim=True).clamp_min_(1)
    return descending.gather(-1, kept - 1), kept


def _top_p_floor_of_all(scores: Tensor, top_p: float) -> Tensor:
    """Return the lowest kept score [n, 1]. On a CPU the few highest scores nearly always tell, at a tenth of a sort."""
    total = scores.logsumexp(-1, keepdim=True)
    if scores.device.type != "cpu" or scores.shape[-1] <= PARTIAL_SORT:
        return _top_p_floor(scores.sort(-1, descending=True).values, total, top_p)[0]
    floor, kept = _top_p_floor(scores.topk(PARTIAL_SORT).values, total, top_p)
    # Row by row, so that a position's choice does not depend on how many positions are looked at together.
    for row in (kept[:, 0] == PARTIAL_SORT).nonzero()[:, 0].tolist():
        descending = scores[row : row + 1].sort(-1, descending=True).values
        floor[row] = _top_p_floor(descending, total[row : row + 1], top_p)[0][0]
    return floor


def _seen_along(seen: Tensor, rows: int, drafted: Sequence[int], parents: Sequence[int]) -> Tensor:
    """Return what the penalty sees at every position: `seen` [vocab] plus the guesses on the way there; [n, vocab]."""
    if rows == 1:
        return seen
    paths: list[list[int]] = [[]]
    for index in range(rows - 1):
        parent = parents[index] if parents else index - 1
        paths.append([*paths[1 + parent], drafted[index]])
    at = [row for row, path in enumerate(paths) for _ in path]
    tokens = [token for path in paths for token in path]
    along = seen.repeat(rows, 1)
    along[torch.tensor(at, device=seen.device), torch.tensor(tokens, device=seen.device)] = True
    return along


def depths(rows: int, parents: Sequence[int]) -> Sequence[int]:
    """Return how many guesses lie before every position of a block of `rows`; no parents = a chain."""
    if not parents:
        return range(rows)
    found = [0]
    for parent in parents[: rows - 1]:
        found.append(found[1 + parent] + 1)
    return found


def _mask(scores: Tensor, masks: Masks) -> Tensor:
    """Remove what the grammar forbids, position by position."""
    if all(mask is None for mask in masks):
        return scores
    rows = [fit(mask, scores) for mask in masks if mask is not None]
    if len(rows) == len(masks):
        return scores.masked_fill(~torch.stack(rows), NEVER)
    at = torch.tensor([row for row, mask in enumerate(masks) if mask is not None], device=scores.device)
    return scores.index_copy(0, at, scores[at].masked_fill(~torch.stack(rows), NEVER))


def fit(allowed: Tensor, scores: Tensor) -> Tensor:
    """Bring a grammar's mask to the scores' device and vocabulary; ids that the grammar doesn't know are forbidden."""
    mask = allowed.to(scores.device)
    size = scores.shape[-1]
    if mask.shape[0] >= size:
        return mask[:size]
    return torch.cat([mask, mask.new_zeros(size - mask.shape[0])])


def draw(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Draw one id per row by inverting the cumulative distribution; probability 0 is never drawn.

    `probabilities` [n, vocab] need not be normalised; `uniforms` fp64 [n].
    """
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    points = uniforms[:, None] * cumulative[:, -1:]
    # The first id whose cumulative mass lies above the point. Sums of NaN (nothing was allowed) end at the last id.
    return torch.searchsorted(cumulative, points, right=True)[:, 0].clamp_max_(probabilities.shape[-1] - 1)


def score(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the raw natural-log probability of `ids` [n] under fp32 `logits` [n, vocab]."""
    return logits.gather(-1, ids[:, None])[:, 0] - logits.logsumexp(-1)
