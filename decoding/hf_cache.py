"""Caches of models that run through their own forward: attention in rows or one padded batch, or whole states."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from .executor import RowCache


class AttentionCache:
    """One row's keys and values, on its own or as a row of a `PaddedGroup`.

    Sliding-window layers keep every token here: the model's mask still applies the window, and the row can be cropped,
    forked at any length and padded, which a cache that drops old tokens cannot.
    """

    def __init__(self, per_token_bytes: int) -> None:
        self.length = 0
        self.group: PaddedGroup | None = None
        self.own: DynamicCache | None = DynamicCache()
        self._per_token_bytes = per_token_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the tokens held."""
        return self.length * self._per_token_bytes

    def alone(self) -> DynamicCache:
        """Return the row's own cache, leaving the group if it is in one."""
        if self.group is not None:
            self.group.dissolve()
        assert self.own is not None
        return self.own

    def layers(self) -> list[tuple[Tensor, Tensor] | None]:
        """Return per layer keys and values [1, kv_heads, length, size], views; None for layers without their own."""
        if self.group is not None:
            return self.group.row(self)
        assert self.own is not None
        return [_states(layer) for layer in self.own.layers]

    def take(self, layers: Sequence[tuple[Tensor, Tensor] | None]) -> None:
        """Own copies of `layers`."""
        cache = DynamicCache()
        for states in layers:
            cache.layers.append(_layer(None if states is None else (states[0].clone(), states[1].clone())))
        self.own, self.group = cache, None


class PaddedGroup:
    """Rows of unequal length as one batch, padded on the left; rows join when it is made and all leave together."""

    def __init__(self, rows: Sequence[AttentionCache]) -> None:
        self.rows = list(rows)
        self.longest = max(row.length for row in rows)
        self.pads = [self.longest - row.length for row in rows]
        held = [row.layers() for row in rows]
        self.cache = DynamicCache()
        for states in zip(*held, strict=True):
            self.cache.layers.append(_layer(self._padded(states)))
        self.mask = torch.ones(len(rows), self.longest + 256, dtype=torch.long)
        for index, pad in enumerate(self.pads):
            self.mask[index, :pad] = 0
        for row in rows:
            row.group, row.own = self, None

    def _padded(self, states: Sequence[tuple[Tensor, Tensor] | None]) -> tuple[Tensor, Tensor] | None:
        joined: list[Tensor] = []
        for part in (0, 1):
            tensors = [pair[part] for pair in states if pair is not None]
            if len(tensors) < len(self.rows):
                return None
            first = tensors[0]
            out = first.new_zeros(len(tensors), first.shape[1], self.longest, first.shape[3])
            for index, (tensor, pad) in enumerate(zip(tensors, self.pads, strict=True)):
                out[index, :, pad:] = tensor[0]
            joined.append(out)
        return joined[0], joined[1]

    def attention_mask(self, tokens: int) -> Tensor:
        """Return the mask [rows, seen + tokens], 0 where a row is padded."""
        seen = self.longest + tokens
        if seen > self.mask.shape[1]:
            self.mask = torch.cat([self.mask, torch.ones(len(self.rows), seen, dtype=torch.long)], dim=1)
        return self.mask[:, :seen]

    def advance(self, tokens: int) -> None:
        """Count tokens that the forward appended to every row."""
        self.longest += tokens
        for row in self.rows:
            row.length += tokens

    def undo(self) -> None:
        """Drop what a failed forward appended to some of the layers."""
        layers: list[Any] = self.cache.layers
        for layer in layers:
            if layer.is_initialized:
                layer.crop(self.longest - layer.get_seq_length())

    def row(self, row: AttentionCache) -> list[tuple[Tensor, Tensor] | None]:
        """Return views of one row's keys and values per layer, without padding."""
        index = next(at for at, other in enumerate(self.rows) if other is row)
        pad = self.pads[index]
        views: list[tuple[Tensor, Tensor] | None] = []
        for layer in self.cache.layers:
            states = _states(layer)
            if states is None:
                views.append(None)
            else:
                keys, values = states
                views.append((keys[index : index + 1, :, pad:], values[index : index + 1, :, pad:]))
        return views

    def dissolve(self) -> None:
        """Give every row its own cache back."""
        held = [self.row(row) for row in self.rows]
        for row, layers in zip(self.rows, held, strict=True):
            row.take(layers)


