"""Linear layers of the lean executor: fused, stored in the layout that is read fastest, shared with the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .memory import available_bytes

PACKED_BYTES = 256 << 20
"""Weights up to this many bytes, all in all, always get a packed copy (see `Linear.pack`)."""
PACKED_SHARE = 0.25
"""Larger ones get it where it takes at most this share of the memory that is free."""


class Linear:
    """y = x W^T + b with `weight` kept transposed, [inputs, outputs]."""

    __slots__ = ("bias", "packed", "packed_from", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight.t()
        self.bias = bias
        self.packed: Tensor | None = None
        self.packed_from = 2
        """Rows from which the packed copy is read."""

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to x [T, inputs]."""
        if self.packed is not None and x.shape[0] >= self.packed_from:
            return _packed_product(x, self.packed, self.bias)
        if self.bias is None:
            return torch.mm(x, self.weight)
        return torch.addmm(self.bias, x, self.weight)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return residual + self(x), for one row in one product."""
        if self.packed is not None and x.shape[0] >= self.packed_from:
            return _packed_product(x, self.packed, self.bias).add_(residual)
        result = torch.addmm(residual, x, self.weight)
        return result if self.bias is None else result.add_(self.bias)

    def pack(self) -> None:
        """Keep a second copy of the weights in oneDNN's own layout, for products with more than one row.

        On a CPU in fp32 products with 2 to 64 rows (a block, two conversations, a prompt's chunk) then run two to three
        times as fast as MKL's, which prefers large or single-row ones: with large weights, eight rows take hardly more
        than one. One row stays with MKL. The copy is a snapshot: weights that are trained later need a new executor.
        """
        self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.t().contiguous(), PACKED_FOR_ROWS)


PACKED_FOR_ROWS = 8


def pack(layers: Sequence[Linear]) -> bool:
    """Pack all layers where that pays and is affordable; tell whether it was done.

    Not where the copy would take too much of the memory that is left, where weights are of another type than fp32 or
    lie elsewhere than on a CPU, or where this build of torch can't.
    """
    weights = [layer.weight for layer in layers]
    onednn: Any = torch.backends.mkldnn
    if any(weight.device.type != "cpu" or weight.dtype != torch.float32 for weight in weights):
        return False
    size = sum(weight.nbytes for weight in weights)
    if size > max(PACKED_BYTES, PACKED_SHARE * (available_bytes() or 0)) or not onednn.is_available():
        return False
    try:
        for layer in layers:
            layer.pack()
    except (AttributeError, RuntimeError):  # an internal operator of torch: another build may lack it
        for layer in layers:
            layer.packed = None
        return False
    return True


def _packed_product(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return result


def fuse(modules: Sequence[Any]) -> Linear:
    """Join `torch.nn.Linear` modules with one input into one matrix; their parameters become views of it.

    On a CPU the matrix is stored input-major: a product with one or two rows then runs a fifth faster than with the
    output-major layout in which models are stored (measured with MKL on AVX2).
    """
    weights = [module.weight.detach() for module in modules]
    on_cpu = weights[0].device.type == "cpu"
    fused = torch.cat(weights).t().contiguous().t() if on_cpu else torch.cat(weights)
    biases = [module.bias for module in modules]
    bias = None
    if any(b is not None for b in biases):
        bias = torch.cat(
            [
                weight.new_zeros(weight.shape[0]) if b is None else b.detach()
                for b, weight in zip(biases, weights, strict=True)
            ]
        )
    start = 0
    for module, weight in zip(modules, weights, strict=True):
        end = start + weight.shape[0]
        module.weight.data = fused[start:end]
        if module.bias is not None and bias is not None:
            module.bias.data = bias[start:end]
        start = end
    return Linear(fused, bias)
