"""A draft on a row with a grammar: the part that the grammar allows, with what it forces in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .drafts.base import Proposal
from .requests import Constraint


@dataclass(frozen=True, slots=True)
class Guided:
    """A chain that a grammar allows, and its mask at every position [1 + len(tokens)]; None = everything."""

    tokens: tuple[int, ...]
    masks: tuple[Tensor | None, ...]
    ends: bool = False
    """Whether nothing is chosen after the chain: the rest is forced and ends the text."""


def guide(constraint: Constraint, wanted: Sequence[int], limit: int, *, vocab_size: int, to_end: bool) -> Guided:
    """Walk `constraint` along `wanted`, and take it back to where it was.

    What the grammar forces after a wanted token is put in; the walk goes on as long as the wanted tokens agree with it,
    and ends at the first that is forbidden. A text's forced end is left out unless `to_end`.

    Args:
        constraint: the row's, standing at a choice.
        wanted: tokens that a draft proposes.
        limit: tokens of the chain at most.
        vocab_size: size of the masks.
        to_end: whether the end that the grammar forces is to be scored by the target.
    """
    masks: list[Tensor | None] = [constraint.allowed()]
    tokens: list[int] = []
    chosen = 0  # the chain's length after its last choice
    queue = deque(wanted)
    agrees = True
    while agrees and queue and len(tokens) < limit:
        mask, token = masks[-1], queue.popleft()
        if mask is None or token >= mask.shape[0] or not bool(mask[token]):
            break
        constraint.advance(token)
        tokens.append(token)
        chosen = len(tokens)
        for forced in () if constraint.finished() else constraint.forced():
            masks.append(_only(forced, vocab_size))
            if len(tokens) == limit:
                agrees = False
                break
            constraint.advance(forced)
            tokens.append(forced)
            agrees = agrees and bool(queue) and queue.popleft() == forced
        if len(masks) == len(tokens):
            masks.append(None if constraint.finished() else constraint.allowed())
        agrees = agrees and not constraint.finished()
    ended = constraint.finished()
    if tokens:
        constraint.rollback(len(tokens))
    if ended and not to_end:
        tokens, masks = tokens[:chosen], masks[: chosen + 1]
    return Guided(tuple(tokens), tuple(masks), ended)


def guided(proposal: Proposal, walk: Guided) -> Proposal | None:
    """Return the proposal cut to what was walked; None if nothing is left."""
    if not walk.tokens:
        return None
    # What a grammar puts in was not sampled by the draft, so no distribution goes with it: a point mass is exact.
    return Proposal(proposal.kind, walk.tokens, (), None, proposal.strength)


def _only(token: int, vocab_size: int) -> Tensor:
    mask = torch.zeros(vocab_size, dtype=torch.bool)
    mask[token] = True
    return mask
