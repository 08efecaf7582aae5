"""A smaller model with the target's tokenizer as a draft: its own executor, its own caches, kept in step with the rows.

Greedy, it proposes its likeliest tokens. Sampled, it draws from its distribution after the row's own processors and
hands that distribution over as q (Leviathan et al., arXiv:2211.17192; Chen et al., arXiv:2302.01318).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cache import common_prefix
from ..executor import Block, Executor, ExecutorName, RowCache, choose_executor
from ..quantised import quantise_lean, quantise_modules
from ..sampling import Sampler, UniformStream, draw, fit
from .base import DraftedRow, DraftKind, Proposal
from .errors import DraftUnsupported
from .loading import Quantisation, load_draft_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ..requests import RowRequest

CHUNK = 512
"""Tokens per forward while catching up with a prompt."""
MEMORY = 256 << 20


@dataclass(slots=True, eq=False)
class _Held:
    """A cache of the draft model. It holds `text[:known]` and then `guessed`, as far as those were fed."""

    owner: str
    cache: RowCache
    row: int | None
    """The number of the row it follows; None once that row is over."""
    text: list[int]
    """The row's own list while it runs."""
    known: int = 0
    guessed: list[int] = field(default_factory=list)

    def settled(self) -> int:
        """Return how many of the cached tokens the text has by now turned out to hold."""
        common = 0
        for guess, token in zip(self.guessed, self.text[self.known : self.known + len(self.guessed)], strict=False):
            if guess != token:
                break
            common += 1
        return self.known + common


