"""The training loop: data-parallel workers, schedules, checkpoints that resume exactly."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .network import Batch, Network, Shape
from .optimizer import optimizers
from .stream import Position, Stream


@dataclass(frozen=True)
class Plan:
    """How one training runs; it ends after `steps` or, where that is 0, after `minutes`."""

    out: Path
    seed: int = 0
    steps: int = 0
    minutes: float = 0.0
    batches: int = 2
    """Batches per worker and step."""
    budget: int = 4096
    """Tokens per batch, padding included."""
    muon_lr: float = 0.02
    adam_lr: float = 0.004
    warmup: int = 50
    copying_steps: int = 250
    """Steps at the start that see copying tasks only."""
    copying_tail: float = 0.25
    """Share of copying tasks after `copying_ramp` more steps."""
    copying_ramp: int = 300
    decay_from: float = 0.5
    """Progress at which the learning rate starts its way down to zero."""
    save_minutes: float = 3.0
    log_every: int = 20
    workers: int = 1
    device: str = "cpu"
    shape: Shape = field(default_factory=Shape)

    def rate(self, step: int, progress: float) -> float:
        """Return the learning rate as a fraction of its peak."""
        decay = 1.0 if progress < self.decay_from else (1.0 - progress) / (1.0 - self.decay_from)
        return min(1.0, (step + 1) / self.warmup) * max(decay, 0.0)

    def copying(self, step: int) -> float:
        """Return the share of copying tasks at `step`."""
        ramp = min(1.0, max(0.0, (step - self.copying_steps) / self.copying_ramp))
        return 1.0 + (self.copying_tail - 1.0) * ramp


class Trainer:
    """One worker of a training."""

    def __init__(self, plan: Plan, stream: Stream, network: Network, rank: int = 0) -> None:
        self.plan = plan
        self.rank = rank
        self.stream = stream
        self.network = network.to(plan.device)
        self.optimizers = optimizers(network, plan.muon_lr, plan.adam_lr)
        self.parameters = list(network.parameters())
        self.step = 0
        self.tokens = 0
        self.elapsed = 0.0

    @property
    def progress(self) -> float:
        """Return how much of the plan is done, from 0 to 1."""
        if self.plan.steps:
            return self.step / self.plan.steps
        return self.elapsed / (60.0 * self.plan.minutes)

    def advance(self) -> dict[str, float]:
        """Run one step and return its loss, share of right tokens and tokens."""
        plan, started = self.plan, time.perf_counter()
        rate = plan.rate(self.step, self.progress)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * rate
        sums = torch.zeros(5, dtype=torch.float64)
        for _ in range(plan.batches):
            batch = to_device(self.stream.next(plan.copying(self.step)), plan.device)
            with torch.autocast(plan.device, torch.bfloat16):
                loss, right = self.network.loss(batch, torch.bfloat16)
            loss.backward()
            sums += torch.tensor(
                [
                    float(loss.detach()),
                    float(batch.weights.sum()),
                    float(right.sum()),
                    right.numel(),
                    batch.ids.numel(),
                ],
                dtype=torch.float64,
            )
        self._reduce(sums)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        self.tokens += int(sums[4])
        self.elapsed += time.perf_counter() - started
        if plan.workers > 1 and not plan.steps:
            clock = torch.tensor(self.elapsed, dtype=torch.float64)
            dist.broadcast(clock, 0)
            self.elapsed = float(clock)
        return {"loss": float(sums[0] / sums[1]), "right": float(sums[2] / sums[3]), "tokens": float(sums[4])}

    def _reduce(self, sums: Tensor) -> None:
        """Turn gradients of summed losses into those of the mean over all workers, and clip them."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if self.plan.workers > 1:
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            dist.all_reduce(flat)
            dist.all_reduce(sums)
            for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
                gradient.copy_(part.view_as(gradient))
        for gradient in gradients:
            gradient.div_(float(sums[1]))
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)

    # Checkpoints

    def state(self) -> dict[str, Any]:
        """Return everything needed to go on exactly here."""
        return {
            "network": self.network.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "tokens": self.tokens,
            "elapsed": self.elapsed,
            "position": asdict(self.stream.position),
        }

    def save(self) -> None:
        """Write this worker's checkpoint, replacing the last one whole."""
        path = checkpoint(self.plan.out, self.rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(self.state(), path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def load(self, state: dict[str, Any], *, weights_only: bool = False) -> None:
        """Go on from a state; `weights_only` takes just the weights, for a new schedule."""
        self.network.load_state_dict(state["network"])
        if weights_only:
            return
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            peaks = [group["peak"] for group in optimizer.param_groups]
            optimizer.load_state_dict(saved)
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["peak"] = peak
        self.step, self.tokens, self.elapsed = state["step"], state["tokens"], state["elapsed"]
        self.stream.restore(Position(**state["position"]))

    def run(self, log: Path | None = None) -> None:
        """Train to the end of the plan; log lines of JSON, save now and then and at the end."""
        saved, window = time.perf_counter(), []
        while self.progress < 1.0:
            began = time.perf_counter()
            window.append(self.advance() | {"s": time.perf_counter() - began})
            if self.step % self.plan.log_every == 0:
                mean = {key: sum(entry[key] for entry in window) / len(window) for key in window[0]}
                line = {
                    "step": self.step,
                    "progress": round(self.progress, 4),
                    "loss": round(mean["loss"], 4),
                    "right": round(mean["right"], 4),
                    "tokens": self.tokens,
                    "tokens_per_s": round(mean["tokens"] / mean["s"]),
                }
                window.clear()
                if self.rank == 0 and log is not None:
                    with log.open("a") as file:
                        file.write(json.dumps(line) + "\n")
            if self._due(time.perf_counter() - saved > 60 * self.plan.save_minutes):
                self.save()
                saved = time.perf_counter()
        self.save()

    def _due(self, due: bool) -> bool:
        """Let worker 0 decide, so that all save at the same step."""
        if self.plan.workers == 1:
            return due
        flag = torch.tensor(int(due))
        dist.broadcast(flag, 0)
        return bool(flag)


def checkpoint(out: Path, rank: int) -> Path:
    """Return the file of a worker's checkpoint."""
    return out / "checkpoint" / f"worker-{rank}.pt"


def to_device(batch: Batch, device: str) -> Batch:
    """Move a batch."""
    return batch if device == "cpu" else Batch(*(getattr(batch, name).to(device) for name in Batch.__slots__))
