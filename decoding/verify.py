"""The one exact verifier: which guessed tokens stand, and which token the target says after them.

At every position the target's choice is made as plain decoding would make it, and the block goes on while the choice is
a guess. With p the target's distribution there, after every processor:

- a deterministic guess (`q` is None): draw y ~ p and compare. The emitted token is y itself, so its law is p whatever
  was guessed, and it is the very token that plain decoding draws with that position's random number. For several
  guesses side by side this is the same as trying them in order with p(x), each time setting p[x] = 0 and renormalising;
- a guess x sampled from q: accept it if u < p(x) / q(x), else replace p by norm(max(0, p - q)) and go on with the next
  sibling; after the last one draw from what is left of p. P(emit x) = q min(1, p/q) + (p - min(p, q)) = p
  (Leviathan et al., arXiv:2211.17192; Chen et al., arXiv:2302.01318; siblings: Miao et al., arXiv:2305.09781);
- temperature 0: p is all on the highest score, so both rules come to comparing with it.

After the last guess that stands, the choice is the bonus token. Guesses and acceptances use independent random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .drafts.base import ROOT, Proposal
from .errors import DecodingError
from .sampling import Masks, Sampler, depths, draw, score

Picked = tuple[list[int], list[float]]
"""The highest logit's id and its log-probability at every position of a row [1 + n], on the host."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What one block emits: `accepted` guesses and then the one token that the target chose."""

    tokens: tuple[int, ...]
    """accepted + 1 of them."""
    accepted: int
    path: tuple[int, ...]
    """The accepted guesses' indices in the proposal, in order."""
    logprobs: tuple[float, ...]
    """Natural-log probabilities of `tokens` under the raw target (no mask, no temperature)."""


def verify(logits: Tensor, proposal: Proposal | None, sampler: Sampler, masks: Masks | None = None) -> Verified:
    """Verify one row's proposal; None is plain decoding.

    Args:
        logits: raw target logits, fp32 [1 + n, vocab]: after the row's last token, then after every guess (in a tree,
            along its own path).
        proposal: n guesses, or None for n = 0.
        sampler: the row's processors and random numbers; not advanced.
        masks: the grammar's mask per position [1 + n]. What follows a forbidden guess is never reached.

    Raises:
        DecodingError: the shapes of logits, proposal and masks don't belong together.
    """
    return verify_rows([logits], [proposal], [sampler], [masks])[0]


def verify_rows(
    logits: Sequence[Tensor],
    proposals: Sequence[Proposal | None],
    samplers: Sequence[Sampler],
    masks: Sequence[Masks | None],
    picked: Sequence[Picked | None] = (),
) -> list[Verified]:
    """Verify several rows' proposals, with one copy from the device; see `verify` for each row's arguments.

    Rows whose greedy choices the forward has `picked` already need none.

    Raises:
        DecodingError: some row's shapes don't belong together. Rows are independent: leave that one out.
    """
    known = {
        row: picks
        for row, picks in enumerate(picked)
        if picks is not None and masks[row] is None and samplers[row].is_plain_greedy
    }
    if known:
        rest = [row for row in range(len(logits)) if row not in known]
        for row in known:
            _check(logits[row].shape[0], logits[row].shape[1], proposals[row], None)
        verified = {row: _walk(proposals[row], *picks) for row, picks in known.items()}
        if rest:
            others = verify_rows(
                [logits[row] for row in rest],
                [proposals[row] for row in rest],
                [samplers[row] for row in rest],
                [masks[row] for row in rest],
            )
            verified |= dict(zip(rest, others, strict=True))
        return [verified[row] for row in range(len(logits))]
    stacked = logits[0] if len(logits) == 1 else torch.cat(list(logits))  # [positions of all rows, vocab]
    # Exact for plain greedy rows, and shared by them; the others' choices overwrite theirs.
    ids = stacked.argmax(-1)
    starts = [0]
    for row, (proposal, sampler, allowed) in enumerate(zip(proposals, samplers, masks, strict=True)):
        count = logits[row].shape[0]
        _check(count, logits[row].shape[1], proposal, allowed)
        start = starts[-1]
        starts.append(start + count)
        if allowed is not None or not sampler.is_plain_greedy:
            ids[start : start + count] = _choices(logits[row], proposal, sampler, allowed)
    scores = score(stacked, ids)
    if ids.device.type == "cpu":
        chosen, logprobs = ids.tolist(), scores.tolist()
    else:
        chosen, logprobs = torch.stack([ids.double(), scores.double()]).tolist()  # one copy; ids are exact in fp64
        chosen = [int(token) for token in chosen]
    return [
        _walk(proposal, chosen[start:end], logprobs[start:end])
        for proposal, start, end in zip(proposals, starts, starts[1:], strict=False)
    ]


