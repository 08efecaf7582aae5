"""Training of Medusa heads on pocket, frozen (Cai et al., arXiv:2401.10774, "Medusa-1")."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from agent_runtime.decoding.drafts.medusa import Choice, MedusaHeads, best_choices, chain_choices
from torch import Tensor

from .accepting import Acceptance, walk
from .distilling import Piece

NONE = -100
"""Target of a head where the piece has ended."""


@dataclass(frozen=True)
class HeadPlan:
    """How the heads are trained."""

    heads: int = 3
    blocks: int = 2
    epochs: int = 6
    batch: int = 2048
    lr: float = 2e-3
    decay: float = 0.8
    """Weight of each head's loss against the one before it."""
    nodes: int = 12
    """Of the tree that is stored."""
    seed: int = 5


@dataclass(frozen=True, slots=True)
class Positions:
    """Hidden states fp16 [n, width], and what each head should say there: [n, heads]."""

    hidden: Tensor
    targets: Tensor


def positions(pieces: Iterable[Piece], heads: int) -> Positions:
    """Lay pieces out: head i at the state that chose token t speaks of token t + 1 + i."""
    hidden, targets = [], []
    for piece in pieces:
        hidden.append(piece.hidden)
        padded = F.pad(piece.tokens, (0, heads), value=NONE)
        targets.append(padded.unfold(0, heads, 1)[1:])
    return Positions(torch.cat(hidden), torch.cat(targets))


def new_heads(plan: HeadPlan, lm_head: Tensor) -> MedusaHeads:
    """Return heads that say what the target says for the next token: W = 0."""
    width = lm_head.shape[1]
    weight = torch.zeros(plan.heads, plan.blocks, width, width, requires_grad=True)
    bias = torch.zeros(plan.heads, plan.blocks, width, requires_grad=True)
    return MedusaHeads(weight, bias, lm_head)


def train(plan: HeadPlan, heads: MedusaHeads, data: Positions, out: Path) -> Iterable[dict[str, Any]]:
    """Train in place; yield a line for the log per epoch. A checkpoint in `out` lets a stopped training go on."""
    parameters = [heads.weight, heads.bias]
    optimizer = torch.optim.AdamW(parameters, lr=plan.lr, betas=(0.9, 0.98), weight_decay=0.01)
    steps = plan.epochs * -(-len(data.hidden) // plan.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, plan.lr, total_steps=steps, pct_start=0.05)
    importance = torch.tensor([plan.decay**head for head in range(plan.heads)])
    path, first = out / "medusa.pt", 0
    if path.exists():
        state = torch.load(path)
        first = state["epoch"]
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        with torch.no_grad():
            for parameter, saved in zip(parameters, state["parameters"], strict=True):
                parameter.copy_(saved)
    for epoch in range(first, plan.epochs):
        order = torch.randperm(len(data.hidden), generator=torch.Generator().manual_seed(plan.seed + epoch))
        losses = []
        for index in order.split(plan.batch):
            logits = heads(data.hidden[index].float())  # [heads, n, vocab]
            targets = data.targets[index].t()
            each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=NONE, reduction="none")
            asked = (targets != NONE).sum(-1).clamp_min(1)
            loss = (each.view(targets.shape).sum(-1) / asked * importance).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
        state = {
            "epoch": epoch + 1,
            "parameters": [parameter.detach() for parameter in parameters],
            "optimizer": optimizer.state_dict(),
            "schedule": schedule.state_dict(),
        }
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)
        yield {"epoch": epoch + 1, "loss": round(sum(losses) / len(losses), 4)}


@torch.inference_mode()
def right_ranks(heads: MedusaHeads, data: Positions, limit: int = 64) -> Tensor:
    """Return [n, heads], the rank of the right token in each head's order; `limit` for later ones and where none is."""
    found = []
    for hidden, targets in zip(data.hidden.split(4096), data.targets.split(4096), strict=True):
        likeliest = heads(hidden.float()).topk(limit).indices  # [heads, n, limit]
        is_right = likeliest == targets.t()[..., None]
        found.append(torch.where(is_right.any(-1), is_right.int().argmax(-1), limit).t())
    return torch.cat(found)


def accuracy(ranks: Tensor, data: Positions) -> list[list[float]]:
    """Return per head the share of positions whose right token is the likeliest, among 2, and among 4."""
    asked = data.targets != NONE
    return [
        [round(float((ranks[asked[:, head], head] < top).float().mean()), 4) for top in (1, 2, 4)]
        for head in range(ranks.shape[1])
    ]


def tree(ranks: Tensor, lengths: Sequence[int], nodes: int, rounds: int = 2) -> tuple[Choice, ...]:
    """Return the tree that accepts most where decoding with it really asks the heads.

    Those states are harder than the average: the easy ones after them are skipped. So the tree is first chosen on all
    states, and then on those that decoding with it comes by.
    """
    choices = best_choices(ranks, nodes)
    for _ in range(rounds):
        visited: list[int] = []
        acceptance(ranks, lengths, choices, visited)
        choices = best_choices(ranks[torch.tensor(visited)], nodes)
    return choices


def acceptance(
    ranks: Tensor, lengths: Sequence[int], choices: Sequence[Choice], visited: list[int] | None = None
) -> Acceptance:
    """Return what greedy decoding of the pieces with the tree `choices` accepts; `ranks` as laid out by `positions`.

    The positions whose states are asked are appended to `visited`.
    """
    nodes, rows = set(choices), ranks.tolist()
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)

    def accepted_at(text: int, at: int) -> int:
        # The state that chose the token before `at` proposes what stands at `at` and after it.
        path = rows[starts[text] + at - 1]
        if visited is not None:
            visited.append(starts[text] + at - 1)
        depth = 0
        while depth < len(path) and tuple(path[: depth + 1]) in nodes:
            depth += 1
        return depth

    return walk(lengths, accepted_at, max(len(choice) for choice in choices))


def report(heads: MedusaHeads, held_out: Sequence[Piece]) -> dict[str, Any]:
    """Return the figures of the heads on texts that pocket wrote: chain, and trees of growing size."""
    data = positions(held_out, heads.heads)
    ranks = right_ranks(heads, data)
    lengths = [len(piece.tokens) for piece in held_out]
    trees = {f"tree of {nodes}": heads.choices[:nodes] for nodes in (2, 4, 6, 8, 12) if nodes <= len(heads.choices)}
    return {
        "positions": len(data.hidden),
        "right_top_1_2_4": accuracy(ranks, data),
        "chain": acceptance(ranks, lengths, chain_choices(heads.heads)).report(),
        **{name: acceptance(ranks, lengths, choices).report() for name, choices in trees.items()},
    }


def run(plan: HeadPlan, lm_head: Tensor, pieces: Sequence[Piece], held_out: Sequence[Piece], out: Path) -> MedusaHeads:
    """Train heads, choose their tree on a tenth of the training positions that was left out, and print the figures."""
    tenth = len(pieces) // 10
    data, chosen_on = positions(pieces[tenth:], plan.heads), positions(pieces[:tenth], plan.heads)
    heads = new_heads(plan, lm_head)
    for line in train(plan, heads, data, out):
        print(json.dumps({"medusa": line | {"right": accuracy(right_ranks(heads, chosen_on), chosen_on)}}), flush=True)
    choices = tree(right_ranks(heads, chosen_on), [len(piece.tokens) for piece in pieces[:tenth]], plan.nodes)
    return MedusaHeads(heads.weight.detach(), heads.bias.detach(), lm_head, choices=choices)
