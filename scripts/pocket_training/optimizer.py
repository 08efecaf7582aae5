"""Muon for the hidden matrices, AdamW for the embedding and the norms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Quintic coefficients whose iteration drives every singular value into about [0.7, 1.2] (Keller Jordan's Muon)."""


def orthogonalize(matrices: Tensor, steps: int = 5) -> Tensor:
    """Return the nearest semi-orthogonal matrices, approximately; ``matrices``: [N, rows, columns]."""
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.to(torch.bfloat16)
    x = x.transpose(1, 2) if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) * 1.01 + 1e-7)
    for _ in range(steps):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.transpose(1, 2) if tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised (Jordan et al. 2024); matrices of one shape are handled together."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, momentum: float = 0.95, decay: float = 0.0
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes[parameter.shape].append(parameter)
            for (rows, columns), parameters in shapes.items():
                updates = []
                for parameter in parameters:
                    state = self.state[parameter]
                    if "momentum" not in state:
                        state["momentum"] = torch.zeros_like(parameter)
                    average = state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
                    updates.append(torch.lerp(parameter.grad, average, group["momentum"]))
                scale = max(1.0, rows / columns) ** 0.5
                for parameter, update in zip(parameters, orthogonalize(torch.stack(updates)), strict=True):
                    parameter.mul_(1 - group["lr"] * group["decay"])
                    parameter.add_(update, alpha=-group["lr"] * scale)


def optimizers(network: nn.Module, muon_lr: float, adam_lr: float) -> list[torch.optim.Optimizer]:
    """Return the optimizers of a network; each group remembers its peak rate for the schedule."""
    matrices = [p for name, p in network.named_parameters() if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in network.named_parameters() if p.ndim != 2 or "embed" in name]
    found: list[torch.optim.Optimizer] = [
        Muon(matrices, lr=muon_lr, decay=0.01),
        torch.optim.AdamW(rest, lr=adam_lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]
    for optimizer in found:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return found