class Mark:
    """A length that a `StateCache` can be cropped to for as long as somebody holds the mark."""

    __slots__ = ("__weakref__", "length")

    def __init__(self, length: int) -> None:
        self.length = length


class StateCache:
    """One row's cache of a model with state other than keys and values.

    Convolutions hold their last few inputs only. They can hold more for a while and be cropped, which `mark` and
    `rewind` do; a recurrent state can't come back and is copied whole.
    """

    def __init__(self, config: Any) -> None:
        self.length = 0
        self.state = DynamicCache(config=config)
        self._marks: WeakSet[Mark] = WeakSet()

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor held."""
        return sum(tensor.nbytes for tensor in tensors_of(self.state))

    def copied(self) -> StateCache:
        """Return an independent copy."""
        twin = StateCache.__new__(StateCache)
        twin.length = self.length
        twin.state = copy.deepcopy(self.state)
        twin._marks = WeakSet()
        twin.settle()
        return twin

    def mark(self) -> Mark | None:
        """Keep from here on what `rewind` needs to come back; None where the state can't, or isn't there yet."""
        self.settle()
        if self.length == 0 or not self.state.is_croppable:
            return None
        state: Any = self.state
        state.activate_past_recording()
        mark = Mark(self.length)
        self._marks.add(mark)
        return mark

    def rewind(self, mark: Mark, tokens: int) -> None:
        """Crop to `tokens` tokens behind the mark. No other mark can be used after that."""
        kept = mark.length + tokens
        self.state.crop(kept - self.length)
        self.length = kept
        self._marks.clear()
        self._stop_recording()

    def settle(self) -> None:
        """Drop what nobody can go back to any more."""
        if not self._marks and any(self.state.is_recording_past(index) for index in range(len(self.state.layers))):
            self.state.crop(0)
            self._stop_recording()

    def _stop_recording(self) -> None:
        layers: list[Any] = self.state.layers
        for layer in layers:
            if getattr(layer, "record_past", False):
                layer.record_past = False
                # What was cropped is a view, which would keep all that it was cropped from.
                layer.conv_states = {
                    at: state if state is None else state.clone() for at, state in layer.conv_states.items()
                }


def tensors_of(cache: Any) -> list[Tensor]:
    """Return the tensors that a library cache's layers hold."""
    found: list[Tensor] = []
    for layer in cache.layers:
        for value in vars(layer).values():
            members = list(value.values()) if isinstance(value, dict) else [value]
            found += [member for member in members if isinstance(member, Tensor)]
    return found


def attends_only(config: Any) -> bool:
    """Tell whether every layer of the model's own cache is plain or sliding-window attention."""
    layers = DynamicCache(config=config).layers
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)


def slides(config: Any) -> bool:
    """Tell whether some layer of the model attends in a sliding window only."""
    return any(type(layer) is DynamicSlidingWindowLayer for layer in DynamicCache(config=config).layers)


def _states(layer: Any) -> tuple[Tensor, Tensor] | None:
    return (layer.keys, layer.values) if layer.is_initialized else None


def _layer(states: tuple[Tensor, Tensor] | None) -> Any:
    kind: Any = DynamicLayer
    layer = kind()
    if states is not None:
        layer.update(*states)
    return layer


def same_rows(group: PaddedGroup | None, caches: Sequence[RowCache]) -> bool:
    """Tell whether `group` holds exactly `caches`, in this order."""
    return (
        group is not None
        and len(group.rows) == len(caches)
        and all(a is b for a, b in zip(group.rows, caches, strict=True))
    )
