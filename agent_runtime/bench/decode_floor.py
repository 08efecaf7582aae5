"""The floor of a decoding step: the model's matrix products for one token, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from agent_runtime.decoding.lean import LeanExecutor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from agent_runtime.decoding.executor import Executor

Product = Callable[[], object]


class Floor:
    """The linear layers and the attention's two products for one token behind `context` others.

    As the executor does them: the lean one in its own layout of the weights, which are the same in memory, by NumPy
    where that runs its single tokens; any other the layers of the loaded model as the library calls them.
    """

    def __init__(self, executor: Executor, network: PreTrainedModel, *, context: int) -> None:
        if isinstance(executor, LeanExecutor):
            layers, self._device = _lean(executor), executor.device
            dtype, heads, kv_heads, size = executor.dtype, executor.heads, executor.kv_heads, executor.head_dim
            count = len(executor.layers)
        else:
            layers = _linear(network)
            weight = next(network.parameters())
            self._device, dtype = weight.device, weight.dtype
            config: Any = network.config.get_text_config(decoder=True)
            heads, count = config.num_attention_heads, config.num_hidden_layers
            kv_heads = getattr(config, "num_key_value_heads", None) or heads
            size = getattr(config, "head_dim", None) or config.hidden_size // heads
        products = [*layers, *_attention(count, heads, kv_heads, size, max(1, context), dtype, self._device)]
        self._products = products

    @torch.inference_mode()
    def seconds(self) -> float:
        """Return how long one token's products take."""
        started = time.perf_counter()
        for product in self._products:
            product()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter() - started


def _lean(executor: LeanExecutor) -> list[Product]:
    linears = [executor.head]
    for layer in executor.layers:
        linears += [layer.qkv, layer.output, layer.gate_up, layer.down]
    product = _mm if executor.one_row is None else _dot
    return [product(linear.weight) for linear in linears]


def _dot(weight: Tensor) -> Product:
    x, matrix = np.ones(weight.shape[0], np.float32), weight.numpy()
    out = np.empty(weight.shape[1], np.float32)
    return lambda: x.dot(matrix, out)


def _mm(weight: Tensor) -> Product:
    x = weight.new_ones(1, weight.shape[0])
    return lambda: torch.mm(x, weight)


def _linear(network: PreTrainedModel) -> list[Product]:
    return [_apply(module) for module in network.modules() if isinstance(module, nn.Linear)]


def _apply(module: nn.Linear) -> Product:
    x = module.weight.new_ones(1, module.in_features)
    return lambda: nn.functional.linear(x, module.weight)


def _attention(
    layers: int, heads: int, kv_heads: int, size: int, context: int, dtype: torch.dtype, device: torch.device
) -> list[Product]:
    """Return q k^T and w v of every layer, on buffers of their own, as a cache has them."""
    buffer = torch.ones(layers, 2, kv_heads, context, size, dtype=dtype, device=device)
    query = torch.ones(kv_heads, heads // kv_heads, size, dtype=dtype, device=device)
    weights = torch.ones(kv_heads, heads // kv_heads, context, dtype=dtype, device=device)
    products: list[Product] = []
    for keys, values in buffer:
        products += [_bmm(query, keys.transpose(1, 2)), _bmm(weights, values)]
    return products


def _bmm(left: Tensor, right: Tensor) -> Product:
    return lambda: torch.bmm(left, right)
