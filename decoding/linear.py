"""Linear layers of the lean executor: fused, stored in the layout that is read fastest, shared with the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Linear:
    """y = x W^T + b with `weight` kept transposed, [inputs, outputs]."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight.t()
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to x [T, inputs]."""
        if self.bias is None:
            return torch.mm(x, self.weight)
        return torch.addmm(self.bias, x, self.weight)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return residual + self(x) in one product."""
        result = torch.addmm(residual, x, self.weight)
        return result if self.bias is None else result.add_(self.bias)


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
