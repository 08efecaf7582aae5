"""The few shapes in which a captured forward runs, and how blocks of any shape are laid out in one of them.

A CUDA graph replays fixed kernels on fixed addresses, so a forward of n rows and up to m tokens each runs in the next
larger of a few shapes. Everything that differs between two forwards of one shape stands in one table of integers, which
is the only thing copied to the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from .executor import Block, depths
from .static_cache import StaticCache

BATCHES = (1, 2, 4, 8, 16)
QUERY_LENGTHS = (1, 2, 4, 8, 16)
SEEN = 256
"""Attention reads at least this many positions of a cache."""
FIELDS = 6
"""Rows of the table: see `Table`."""
NOWHERE = -1
"""The slot of tokens that only fill the shape."""


@dataclass(frozen=True, slots=True)
class GraphKey:
    """What a captured forward is fixed to.

    `q_len` belongs in it: 2 rows of 4 tokens and 4 rows of 2 are as many tokens, and other kernels.
    """

    batch: int
    q_len: int
    seen: int
    """Positions of every row's cache that attention reads, masked where the row is shorter."""
    first: int = 0
    """The lane of the first row; the others follow it."""
    layers: tuple[int, ...] = ()
    """Layers that are run, in order."""
    taps: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens of the forward, those included that only fill it."""
        return self.batch * self.q_len


def bucket(count: int, sizes: Sequence[int]) -> int | None:
    """Return the smallest of the ascending `sizes` that holds `count`, or None."""
    return next((size for size in sizes if size >= count), None)


def seen_bucket(length: int, capacity: int) -> int:
    """Return how many positions are read where `length` are filled: two sizes per octave, at most `capacity`."""
    size = SEEN
    while size < length:
        if size + size // 2 >= length:
            size += size // 2
            break
        size *= 2
    return min(size, capacity)


def fits(blocks: Sequence[Block]) -> bool:
    """Tell whether blocks have a shape that is captured."""
    return 0 < len(blocks) <= BATCHES[-1] and all(0 < len(block.tokens) <= QUERY_LENGTHS[-1] for block in blocks)


def shapes_of(blocks: Sequence[Block]) -> tuple[int, int]:
    """Return batch and q_len of the shape that holds the blocks, which `fits`."""
    batch = bucket(len(blocks), BATCHES)
    q_len = bucket(max(len(block.tokens) for block in blocks), QUERY_LENGTHS)
    assert batch is not None and q_len is not None
    return batch, q_len


def groups_of(blocks: Sequence[Block]) -> list[list[int]]:
    """Return the indices of blocks that share a forward: short ones as many as a graph takes, long ones together."""
    short = [index for index, block in enumerate(blocks) if len(block.tokens) <= QUERY_LENGTHS[-1]]
    groups = [short[start : start + BATCHES[-1]] for start in range(0, len(short), BATCHES[-1])]
    long = [index for index, block in enumerate(blocks) if len(block.tokens) > QUERY_LENGTHS[-1]]
    return [*groups, long] if long else groups


@dataclass(frozen=True, slots=True)
class Table:
    """A forward's integers, per token of the shape (row after row, each padded to q_len).

    A token sees its row's cache before the block, and those tokens of the block whose bit is set in `sees` (bit i for
    the block's token i, which is stored right behind the cache). So chains and trees are one case. Tokens that only
    fill the shape are stored nowhere, see what is there anyway, and are looked at by nobody.
    """

    ids: list[int]
    positions: list[int]
    slots: list[int]
    """Where keys and values go; `NOWHERE` for tokens that only fill the shape."""
    before: list[int]
    """Tokens in the row's cache before the block."""
    sees: list[int]
    wanted: list[int]
    """Indices of the tokens whose logits are wanted, in the order of the blocks."""

    def rows(self) -> list[list[int]]:
        """Return the table as `FIELDS` equally long lists; `wanted` is filled up with zeros."""
        wanted = self.wanted + [0] * (len(self.ids) - len(self.wanted))
        return [self.ids, self.positions, self.slots, self.before, self.sees, wanted]


def lay_out(blocks: Sequence[Block], key: GraphKey, slot: Callable[[int, int], int]) -> Table:
    """Lay blocks out in the shape `key`; `slot(lane, position)` tells where a token is stored.

    Every block's cache sits in a lane from `key.first` on, below `key.first + key.batch`.
    """
    count, q_len = key.tokens, key.q_len
    # What fills the shape sees token 0 of the block or of an empty cache: something finite.
    table = Table([0] * count, [0] * count, [NOWHERE] * count, [0] * count, [1] * count, [])
    for block in blocks:
        cache = cast("StaticCache", block.cache)
        assert cache.lane is not None
        lane, before = cache.lane, cache.length
        start = (lane - key.first) * q_len
        end = start + len(block.tokens)
        table.ids[start:end] = block.tokens
        table.before[start : start + q_len] = [before] * q_len
        table.slots[start:end] = [slot(lane, before + index) for index in range(len(block.tokens))]
        table.positions[start:end] = _positions(block, before)
        table.sees[start:end] = _sees(block)
        table.wanted.extend(range(start + block.logits_from, end))
    return table


def _positions(block: Block, before: int) -> list[int]:
    trunk = before + len(block.tokens) - len(block.tree)
    return [*range(before, trunk), *(trunk - 1 + depth for depth in depths(block.tree))]


def _sees(block: Block) -> list[int]:
    trunk = len(block.tokens) - len(block.tree)
    seen = [(1 << (index + 1)) - 1 for index in range(trunk)]
    for index, parent in enumerate(block.tree):
        ancestors = (1 << trunk) - 1 if parent < 0 else seen[trunk + parent]
        seen.append(ancestors | 1 << (trunk + index))
    return seen
