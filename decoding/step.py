"""One step of the model thread: draft, run the forward passes, verify, and take back what didn't stand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from .cache import PrefixStore
from .drafter import Drafted, Drafter
from .executor import FINAL, Block, Executor
from .picks import Picks
from .row_state import RowState
from .sampling import Masks, score
from .scheduler import Planned
from .statistics import Counts
from .verify import Picked, Verified, verify_rows

PAD = 0
"""What fills a block up to its fixed length; never looked at."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """What a step leaves to its caller."""

    failed: list[tuple[RowState, Exception]]
    sizes: list[int]
    """Tokens of every row's block, drafted ones included."""
    model_s: float
    """Seconds of forward passes, those of drafts that run a model included."""
    drafted: bool
    """Whether some row had a draft."""


@dataclass(slots=True, eq=False)
class _Part:
    """A row's part in the step, and what came of it."""

    row: RowState
    count: int
    """Known tokens."""
    drafted: Drafted | None
    base: int = 0
    """Tokens in the cache with the known ones."""
    mark: object = None
    logits: Tensor | None = None
    """[wanted, vocab]"""
    hidden: Tensor | None = None
    """[wanted, width]"""
    picks: tuple[Picks, int] | None = None
    """The forward's greedy choices, and where the row's begin."""
    error: Exception | None = None

    @property
    def extra(self) -> int:
        """Tokens behind the known ones."""
        return 0 if self.drafted is None else len(self.drafted.tokens) + self.drafted.padding

    def block(self) -> Block:
        """Return what passes the model."""
        drafted = self.drafted
        if drafted is None:
            return self.row.block(self.count)
        tokens = (*drafted.tokens, *[PAD] * drafted.padding)
        proposal = drafted.proposal
        tree = proposal.parents if proposal is not None and not proposal.is_chain else ()
        return self.row.block(self.count, tokens, tree)


