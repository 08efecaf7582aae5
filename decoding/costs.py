"""What a forward pass over several tokens costs on this device, measured once."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence

import torch

from .executor import Block, Executor

SIZES = (1, 2, 4, 8, 16, 32)
CONTEXT = 64
"""Tokens before the measured block."""
ROUNDS = 7
PATIENCE_S = 1.5
"""No further round begins after this time."""
MOST_S = 6.0
"""Not even the first round goes on after this time; sizes it didn't reach go on along the last slope."""


class CostTable:
    """Seconds of a forward pass by its number of tokens; between the measured sizes it is a straight line.

    `overhead_s` is what a step takes beside its forward pass (choosing, drafting, waking); a moving average that the
    worker keeps.
    """

    def __init__(self, seconds: Mapping[int, float]) -> None:
        """Take measured seconds by number of tokens; at least one size."""
        self._sizes = sorted(seconds)
        self._seconds: list[float] = []
        for size in self._sizes:  # more tokens never cost less: what says otherwise is noise
            before = self._seconds[-1] if self._seconds else 0.0
            self._seconds.append(max(before, seconds[size]))
        self.overhead_s = 0.0

    def of(self, tokens: int) -> float:
        """Return the seconds of a forward pass over `tokens` tokens."""
        sizes, seconds = self._sizes, self._seconds
        at = bisect_left(sizes, tokens)
        if at < len(sizes) and sizes[at] == tokens:
            return seconds[at]
        if len(sizes) == 1:
            return seconds[0] * tokens / sizes[0]
        if at == 0:
            return seconds[0]
        low = min(at, len(sizes) - 1) - 1
        slope = (seconds[low + 1] - seconds[low]) / (sizes[low + 1] - sizes[low])
        return seconds[low] + slope * (tokens - sizes[low])

    def step(self, tokens: int) -> float:
        """Return the seconds of a whole step whose forward pass takes `tokens` tokens."""
        return self.of(tokens) + self.overhead_s

    def relative(self) -> dict[int, float]:
        """Return the measured sizes' cost in units of one token's."""
        return {size: seconds / self._seconds[0] for size, seconds in zip(self._sizes, self._seconds, strict=True)}


def measure_costs(executor: Executor, *, sizes: Sequence[int] = SIZES) -> CostTable:
    """Measure `executor` with blocks of one row, behind a short context; the lowest of interleaved rounds.

    On a GPU the work is waited for after every pass, as a step does.
    """
    began = time.perf_counter()
    ids = [(7 * index + 3) % executor.vocab_size for index in range(CONTEXT + max(sizes))]
    cache = executor.new_cache(len(ids))
    logits = executor.forward([Block(cache, ids[:CONTEXT], CONTEXT - 1)])
    taken: dict[int, list[float]] = {}
    for _ in range(ROUNDS):
        for size in sizes:
            mark = executor.mark(cache)
            started = time.perf_counter()
            logits = executor.forward([Block(cache, ids[CONTEXT : CONTEXT + size], 0)])
            if logits.device.type == "cuda":
                torch.cuda.synchronize(logits.device)
            taken.setdefault(size, []).append(time.perf_counter() - started)
            if executor.rewinds:
                executor.crop(cache, CONTEXT)
            else:
                cache = executor.rewind(cache, mark, ())
            if time.perf_counter() - began > MOST_S and len(taken) > 1:
                break
        if time.perf_counter() - began > PATIENCE_S:
            break
    # The lowest: whatever else the machine did in the meantime only adds, and the first pass may compile or allocate.
    return CostTable({size: min(times) for size, times in taken.items()})
