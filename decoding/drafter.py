"""Which draft a row gets in the next step, and how many of its tokens: by expected tokens per measured second."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from torch import Tensor

from .acceptance import FORGET, Acceptance, Key
from .constrained import guide, guided
from .costs import CostTable
from .drafts.base import Draft, DraftKind, Proposal
from .executor import depths
from .row_state import RowState

_log = logging.getLogger(__name__)

MAX_TOKENS = 32
"""Drafted tokens of a row in one step at most."""
MARGIN = 1.2
"""How much better than none a draft must look: the best of several noisy estimates looks better than it is."""
PLENTY = 6.0
"""Expected tokens with which the other drafts aren't asked any more."""
CHEAP: frozenset[DraftKind] = frozenset({"call", "lookup", "suffix", "grammar"})
"""Drafts that run no model: they are asked first, the others only where they could do better."""
PATIENT: frozenset[DraftKind] = frozenset({"lookup", "suffix"})
"""Drafts that always have something to say, and nothing that a few tokens later would be too late."""
LONGEST_PAUSE = 7
"""Steps for which such a draft isn't asked at most; asking takes a tenth of a small model's step."""


@dataclass(slots=True)
class Drafted:
    """What a row's block holds beyond its known tokens."""

    proposal: Proposal | None
    masks: Sequence[Tensor | None] | None
    """The grammar's masks [1 + tokens] of a constrained row."""
    ends: bool = False
    """Whether nothing is chosen after the last drafted token."""
    padding: int = 0
    """Tokens behind the proposal that only keep the block's shape; their logits are not looked at."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """The drafted tokens."""
        return self.proposal.tokens if self.proposal is not None else ()


class _Pauses:
    """Which drafts of a row aren't asked for a few steps, since they had nothing that pays several times in a row."""

    __slots__ = ("_vain", "_waits")

    def __init__(self) -> None:
        self._vain: dict[DraftKind, int] = {}
        self._waits: dict[DraftKind, int] = {}

    def due(self, kind: DraftKind) -> bool:
        """Tell whether to ask a draft in this step."""
        left = self._waits.get(kind, 0)
        if left:
            self._waits[kind] = left - 1
        return not left

    def settle(self, kind: DraftKind, paid: bool) -> None:
        """Note what came of asking."""
        vain = self._vain[kind] = 0 if paid else self._vain.get(kind, 0) + 1
        if kind in PATIENT:
            self._waits[kind] = min(max(0, vain - 1), LONGEST_PAUSE)


@dataclass(slots=True)
class _Plan:
    """A length for one draft, and what it is worth."""

    length: int
    rate: float
    """Expected tokens per second of the row."""
    expected: float = 1.0
    """Expected tokens of the step."""


