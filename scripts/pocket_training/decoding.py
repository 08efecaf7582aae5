"""Greedy decoding of many conversations at once, in fp32, with one cache that only ever grows or is cut back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from .network import Layer, Network, rotate

LIMIT = 2048


class Decoder:
    """Keeps the keys and values of ``rows`` conversations; a row's token at position p is stored at index p."""

    def __init__(self, network: Network, rows: int, limit: int = LIMIT) -> None:
        shape = network.shape
        self._network = network
        self._layers = cast("list[Layer]", list(network.model.layers))
        self._keys, self._values = (
            torch.zeros(shape.layers, rows, shape.kv_heads, limit, shape.head_dim) for _ in range(2)
        )
        self.lengths = [0] * rows

    @torch.inference_mode()
    def feed(self, new: Sequence[Sequence[int]]) -> Tensor:
        """Append each row's new tokens, possibly none, and return [rows, vocabulary]: logits after the last one."""
        rows, count = len(new), max(map(len, new))
        ids = torch.tensor([[*row, *[0] * (count - len(row))] for row in new])
        start = torch.tensor(self.lengths)
        positions = start[:, None] + torch.arange(count)
        self.lengths = [length + len(row) for length, row in zip(self.lengths, new, strict=True)]
        width = max(self.lengths)
        positions = positions.clamp_max(self._keys.shape[3] - 1)
        mask = torch.arange(max(width, int(positions.max()) + 1)) <= positions[:, None, :, None]
        x = self._network.model.embed_tokens(ids)
        for index, layer in enumerate(self._layers):
            x = x + self._attend(index, layer.input_layernorm(x), positions, mask)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        last = torch.tensor([max(len(row) - 1, 0) for row in new])
        hidden = self._network.model.norm(x[torch.arange(rows), last])
        return F.linear(hidden, self._network.model.embed_tokens.weight)

    def _attend(self, index: int, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        attention = self._layers[index].self_attn
        rows, count, _ = x.shape
        where = torch.arange(rows)[:, None], slice(None), positions
        cos, sin = (table[positions].unsqueeze(2) for table in (self._network.cos, self._network.sin))
        q = rotate(attention.q_norm(attention.q_proj(x).view(rows, count, attention.heads, -1)), cos, sin)
        k = rotate(attention.k_norm(attention.k_proj(x).view(rows, count, attention.kv_heads, -1)), cos, sin)
        keys, values = self._keys[index], self._values[index]
        keys[where] = k
        values[where] = attention.v_proj(x).view(rows, count, attention.kv_heads, -1)
        width = mask.shape[-1]
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            keys[:, :, :width],
            values[:, :, :width],
            attn_mask=mask,
            enable_gqa=attention.heads != attention.kv_heads,
        )
        result: Tensor = attention.o_proj(out.transpose(1, 2).reshape(rows, count, -1))
        return result

    def complete(self, new: Sequence[Sequence[int]], stop: set[int], limit: int) -> list[list[int]]:
        """Feed each row and continue it greedily up to and including a token of `stop`; rows fed nothing stay."""
        said: list[list[int]] = [[] for _ in new]
        open_ = [bool(row) for row in new]
        step: Sequence[Sequence[int]] = new
        for _ in range(limit):
            best = self.feed(step).argmax(-1).tolist()
            for row, token in enumerate(best):
                if open_[row]:
                    said[row].append(token)
                    open_[row] = token not in stop and self.lengths[row] + 1 < LIMIT
            if not any(open_):
                break
            step = [[best[row]] if open_[row] else [] for row in range(len(new))]
        return said
