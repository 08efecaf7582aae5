"""Llama-family models without their library's overhead: ragged rows, own key/value buffers, few operations.

Every row's tokens lie one after the other in one [T, width] tensor through the linear layers; attention runs per row
against that row's own buffer, so there is no padding and, for single tokens, no mask.

Memory: query, key and value weights are fused into one matrix, gate and up too. The model's own parameters become views
of the fused storage, so nothing is held twice; the overhead is one layer's weights while building, and rotation
tables of 2 * positions * head_dim numbers. The loaded model goes on to compute and to train, but its parameters are
strided views by then, which `save_pretrained` does not take: save a model before it is handed over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .executor import FINAL, Block, ExecutorKind, RowCache, ancestors, depths
from .linear import Linear, fuse, pack
from .one_row import OneRow, why_not_one_row

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FAMILIES = frozenset({"llama", "qwen2", "qwen3", "mistral"})
STATIC_ROPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotations whose angles depend on the position alone, so a table can be kept."""
ONE_BY_ONE_BYTES = 64 << 20
"""Weights up to which two tokens are faster one after the other where `OneRow` runs. Reading more of them twice costs
more than torch's overhead."""
GROWTH = 256
"""Tokens by which a full buffer grows at least."""


def why_not_lean(model: PreTrainedModel) -> str | None:
    """Return why the lean executor can't run `model`, or None if it can."""
    config: Any = model.config
    if config.model_type not in FAMILIES:
        return f"its architecture is {config.model_type!r}"
    if type(model).__name__ not in {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM"}:
        return f"{type(model).__name__} is not a plain causal language model"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act!r}"
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or (config.model_type == "mistral" and config.sliding_window is not None):
        return "it uses sliding-window attention"
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in STATIC_ROPES:
        return f"its rotation {rope!r} depends on the text's length"
    products = [module for name, module in model.named_modules() if name.endswith(("_proj", "lm_head"))]
    if any(type(module) is not nn.Linear for module in products):
        return "its linear layers are quantised or adapted"
    parameters = list(model.parameters())
    if len({(parameter.dtype, parameter.device) for parameter in parameters}) != 1:
        return "its weights have several types or lie on several devices"
    if not parameters[0].is_floating_point() or parameters[0].is_meta:
        return "its weights are not plain floating-point numbers in memory"
    return None


