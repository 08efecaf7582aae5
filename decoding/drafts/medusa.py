"""Medusa heads: several next tokens from one hidden state of the target, proposed as a tree or as a chain.

Head i = x + SiLU(W x + b), once or several times, and then the target's own output matrix (or one of the head's).
Trained with the target frozen; Cai et al., "Medusa", arXiv:2401.10774. With one choice per head the tree is a chain:
the blockwise parallel decoding of Stern et al., arXiv:1811.03115. Both are only proposals here: the target's exact
verification decides, so that a head changes how many tokens are accepted and never which.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from .base import ROOT, DraftedRow, DraftKind, Proposal
from .errors import DraftUnsupported

Choice = tuple[int, ...]
"""A node of the tree: per head on the way down, which of its likeliest tokens (0 = the likeliest) is taken."""


class MedusaHeads:
    """The heads' weights; called with hidden states they return logits.

    Seen from the last token, whose logits came from the hidden state, head 0 speaks of the next token, head 1 of the
    one after it, and so on. (Seen from the hidden state itself, head i has offset i + 2.)
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        lm_head: Tensor,
        own: Tensor | None = None,
        choices: Sequence[Choice] | None = None,
    ) -> None:
        """Take the weights.

        Args:
            weight: [heads, blocks, width, width], output by input.
            bias: [heads, blocks, width].
            lm_head: the target's output matrix [vocab, width].
            own: the heads' own output matrices [heads, vocab, width], where they don't use the target's.
            choices: the tree that the heads' measured accuracies ask for, best nodes first; None = a chain.

        Raises:
            ValueError: a node of `choices` comes before its parent, twice, or asks for a head that is not there.
        """
        self.weight = weight
        self.bias = bias
        self.lm_head = lm_head
        self.own = own
        self.heads, self.blocks, self.width = bias.shape
        self.choices = chain_choices(self.heads) if choices is None else check_choices(choices, self.heads)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return logits [heads, n, vocab] for hidden states [n, width] after the target's final norm."""
        x = hidden.expand(self.heads, -1, -1)
        for block in range(self.blocks):
            x = x + F.silu(torch.baddbmm(self.bias[:, block, None], x, self.weight[:, block].transpose(1, 2)))
        if self.own is not None:
            return torch.bmm(x, self.own.transpose(1, 2))
        return F.linear(x, self.lm_head)

    @classmethod
    def load(
        cls,
        path: str | Path,
        lm_head: Tensor,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> MedusaHeads:
        """Read heads from a safetensors file with the tensors `{head}.{block}.linear.weight` and `.bias`.

        `{head}.{blocks}.weight` is a head's own output matrix, where the file has them. The JSON file of the same name
        beside it may hold `medusa_choices`, the tree.

        Args:
            path: the safetensors file.
            lm_head: the target's output matrix [vocab, width].
            device: where the heads run; default: the device of `lm_head`.
            dtype: of the heads' weights; default: that of `lm_head`.

        Raises:
            DraftUnsupported: the file can't be read, or its heads are not for this target.
        """
        file = Path(path)
        device = lm_head.device if device is None else device
        dtype = lm_head.dtype if dtype is None else dtype
        try:
            tensors = load_file(file)
        except (OSError, SafetensorError) as error:
            raise DraftUnsupported(f"{file} is no file of Medusa heads: {error}. Name a safetensors file.") from error
        heads = 1 + max((int(name.split(".")[0]) for name in tensors if name[0].isdecimal()), default=-1)
        blocks = sum(f"0.{block}.linear.weight" in tensors for block in range(len(tensors)))
        own = all(f"{head}.{blocks}.weight" in tensors for head in range(heads))
        try:
            weight = [
                [tensors.pop(f"{head}.{block}.linear.weight") for block in range(blocks)] for head in range(heads)
            ]
            bias = [[tensors.pop(f"{head}.{block}.linear.bias") for block in range(blocks)] for head in range(heads)]
            outputs = [tensors.pop(f"{head}.{blocks}.weight") for head in range(heads)] if own else []
        except KeyError as error:
            raise DraftUnsupported(f"{file} lacks the tensor {error} of a Medusa head.") from error
        if not heads or not blocks or tensors:
            what = f"unexpected tensors ({', '.join(sorted(tensors)[:3])})" if tensors else "no complete head"
            raise DraftUnsupported(f"{file} has {what}. Medusa heads are named 0.0.linear.weight and so on.")
        stacked = torch.stack([torch.stack(of_head) for of_head in weight]).to(device, dtype)
        width = lm_head.shape[1]
        if stacked.shape[2:] != (width, width) or any(output.shape != lm_head.shape for output in outputs):
            shapes = f"{tuple(stacked.shape[2:])}" + (f" and {tuple(outputs[0].shape)}" if outputs else "")
            raise DraftUnsupported(
                f"{file} holds heads of shape {shapes}; the target's output matrix is {tuple(lm_head.shape)}. "
                "Take heads that were trained on this target."
            )
        return cls(
            stacked,
            torch.stack([torch.stack(of_head) for of_head in bias]).to(device, dtype),
            lm_head.detach().to(device, dtype),
            torch.stack(outputs).to(device, dtype) if outputs else None,
            _choices_beside(file),
        )

    def save(self, path: str | Path, dtype: torch.dtype = torch.float16, **notes: Any) -> None:
        """Write the file that `load` reads, and its JSON with the tree and `notes` (e.g. measured accuracies)."""
        file = Path(path)
        tensors: dict[str, Tensor] = {}
        for head in range(self.heads):
            for block in range(self.blocks):
                tensors[f"{head}.{block}.linear.weight"] = self.weight[head, block].detach().to("cpu", dtype).clone()
                tensors[f"{head}.{block}.linear.bias"] = self.bias[head, block].detach().to("cpu", dtype).clone()
            if self.own is not None:
                tensors[f"{head}.{self.blocks}.weight"] = self.own[head].detach().to("cpu", dtype).clone()
        save_file(tensors, file, metadata={"format": "pt"})
        config = {
            "medusa_num_heads": self.heads,
            "medusa_num_layers": self.blocks,
            "hidden_size": self.width,
            "vocab_size": self.lm_head.shape[0],
            "medusa_choices": [list(choice) for choice in self.choices],
        }
        file.with_suffix(".json").write_text(json.dumps(config | notes, indent=2) + "\n")


class MedusaDraft:
    """The `Draft` of Medusa heads: a small fixed tree from the state that produced the row's last token.

    Lossless: its tokens are deterministic guesses, exact at any temperature.
    """

    kind: DraftKind = "medusa"
    needs_hidden = True

    def __init__(self, heads: MedusaHeads, *, choices: Sequence[Choice] | None = None) -> None:
        """Propose with `heads`, along `choices`; default: the tree that came with the heads.

        `chain_choices(heads.heads)` gives blockwise parallel decoding. A proposal of n tokens takes the first n nodes,
        so nodes that are more likely to be accepted come first.

        Raises:
            ValueError: see `MedusaHeads`.
        """
        self.heads = heads
        self.choices = heads.choices if choices is None else check_choices(choices, heads.heads)
        self._ranks = 1 + max(choice[-1] for choice in self.choices)
        index = {choice: at for at, choice in enumerate(self.choices)}
        # Per node: the index of its parent, its head, and its rank there.
        self._nodes = [(index.get(choice[:-1], ROOT), len(choice) - 1, choice[-1]) for choice in self.choices]
        self._is_chain = all(parent == at - 1 for at, (parent, _, _) in enumerate(self._nodes))

    @torch.inference_mode()
    def propose(self, row: DraftedRow, limit: int) -> Proposal | None:
        """Return the first `limit` nodes of the tree; nothing follows a token that would end the row."""
        hidden = row.hidden
        if hidden is None or limit < 1:
            return None
        nodes = self._nodes[:limit]
        depth = 1 + max(head for _, head, _ in nodes)
        heads = self.heads
        logits = heads(hidden.to(heads.weight.device, heads.weight.dtype)[None])[:depth, 0]  # [depth, vocab]
        likeliest: list[list[int]] = logits.topk(min(self._ranks, logits.shape[-1])).indices.tolist()
        stops = row.request.stop_ids
        tokens: list[int] = []
        parents: list[int] = []
        moved: dict[int, int] = {ROOT: ROOT}  # node -> its place in the proposal
        for at, (parent, head, rank) in enumerate(nodes):
            if parent not in moved or (parent != ROOT and tokens[moved[parent]] in stops):
                continue
            moved[at] = len(tokens)
            tokens.append(likeliest[head][rank])
            parents.append(moved[parent])
        return Proposal(self.kind, tuple(tokens), () if self._is_chain else tuple(parents))

    def forget(self, row: DraftedRow) -> None:
        """Nothing is kept for a row."""


def chain_choices(heads: int) -> tuple[Choice, ...]:
    """Return the tree that is a chain: every head's likeliest token (blockwise parallel decoding)."""
    return tuple((0,) * (head + 1) for head in range(heads))


def check_choices(choices: Sequence[Sequence[int]], heads: int) -> tuple[Choice, ...]:
    """Return the nodes as tuples.

    Raises:
        ValueError: a node comes before its parent, twice, or asks for a head that is not there.
    """
    checked: dict[Choice, None] = {}
    for node in choices:
        choice = tuple(int(rank) for rank in node)
        if not 0 < len(choice) <= heads or min(choice) < 0:
            raise ValueError(f"Medusa choice {list(choice)} is not a path through {heads} heads.")
        if choice in checked:
            raise ValueError(f"Medusa choice {list(choice)} stands there twice.")
        if len(choice) > 1 and choice[:-1] not in checked:
            raise ValueError(f"Medusa choice {list(choice)} comes before its parent {list(choice[:-1])}.")
        checked[choice] = None
    if not checked:
        raise ValueError("Medusa choices are empty: a tree has at least one node.")
    return tuple(checked)


def best_choices(ranks: Tensor, nodes: int) -> tuple[Choice, ...]:
    """Return the tree of `nodes` nodes that accepts most on measured positions, likeliest nodes first.

    A node is accepted where every head on its path says the right token at the path's ranks. How often that happens is
    counted along whole paths, so nothing is assumed about heads erring independently; a path is never more frequent
    than its parent, so the most frequent nodes always form a tree.

    Args:
        ranks: [positions, heads], the rank of the right token in each head's order; a large number where there is no
            such token any more.
        nodes: at most so many; fewer where not as many were ever right.
    """
    limit = max(nodes, 1)
    counts: dict[Choice, int] = {}
    for depth in range(1, ranks.shape[1] + 1):
        paths = ranks[:, :depth]
        reached = paths[(paths < limit).all(-1)]
        seen, times = torch.unique(reached, dim=0, return_counts=True)
        counts |= {tuple(path): count for path, count in zip(seen.tolist(), times.tolist(), strict=True)}
    ordered = sorted(counts, key=lambda path: (-counts[path], len(path), path))
    return tuple(ordered[:limit])


def _choices_beside(file: Path) -> tuple[Choice, ...] | None:
    """Read the tree from the JSON beside the weights; None where there is none."""
    config = file.with_suffix(".json")
    if not config.exists():
        return None
    try:
        choices = json.loads(config.read_text()).get("medusa_choices")
        return None if choices is None else tuple(tuple(int(rank) for rank in choice) for choice in choices)
    except (ValueError, TypeError, AttributeError) as error:
        raise DraftUnsupported(f"{config} is not a configuration of Medusa heads: {error}.") from error
