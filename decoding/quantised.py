"""Weight-only int8: one scale per output, bf16 activations, products by torch's own int8 kernel.

A quantised model says slightly other things than the one it came from. As a draft that changes what is accepted and
never what is emitted; as the target it is the model that is decoded. Activations stay unquantised: a scale over a block
would couple its rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .linear import Linear

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .lean import LeanExecutor

LARGE = 64
"""Rows from which unpacking the weights first is faster (prompts)."""


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 values [outputs, inputs] and bf16 scales [outputs] of weights [outputs, inputs]; to nearest."""
    weight = weight.detach().float()
    scales = (weight.abs().amax(-1) / 127).clamp_min(1e-12).to(torch.bfloat16)
    values = (weight / scales.float()[:, None]).round_().clamp_(-127, 127).to(torch.int8)
    return values.contiguous(), scales


def product(x: Tensor, values: Tensor, scales: Tensor) -> Tensor:
    """Return x W^T in bf16 for x bf16 [n, inputs]."""
    if x.shape[0] < LARGE and x.device.type == "cpu":
        result: Tensor = torch._weight_int8pack_mm(x, values, scales)
        return result
    return F.linear(x, values.to(x.dtype)).mul_(scales)


class Int8Linear(Linear):
    """A product of the lean executor on int8 weights; the weights it was made from are not kept."""

    __slots__ = ("scales", "values")

    def __init__(self, source: Linear) -> None:
        super().__init__(source.weight.new_empty(0, 0), source.bias)
        self.values, self.scales = quantise(source.weight.t())

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to x [T, inputs]."""
        result = product(x, self.values, self.scales)
        return result if self.bias is None else result.add_(self.bias)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return residual + self(x)."""
        return self(x).add_(residual)


class Int8Module(nn.Module):
    """The same in place of an `nn.Linear`, for models that run through their own forward."""

    values: Tensor
    scales: Tensor

    def __init__(self, source: nn.Linear) -> None:
        super().__init__()
        values, scales = quantise(source.weight)
        self.register_buffer("values", values, persistent=False)
        self.register_buffer("scales", scales, persistent=False)
        self.bias = source.bias

    def forward(self, x: Tensor) -> Tensor:
        """Apply to x [..., inputs]."""
        result = product(x.reshape(-1, x.shape[-1]), self.values, self.scales).view(*x.shape[:-1], -1)
        return result if self.bias is None else result + self.bias


def quantise_lean(executor: LeanExecutor) -> None:
    """Replace every product of the lean executor, which must compute in bf16."""
    for layer in executor.layers:
        for name in ("qkv", "output", "gate_up", "down"):
            setattr(layer, name, Int8Linear(getattr(layer, name)))
    executor.head = Int8Linear(executor.head)
    executor.list_products()  # the old list would keep the old weights


def quantise_modules(model: PreTrainedModel) -> None:
    """Replace every `nn.Linear` of a model, which must compute in bf16."""
    root: Any = model
    for parent in list(root.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, Int8Module(child))
