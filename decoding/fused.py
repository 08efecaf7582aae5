"""Small operations of a layer between its matrix products, each compiled into one kernel where that pays.

Inside a CUDA graph launches cost nothing, but a kernel still takes some two microseconds however little it does, and a
layer has a dozen of them beside its products. `torch.compile` makes four of those. It takes seconds when the first
model of a process is loaded (torch keeps the result on disk), which is why small models go without.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

LARGE = 256 << 20
"""Bytes of weights from which compiling pays."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """What a layer does between its products."""

    norm: Callable[[Tensor, Tensor], Tensor]
    """Root-mean-square norm of x over its last dimension, times a weight."""
    rotate: Callable[[Tensor, Tensor | None, Tensor, Tensor], None]
    """Norm (if any) and rotate queries and keys [T, heads, size] in place, by cos and signed sin [T, 1, size]."""
    gate: Callable[[Tensor], Tensor]
    """silu(first half) * second half of x [T, 2 n]."""


def gate(x: Tensor) -> Tensor:
    """Return silu(first half) * second half."""
    first, second = x.chunk(2, dim=-1)
    return F.silu(first).mul_(second)


def compiled(eps: float) -> Pieces:
    """Return the pieces as compiled functions; they compile when they are first called."""

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return (wide * scale).to(x.dtype) * weight

    def rotate(states: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor) -> None:
        qk = states if weight is None else norm(states, weight)
        half = qk.shape[-1] // 2
        # The table's sign stands for the one of rotate_half.
        swapped = torch.cat([qk[..., half:], qk[..., :half]], dim=-1)
        states.copy_(qk * cos + swapped * sin)

    def gated(x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return F.silu(first) * second

    def fused(function: Any) -> Any:
        return torch.compile(function, dynamic=True)

    return Pieces(fused(norm), fused(rotate), fused(gated))


def pays(weights_bytes: int, device: torch.device) -> bool:
    """Tell whether compiling is possible and worth its time."""
    return device.type == "cuda" and weights_bytes >= LARGE and importlib.util.find_spec("triton") is not None