class LeanCache:
    """One row's keys and values: `buffer` [layers, 2, kv_heads, capacity, head_dim], of which `length` are filled."""

    __slots__ = ("buffer", "length")

    def __init__(self, buffer: Tensor) -> None:
        self.buffer = buffer
        self.length = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the whole buffer."""
        return self.buffer.nbytes

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` tokens in all."""
        capacity = self.buffer.shape[3]
        if tokens <= capacity:
            return
        shape = (*self.buffer.shape[:3], max(tokens, capacity + max(GROWTH, capacity // 2)), self.buffer.shape[4])
        grown = self.buffer.new_empty(shape)
        grown[:, :, :, : self.length] = self.buffer[:, :, :, : self.length]
        self.buffer = grown


@dataclass(slots=True)
class _Layer:
    """One layer's weights, in the order they are used."""

    input_norm: Tensor
    qkv: Linear
    qk_norm: Tensor | None
    """[heads + kv_heads, head_dim]: query and key norms side by side."""
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(slots=True)
class _View:
    """Where one block's tokens lie in the flat batch, and its row's buffer, sliced once for all layers."""

    start: int
    end: int
    new: Sequence[Tensor]
    """Per layer [tokens, 2, kv_heads, head_dim]: where the block's keys and values go."""
    keys: Sequence[Tensor]
    """Per layer [kv_heads, seen, head_dim], the new tokens included; [kv_heads, head_dim, seen] for a single token."""
    values: Sequence[Tensor]
    mask: Tensor | None
    """bool [tokens, seen]; None for a single token or a chain at position 0."""
    out: Tensor
    """The block's part of the result: [tokens, heads, head_dim]; [kv_heads, group, head_dim] for a single token."""


class LeanExecutor:
    """The `Executor` of Llama, Mistral (without sliding window), Qwen2 and Qwen3."""

    name: ExecutorKind = "lean"
    shares_forwards = True
    rewinds = True
    trees = True
    singles = 1

    def __init__(self, model: PreTrainedModel) -> None:
        loaded: Any = model
        config, body, head = loaded.config, loaded.get_decoder(), loaded.get_output_embeddings()
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.width: int = config.hidden_size
        self.eps: float = config.rms_norm_eps
        self.embedding: Tensor = body.embed_tokens.weight.detach()
        self.vocab_size: int = head.weight.shape[0]
        self.dtype = self.embedding.dtype
        self.device = self.embedding.device
        self._exact_norm = self.dtype == torch.float32 and self.device.type == "cpu"
        self.scale = self.head_dim**-0.5
        self.layers = [self._layer(layer) for layer in body.layers]
        self.final_norm = self._norm_weight(body.norm, self.width)
        # A tied head is the embedding, which is read by rows: keep its layout.
        self.head = Linear(head.weight.detach(), None)
        self._products: list[Linear] = []
        self.list_products()
        packed = pack(self._products)
        self._rotary = body.rotary_emb
        self._cos = self._sin = torch.empty(0)
        self._zero = torch.zeros(1, 1, 1, dtype=self.dtype, device=self.device)
        self._eps_of = {
            size: torch.tensor(math.sqrt(size * self.eps), device=self.device) for size in (self.width, self.head_dim)
        }
        self.one_row: OneRow | None = None
        """What runs single tokens, where that isn't torch."""
        if why_not_one_row(self) is None:
            small = sum(product.weight.nbytes for product in self._products) <= ONE_BY_ONE_BYTES
            self.one_row, self.singles = OneRow(self), 2 if small or not packed else 1

    # -- weights ------------------------------------------------------------------------------------------------

    def _norm_weight(self, norm: Any, size: int) -> Tensor:
        weight: Tensor = norm.weight.detach()
        # With the exact norm, x / |x| is scaled by sqrt(size): see _norm.
        return weight * math.sqrt(size) if self._exact_norm else weight

    def list_products(self) -> None:
        """Note which products there are, after some were replaced."""
        products = [[layer.qkv, layer.output, layer.gate_up, layer.down] for layer in self.layers]
        self._products = [self.head, *(product for of_layer in products for product in of_layer)]

    def _layer(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        qk_norm = None
        if hasattr(attention, "q_norm"):
            q = self._norm_weight(attention.q_norm, self.head_dim).expand(self.heads, -1)
            k = self._norm_weight(attention.k_norm, self.head_dim).expand(self.kv_heads, -1)
            qk_norm = torch.cat([q, k]).contiguous()
        return _Layer(
            input_norm=self._norm_weight(layer.input_layernorm, self.width),
            qkv=fuse([attention.q_proj, attention.k_proj, attention.v_proj]),
            qk_norm=qk_norm,
            output=fuse([attention.o_proj]),
            mlp_norm=self._norm_weight(layer.post_attention_layernorm, self.width),
            gate_up=fuse([mlp.gate_proj, mlp.up_proj]),
            down=fuse([mlp.down_proj]),
        )

    # -- caches -------------------------------------------------------------------------------------------------

    def expect_blocks(self, blocks: bool) -> None:
        """Read one row from the same copy of the weights as several: two copies in turn fall out of the CPU's cache."""
        for product in self._products:
            product.packed_from = 1 if blocks else 2

    def _buffer(self, tokens: int) -> Tensor:
        shape = (len(self.layers), 2, self.kv_heads, max(tokens, 1), self.head_dim)
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def new_cache(self, tokens: int) -> RowCache:
        """Return an empty cache with room for `tokens` tokens."""
        return LeanCache(self._buffer(tokens))

    def fork(self, cache: RowCache, length: int, tokens: int) -> tuple[RowCache, int]:
        """Copy a prefix; the source is only read."""
        source = cast("LeanCache", cache)
        copy = LeanCache(self._buffer(max(length, tokens)))
        prefix = source.buffer[:, :, :, :length]
        copy.buffer[:, :, :, :length] = prefix
        copy.length = length
        return copy, prefix.numel() * prefix.element_size()

    def crop(self, cache: RowCache, length: int) -> None:
        """Forget what follows `length`; the memory stays for what comes next."""
        cast("LeanCache", cache).length = length

    def keep(self, cache: RowCache, length: int, kept: Sequence[int]) -> None:
        """Compact an accepted path of a tree."""
        row = cast("LeanCache", cache)
        if list(kept) != list(range(length, length + len(kept))):
            index = torch.tensor(kept, device=self.device)
            row.buffer[:, :, :, length : length + len(kept)] = row.buffer.index_select(3, index)
        row.length = length + len(kept)

    def mark(self, cache: RowCache) -> object:
        """Return None: `crop` goes back."""
        return None

    def rewind(self, cache: RowCache, mark: object, tokens: Sequence[int]) -> RowCache:
        """Not needed where `crop` goes back."""
        raise AssertionError("a cache that can be cropped is never replayed")

    def bytes_for(self, tokens: int) -> int:
        """Return the bytes of `tokens` tokens' keys and values."""
        size: int = self.dtype.itemsize
        return len(self.layers) * 2 * self.kv_heads * tokens * self.head_dim * size

    # -- forward ------------------------------------------------------------------------------------------------

    def partition(self, blocks: Sequence[Block]) -> list[list[int]]:
        """All blocks share one forward."""
        return [list(range(len(blocks)))]

    def forward(self, blocks: Sequence[Block]) -> Tensor:
        """Run the blocks as rows of one ragged batch; see `Executor.forward`."""
        return self.forward_tapped(blocks, ())[0]

    def forward_tapped(self, blocks: Sequence[Block], taps: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """Run the blocks as rows of one ragged batch; see `Executor.forward_tapped`."""
        return self.run(blocks, range(len(self.layers)), taps)

    def run(self, blocks: Sequence[Block], layers: Sequence[int], taps: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """Run the blocks through `layers` only; the caches of layers left out keep whatever lies there."""
        tokens: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        spans: list[tuple[LeanCache, int, int, Sequence[int]]] = []
        for block in blocks:
            start = len(tokens)
            before = cast("LeanCache", block.cache).length
            tokens.extend(block.tokens)
            trunk = before + len(block.tokens) - len(block.tree)
            positions.extend(range(before, trunk))
            if block.tree:
                positions.extend(trunk - 1 + depth for depth in depths(block.tree))
            wanted.extend(range(start + block.logits_from, len(tokens)))
            spans.append((cast("LeanCache", block.cache), start, len(tokens), block.tree))
        if self.one_row is not None and len(tokens) <= self.singles and len(wanted) == len(tokens):
            if not any(block.tree for block in blocks):
                rows = [cache for cache, start, end, _ in spans for _ in range(start, end)]
                return self._run_one_by_one(self.one_row, rows, tokens, positions, layers, taps)
        cos, sin = self._rotation(positions)
        x = self.embedding.index_select(0, torch.tensor(tokens, device=self.device))  # [T, width]
        # One buffer serves all layers: each overwrites it after the one before has used it.
        attended = torch.empty(len(tokens), self.heads * self.head_dim, dtype=self.dtype, device=self.device)
        views = [self._view(*span, attended) for span in spans]
        tapped: dict[int, Tensor] = {}
        for index in layers:
            layer = self.layers[index]
            if index in taps:
                tapped[index] = x
            self._attend(index, layer.qkv(self._norm(x, layer.input_norm)), layer.qk_norm, cos, sin, views)
            x = layer.output.add_to(x, attended)
            gate, up = layer.gate_up(self._norm(x, layer.mlp_norm)).chunk(2, dim=-1)
            x = layer.down.add_to(x, F.silu(gate).mul_(up))
        for cache, start, end, _ in spans:
            cache.length += end - start
        if len(wanted) < len(tokens):
            asked = torch.tensor(wanted, dtype=torch.long, device=self.device)
            x = x.index_select(0, asked)
            tapped = {tap: state.index_select(0, asked) for tap, state in tapped.items()}
        tapped[FINAL] = x = self._norm(x, self.final_norm)
        return self.head(x).float(), [tapped[tap] for tap in taps]  # [wanted, vocab], each [wanted, width]

    def _run_one_by_one(
        self,
        one_row: OneRow,
        caches: Sequence[LeanCache],
        tokens: Sequence[int],
        positions: Sequence[int],
        layers: Sequence[int],
        taps: Sequence[int],
    ) -> tuple[Tensor, list[Tensor]]:
        """Run every token by itself, each on its cache."""
        before = [cache.length for cache in caches]
        try:
            results = [
                one_row.run(cache, token, self._rotation([position]), layers, taps)
                for cache, token, position in zip(caches, tokens, positions, strict=True)
            ]
        except BaseException:
            for cache, length in zip(reversed(caches), reversed(before), strict=True):
                cache.length = length
            raise
        if len(results) == 1:
            return results[0]
        return torch.cat([logits for logits, _ in results]), [
            torch.cat([states[at] for _, states in results]) for at in range(len(taps))
        ]

    def _view(self, cache: LeanCache, start: int, end: int, tree: Sequence[int], attended: Tensor) -> _View:
        count, before = end - start, cache.length
        seen = before + count
        cache.reserve(seen)
        buffer = cache.buffer
        # One unbind over the layers is cheaper than slicing in every layer.
        new = buffer[:, :, :, before:seen].permute(0, 3, 1, 2, 4).unbind(0)
        keys, values = buffer[:, :, :, :seen].unbind(1)
        if count == 1:
            keys = keys.transpose(2, 3)
            out = attended[start].view(self.kv_heads, -1, self.head_dim)
        else:
            out = attended[start:end].view(count, self.heads, self.head_dim)
        mask = None
        if count > 1 and (before > 0 or tree):
            mask = torch.ones(count, seen, dtype=torch.bool, device=self.device).tril_(before)
            if tree:
                mask[count - len(tree) :, seen - len(tree) :] = ancestors(tree).to(self.device)
        return _View(start, end, new, keys.unbind(0), values.unbind(0), mask, out)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Root-mean-square norm over the last dimension, weighted."""
        size = x.shape[-1]
        if self._exact_norm:
            # x / sqrt(mean(x^2) + eps) = sqrt(size) * x / hypot(|x|, sqrt(size * eps)): half the operations' time.
            length = torch.linalg.vector_norm(x, 2, -1, True)
            return torch.div(x, torch.hypot(length, self._eps_of[size])).mul_(weight)
        return F.rms_norm(x, (size,), None, self.eps) * weight

    def _rotation(self, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return cos and signed sin [T, 1, head_dim] from tables that the model's own rotary module filled."""
        highest = max(positions)
        self._fill_rotation(highest + 1)
        if len(positions) == 1:
            return self._cos[highest : highest + 1], self._sin[highest : highest + 1]
        index = torch.tensor(positions, device=self.device)
        return self._cos.index_select(0, index), self._sin.index_select(0, index)

    def _fill_rotation(self, positions: int) -> None:
        """Make the tables cover at least `positions` positions."""
        if positions > self._cos.shape[0]:
            size = max(1024, 1 << (positions - 1).bit_length())
            ids = torch.arange(size, device=self.device)[None]
            cos, sin = self._rotary(torch.empty(0, dtype=self.dtype, device=self.device), ids)
            half = self.head_dim // 2
            self._cos = cos[0].unsqueeze(1).contiguous()
            # rotate_half(x) = roll(x, half) with the first half negated; the sign moves into the table.
            self._sin = torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1).unsqueeze(1)

    def _attend(
        self, index: int, qkv: Tensor, qk_norm: Tensor | None, cos: Tensor, sin: Tensor, views: Sequence[_View]
    ) -> None:
        """Rotate, store keys and values, attend row by row; qkv [T, (heads + 2 kv_heads) * head_dim], overwritten."""
        heads, kv_heads, size = self.heads, self.kv_heads, self.head_dim
        states = qkv.view(-1, heads + 2 * kv_heads, size)
        self._rotate(states[:, : heads + kv_heads], qk_norm, cos, sin)
        new = states[:, heads:].view(-1, 2, kv_heads, size)
        for view in views:
            alone = len(views) == 1
            row = states if alone else states[view.start : view.end]
            view.new[index].copy_(new if alone else new[view.start : view.end])
            if view.end - view.start == 1:
                self._attend_one(row[0, :heads].view(view.out.shape), view.keys[index], view.values[index], view.out)
                continue
            attended = F.scaled_dot_product_attention(
                row[:, :heads].transpose(0, 1)[None],
                view.keys[index][None],
                view.values[index][None],
                attn_mask=view.mask,
                is_causal=view.mask is None,
                scale=self.scale,
                enable_gqa=heads != kv_heads,
            )
            view.out.copy_(attended[0].transpose(0, 1))

    def _rotate(self, states: Tensor, qk_norm: Tensor | None, cos: Tensor, sin: Tensor) -> None:
        """Norm (if any) and rotate queries and keys [T, heads + kv_heads, head_dim], in place.

        Rotated keys stay beside the values, so that both are stored in one copy.
        """
        qk = states if qk_norm is None else self._norm(states, qk_norm)
        torch.addcmul(qk * cos, torch.roll(qk, self.head_dim // 2, -1), sin, out=states)

    def _attend_one(self, q: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        """Attend with one token: q and out [kv_heads, group, size], keys [kv_heads, size, seen], values as stored."""
        scores = torch.baddbmm(self._zero, q, keys, beta=0, alpha=self.scale)
        if self.dtype == torch.float32:
            weights = torch.softmax(scores, -1)
        else:
            weights = torch.softmax(scores, -1, dtype=torch.float32).to(self.dtype)
        torch.bmm(weights, values, out=out)