class Stepper:
    """Takes planned rows one step further. Called from the model thread only."""

    def __init__(
        self,
        executor: Executor,
        store: PrefixStore,
        drafter: Drafter | None,
        counts: Counts,
        *,
        device: torch.device,
        deterministic: bool,
        block_tokens: int,
    ) -> None:
        """Take the worker's parts.

        Args:
            executor: runs the forward passes.
            store: keeps snapshots of states that can't be rewound.
            drafter: proposes tokens; None for plain decoding.
            counts: the worker's counts.
            device: where the model is.
            deterministic: every row runs alone, and decodes in blocks of `block_tokens` tokens.
            block_tokens: see `deterministic`.
        """
        self._executor = executor
        self._store = store
        self._drafter = drafter
        self._counts = counts
        self._device = device
        self._deterministic = deterministic
        self._block_tokens = block_tokens
        self._blocks = 0.0
        """Share of the recent forwards that read several tokens; a moving average."""
        self._expects_blocks = deterministic
        executor.expect_blocks(deterministic)

    def run(self, planned: Sequence[Planned]) -> Stepped:
        """Run one step. The caches of rows that failed are not to be trusted."""
        began = time.perf_counter()
        others = sum(part.count for part in planned)
        parts = [_Part(part.row, part.count, self._draft(part, others - part.count)) for part in planned]
        drafted_at = time.perf_counter()
        self._forward_all(parts)
        verified_at = time.perf_counter()
        self._settle(parts)
        ended = time.perf_counter()
        self._count(parts, drafted_at - began, verified_at - drafted_at, ended - verified_at)
        failed = [(part.row, part.error) for part in parts if part.error is not None]
        model_s = verified_at - drafted_at + (self._drafter.take_model_s() if self._drafter is not None else 0.0)
        return Stepped(failed, [part.count + part.extra for part in parts], model_s, any(part.extra for part in parts))

    def _count(self, parts: Sequence[_Part], draft_s: float, forward_s: float, settle_s: float) -> None:
        counts = self._counts
        counts.draft_s += draft_s
        counts.host_s += settle_s
        if any(part.extra for part in parts):
            counts.verify_s += forward_s
        counts.forward_s += forward_s

    # -- drafting -----------------------------------------------------------------------------------------------

    def _draft(self, planned: Planned, others: int) -> Drafted | None:
        row = planned.row
        if self._drafter is None or planned.count != row.pending:
            return None  # more of the prompt is to come; its last part is as good as any block to draft behind
        if self._deterministic and not row.is_ready:
            return None
        if not row.request.max_new_tokens or (row.request.drafts is not None and not row.request.drafts):
            drafted = None
        else:
            drafted = self._drafter.draft(row, beside=others)
        if self._deterministic and self._executor.rewinds:
            drafted = drafted or Drafted(None, None)
            drafted.padding = max(0, self._block_tokens - planned.count - len(drafted.tokens))
        return drafted

    # -- forward ------------------------------------------------------------------------------------------------

    def _forward_all(self, parts: Sequence[_Part]) -> None:
        blocks = []
        for part in parts:
            part.base = part.row.cached + part.count
            if part.extra and part.row.cache is not None:
                part.mark = self._executor.mark(part.row.cache)
            blocks.append(part.block())
        if self._deterministic:
            groups = [[index] for index in range(len(blocks))]
        else:
            groups = self._executor.partition(blocks)
        for group in groups:
            started = time.perf_counter()
            self._forward([parts[index] for index in group], [blocks[index] for index in group])
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            seconds = time.perf_counter() - started
            if self._drafter is not None:
                self._drafter.costs.saw(sum(len(blocks[index].tokens) for index in group), seconds)
            for index in group:
                part, row = parts[index], parts[index].row
                if row.is_ready:
                    row.forwards += 1
                    row.shared_forwards += len(group) > 1
                    row.forward_s += seconds
                    row.verify_s += seconds if part.extra else 0.0
                else:
                    self._counts.prefilled_tokens += part.count

    def _forward(self, parts: Sequence[_Part], blocks: list[Block]) -> None:
        self._counts.forwards += 1
        self._follow(several=len(blocks) > 1 or len(blocks[0].tokens) > 1)
        taps = (FINAL,) if self._drafter is not None and self._drafter.needs_hidden else ()
        try:
            logits, tapped = self._executor.forward_tapped(blocks, taps)
        except Exception as error:
            if len(parts) == 1:
                parts[0].error = error
                return
            # Caches are as they were: run each block alone, so that only the row at fault ends.
            for part, block in zip(parts, blocks, strict=True):
                self._forward([part], [block])
            return
        sizes = [block.wanted for block in blocks]
        picks: Picks | None = getattr(self._executor, "picks", None)
        if picks is not None:
            for part, start in zip(parts, accumulate(sizes, initial=0), strict=False):
                part.picks = (picks, start)
        for part, of_row in zip(parts, [logits] if len(parts) == 1 else torch.split(logits, sizes), strict=True):
            part.logits = of_row
        if tapped:
            for part, of_row in zip(parts, torch.split(tapped[0], sizes), strict=True):
                part.hidden = of_row

    def _follow(self, *, several: bool) -> None:
        """Let the executor lay its weights out for what the forwards have been lately, with some inertia."""
        if self._deterministic:
            return
        self._blocks += 0.05 * (several - self._blocks)
        if self._expects_blocks != (self._blocks > (0.3 if self._expects_blocks else 0.6)):
            self._expects_blocks = not self._expects_blocks
            self._executor.expect_blocks(self._expects_blocks)

    # -- settling -----------------------------------------------------------------------------------------------

    def _settle(self, parts: Sequence[_Part]) -> None:
        """Score known tokens, verify drafts, choose the next token, and crop the caches to what stands."""
        choosing: list[_Part] = []
        for part in parts:
            if part.error is not None:
                continue
            try:
                if self._score_known(part):
                    choosing.append(part)
            except Exception as error:
                part.error = error
        for part, verified in self._verify(choosing):
            try:
                self._accept(part, verified)
            except Exception as error:
                part.error = error
        for part in parts:
            # A row that ended on a known token keeps nothing of its draft.
            if part.error is None and part.extra and part.row.cached > part.base and part not in choosing:
                self._keep(part, ())

    def _score_known(self, part: _Part) -> bool:
        """Give known tokens their log-probabilities under the target; tell whether a next token is to be chosen."""
        row, logits = part.row, part.logits
        assert logits is not None
        known = row.tokens[row.scored : part.base + 1][: logits.shape[0]]
        if known and row.reason is None:
            ids = torch.tensor(known, device=logits.device)
            row.score(score(logits[: len(known)], ids).tolist())
        self._snapshot_if_due(row)
        return row.reason is None and logits.shape[0] > 0 and part.base == len(row.tokens)

    def _snapshot_if_due(self, row: RowState) -> None:
        if self._executor.rewinds or row.background:
            return
        if not row.is_ready and row.cached == row.prompt_tokens - 1:
            self._store.snapshot(row)

    def _verify(self, parts: Sequence[_Part]) -> list[tuple[_Part, Verified]]:
        """Verify the rows together; a row that can't be is left out with its error."""
        ready: list[tuple[_Part, Tensor, Masks | None]] = []
        for part in parts:
            try:
                ready.append((part, *self._positions(part)))
            except Exception as error:
                part.error = error
        if not ready:
            return []
        try:
            verified = verify_rows(
                [logits for _, logits, _ in ready],
                [part.drafted.proposal if part.drafted is not None else None for part, _, _ in ready],
                [part.row.sampler for part, _, _ in ready],
                [masks for _, _, masks in ready],
                [self._picked(part) for part, _, _ in ready],
            )
        except Exception as error:
            if len(ready) == 1:
                ready[0][0].error = error
                return []
            return [found for part, _, _ in ready for found in self._verify([part])]
        return [(part, found) for (part, _, _), found in zip(ready, verified, strict=True)]

    def _positions(self, part: _Part) -> tuple[Tensor, Masks | None]:
        """Return the logits [1 + drafted, vocab] that choose tokens, and the grammar's masks there."""
        assert part.logits is not None
        drafted = len(part.drafted.tokens) if part.drafted is not None else 0
        first = part.logits.shape[0] - 1 - part.extra
        constraint = part.row.request.constraint
        masks: Masks | None = None
        if constraint is not None:
            given = part.drafted.masks if part.drafted is not None else None
            masks = given if given is not None else [constraint.allowed()]
            if masks[0] is not None and not bool(masks[0].any()):
                raise part.row.mask_is_empty()
        return part.logits[first : first + 1 + drafted], masks

    def _picked(self, part: _Part) -> Picked | None:
        """Return the greedy choices at the positions that `_positions` names, where the forward made them."""
        if part.picks is None or part.logits is None:
            return None
        picks, start = part.picks
        drafted = len(part.drafted.tokens) if part.drafted is not None else 0
        first = start + part.logits.shape[0] - 1 - part.extra
        ids, logprobs = picks.read()
        return ids[first : first + 1 + drafted], logprobs[first : first + 1 + drafted]

    def _accept(self, part: _Part, verified: Verified) -> None:
        row, proposal = part.row, part.drafted.proposal if part.drafted is not None else None
        if part.hidden is not None:
            at = part.hidden.shape[0] - 1 - part.extra + (verified.path[-1] + 1 if verified.path else 0)
            row.hidden = part.hidden[at]
        emitting = len(verified.tokens)
        if part.drafted is not None and part.drafted.ends and verified.accepted == len(part.drafted.tokens):
            emitting -= 1  # there is no choice after the last drafted token
        emitted = row.accept(verified.tokens[:emitting], verified.logprobs[:emitting])
        kept = min(emitted, verified.accepted)
        if part.extra:
            self._keep(part, verified.path[:kept])
        if proposal is not None and self._drafter is not None:
            row.tally(proposal.kind).add(len(proposal.tokens), kept)
            self._drafter.settle(row, proposal, verified.accepted)

    def _keep(self, part: _Part, path: Sequence[int]) -> None:
        """Drop what was drafted from the row's cache, but for the accepted path."""
        row, cache = part.row, part.row.cache
        if cache is None or len(path) == part.extra:
            return
        if self._executor.rewinds:
            self._executor.keep(cache, part.base, [part.base + index for index in path])
            return
        # A recurrent state went too far: take the copy from before the block, and read again what stands.
        before = part.base - part.count
        row.cache = self._executor.rewind(cache, part.mark, row.tokens[before : part.base + len(path)])
