"""The seam between scheduling and arithmetic: `forward(blocks) -> logits`, on caches that can be forked and cropped."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import torch

from .errors import ModelUnsupported

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_log = logging.getLogger(__name__)

ExecutorKind = Literal["lean", "hf", "graph"]
ExecutorName = Literal["auto", "lean", "hf", "graph"]
FINAL = -1
"""The tap after the final norm."""


class RowCache(Protocol):
    """Keys and values (or recurrent state) of one row."""

    @property
    def length(self) -> int:
        """Tokens held, from position 0."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes held, spare capacity included."""
        ...


@dataclass(slots=True)
class Block:
    """Tokens to append to one row in one forward, at positions `cache.length ...`.

    Logits are wanted from `tokens[logits_from]` on; `len(tokens)` wants none (a prefill chunk before the last).

    With `tree`, the last `len(tree)` tokens form a tree: `tree[i]` is the index, among them, of the token that token
    `i` follows, -1 for the token before them all. Each sees its ancestors only, at the position after its parent's; its
    keys and values lie in the cache in the order of the block until `keep` drops what was not accepted.
    """

    cache: RowCache
    tokens: Sequence[int]
    logits_from: int
    tree: Sequence[int] = ()

    @property
    def wanted(self) -> int:
        """Number of positions whose logits are wanted."""
        return len(self.tokens) - self.logits_from


class Executor(Protocol):
    """Runs a model over blocks of several rows. Called from the model thread only."""

    name: ExecutorKind
    vocab_size: int
    shares_forwards: bool
    """Whether rows of unequal length can be rows of one forward."""
    rewinds: bool
    """Whether `crop` and `fork` can go back to any earlier length; otherwise only to the present one."""
    trees: bool
    """Whether blocks may hold a tree."""
    singles: int
    """Tokens up to which a forward reads the weights as one of a single token does, where longer ones read a copy."""

    def expect_blocks(self, blocks: bool) -> None:
        """Tell whether most forwards will read several tokens of a row, so that weights can be laid out for that."""
        ...

    def new_cache(self, tokens: int) -> RowCache:
        """Return an empty cache with room for about `tokens` tokens (it grows when needed)."""
        ...

    def fork(self, cache: RowCache, length: int, tokens: int) -> tuple[RowCache, int]:
        """Copy the first `length` tokens of `cache` into a new one with room for `tokens`; return it and bytes copied.

        The source is only read.
        """
        ...

    def crop(self, cache: RowCache, length: int) -> None:
        """Drop everything after the first `length` tokens."""
        ...

    def keep(self, cache: RowCache, length: int, kept: Sequence[int]) -> None:
        """Keep the first `length` tokens and, moved behind them, those at the positions `kept` (ascending).

        The rest is dropped. Only where `rewinds`.
        """
        ...

    def mark(self, cache: RowCache) -> object:
        """Return what `rewind` needs to come back to the present length; None where `crop` can."""
        ...

    def rewind(self, cache: RowCache, mark: object, tokens: Sequence[int]) -> RowCache:
        """Return a cache that holds what was there at the `mark` and then `tokens`, replayed; `cache` is used up."""
        ...

    def bytes_for(self, tokens: int) -> int:
        """Return the bytes that a cache of `tokens` tokens takes."""
        ...

    def partition(self, blocks: Sequence[Block]) -> list[list[int]]:
        """Return the indices of blocks that can share a forward, group by group."""
        ...

    def forward(self, blocks: Sequence[Block]) -> torch.Tensor:
        """Append every block to its cache; return logits [sum of wanted, vocab] in fp32, in the order of the blocks.

        When it raises, no cache has changed its length.
        """
        ...

    def forward_tapped(self, blocks: Sequence[Block], taps: Sequence[int]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Do the same and return, per tap, hidden states [sum of wanted, width] at the wanted positions.

        Tap `i` is the input of layer `i` (0 = the embeddings), `FINAL` the state after the final norm.
        """
        ...


def depths(tree: Sequence[int]) -> list[int]:
    """Return the depth of every token of a tree, 1 for those that follow the token before it."""
    found: list[int] = []
    for parent in tree:
        found.append(1 if parent < 0 else found[parent] + 1)
    return found


def ancestors(tree: Sequence[int]) -> torch.Tensor:
    """Return which tokens of a tree each one sees, itself included: bool [len(tree), len(tree)]."""
    sees = torch.zeros(len(tree), len(tree), dtype=torch.bool)
    for index, parent in enumerate(tree):
        if parent >= 0:
            sees[index] = sees[parent]
        sees[index, index] = True
    return sees


def choose_executor(model: PreTrainedModel, name: ExecutorName) -> Executor:
    """Build the executor: captured graphs on CUDA devices or "lean" where the architecture allows, else "hf".

    "hf" is the model's own forward. "graph" on another device runs the same forwards of fixed shape without capturing
    them: slower than "lean", for tests.

    Raises:
        ModelUnsupported: "lean" or "graph" was asked for and can't run this model, or the model's own cache can't be
            driven.
    """
    from .graphs import GraphExecutor
    from .hf import HfExecutor
    from .lean import LeanExecutor, why_not_lean

    reason = why_not_lean(model) if name != "hf" else ""
    if reason is not None:
        if name in ("lean", "graph"):
            raise ModelUnsupported(f"The {name} executor cannot run this model: {reason}. Use executor='auto'.")
        return HfExecutor(model)
    if name == "graph":
        return GraphExecutor(model)
    if name == "auto" and model.device.type == "cuda":
        try:
            return GraphExecutor(model)
        except (ModelUnsupported, RuntimeError) as error:  # e.g. no memory for the static cache
            _log.warning("decoding without CUDA graphs, which is slower: %s", error)
    return LeanExecutor(model)