class ModelDraft:
    """The `Draft` of a smaller causal language model.

    What it holds per row is a cache; at each proposal the cache is cut back to what the row's tokens share with it,
    reads what is new, and goes on with the draft. Caches of rows that are over stay, within `memory_bytes`, for the
    next turn of their conversation. Without a cache it reads the text again, so nothing depends on them but time.
    """

    kind: DraftKind = "model"
    needs_hidden = False

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        sampled: bool = False,
        vocab_size: int | None = None,
        quantise: Literal["int8"] | None = None,
        executor: ExecutorName = "auto",
        memory_bytes: int = MEMORY,
    ) -> None:
        """Take over `model`, in evaluation mode on its device; compare its tokenizer first (`ModelDraft.load` does).

        Args:
            model: the draft model.
            sampled: draw drafts for rows with a temperature from the draft's own distribution, instead of taking the
                likeliest tokens. Exact either way.
            vocab_size: the target's number of logits, where it is not the draft's: padding differs between sizes of a
                family.
            quantise: "int8" rounds the weights of its products to 8 bits and computes in bf16. This changes `model`.
            executor: how it is run.
            memory_bytes: for its caches.

        Raises:
            ModelUnsupported: no executor can run it.
        """
        self.sampled = sampled
        self.memory_bytes = memory_bytes
        with torch.no_grad():
            self.executor = _executor(model, quantise, executor)
        config: Any = model.config
        self._vocab_size = self.executor.vocab_size if vocab_size is None else vocab_size
        self._positions: int = getattr(config, "max_position_embeddings", None) or 1 << 30
        self._device = next(model.parameters()).device
        self._held: list[_Held] = []  # the most recently used last
        self.forwards = 0
        """Forward passes of the draft model, those over prompts included."""

    @classmethod
    def load(
        cls,
        source: str | Path,
        *,
        tokenizer: PreTrainedTokenizerBase,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        quantise: Quantisation | None = None,
        **options: Any,
    ) -> ModelDraft:
        """Load a folder or hub id whose tokenizer equals the target's; `options` as for the constructor.

        Raises:
            TokenizersDiffer: its tokenizer gives other ids than `tokenizer`.
            DraftUnsupported: it can't be read, or `quantise="4bit"` can't run here.
            ModelUnsupported: no executor can run it.
        """
        model = load_draft_model(source, tokenizer=tokenizer, device=device, dtype=dtype, quantise=quantise)
        return cls(model, quantise="int8" if quantise == "int8" else None, **options)

    @property
    def nbytes(self) -> int:
        """Bytes of the caches."""
        return sum(held.cache.nbytes for held in self._held)

    @torch.inference_mode()
    def propose(self, row: DraftedRow, limit: int) -> Proposal | None:
        """Return up to `limit` tokens, fewer where one of them ends the row or the draft model's positions end."""
        limit = min(limit, self._positions - len(row.tokens))
        needed = len(row.tokens) + limit
        if limit < 1 or self.executor.bytes_for(needed) > self.memory_bytes:
            return None
        held = self._in_step(row, needed)
        cache, logits = self._catch_up(held, row.tokens, needed)
        drafted, q = self._draft(row, cache, logits, limit, held.guessed if cache is held.cache else [])
        self._shrink(held)
        return Proposal(self.kind, tuple(drafted), q=q) if drafted else None

    @torch.inference_mode()
    def forget(self, row: DraftedRow) -> None:
        """Keep the row's cache for the next turn of its conversation."""
        for held in self._held:
            if held.row == row.number:
                self._rewind(held, held.settled())
                held.row, held.text = None, held.text[: held.known]

    def clear(self) -> None:
        """Drop every cache."""
        self._held.clear()

    # -- caches -------------------------------------------------------------------------------------------------

    def _in_step(self, row: DraftedRow, needed: int) -> _Held:
        """Return the row's cache, holding nothing but leading tokens of the row, at most all but the last."""
        held = next((held for held in self._held if held.row == row.number), None)
        if held is None:
            held = self._adopt(row, needed)
        else:
            self._held.remove(held)
        self._held.append(held)
        self._rewind(held, min(held.settled(), len(row.tokens) - 1))
        return held

    def _adopt(self, row: DraftedRow, needed: int) -> _Held:
        """Start a row from the longest prefix held: taken over from its own conversation, copied, or empty."""
        most, source = 0, None
        for held in self._held:
            common = common_prefix(row.tokens, held.text, min(held.known, len(row.tokens) - 1))
            usable = common if self.executor.rewinds or common == held.cache.length else 0
            if usable > most or (usable == most > 0 and held.row is None and held.owner == row.request.owner):
                most, source = usable, held
        if source is None:
            return _Held(row.request.owner, self.executor.new_cache(needed), row.number, row.tokens)
        if source.row is None and source.owner == row.request.owner:
            self._held.remove(source)
            self._rewind(source, most)
            source.row, source.text = row.number, row.tokens
            return source
        copy, _ = self.executor.fork(source.cache, most, needed)
        return _Held(row.request.owner, copy, row.number, row.tokens, known=most)

    def _rewind(self, held: _Held, length: int) -> None:
        if length < held.cache.length:
            self.executor.crop(held.cache, length)
        held.known = min(length, held.cache.length)
        held.guessed = []

    def _catch_up(self, held: _Held, tokens: list[int], needed: int) -> tuple[RowCache, Tensor]:
        """Read what is new; return the cache to draft on and the logits [1, vocab] after the last token."""
        last = len(tokens) - 1
        while held.cache.length < last - CHUNK:
            start = held.cache.length
            self._forward(held.cache, tokens[start : start + CHUNK], wanted=0)
            held.known = held.cache.length
        cache = held.cache
        if self.executor.rewinds:
            logits = self._forward(cache, tokens[cache.length :])
        else:
            # A recurrent state can't come back from its drafts: they are made on a copy, one token ahead.
            if cache.length < last:
                self._forward(cache, tokens[cache.length : last], wanted=0)
            cache, _ = self.executor.fork(cache, last, needed)
            logits = self._forward(cache, tokens[last:])
        held.known = held.cache.length
        return cache, logits

    def _forward(self, cache: RowCache, tokens: Sequence[int], wanted: int = 1) -> Tensor:
        self.forwards += 1
        logits = self.executor.forward([Block(cache, tokens, len(tokens) - wanted)])
        return logits[:, : self._vocab_size]

    def _shrink(self, current: _Held) -> None:
        """Drop the least recently used caches until the others fit."""
        while self.nbytes > self.memory_bytes and self._held[0] is not current:
            del self._held[0]

    # -- drafting -----------------------------------------------------------------------------------------------

    def _draft(
        self, row: DraftedRow, cache: RowCache, logits: Tensor, limit: int, guessed: list[int]
    ) -> tuple[list[int], Tensor | None]:
        """Return the drafted tokens and their q; what is fed of them is noted in `guessed`."""
        request = row.request
        chooser = _Chooser(request, row.tokens, len(row.tokens) - row.prompt_tokens, self.sampled, self._vocab_size)
        constraint, advanced = request.constraint, 0
        drafted: list[int] = []
        try:
            while True:
                allowed = None
                if constraint is not None:
                    if constraint.finished():
                        break
                    allowed = fit(constraint.allowed(), logits)
                    if not bool(allowed.any()):
                        break
                token = chooser.choose(logits, allowed)
                drafted.append(token)
                if len(drafted) == limit or token in request.stop_ids:
                    break
                if constraint is not None:
                    constraint.advance(token)
                    advanced += 1
                logits = self._forward(cache, [token])
                guessed.append(token)
        finally:
            if constraint is not None and advanced:
                constraint.rollback(advanced)
        return drafted, chooser.q()


