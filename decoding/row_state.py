"""A row as the model thread sees it: its tokens, how far they are cached and scored, and how it goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .errors import GrammarError
from .executor import Block, RowCache
from .requests import Finished, Ready, RowEvent, RowRequest, StopReason, Tokens
from .row import Row
from .sampling import Sampler
from .stops import StopScanner
from .tally import Tally, frozen

if TYPE_CHECKING:
    from torch import Tensor

    from .drafts.base import DraftKind


class RowState:
    """One row's state on the model thread.

    `tokens` = prompt + chosen. Three marks run along it: `cache.length` tokens are in the cache, `scored` have their
    log-probability (the prompt counts as scored), all others are known but wait for a forward: forced by a grammar now,
    drafted later. A forward over `tokens[cache.length:]` scores them all.
    """

    def __init__(self, row: Row, sampler: Sampler, scanner: StopScanner | None, number: int) -> None:
        self.row = row
        self.request: RowRequest = row.request
        self.number = number
        self.prompt_tokens = len(self.request.prompt)
        self.tokens: list[int] = list(self.request.prompt)
        self.scored = self.prompt_tokens
        self.sampler = sampler
        self.scanner = scanner
        self.cache: RowCache | None = None
        self.reason: StopReason | None = None
        self.is_ready = False
        self.reused_tokens = 0
        self.bytes_copied = 0
        self.forwards = 0
        self.shared_forwards = 0
        self.forward_s = 0.0
        self.verify_s = 0.0
        self.emitted = 0
        self.tail = ""
        self.hidden: Tensor | None = None
        """The state after the final norm [width] that chose the last token, where a draft taps it."""
        self.tallies: dict[DraftKind, Tally] = {}
        self._held: list[tuple[int, float]] = []
        self._outbox: list[tuple[int, float]] = []
        self._started: float | None = None
        self._ready_at: float | None = None

    # -- where the row stands -----------------------------------------------------------------------------------

    @property
    def owner(self) -> str:
        """The conversation."""
        return self.request.owner

    @property
    def background(self) -> bool:
        """Whether the row gives way to others."""
        return self.request.background

    @property
    def cached(self) -> int:
        """Tokens in the cache."""
        return 0 if self.cache is None else self.cache.length

    @property
    def reusable_limit(self) -> int:
        """Tokens that may come from another cache: the last scored token must pass the model to give logits."""
        return self.scored - 1

    @property
    def feed_end(self) -> int:
        """Tokens that must pass the model; the last one of a row that ends need not."""
        end = len(self.tokens)
        return end - 1 if self._is_complete() else end

    @property
    def pending(self) -> int:
        """Tokens that wait for a forward."""
        return max(0, self.feed_end - self.cached)

    def _is_complete(self) -> bool:
        new = len(self.tokens) - self.prompt_tokens
        if new >= self.request.max_new_tokens:
            return True
        if new and self.tokens[-1] in self.request.stop_ids:
            return True
        constraint = self.request.constraint
        return constraint is not None and new > 0 and constraint.finished()

    @property
    def suggestion(self) -> tuple[int, ...]:
        """A text that is expected somewhere in the answer."""
        return self.row.suggestion

    def tally(self, kind: DraftKind) -> Tally:
        """Return the row's counts of one kind of draft."""
        return self.tallies.setdefault(kind, Tally())

    def block(self, count: int, drafted: Sequence[int] = (), tree: Sequence[int] = ()) -> Block:
        """Return the next `count` pending tokens and then `drafted` ones, whose parents are `tree` (empty = a chain).

        Logits are asked for where they score or choose something.
        """
        assert self.cache is not None
        start = self.cached
        tokens = self.tokens[start : start + count]
        first = min(max(self.scored - 1 - start, 0), count)
        if self.request.max_new_tokens == 0:
            first = count
        return Block(self.cache, [*tokens, *drafted] if drafted else tokens, first, tree)

    def start(self, cache: RowCache, reused: int, copied: int) -> None:
        """Take a cache that holds the first `reused` tokens."""
        self.cache = cache
        if not self.is_ready:
            self.reused_tokens = reused
        self.bytes_copied += copied
        if self._started is None:
            self._started = time.perf_counter()

    # -- going on -----------------------------------------------------------------------------------------------

    def add_forced(self) -> None:
        """Append what the grammar leaves no choice about, as far as the row may grow; a stop id ends it."""
        constraint = self.request.constraint
        while constraint is not None and not self._is_complete():
            forced = constraint.forced()
            if not forced:
                return
            for token in forced:
                self.tokens.append(token)
                constraint.advance(token)
                if self._is_complete():
                    return

    def accept(self, tokens: Sequence[int], logprobs: Sequence[float]) -> int:
        """Append what a verified block emits, up to where the row ends; return how many tokens that were."""
        constraint = self.request.constraint
        for count, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True), start=1):
            self.tokens.append(token)
            if constraint is not None:
                constraint.advance(token)
            self.score([logprob])
            if self.reason is not None:
                return count
        self._go_on()
        return len(tokens)

    def _go_on(self) -> None:
        """Append what is forced after the last token."""
        self.add_forced()
        constraint = self.request.constraint
        if not self.request.score_end and constraint is not None and constraint.finished():
            self.score([0.0] * (len(self.tokens) - self.scored))

    def score(self, logprobs: Sequence[float]) -> None:
        """Emit the next tokens that wait for their log-probabilities; may end the row."""
        for logprob in logprobs:
            token = self.tokens[self.scored]
            self.scored += 1
            self.sampler.observe(token)
            self._emit(token, logprob)
            if self.reason is not None:
                return
        if self.scored == len(self.tokens):
            constraint = self.request.constraint
            if constraint is not None and constraint.finished():
                self._end("constraint")
            elif self.scored - self.prompt_tokens >= self.request.max_new_tokens:
                self._end("length")

    def _emit(self, token: int, logprob: float) -> None:
        if self.scanner is None:
            self._outbox.append((token, logprob))
        else:
            self._held.append((token, logprob))
            count, stopped = self.scanner.push(token)
            self._outbox.extend(self._held[:count])
            del self._held[:count]
            if stopped is not None:
                self._held.clear()
                self.tail = stopped.tail
                self._end("stop_string")
                return
        if token in self.request.stop_ids:
            self._end("eos")

    def _end(self, reason: StopReason) -> None:
        self.reason = reason
        self._outbox.extend(self._held)
        self._held.clear()

    def cancel(self) -> None:
        """End the row where it stands; tokens held back for a stop string are not emitted."""
        self._held.clear()
        self.reason = "cancelled"

    def mask_is_empty(self) -> GrammarError:
        """Return the error of a grammar that allows nothing."""
        return GrammarError(
            f"The grammar of a row of {self.owner!r} allows no token after {len(self.tokens) - self.prompt_tokens} "
            "new ones and is not finished; check the grammar against the tokenizer."
        )

    # -- events -------------------------------------------------------------------------------------------------

    def take_ready(self) -> Ready | None:
        """Return `Ready` once the prompt is in the cache, once."""
        if self.is_ready or self.cached < min(self.prompt_tokens, self.feed_end):
            return None
        self.is_ready = True
        self._ready_at = time.perf_counter()
        return Ready(prompt_tokens=self.prompt_tokens, reused_tokens=self.reused_tokens, bytes_copied=self.bytes_copied)

    def take_tokens(self) -> Tokens | None:
        """Return what was emitted since the last call."""
        if not self._outbox:
            return None
        ids, logprobs = zip(*self._outbox, strict=True)
        self.emitted += len(ids)
        self._outbox.clear()
        return Tokens(ids=ids, logprobs=logprobs)

    def finished(self, slowdown_s: float) -> Finished:
        """Return the last event."""
        assert self.reason is not None
        now = time.perf_counter()
        started = self._started if self._started is not None else now
        ready = self._ready_at if self._ready_at is not None else now
        return Finished(
            reason=self.reason,
            new_tokens=self.emitted,
            forwards=self.forwards,
            shared_forwards=self.shared_forwards,
            prefill_s=ready - started,
            decode_s=now - ready,
            slowdown_s=slowdown_s,
            tail=self.tail,
            drafting=frozen(self.tallies),
            forward_s=self.forward_s,
            verify_s=self.verify_s,
        )

    def push(self, event: RowEvent | None) -> None:
        """Hand an event to the consumer."""
        if event is not None:
            self.row.push(event)
