"""Caches at fixed addresses: a buffer of lanes, each with room for one row, and rows that come and go.

A cache is a `LeanCache` throughout: its `buffer` is either memory of its own, where it rests, or the view of a lane, so
everything that works on one works on the other. Rows that decode together are seated in neighbouring lanes, which
attention can read as one batch without copying. Moving a row copies its keys and values once, on the device; rows stay
where they are until others need the place.

The lanes are a rectangle: as many positions for each as the longest row needs, rounded up. It grows by doubling, and
everything captured on the old addresses is void then (`generation` tells).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from .lean import LeanCache

FIRST_LANES = 2
"""An agent's row and its probe."""
FIRST_CAPACITY = 1024
MOST_LANES = 16
RECENT = 32
"""A row that decoded within this many forwards is not unseated if the lanes can grow instead."""


class StaticCache(LeanCache):
    """One row's keys and values, in a lane or in a buffer of its own."""

    __slots__ = ("__weakref__", "lane", "room", "used")

    def __init__(self, buffer: Tensor, room: int) -> None:
        super().__init__(buffer)
        self.lane: int | None = None
        self.room = room
        """Tokens that were asked for; in a lane this is what the row is charged for."""
        self.used = 0

    @property
    def nbytes(self) -> int:
        """Bytes of its own buffer, or its part of the lane; what the lanes have to spare is `LanePool.nbytes`."""
        if self.lane is None:
            return self.buffer.nbytes
        return self.buffer[:, :, :, :1].nbytes * max(self.length, self.room)

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` tokens in all, outside the lane if it is too short."""
        if tokens > self.buffer.shape[3]:
            super().reserve(tokens)
            self.lane = None
        self.room = max(self.room, tokens)


class LanePool:
    """The lanes: `view` [layers, 2, lanes, kv_heads, capacity, head_dim].

    `flat` is the same memory as [layers, slots, head_dim], and one more slot that takes what belongs nowhere. Keys of
    head h at position p of a lane lie in slot `slot(lane, p) + offsets[h]`, values in `slot(lane, p)` +
    `offsets[kv_heads + h]`.
    Called from the model thread only.
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        limit_bytes: int,
        lanes: int = FIRST_LANES,
        capacity: int = FIRST_CAPACITY,
    ) -> None:
        """Start without memory; the first row that is seated makes it.

        Args:
            layers: of the model, like `kv_heads` and `head_dim`.
            kv_heads: heads of keys and values.
            head_dim: their size.
            dtype: of keys and values.
            device: where they lie.
            limit_bytes: what the lanes may take; beyond it rows aren't seated.
            lanes: lanes to begin with, a power of two.
            capacity: tokens per lane to begin with.
        """
        self.kv_heads = kv_heads
        self.limit_bytes = limit_bytes
        self.lanes = 0
        self.capacity = 0
        self.generation = 0
        """Changes whenever the addresses do."""
        self._shape = (layers, kv_heads, head_dim)
        self._dtype = dtype
        self._device = device
        self.first_lanes = lanes
        self.first_capacity = capacity
        self._seats: list[weakref.ref[StaticCache] | None] = []
        self._clock = 0
        self.view = torch.empty(0)
        self.flat = torch.empty(0)
        self.offsets = torch.empty(0)

    @property
    def nbytes(self) -> int:
        """Bytes of all lanes."""
        return self.flat.nbytes

    @property
    def nowhere(self) -> int:
        """The slot for what belongs nowhere."""
        return 2 * self.lanes * self.kv_heads * self.capacity

    def slot(self, lane: int, position: int) -> int:
        """Return where the first head's key of a position lies."""
        return lane * self.kv_heads * self.capacity + position

    def occupant(self, lane: int) -> StaticCache | None:
        """Return who sits in a lane."""
        seat = self._seats[lane]
        cache = seat() if seat is not None else None
        # A row may have left without a word: dropped, moved, or grown out of its lane.
        return cache if cache is not None and cache.lane == lane else None

    # -- seating ------------------------------------------------------------------------------------------------

    def place(self, cache: StaticCache) -> None:
        """Seat an empty new cache if a lane is free and long enough; never makes others move."""
        if cache.room <= self.capacity:
            lane = self._free_lane()
            if lane is not None:
                self._clock += 1
                cache.used = self._clock
                self._seat(cache, lane)

    def seat(self, caches: Sequence[StaticCache], batch: int, tokens: int) -> int | None:
        """Seat rows in neighbouring lanes and return the first of these, a multiple of `batch`.

        Args:
            caches: at most `batch` rows.
            batch: lanes that belong together, a power of two.
            tokens: what the longest row will hold.

        Returns:
            None if the lanes would have to grow beyond their limit.
        """
        self._clock += 1
        for cache in caches:
            cache.used = self._clock
        if not self._make_room(batch, tokens):
            return None
        first = self._seated_at(caches, batch)
        if first is not None:
            return first
        busy, first = self._cheapest(caches, batch)
        while busy and self._grow(2 * self.lanes, self.capacity):
            busy, first = self._cheapest(caches, batch)
        self._gather(caches, first, batch)
        return first

    def _seated_at(self, caches: Sequence[StaticCache], batch: int) -> int | None:
        """Return the first lane if all sit together already."""
        if caches[0].lane is None:
            return None
        first = caches[0].lane - caches[0].lane % batch
        together = all(cache.lane is not None and first <= cache.lane < first + batch for cache in caches)
        return first if together else None

    def _cheapest(self, caches: Sequence[StaticCache], batch: int) -> tuple[int, int]:
        """Return the first lane of the group that is cheapest to use, and how many busy rows have to leave it."""
        best: tuple[int, int, int] | None = None
        for first in range(0, self.lanes, batch):
            coming = [cache for cache in caches if cache.lane is None or not first <= cache.lane < first + batch]
            leaving = self._leaving(caches, first, batch, len(coming))
            busy = sum(self._clock - cache.used < RECENT for cache in leaving)
            moved = sum(cache.length for cache in (*coming, *leaving))
            if best is None or (busy, moved) < best[:2]:
                best = (busy, moved, first)
        assert best is not None
        return best[0], best[2]

    def _leaving(self, caches: Sequence[StaticCache], first: int, batch: int, coming: int) -> list[StaticCache]:
        """Return who has to leave a group of lanes so that `coming` rows find a place, the longest unused first."""
        occupants = [self.occupant(lane) for lane in range(first, first + batch)]
        free = sum(occupant is None for occupant in occupants)
        others = [occupant for occupant in occupants if occupant is not None and occupant not in caches]
        return sorted(others, key=lambda cache: cache.used)[: max(0, coming - free)]

    def _gather(self, caches: Sequence[StaticCache], first: int, batch: int) -> None:
        lanes = range(first, first + batch)
        coming = [cache for cache in caches if cache.lane not in lanes]
        for cache in self._leaving(caches, first, batch, len(coming)):
            outside = self._free_lane(but=lanes)
            if outside is None:
                self._rest(cache)
            else:
                self._seat(cache, outside)
        for cache in coming:
            lane = next(lane for lane in lanes if self.occupant(lane) is None)
            self._seat(cache, lane)

    def _free_lane(self, but: range = range(0)) -> int | None:
        return next((lane for lane in range(self.lanes) if lane not in but and self.occupant(lane) is None), None)

    def _seat(self, cache: StaticCache, lane: int) -> None:
        buffer = self.view[:, :, lane]  # [layers, 2, kv_heads, capacity, head_dim]
        length = cache.length
        if length:
            buffer[:, :, :, :length] = cache.buffer[:, :, :, :length]
        # Masked positions count with weight 0, and 0 * nan would be nan: nobody inherits what another row left.
        buffer[:, :, :, length:] = 0
        cache.buffer, cache.lane = buffer, lane
        self._seats[lane] = weakref.ref(cache)

    def _rest(self, cache: StaticCache) -> None:
        """Move a cache into a buffer of its own."""
        length = cache.length
        layers, kv_heads, head_dim = self._shape
        own = torch.empty(layers, 2, kv_heads, max(length, 1), head_dim, dtype=self._dtype, device=self._device)
        own[:, :, :, :length] = cache.buffer[:, :, :, :length]
        cache.buffer, cache.lane = own, None

    # -- growing ------------------------------------------------------------------------------------------------

    def bytes_of(self, lanes: int, capacity: int) -> int:
        """Return what so many lanes of so many tokens take."""
        layers, kv_heads, head_dim = self._shape
        return layers * (2 * lanes * kv_heads * capacity + 1) * head_dim * self._dtype.itemsize

    def _make_room(self, batch: int, tokens: int) -> bool:
        """Tell whether there are `batch` lanes of `tokens` tokens, growing if need be."""
        if batch <= self.lanes and tokens <= self.capacity:
            return True
        capacity = max(self.capacity, self.first_capacity)
        while capacity < tokens:
            capacity *= 2
        lanes = max(batch, self.lanes, self.first_lanes)
        # Longer lanes may have to be fewer.
        while lanes > batch and self.bytes_of(lanes, capacity) > self.limit_bytes:
            lanes //= 2
        return self._grow(lanes, capacity)

    def _grow(self, lanes: int, capacity: int) -> bool:
        if lanes > MOST_LANES or self.bytes_of(lanes, capacity) > self.limit_bytes:
            return False
        layers, kv_heads, head_dim = self._shape
        seated = [cache for lane in range(self.lanes) if (cache := self.occupant(lane)) is not None]
        slots = 2 * lanes * kv_heads * capacity
        flat = torch.zeros(layers, slots + 1, head_dim, dtype=self._dtype, device=self._device)
        self.view = flat[:, :slots].view(layers, 2, lanes, kv_heads, capacity, head_dim)
        self.flat = flat
        self.lanes, self.capacity = lanes, capacity
        self.generation += 1
        self._seats = [None] * lanes
        heads = torch.arange(kv_heads, device=flat.device) * capacity
        self.offsets = torch.cat([heads, heads + slots // 2])
        for cache in seated:
            assert cache.lane is not None
            if cache.lane < lanes:
                self._seat(cache, cache.lane)
            else:
                self._rest(cache)
        return True