class Drafter:
    """Chooses among the drafts of a worker. Called from the model thread only.

    For every draft it takes the length k that maximises (1 + sum over i <= k of the chance that i tokens stand) per
    second of a step with k more tokens and of drafting them; then the best of the drafts, or none. `fixed` asks for
    that many tokens instead, whatever they cost.
    """

    def __init__(
        self, drafts: Sequence[Draft], costs: CostTable, *, vocab_size: int, trees: bool, fixed: int | None = None
    ) -> None:
        self.costs = costs
        self.acceptance = Acceptance()
        self._drafts = tuple(drafts)
        self._vocab_size = vocab_size
        self._trees = trees
        self._fixed = fixed
        self.needs_hidden = any(draft.needs_hidden for draft in self._drafts)
        self._draft_s: dict[DraftKind, float] = {}
        """Seconds that a draft takes per token, moving averages."""
        self._broken: set[DraftKind] = set()
        self._pauses: dict[int, _Pauses] = {}
        self._model_s = 0.0

    def take_model_s(self) -> float:
        """Return the seconds that drafts which run a model took since the last time."""
        seconds, self._model_s = self._model_s, 0.0
        return seconds

    def draft(self, row: RowState, *, beside: int) -> Drafted | None:
        """Return what to verify on `row` beside its known tokens; `beside` counts the step's other tokens."""
        limit = self._limit(row)
        proposal = self._best(row, limit, beside) if limit > 0 else None
        constraint = row.request.constraint
        if constraint is not None:
            if proposal is None:
                return None
            proposal = proposal if proposal.is_chain else first_branch(proposal)
            walk = guide(constraint, proposal.tokens, limit, vocab_size=self._vocab_size, to_end=row.request.score_end)
            proposal = guided(proposal, walk)
            return Drafted(proposal, walk.masks, walk.ends) if proposal is not None else None
        return Drafted(proposal, None) if proposal is not None else None

    def settle(self, row: RowState, proposal: Proposal, accepted: int) -> None:
        """Learn from what became of a proposal."""
        length = len(proposal.tokens) if proposal.is_chain else max(depths(proposal.parents))
        self.acceptance.observe(_key(proposal, row), length, accepted)

    def forget(self, row: RowState) -> None:
        """Drop what the drafts keep for a row that is over."""
        self._pauses.pop(row.number, None)
        for draft in self._drafts:
            draft.forget(row)

    # -- choosing -----------------------------------------------------------------------------------------------

    def _limit(self, row: RowState) -> int:
        left = row.request.max_new_tokens - (len(row.tokens) - row.prompt_tokens) - 1
        return max(0, min(left, MAX_TOKENS if self._fixed is None else self._fixed))

    def _best(self, row: RowState, limit: int, beside: int) -> Proposal | None:
        wanted = row.request.drafts
        allowed = [
            draft
            for draft in self._drafts
            if draft.kind not in self._broken and (wanted is None or draft.kind in wanted)
        ]
        if self._fixed is not None:
            for draft in allowed:
                proposal = self._ask(draft, row, limit)
                if proposal is not None:
                    return self._flat(proposal).cut(limit)
            return None
        pauses = self._pauses.setdefault(row.number, _Pauses())
        tokens = beside + row.pending
        best: Proposal | None = None
        rate = 1.0 / self.costs.step(tokens, drafted=False)
        for draft in allowed:
            if draft.kind not in CHEAP:
                found = self._dear(draft, row, limit, tokens, rate)
            elif pauses.due(draft.kind):
                found = self._cheap(draft, row, limit, tokens)
                pauses.settle(draft.kind, found is not None)
            else:
                found = None
            if found is not None and found[1].rate > rate:
                best, rate = found[0], found[1].rate
                if found[1].expected >= PLENTY:
                    break
        return best

    def _cheap(self, draft: Draft, row: RowState, limit: int, tokens: int) -> tuple[Proposal, _Plan] | None:
        """Ask a draft that runs no model, and cut what it says to the best length."""
        proposal = self._ask(draft, row, limit)
        if proposal is None:
            return None
        key = _key(proposal, row)
        plan = self._plan(key, len(proposal.tokens), tokens, 0.0)
        if plan.length == 0:
            self.acceptance.passed_over(key)
            return None
        return proposal.cut(plan.length), plan

    def _dear(self, draft: Draft, row: RowState, limit: int, tokens: int, rate: float) -> tuple[Proposal, _Plan] | None:
        """Ask a draft that runs a model, where what it usually does beats `rate`.

        What is done with its tokens is settled before they are known: with sampled ones anything else would bend the
        law, e.g. a draft cut short by a stop token would be used more, or less, often than others.
        """
        key = (draft.kind, 0, row.background)
        plan = self._plan(key, limit, tokens, self._draft_s.get(draft.kind, 0.0))
        if plan.rate <= rate:
            self.acceptance.passed_over(key)
            if draft.kind in self._draft_s:
                self._draft_s[draft.kind] *= 1 - FORGET
            return None
        proposal = self._ask(draft, row, plan.length)
        return None if proposal is None else (self._flat(proposal), plan)

    def _plan(self, key: Key, limit: int, tokens: int, draft_s: float) -> _Plan:
        """Return the best length up to `limit` beside `tokens` other tokens."""
        best = _Plan(0, 1.0 / self.costs.step(tokens, drafted=False))
        expected, stands = 1.0, 1.0
        for length, chance in enumerate(islice(self.acceptance.chances(key), limit), start=1):
            stands *= chance
            expected += stands
            step_s = self.costs.step(tokens + length, drafted=True) + length * draft_s
            if expected > best.rate * step_s * (MARGIN if best.length == 0 else 1.0):
                best = _Plan(length, expected / step_s, expected)
            elif expected + stands * (limit - length) <= best.rate * step_s:
                break  # longer ones cost no less
        return best

    def _ask(self, draft: Draft, row: RowState, limit: int) -> Proposal | None:
        started = time.perf_counter()
        try:
            proposal = draft.propose(row, limit)
        except Exception as error:  # a draft may only ever cost time
            self._broken.add(draft.kind)
            _log.warning("the %s draft failed and is left out from now on: %s", draft.kind, error, exc_info=True)
            return None
        seconds = time.perf_counter() - started
        if draft.kind not in CHEAP:
            self._model_s += seconds
        tally = row.tally(draft.kind)
        first = tally.draft_s == 0.0
        tally.draft_s += seconds
        if proposal is None or not proposal.tokens:
            return None
        if first and draft.kind not in CHEAP:
            return proposal  # it may have read the whole prompt for this; what it usually takes shows from now on
        each = seconds / len(proposal.tokens)
        known = self._draft_s.get(draft.kind)
        self._draft_s[draft.kind] = each if known is None else known + 0.1 * (each - known)
        return proposal

    def _flat(self, proposal: Proposal) -> Proposal:
        """Return the proposal, or its first branch where the target can't read trees."""
        if proposal.is_chain or self._trees:
            return proposal
        return first_branch(proposal)


def first_branch(proposal: Proposal) -> Proposal:
    """Return the chain of a tree that follows first children only."""
    chain: list[int] = []
    at = -1
    for index, parent in enumerate(proposal.parents):
        if parent == at:
            chain.append(index)
            at = index
    tokens = tuple(proposal.tokens[index] for index in chain)
    q = None if proposal.q is None else proposal.q[chain]
    return Proposal(proposal.kind, tokens, (), q, proposal.strength)


def _key(proposal: Proposal, row: RowState) -> Key:
    return (proposal.kind, proposal.strength, row.background)
