"""Greedy choices that a forward made on the device, on their way to the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Picks:
    """The highest logit's id and its log-probability, for every wanted position of one forward.

    The copy to the host is begun at once and waited for when it is read, so a step that needs nothing else from the
    device waits once.
    """

    __slots__ = ("_arrived", "_host", "_read", "_wanted")

    def __init__(self, picks: Tensor, wanted: Sequence[int]) -> None:
        """Take fp64 [2, positions] (ids are exact in it) and the indices of the wanted positions."""
        self._host = picks.to("cpu", non_blocking=True, copy=True)
        self._wanted = wanted
        self._read: tuple[list[int], list[float]] | None = None
        self._arrived: torch.cuda.Event | None = None
        if picks.device.type == "cuda":
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record(torch.cuda.current_stream(picks.device))

    def read(self) -> tuple[list[int], list[float]]:
        """Return ids and natural-log probabilities, in the order of the forward's logits."""
        if self._read is None:
            if self._arrived is not None:
                self._arrived.synchronize()
            ids, logprobs = self._host.tolist()
            self._read = [int(ids[index]) for index in self._wanted], [logprobs[index] for index in self._wanted]
        return self._read