def _choices(logits: Tensor, proposal: Proposal | None, sampler: Sampler, masks: Masks | None) -> Tensor:
    """Return the target's choice at every position [1 + n]; a guess that stands is chosen."""
    if proposal is None:
        return sampler.choose(logits, masks=masks)
    if proposal.q is None or sampler.is_greedy:
        return sampler.choose(logits, proposal.tokens, masks, proposal.parents)
    return _accept_or_replace(logits, proposal, proposal.q, sampler, masks)


def _accept_or_replace(logits: Tensor, proposal: Proposal, q: Tensor, sampler: Sampler, masks: Masks | None) -> Tensor:
    """Return the choices beside guesses that were sampled from `q` [n, vocab], siblings in order.

    All positions at once: round r asks the guess of rank r below every position that has one. A chain takes one round.
    """
    device = logits.device
    tokens = torch.tensor(proposal.tokens, device=device)
    depth = depths(logits.shape[0], proposal.parents)
    left = sampler.distribution(logits, proposal.tokens, masks, proposal.parents)  # [1 + n, vocab]: p, then residuals
    chosen = torch.full((logits.shape[0],), -1, device=device)
    for rank, guesses in enumerate(_rounds(proposal)):
        rows = [1 + parent for parent, _ in guesses]
        at = torch.tensor(rows, device=device)
        index = torch.tensor([guess for _, guess in guesses], device=device)
        p, of_draft, guess = left[at], q[index], tokens[index]
        u = sampler.acceptance_uniforms(rank, [depth[row] for row in rows], device)
        p_guess, q_guess = p.gather(1, guess[:, None])[:, 0], of_draft.gather(1, guess[:, None])[:, 0]
        # u < p / q, strictly and without dividing: a guess of probability 0 is never accepted.
        accepted = u * q_guess < p_guess
        before = chosen[at]
        chosen[at] = torch.where(accepted & (before < 0), guess, before)
        residual = (p - of_draft).clamp_min_(0)
        total = residual.sum(-1, keepdim=True)
        # All zeros only where p = q up to rounding, and there a rejection is a rounding error too.
        left[at] = torch.where(total > 0, residual / total, p)
    drawn = draw(left, sampler.choice_uniforms(depth, device))
    return torch.where(chosen < 0, drawn, chosen)


def _rounds(proposal: Proposal) -> list[list[tuple[int, int]]]:
    """Return (parent, guess) pairs by the guess's rank among its siblings."""
    rounds: list[list[tuple[int, int]]] = []
    siblings: dict[int, int] = {}
    for guess, parent in enumerate(proposal.parents or range(ROOT, len(proposal.tokens) - 1)):
        rank = siblings.get(parent, 0)
        siblings[parent] = rank + 1
        if rank == len(rounds):
            rounds.append([])
        rounds[rank].append((parent, guess))
    return rounds


def _walk(proposal: Proposal | None, chosen: list[int], logprobs: list[float]) -> Verified:
    """Follow the choices as long as they are guesses."""
    if proposal is None:
        return Verified((chosen[0],), 0, (), (logprobs[0],))
    tokens = proposal.tokens
    if not proposal.parents:
        accepted = 0
        while accepted < len(tokens) and chosen[accepted] == tokens[accepted]:
            accepted += 1
        end = accepted + 1
        return Verified(tuple(chosen[:end]), accepted, tuple(range(accepted)), tuple(logprobs[:end]))
    # Of equal siblings the first counts.
    children: dict[tuple[int, int], int] = {}
    for guess, (parent, token) in enumerate(zip(proposal.parents, tokens, strict=True)):
        children.setdefault((parent, token), guess)
    at, path = ROOT, []
    while (found := children.get((at, chosen[1 + at]))) is not None:
        at = found
        path.append(at)
    rows = [0, *(1 + guess for guess in path)]
    return Verified(tuple(chosen[row] for row in rows), len(path), tuple(path), tuple(logprobs[row] for row in rows))


def _check(count: int, vocab: int, proposal: Proposal | None, masks: Masks | None) -> None:
    guesses = 0 if proposal is None else len(proposal.tokens)
    if count != 1 + guesses:
        raise DecodingError(f"Verification of {guesses} guesses needs logits of {1 + guesses} positions, not {count}.")
    if masks is not None and len(masks) != count:
        raise DecodingError(f"Verification of {count} positions needs as many masks, not {len(masks)}.")
    if proposal is None:
        return
    if proposal.parents and len(proposal.parents) != guesses:
        raise DecodingError(f"A {proposal.kind} draft gave {guesses} tokens and {len(proposal.parents)} parents.")
    if proposal.q is not None and proposal.q.shape != (guesses, vocab):
        raise DecodingError(
            f"A {proposal.kind} draft gave {guesses} tokens and distributions of shape {tuple(proposal.q.shape)}; the "
            f"target needs {(guesses, vocab)}. Spread a smaller vocabulary with `draft_vocabulary.scatter_q`."
        )
