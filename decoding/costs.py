"""What a forward pass over several tokens costs on this device: measured at the start, corrected as passes are seen."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence

import torch

from .executor import Block, Executor

SIZES = (1, 2, 4, 8, 16, 32)
CONTEXT, SHORT_CONTEXT = 256, 64
"""Tokens before the measured block; the short one where the long one would take too long."""
SHORT_S = 0.05
"""The longest time for the short context with which the long one is read."""
ROUNDS = 7
PATIENCE_S = 1.5
"""Sizes are tried only once after this time."""
MOST_S = 6.0
"""No further size is tried after this time; what isn't reached goes on along the last slope."""
OVERHEAD_WEIGHT = 0.05
"""Share of the newest step in the moving average of what steps take beside their passes."""
PACE_WEIGHT = 0.04
"""Share of the newest pass in the moving average of what passes really take."""
FORGET = 0.003
"""Share by which a kind's pace drifts back with every pass of the other kind, so that it is tried again some time."""
SLOWEST = 5.0
"""A pass counts as at most so many times slower than measured at the start; a stall of the machine says no more."""
STEADY = 3
"""Passes of a kind after which the caches hold what they need."""
TYPICAL = 4
"""Tokens of a typical block."""


class CostTable:
    """Seconds of a forward pass by its number of tokens; between the measured sizes it is a straight line.

    They are measured at the start, passes of a size one after the other, and corrected by what passes take later on.
    Single tokens and blocks may read copies of the weights that are laid out apart, and drive each other's out of the
    processor's cache: the first passes after a change are slower. So a block among single tokens costs more than one
    among blocks.

    `overhead_s` is what a step without a draft, and one with, takes beside passes of models (choosing, asking,
    telling); moving averages.
    """

    def __init__(self, seconds: Mapping[int, float], *, singles: int = 1) -> None:
        """Take measured seconds by number of tokens, at least one size; see `Executor.singles`."""
        self._sizes = sorted(seconds)
        self._seconds: list[float] = []
        for size in self._sizes:  # more tokens never cost less: what says otherwise is noise
            before = self._seconds[-1] if self._seconds else 0.0
            self._seconds.append(max(before, seconds[size]))
        self.overhead_s = [0.0, 0.0]
        self._singles = singles
        self._paces = ([1.0] * (STEADY + 1), [1.0] * (STEADY + 1))
        """For single tokens and for blocks: how much slower than measured at the start, by passes since the change."""
        self._last, self._run = False, STEADY
        """Whether the last pass read a block, and how many like it came before."""
        self._known = [0.0, *(self.of(tokens) for tokens in range(1, self._sizes[-1] + 1))]
        self._back_s = 0.0
        """What the passes after a change back to single tokens take longer, all together."""

    def took(self, overhead_s: float, *, drafted: bool) -> None:
        """Note a step's overhead."""
        self.overhead_s[drafted] += OVERHEAD_WEIGHT * (overhead_s - self.overhead_s[drafted])

    def saw(self, tokens: int, seconds: float) -> None:
        """Note a pass."""
        block = tokens > self._singles
        self._run = min(self._run + 1, STEADY) if block == self._last else 0
        self._last = block
        if tokens > self._sizes[-1]:
            return  # a prompt's chunk, whose pace says nothing about drafts
        own, other = self._paces[block], self._paces[not block]
        own[self._run] += PACE_WEIGHT * (min(seconds / self.of(tokens), SLOWEST) - own[self._run])
        for run, pace in enumerate(other):
            other[run] = pace + FORGET * (1.0 - pace)
        *early, steady = self._paces[False]
        self._back_s = self.of(1) * sum([max(0.0, pace - steady) for pace in early])

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

    def step(self, tokens: int, *, drafted: bool) -> float:
        """Return the seconds of a whole step whose pass takes `tokens` tokens, and of what it makes slower."""
        pass_s = self._known[tokens] if tokens < len(self._known) else self.of(tokens)
        block = tokens > self._singles
        # The way back to single tokens is paid once, now or later: it counts where a block makes it necessary.
        changes = block and not self._last
        back_s = self._back_s if changes else 0.0
        overhead_s = max(self.overhead_s[drafted], self.overhead_s[False])
        return pass_s * self._paces[block][0 if changes else STEADY] + back_s + overhead_s

    def relative(self) -> dict[int, float]:
        """Return the measured sizes' cost in units of one token's."""
        return {size: seconds / self._seconds[0] for size, seconds in zip(self._sizes, self._seconds, strict=True)}


def measure_costs(executor: Executor, *, sizes: Sequence[int] = SIZES) -> CostTable:
    """Measure `executor` with blocks of one row; the lowest of some passes of a size one after the other.

    Lowest, since whatever else the machine does in the meantime only adds, and the first pass may compile or allocate.
    On a GPU the work is waited for after every pass, as a step does.
    """
    bench = _Bench(executor, max(sizes))
    seconds: dict[int, float] = {}
    for size in sizes:
        if seconds and bench.elapsed_s > MOST_S:
            break
        seconds[size] = min(bench.passes(size))
    return CostTable(seconds, singles=executor.singles)


class _Bench:
    """Times passes behind one context."""

    def __init__(self, executor: Executor, longest: int) -> None:
        self._began = time.perf_counter()
        self._executor = executor
        self._ids = [(7 * index + 3) % executor.vocab_size for index in range(CONTEXT + longest)]
        self._cache = executor.new_cache(len(self._ids))
        self._context = 0
        self._extend(SHORT_CONTEXT)
        if self.elapsed_s < SHORT_S:
            self._extend(CONTEXT)

    def _extend(self, context: int) -> None:
        self._forward(self._ids[self._context : context], 1)
        self._context = context

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._began

    def passes(self, size: int) -> list[float]:
        """Return the seconds of some passes over `size` tokens."""
        taken: list[float] = []
        while not taken or (len(taken) < ROUNDS and self.elapsed_s < PATIENCE_S):
            taken.append(self._once(size))
        return taken

    def _once(self, size: int) -> float:
        executor = self._executor
        mark = executor.mark(self._cache)
        started = time.perf_counter()
        self._forward(self._ids[self._context : self._context + size], size)
        seconds = time.perf_counter() - started
        if executor.rewinds:
            executor.crop(self._cache, self._context)
        else:
            self._cache = executor.rewind(self._cache, mark, ())
        return seconds

    def _forward(self, tokens: Sequence[int], wanted: int) -> None:
        logits = self._executor.forward([Block(self._cache, tokens, len(tokens) - wanted)])
        if logits.device.type == "cuda":
            torch.cuda.synchronize(logits.device)
