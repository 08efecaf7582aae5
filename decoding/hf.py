"""Any causal language model of `transformers` through its own forward.

Models whose layers all attend (fully or in a sliding window) decode as one left-padded batch; longer blocks run row by
row. Models with recurrent or convolution state can't share a forward between rows of unequal length: they run row by
row, and a prefix is re-used at exactly the length at which it was kept. After a block a convolution's state is cropped;
a recurrent one can't go back, so it is copied before the block, and what was accepted is read again.

What a model can do is tried out at the start on a few tokens, against its plain forward: a model that can't be
padded falls back to row by row, one that can't continue from its cache is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from .errors import ModelUnsupported
from .executor import Block, ExecutorKind, RowCache, ancestors, depths
from .hf_cache import AttentionCache, Mark, PaddedGroup, StateCache, attends_only, same_rows, slides

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TRIAL_LENGTH = 11
TOLERANCE = 2e-3
"""Accepted error of the trial relative to the logits' own spread, in fp32."""
LOW_PRECISION_TOLERANCE = 0.1
"""The same in 16 bits and below."""


class HfExecutor:
    """The `Executor` of every model that the lean one can't run."""

    name: ExecutorKind = "hf"

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
        self._dtype = next(model.parameters()).dtype
        self.rewinds = self.shares_forwards = self._attends_only
        self.trees = False
        self.singles = 1
        self._single_tokens = False  # whether a continued state takes one token at a time only
        self._crops_states = True  # where the library's cache says that it can
        self._fixed_bytes = self._token_bytes = 0
        self._try_out()

    # -- caches -------------------------------------------------------------------------------------------------

    def expect_blocks(self, blocks: bool) -> None:
        """Do nothing: the model's weights lie as they lie."""

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

    def keep(self, cache: RowCache, length: int, kept: Sequence[int]) -> None:
        """Compact an accepted path of a tree."""
        row = cast("AttentionCache", cache)
        if list(kept) == list(range(length, length + len(kept))):
            self.crop(cache, length + len(kept))
            return
        index = torch.tensor([*range(length), *kept], device=self._device)
        layers = [
            None if states is None else (states[0].index_select(2, index), states[1].index_select(2, index))
            for states in row.layers()
        ]
        row.alone()
        row.take(layers)
        row.length = length + len(kept)

    def mark(self, cache: RowCache) -> object:
        """Return a mark where the state can be cropped to it, else a copy; None for what `crop` brings back."""
        if not isinstance(cache, StateCache):
            return None
        return (cache.mark() if self._crops_states else None) or cache.copied()

    def rewind(self, cache: RowCache, mark: object, tokens: Sequence[int]) -> RowCache:
        """Crop the state to the mark and what stands behind it, or take the copied state and replay `tokens`."""
        if isinstance(mark, Mark):
            cast("StateCache", cache).rewind(mark, len(tokens))
            return cache
        state = cast("StateCache", mark)
        if tokens:
            self.forward([Block(state, tokens, len(tokens))])
        return state

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
        return self.forward_tapped(blocks, ())[0]

    def forward_tapped(self, blocks: Sequence[Block], taps: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """Do the same, and return hidden states."""
        if len(blocks) > 1:
            return self._forward_together(blocks, taps)
        block = blocks[0]
        if isinstance(block.cache, StateCache):
            return self._forward_state(block.cache, block, taps)
        row = cast("AttentionCache", block.cache)
        cache = row.alone()
        before = row.length
        positions: Sequence[int] = range(before, before + len(block.tokens))
        mask = None
        if block.tree:
            trunk = before + len(block.tokens) - len(block.tree)
            positions = [*range(before, trunk), *(trunk - 1 + depth for depth in depths(block.tree))]
            mask = self._tree_mask(block, before)
        try:
            logits, tapped = self._call(cache, [list(block.tokens)], [positions], mask, block.wanted, taps)
        except Exception:
            held = cache.get_seq_length()
            if held > before:
                cache.crop(before - held)
            raise
        row.length += len(block.tokens)
        return logits[0], [states[0] for states in tapped]

    def _tree_mask(self, block: Block, before: int) -> Tensor:
        """Return what each token sees, as the additive mask [1, 1, tokens, seen] that models take as it is."""
        count, seen = len(block.tokens), before + len(block.tokens)
        sees = torch.ones(count, seen, dtype=torch.bool).tril_(before)
        sees[count - len(block.tree) :, seen - len(block.tree) :] = ancestors(block.tree)
        mask = torch.zeros(1, 1, count, seen, dtype=self._dtype)
        return mask.masked_fill_(~sees, torch.finfo(self._dtype).min)

    def _forward_together(self, blocks: Sequence[Block], taps: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        rows = [cast("AttentionCache", block.cache) for block in blocks]
        group = rows[0].group
        if not same_rows(group, rows):
            for row in rows:
                row.alone()
            group = PaddedGroup(rows)
        assert group is not None
        tokens = [list(block.tokens) for block in blocks]
        try:
            positions = [[row.length] for row in rows]
            logits, tapped = self._call(group.cache, tokens, positions, group.attention_mask(1), 1, taps)
        except Exception:
            group.undo()
            raise
        group.advance(1)
        wanted = [index for index, block in enumerate(blocks) if block.wanted]
        return logits[wanted, -1], [states[wanted, -1] for states in tapped]

    def _forward_state(self, row: StateCache, block: Block, taps: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        tokens = list(block.tokens)
        row.settle()
        # A failure inside leaves a state that is neither before nor after: the worker drops the cache of a failed row.
        parts = [[token] for token in tokens] if self._single_tokens and row.length > 0 else [tokens]
        logits: list[Tensor] = []
        tapped: list[list[Tensor]] = [[] for _ in taps]
        for part in parts:
            positions = [range(row.length, row.length + len(part))]
            scored, states = self._call(row.state, [part], positions, None, len(part), taps)
            logits.append(scored[0])
            for of_tap, state in zip(tapped, states, strict=True):
                of_tap.append(state[0])
            row.length += len(part)
        first = len(tokens) - block.wanted
        return torch.cat(logits)[first:], [torch.cat(of_tap)[first:] for of_tap in tapped]

    def _call(
        self,
        cache: Any,
        tokens: Sequence[list[int]],
        positions: Sequence[Sequence[int]],
        mask: Tensor | None,
        wanted: int,
        taps: Sequence[int],
    ) -> tuple[Tensor, list[Tensor]]:
        """Call the model; return logits [rows, wanted, vocab] in fp32, and per tap [rows, wanted, width]."""
        ids = torch.tensor(tokens, device=self._device)
        arguments: dict[str, Any] = {self._cache_name: cache, "use_cache": True}
        if mask is not None:
            arguments["attention_mask"] = mask.to(self._device)
        if self._takes_positions:
            arguments["position_ids"] = torch.tensor([list(of_row) for of_row in positions], device=self._device)
        if self._takes_keep:
            arguments["logits_to_keep"] = max(wanted, 1)
        if taps:
            arguments["output_hidden_states"] = True
        output = self._model(input_ids=ids, **arguments)
        logits: Tensor = output.logits
        first = ids.shape[1] - wanted
        # The library's list: the input of every layer, then the state after the final norm.
        tapped = [output.hidden_states[tap][:, first:] for tap in taps]
        return logits[:, logits.shape[1] - wanted :].float(), tapped

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
        self._crops_states = not self._attends_only and self._crops_correctly(ids, plain)
        if self._attends_only:
            self.shares_forwards = self._pads_correctly(ids, plain)
            # A mask of one's own would have to know each layer's window.
            self.trees = not slides(self._config) and self._reads_trees(ids, plain)

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

    def _crops_correctly(self, ids: list[int], plain: Tensor) -> bool:
        """Tell whether a state that went on with other tokens comes back by cropping."""
        cache = self.new_cache(0)
        half = TRIAL_LENGTH // 2
        self.forward([Block(cache, ids[:half], half)])
        mark = self.mark(cache)
        other = [(token + 1) % self.vocab_size for token in ids[half + 1 :]]
        try:
            self.forward([Block(cache, [ids[half], *other], 1 + len(other))])
            cache = self.rewind(cache, mark, ids[half : half + 1])
            after = self.forward([Block(cache, ids[half + 1 :], 0)])
        except (TypeError, ValueError, RuntimeError, NotImplementedError):
            return False
        return self._agrees(after, plain[half + 1 :])

    def _reads_trees(self, ids: list[int], plain: Tensor) -> bool:
        """Tell whether a token's siblings leave its logits alone, and the accepted path can be kept."""
        cache = self.new_cache(0)
        half = TRIAL_LENGTH // 2
        other = (ids[half] + 1) % self.vocab_size
        self.forward([Block(cache, ids[:half], half)])
        try:
            block = Block(cache, [other, ids[half], ids[half + 1]], 0, tree=(-1, -1, 1))
            branch = self.forward([block])[1:]
            self.keep(cache, half, (half + 1, half + 2))
            after = self.forward([Block(cache, ids[half + 2 :], 0)])
        except (TypeError, ValueError, RuntimeError, NotImplementedError):
            return False
        return self._agrees(torch.cat([branch, after]), plain[half:])

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
