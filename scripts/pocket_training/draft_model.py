"""Distillation of a one-layer draft model from pocket: same tokenizer, same width, pocket's embedding to start from."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GenerationConfig, Qwen3ForCausalLM

from .accepting import Acceptance, walk
from .distilling import Lesson, Teacher
from .network import Network, Shape
from .optimizer import optimizers
from .samples import collate

DRAFT_SHAPE = Shape(layers=1, intermediate_size=512)
"""0.9M parameters, 1.8 MB in fp16, a quarter of them the embedding."""


@dataclass(frozen=True)
class DraftPlan:
    """How the draft model is trained."""

    shards: int
    epochs: int = 3
    muon_lr: float = 0.02
    adam_lr: float = 0.002
    warmup: int = 30
    decay_from: float = 0.3
    seed: int = 6
    shape: Shape = field(default_factory=lambda: DRAFT_SHAPE)

    def rate(self, step: int, progress: float) -> float:
        """Return the learning rate as a fraction of its peak."""
        decay = 1.0 if progress < self.decay_from else (1.0 - progress) / (1.0 - self.decay_from)
        return min(1.0, (step + 1) / self.warmup) * max(decay, 0.0)


def new_student(plan: DraftPlan, teacher: Network) -> Network:
    """Return a draft model with the teacher's embedding and final norm, and fresh layers."""
    student = Network(plan.shape, plan.seed)
    with torch.no_grad():
        student.model.embed_tokens.weight.copy_(teacher.model.embed_tokens.weight)
        student.model.norm.weight.copy_(teacher.model.norm.weight)
    return student


def loss(student: Network, teacher: Teacher, lesson: Lesson) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy against pocket's distribution, and how often both find the same token likeliest."""
    batch = collate(teacher.prefix, lesson.samples, teacher.encoder.pad)
    with torch.autocast("cpu", torch.bfloat16):
        hidden = student.hidden(batch, torch.bfloat16)[batch.weights.reshape(-1) > 0]
        logits = F.linear(hidden, student.model.embed_tokens.weight).float()
    expected = F.linear(lesson.hidden.float(), teacher.head)  # [asked, vocab]
    same = (logits.detach().argmax(-1) == expected.argmax(-1)).float().mean()
    return F.cross_entropy(logits, expected.softmax(-1)), same


class Distilling:
    """One training; its checkpoint lets a stopped one go on at the start of a shard."""

    def __init__(self, plan: DraftPlan, teacher: Teacher, out: Path) -> None:
        self.plan = plan
        self.teacher = teacher
        self.student = new_student(plan, teacher.network)
        self.optimizers = optimizers(self.student, plan.muon_lr, plan.adam_lr)
        self.done = 0
        """Shards seen, over all epochs."""
        self.step = 0
        self._path = out / "draft-model.pt"
        if self._path.exists():
            state = torch.load(self._path)
            self.student.load_state_dict(state["student"])
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            self.done, self.step = state["done"], state["step"]

    def run(self) -> Iterator[dict[str, Any]]:
        """Train to the end; yield a line for the log per shard."""
        total = self.plan.epochs * self.plan.shards
        while self.done < total:
            started = time.perf_counter()
            epoch, at = divmod(self.done, self.plan.shards)
            rng = random.Random(f"{self.plan.seed}/{epoch}")
            lessons = self.teacher.shard(rng.sample(range(self.plan.shards), self.plan.shards)[at])
            rng.shuffle(lessons)
            values, tokens = [], 0
            for number, lesson in enumerate(lessons):
                values.append(self._advance(lesson, (self.done + number / len(lessons)) / total))
                tokens += sum(len(sample.ids) for sample in lesson.samples)
            self.done += 1
            self._save()
            yield {
                "shard": self.done,
                "of": total,
                "loss": round(sum(value for value, _ in values) / len(values), 4),
                "same": round(sum(same for _, same in values) / len(values), 4),
                "tokens_per_s": round(tokens / (time.perf_counter() - started)),
            }

    def _advance(self, lesson: Lesson, progress: float) -> tuple[float, float]:
        rate = self.plan.rate(self.step, progress)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * rate
        value, same = loss(self.student, self.teacher, lesson)
        value.backward()
        torch.nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        return float(value.detach()), float(same)

    def _save(self) -> None:
        state = {
            "student": self.student.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "done": self.done,
            "step": self.step,
        }
        torch.save(state, self._path.with_suffix(".new"))
        self._path.with_suffix(".new").replace(self._path)


@torch.inference_mode()
def report(student: Network, teacher: Teacher, held_out: Sequence[Lesson]) -> dict[str, Any]:
    """Return the greedy draft's figures on texts that pocket wrote, in fp32, for chains of 1 to 5.

    A guess counts where all before it in its chain are right, so the history it saw is the text itself, and one
    teacher-forced pass tells every chain.
    """
    rights: list[list[bool]] = []
    for lesson in held_out:
        batch = collate(teacher.prefix, lesson.samples, teacher.encoder.pad)
        hidden = student.hidden(batch, torch.float32).view(*batch.ids.shape, -1)
        said = F.linear(hidden, student.model.embed_tokens.weight).argmax(-1)
        right = said == batch.targets
        for row, sample in enumerate(lesson.samples):
            rights += [right[row, start - 1 : stop - 1].tolist() for start, stop in sample.turns]
    total = sum(map(sum, rights)) / sum(map(len, rights))
    lengths = [len(piece) for piece in rights]
    chains = {f"chain of {depth}": _chain(rights, lengths, depth).report() for depth in range(1, 6)}
    return {"positions": sum(lengths), "right": round(total, 4), **chains}


def _chain(rights: Sequence[Sequence[bool]], lengths: Sequence[int], depth: int) -> Acceptance:
    def accepted_at(text: int, at: int) -> int:
        wrong = next((index for index, ok in enumerate(rights[text][at : at + depth]) if not ok), depth)
        return min(wrong, depth)

    return walk(lengths, accepted_at, depth)


def publish(student: Network, folder: Path, tokenizer: str) -> None:
    """Write the draft model in Hugging Face format, in fp16; `tokenizer` is the path of its tokenizer from there."""
    head = {"lm_head.weight": student.model.embed_tokens.weight}
    config = student.shape.config()
    config.tokenizer = tokenizer
    model = Qwen3ForCausalLM(config)
    model.load_state_dict(student.state_dict() | head)
    model.generation_config = GenerationConfig(do_sample=False)
    model.half().save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    (folder / "generation_config.json").unlink(missing_ok=True)
