"""The seam between scheduling and arithmetic: `forward(blocks) -> logits`, on caches that can be forked and cropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from .errors import ModelUnsupported

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

ExecutorName = Literal["auto", "lean", "hf"]


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
    """

    cache: RowCache
    tokens: Sequence[int]
    logits_from: int

    @property
    def wanted(self) -> int:
        """Number of positions whose logits are wanted."""
        return len(self.tokens) - self.logits_from


class Executor(Protocol):
    """Runs a model over blocks of several rows. Called from the model thread only."""

    name: Literal["lean", "hf"]
    vocab_size: int
    shares_forwards: bool
    """Whether rows of unequal length can be rows of one forward."""
    rewinds: bool
    """Whether `crop` and `fork` can go back to any earlier length; otherwise only to the present one."""

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


def choose_executor(model: PreTrainedModel, name: ExecutorName) -> Executor:
    """Build the executor: "lean" where the architecture allows, else the model's own forward.

    Raises:
        ModelUnsupported: "lean" was asked for and can't run this model, or the model's own cache can't be driven.
    """
    from .hf import HfExecutor
    from .lean import LeanExecutor, why_not_lean

    reason = why_not_lean(model) if name != "hf" else ""
    if reason is None:
        return LeanExecutor(model)
    if name == "lean":
        raise ModelUnsupported(f"The lean executor cannot run this model: {reason}. Use executor='auto'.")
    return HfExecutor(model)
