"""One token of one row through the lean executor's layers in NumPy, on a single CPU thread.

A step of a small model is mostly overhead: a layer has two dozen operations of a microsecond's arithmetic beside its
products, and torch takes some four microseconds to dispatch each. NumPy takes less than one where its arrays are there
already, so everything lives in buffers that are made once; those that attention reads are torch's too. On some CPUs
NumPy's BLAS also streams a weight matrix faster than torch's, of large models too.

With several threads torch's products are the faster ones, and NumPy's would bring threads of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .executor import FINAL
from .threads import one_thread

if TYPE_CHECKING:
    from .lean import LeanCache, LeanExecutor

Array = NDArray[np.float32]
_HALF, _ONE = np.float32(0.5), np.float32(1)


def why_not_one_row(executor: LeanExecutor) -> str | None:
    """Return why `OneRow` can't or shouldn't run for this executor, or None if it can."""
    if executor.dtype != torch.float32 or executor.device.type != "cpu":
        return "its weights are not float32 on a CPU"
    if any(product.bias is not None for layer in executor.layers for product in (layer.output, layer.gate_up)):
        return "its products have biases beyond those of queries, keys and values"
    if not one_thread():
        return "there are several threads"
    return None


class _Layer:
    """One layer's weights as arrays that share the executor's memory."""

    __slots__ = ("down", "gate_up", "input_norm", "mlp_norm", "output", "qk_norm", "qkv", "qkv_bias")

    def __init__(self, executor: LeanExecutor, index: int) -> None:
        layer = executor.layers[index]
        self.input_norm: Array = layer.input_norm.numpy()
        self.qkv: Array = layer.qkv.weight.numpy()
        self.qkv_bias: Array | None = None if layer.qkv.bias is None else layer.qkv.bias.numpy()
        self.qk_norm: Array | None = None if layer.qk_norm is None else layer.qk_norm.numpy()
        self.output: Array = layer.output.weight.numpy()
        self.mlp_norm: Array = layer.mlp_norm.numpy()
        self.gate_up: Array = layer.gate_up.weight.numpy()
        self.down: Array = layer.down.weight.numpy()


class OneRow:
    """Runs single tokens for a `LeanExecutor`; see `why_not_one_row`."""

    def __init__(self, executor: LeanExecutor) -> None:
        """Share the weights of `executor`, whose norms were multiplied by sqrt(size)."""
        heads, kv_heads, size, width = executor.heads, executor.kv_heads, executor.head_dim, executor.width
        self._layers = [_Layer(executor, index) for index in range(len(executor.layers))]
        self._final_norm: Array = executor.final_norm.numpy()
        self._embedding: Array = executor.embedding.numpy()
        self._head: Array = executor.head.weight.numpy()
        self._width_eps = width * executor.eps
        self._size_eps = np.float32(size * executor.eps)
        self._scale = np.float32(executor.scale)

        def buffer(*shape: int) -> Array:
            return np.empty(shape, np.float32)

        self._x, self._normed, self._added = buffer(width), buffer(width), buffer(width)
        # All heads of a token; queries and keys are normed and rotated in place.
        self._qkv = buffer((heads + 2 * kv_heads) * size)
        states = self._qkv.reshape(-1, size)
        self._qk, self._new = states[: heads + kv_heads], states[heads:].reshape(2, kv_heads, size)
        self._rotated, self._swapped = np.empty_like(self._qk), np.empty_like(self._qk)
        self._lengths = buffer(heads + kv_heads, 1)
        self._halves, self._rotated_halves, self._swapped_halves = map(
            _halves, (self._qk, self._rotated, self._swapped)
        )
        self._queries = states[:heads].reshape(kv_heads, -1, size)
        self._attended = buffer(heads * size)
        self._queries_tensor = torch.from_numpy(self._queries)
        self._attended_tensor = torch.from_numpy(self._attended.reshape(kv_heads, -1, size))
        inner = executor.layers[0].down.weight.shape[0]
        self._up, self._gated = buffer(2 * inner), buffer(inner)
        self._gate_halves = _halves(self._up)

    def run(
        self, cache: LeanCache, token: int, rotation: tuple[Tensor, Tensor], layers: Sequence[int], taps: Sequence[int]
    ) -> tuple[Tensor, list[Tensor]]:
        """Append `token` to `cache` by way of `layers`; return its logits [1, vocab] and a state [1, width] per tap.

        `rotation` holds cos and signed sin [1, 1, head_dim] at the token's position.
        """
        at = cache.length
        cache.reserve(at + 1)
        filled = cache.buffer[:, :, :, : at + 1]
        stored = filled.numpy()[:, :, :, at]
        keys, values = filled.unbind(1)
        keys_of, values_of = keys.transpose(2, 3).unbind(0), values.unbind(0)
        cos, sin_halves = rotation[0].numpy()[0], _halves(rotation[1].numpy()[0])
        x, normed, added, gated = self._x, self._normed, self._added, self._gated
        first, second = self._gate_halves
        tapped: dict[int, Array] = {}
        x[:] = self._embedding[token]
        for index in layers:
            layer = self._layers[index]
            if index in taps:
                tapped[index] = x.copy()
            self._norm(layer.input_norm)
            normed.dot(layer.qkv, self._qkv)
            if layer.qkv_bias is not None:
                np.add(self._qkv, layer.qkv_bias, self._qkv)
            self._rotate(layer.qk_norm, cos, sin_halves)
            stored[index] = self._new
            np.multiply(self._queries, self._scale, self._queries)
            weights = torch.softmax(torch.bmm(self._queries_tensor, keys_of[index]), -1)
            torch.bmm(weights, values_of[index], out=self._attended_tensor)
            self._attended.dot(layer.output, added)
            np.add(x, added, x)
            self._norm(layer.mlp_norm)
            normed.dot(layer.gate_up, self._up)
            # silu(first) * second = first / 2 * (1 + tanh(first / 2)) * second; unlike exp, tanh can't overflow.
            np.multiply(first, _HALF, first)
            np.tanh(first, gated)
            np.add(gated, _ONE, gated)
            np.multiply(gated, first, gated)
            np.multiply(gated, second, gated)
            gated.dot(layer.down, added)
            np.add(x, added, x)
        cache.length = at + 1
        self._norm(self._final_norm)
        if FINAL in taps:
            tapped[FINAL] = normed.copy()
        logits = torch.from_numpy(normed.dot(self._head)[None])
        return logits, [torch.from_numpy(tapped[tap][None]) for tap in taps]

    def _norm(self, weight: Array) -> None:
        """Root-mean-square norm of x, weighted."""
        x, normed = self._x, self._normed
        np.multiply(x, 1 / math.sqrt(x.dot(x) + self._width_eps), normed)
        np.multiply(normed, weight, normed)

    def _rotate(self, weight: Array | None, cos: Array, sin_halves: tuple[Array, Array]) -> None:
        """Norm (if any) and rotate queries and keys, in place."""
        qk, source, (first, second) = self._qk, self._qk, self._halves
        if weight is not None:
            lengths, source, (first, second) = self._lengths, self._rotated, self._rotated_halves
            np.vecdot(qk, qk, lengths[:, 0])
            np.add(lengths, self._size_eps, lengths)
            np.sqrt(lengths, lengths)
            np.divide(qk, lengths, source)
            np.multiply(source, weight, source)
        np.multiply(second, sin_halves[0], self._swapped_halves[0])
        np.multiply(first, sin_halves[1], self._swapped_halves[1])
        np.multiply(source, cos, qk)
        np.add(qk, self._swapped, qk)


def _halves(x: Array) -> tuple[Array, Array]:
    """Return views of the first and second half of the last dimension."""
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]