class _Chooser:
    """Chooses a draft's tokens one after the other, with the row's processors and random numbers of its own."""

    def __init__(
        self, request: RowRequest, tokens: Sequence[int], position: int, sampled: bool, vocab_size: int
    ) -> None:
        sampling = request.sampling
        self._sampled = sampled and sampling.temperature > 0
        self._request = request
        self._tokens = tokens
        self._vocab_size = vocab_size
        self._position = position
        self._sampler: Sampler | None = None
        self._q: list[Tensor] = []
        # Numbers by position, as the target's are: what is drafted there doesn't depend on earlier drafts' length.
        # A number serves twice only where what was first drafted with it was never looked at, so this stays exact.
        seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
        self._stream = UniformStream(seed, "draft/model")

    def choose(self, logits: Tensor, allowed: Tensor | None) -> int:
        """Return the next token; `logits` fp32 [1, vocab]."""
        penalised = self._request.sampling.repetition_penalty != 1.0
        if not self._sampled and not penalised:
            # Neither temperature nor what is cut off changes which token is likeliest.
            scores = logits if allowed is None else logits.masked_fill(~allowed, float("-inf"))
            return int(scores.argmax())
        if self._sampler is None:
            self._sampler = Sampler(
                self._request.sampling, vocab_size=logits.shape[-1], device=logits.device, prompt=self._tokens
            )
        masks = None if allowed is None else [allowed]
        if self._sampled:
            q = self._sampler.distribution(logits, masks=masks)  # [1, vocab]
            uniform = torch.tensor(self._stream.at([self._position]), dtype=torch.float64, device=logits.device)
            token = int(draw(q, uniform))
            self._q.append(q)
        else:
            token = int(self._sampler.processed(logits, masks=masks).argmax())
        self._sampler.observe(token)
        self._position += 1
        return token

    def q(self) -> Tensor | None:
        """Return what the tokens were sampled from: fp32 [tokens, the target's vocabulary]; None if they were not."""
        if not self._q:
            return None
        q = torch.cat(self._q)
        return F.pad(q, (0, self._vocab_size - q.shape[-1]))


def _executor(model: PreTrainedModel, quantise: Literal["int8"] | None, name: ExecutorName) -> Executor:
    if quantise is None:
        return choose_executor(model, name)
    if quantise != "int8":
        raise DraftUnsupported(f"A draft model can't be quantised to {quantise!r} once loaded; choose 'int8'.")
    from ..hf import HfExecutor
    from ..lean import LeanExecutor, why_not_lean

    model.to(torch.bfloat16)  # type: ignore[arg-type]
    if name != "hf" and why_not_lean(model) is None:
        lean = LeanExecutor(model)
        quantise_lean(lean)
        return lean
    quantise_modules(model)
    return HfExecutor(model)
