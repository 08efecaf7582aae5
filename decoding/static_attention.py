"""Attention of fixed shape over lanes of keys and values, masked to each row's length.

With a few queries per row one pass over the cache would keep a processor per head busy, and an accelerator has a
hundred and more. `SplitAttention` cuts the cache into chunks, attends to each by itself and joins the results by their
weight (flash decoding: Dao et al., "Flash-Decoding for long-context inference", 2023). Queries that share a
key/value head stand side by side as rows of one product, so that keys and values are read once for all of them.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

PROCESSORS = 128
"""Chunks over all heads and rows that are worth having."""
SHORTEST = 64
"""Positions of a chunk at least."""
MASKED = -1e9
"""Added to the scores of what isn't seen: finite, so that a chunk of which nothing is seen gives no nan."""


class Attention(Protocol):
    """One way to attend; the same for all layers of a forward."""

    def mask(self, visible: Tensor, dtype: torch.dtype, kv_heads: int) -> Tensor:
        """Return what the calls of a forward take as their mask, from visible [batch, queries, seen]."""
        ...

    def __call__(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
        """Attend: q [batch, kv_heads, queries, head_dim] to keys and values [batch, kv_heads, seen, head_dim].

        `queries` counts a row's tokens once for every query head that shares a key/value head. In `batch` and
        `kv_heads` keys and values have the strides of lanes: both together are one dimension.
        """
        ...


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 where something is visible, else `MASKED` (less where `dtype` can't hold that)."""
    return torch.zeros_like(visible, dtype=dtype).masked_fill_(~visible, max(MASKED, torch.finfo(dtype).min / 2))


class PlainAttention:
    """torch's own attention with an explicit mask."""

    def mask(self, visible: Tensor, dtype: torch.dtype, kv_heads: int) -> Tensor:
        """Return [batch, 1, queries, seen]."""
        return additive(visible, dtype)[:, None]

    def __call__(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
        """Attend, see `Attention`."""
        mask = mask.expand(-1, q.shape[1], -1, -1)
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=scale)


class SplitAttention:
    """The same in chunks of the cache, of `shortest` positions at least, where rows and heads alone are too few."""

    def __init__(self, shortest: int = SHORTEST) -> None:
        self.shortest = shortest

    def chunks(self, heads: int, seen: int) -> int:
        """Return into how many parts `seen` positions are cut, for so many heads over all rows."""
        count = 1
        while 2 * count * heads <= PROCESSORS and seen % (2 * count) == 0 and seen // (2 * count) >= self.shortest:
            count *= 2
        return count

    def mask(self, visible: Tensor, dtype: torch.dtype, kv_heads: int) -> Tensor:
        """Return [batch * kv_heads, chunks, queries, seen / chunks], or as `PlainAttention` for one chunk."""
        batch, queries, seen = visible.shape
        chunks = self.chunks(batch * kv_heads, seen)
        if chunks == 1:
            return PLAIN.mask(visible, dtype, kv_heads)
        parts = additive(visible, dtype).view(batch, queries, chunks, -1).transpose(1, 2)
        # Written out over the heads: two strides can't be one, and it is small where there is anything to split.
        return parts[:, None].expand(-1, kv_heads, -1, -1, -1).reshape(batch * kv_heads, chunks, queries, -1)

    def __call__(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
        """Attend, see `Attention`."""
        batch, kv_heads, queries, size = q.shape
        chunks = self.chunks(batch * kv_heads, keys.shape[2])
        if chunks == 1:
            return PLAIN(q, keys, values, mask, scale)
        heads = batch * kv_heads
        parts, weights = _weighted(
            q.reshape(heads, 1, queries, size).expand(-1, chunks, -1, -1),
            keys.view(heads, chunks, -1, size),
            values.view(heads, chunks, -1, size),
            mask,
            scale,
        )
        # A chunk weighs what its exponentials sum up to.
        joined = (parts * weights.softmax(1)[..., None]).sum(1)
        return joined.to(q.dtype).view(batch, kv_heads, queries, size)


PLAIN = PlainAttention()


def _weighted(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return torch's attention, and the logarithm of the exponentials' sum [batch, heads, queries] in fp32."""
    if q.device.type == "cuda":
        found = torch.ops.aten._scaled_dot_product_efficient_attention(q, keys, values, mask, True, scale=scale)
        return found[0], found[1][:, :, : q.shape[2]]  # padded to the kernel's blocks
    found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, keys, values, attn_mask=mask, scale=scale)
    return found[0], found[1]
