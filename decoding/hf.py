"""Any causal language model of `transformers` through its own forward.

Models whose layers all attend (fully or in a sliding window) decode as one left-padded batch; longer blocks run row by
row. Models with recurrent or convolution state can't share a forward between rows of unequal length, nor go back:
they run row by row on copies of their state, and a prefix is re-used at exactly the length at which it was kept.

What a model can do is tried out at the start on a few tokens, against its plain forward: a model that can't be
padded falls back to row by row, one that can't continue from its cache is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor

from .errors import ModelUnsupported
from .executor import Block, RowCache
from .hf_cache import AttentionCache, PaddedGroup, StateCache, attends_only, same_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TRIAL_LENGTH = 11
TOLERANCE = 2e-3
"""Accepted error of the trial relative to the logits' own spread, in fp32."""
LOW_PRECISION_TOLERANCE = 0.1
"""The same in 16 bits and below."""


class HfExecutor:
    """The `Executor` of every model that the lean one can't run."""

    name: Literal["lean", "hf"] = "hf"

    def __init__(self, model: PreTrainedModel) -> None:
        self._model: Any = model
        self._config: Any = model.config
        text: Any = self._config.get_text_config(decoder=True)
        self.vocab_size: int = text.vocab_size
        self._device = next(model.parameters()).device
        accepted = inspect.signature(model.forward).parameters
        named = [name for name in ("cache", "past_key_values", "cache_params") if name in accepted]
        if not named:
            raise ModelUnsupported(
                f"{type(model).__name__} takes no cache, so it can't decode token by token here; choose another model."
            )
        self._cache_name = named[0]
        self._takes_positions = "position_ids" in accepted
        self._takes_keep = "logits_to_keep" in accepted
        self._attends_only = attends_only(self._config)
        self.rewinds = self.shares_forwards = self._attends_only
        self._single_tokens = False  # whether a continued state takes one token at a time only
        self._fixed_bytes = self._token_bytes = 0
        self._try_out()

    # -- caches -------------------------------------------------------------------------------------------------

    def new_cache(self, tokens: int) -> RowCache:
        """Return an empty cache; it grows as it fills."""
        return AttentionCache(self._token_bytes) if self._attends_only else StateCache(self._config)

    def fork(self, cache: RowCache, length: int, tokens: int) -> tuple[RowCache, int]:
        """Copy the first `length` tokens; a recurrent state only at its present length."""
        if isinstance(cache, StateCache):
            assert length == cache.length
            return cache.copied(), cache.nbytes
        source = cast("AttentionCache", cache)
        copy = AttentionCache(self._token_bytes)
        layers = [
            None if states is None else (states[0][:, :, :length], states[1][:, :, :length])
            for states in source.layers()
        ]
        copy.take(layers)
        copy.length = length
        return copy, length * self._token_bytes

    def crop(self, cache: RowCache, length: int) -> None:
        """Drop what follows `length`; a recurrent state only at its present length."""
        if isinstance(cache, StateCache):
            assert length == cache.length
            return
        row = cast("AttentionCache", cache)
        if length < row.length:
            row.alone().crop(length - row.length)
            row.length = length

    def bytes_for(self, tokens: int) -> int:
        """Return the bytes of a cache of `tokens` tokens, as measured at the start."""
        return self._fixed_bytes + tokens * self._token_bytes

    # -- forward ------------------------------------------------------------------------------------------------

    def partition(self, blocks: Sequence[Block]) -> list[list[int]]:
        """Single tokens of rows share a forward where the model allows it; longer blocks run alone."""
        singles = [index for index, block in enumerate(blocks) if len(block.tokens) == 1 and block.cache.length > 0]
        if not self.shares_forwards or len(singles) < 2:
            return [[index] for index in range(len(blocks))]
        together = set(singles)
        return [singles, *([index] for index in range(len(blocks)) if index not in together)]

    def forward(self, blocks: Sequence[Block]) -> Tensor:
        """Run one block, or single tokens of several rows as one padded batch."""
        if len(blocks) > 1:
            return self._forward_together(blocks)
        block = blocks[0]
        if isinstance(block.cache, StateCache):
            return self._forward_state(block.cache, block)
        row = cast("AttentionCache", block.cache)
        cache = row.alone()
        before = row.length
        try:
            logits = self._call(cache, [list(block.tokens)], [before], None, block.wanted)
        except Exception:
            held = cache.get_seq_length()
            if held > before:
                cache.crop(before - held)
            raise
        row.length += len(block.tokens)
        return logits[0]

    def _forward_together(self, blocks: Sequence[Block]) -> Tensor:
        rows = [cast("AttentionCache", block.cache) for block in blocks]
        group = rows[0].group
        if not same_rows(group, rows):
            for row in rows:
                row.alone()
            group = PaddedGroup(rows)
        assert group is not None
        tokens = [list(block.tokens) for block in blocks]
        try:
            logits = self._call(group.cache, tokens, [row.length for row in rows], group.attention_mask(1), 1)
        except Exception:
            group.undo()
            raise
        group.advance(1)
        wanted = [index for index, block in enumerate(blocks) if block.wanted]
        return logits[wanted, -1]

    def _forward_state(self, row: StateCache, block: Block) -> Tensor:
        tokens = list(block.tokens)
        # A failure inside leaves a state that is neither before nor after: the worker drops the cache of a failed row.
        parts = [[token] for token in tokens] if self._single_tokens and row.length > 0 else [tokens]
        logits = []
        for part in parts:
            logits.append(self._call(row.state, [part], [row.length], None, len(part))[0])
            row.length += len(part)
        return torch.cat(logits)[len(tokens) - block.wanted :]

    def _call(
        self, cache: Any, tokens: Sequence[list[int]], starts: Sequence[int], mask: Tensor | None, wanted: int
    ) -> Tensor:
        """Call the model; return logits [rows, wanted, vocab] in fp32."""
        ids = torch.tensor(tokens, device=self._device)
        arguments: dict[str, Any] = {self._cache_name: cache, "use_cache": True}
        if mask is not None:
            arguments["attention_mask"] = mask.to(self._device)
        if self._takes_positions:
            offsets = torch.arange(ids.shape[1], device=self._device)
            arguments["position_ids"] = torch.tensor(starts, device=self._device)[:, None] + offsets
        if self._takes_keep:
            arguments["logits_to_keep"] = max(wanted, 1)
        logits: Tensor = self._model(input_ids=ids, **arguments).logits
        return logits[:, logits.shape[1] - wanted :].float()

    # -- the trial ----------------------------------------------------------------------------------------------

    def _try_out(self) -> None:
        """Compare cached, cropped and padded decoding with the plain forward; settle what the model can do."""
        ids = [(7 * index + 3) % self.vocab_size for index in range(TRIAL_LENGTH)]
        plain = self._model(input_ids=torch.tensor([ids], device=self._device), use_cache=False).logits[0].float()
        whole, chunks = self._measure(ids)
        if not self._agrees(whole, plain):
            raise ModelUnsupported(self._refusal("decoding with a cache differs from its plain forward"))
        if not self._agrees(chunks, plain):
            if self._attends_only:
                raise ModelUnsupported(self._refusal("continuing from its cache differs from its plain forward"))
            self._single_tokens = True
            if not self._agrees(self._measure(ids)[1], plain):
                raise ModelUnsupported(self._refusal("continuing from its cache differs from its plain forward"))
        if self._attends_only:
            self.shares_forwards = self._pads_correctly(ids, plain)

    def _measure(self, ids: list[int]) -> tuple[Tensor, Tensor]:
        """Return logits read at once and in three blocks; note what a token takes."""
        half = TRIAL_LENGTH // 2
        once = self.new_cache(0)
        whole = self.forward([Block(once, ids, 0)])
        parted = self.new_cache(0)
        chunks = [self.forward([Block(parted, ids[:half], 0)])]
        small = self._held(parted)
        chunks += [self.forward([Block(parted, ids[half:-1], 0)]), self.forward([Block(parted, ids[-1:], 0)])]
        large = self._held(parted)
        self._token_bytes = max(0, -(-(large - small) // (TRIAL_LENGTH - half)))
        self._fixed_bytes = max(0, small - half * self._token_bytes)
        return whole, torch.cat(chunks)

    def _held(self, cache: RowCache) -> int:
        if isinstance(cache, StateCache):
            return cache.nbytes
        held = cast("AttentionCache", cache).layers()
        return sum(states[0].nbytes + states[1].nbytes for states in held if states is not None)

    def _pads_correctly(self, ids: list[int], plain: Tensor) -> bool:
        short, long = self.new_cache(0), self.new_cache(0)
        split = TRIAL_LENGTH // 2
        self.forward([Block(short, ids[: split - 2], 0)])
        self.forward([Block(long, ids[:-2], 0)])
        try:
            steps = [
                self.forward([Block(short, [ids[split - 2 + step]], 0), Block(long, [ids[TRIAL_LENGTH - 2 + step]], 0)])
                for step in range(2)
            ]
        except (TypeError, ValueError, RuntimeError, NotImplementedError):
            return False
        rows = torch.stack(steps, dim=1)  # [row, step, vocab]
        return self._agrees(rows[0], plain[split - 2 : split]) and self._agrees(rows[1], plain[-2:])

    def _agrees(self, ours: Tensor, plain: Tensor) -> bool:
        single = next(self._model.parameters()).dtype == torch.float32
        spread = (plain - plain.mean(-1, keepdim=True)).norm()
        error = (ours - plain).norm()
        return bool(error <= (TOLERANCE if single else LOW_PRECISION_TOLERANCE) * spread + 1e-6)

    def _refusal(self, what: str) -> str:
        return (
            f"{type(self._model).__name__} can't be decoded correctly here: {what}. "
            "Choose a model with attention layers, or update transformers."
        )
