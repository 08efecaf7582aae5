"""The endless, seeded stream of training batches, which can be resumed at its exact position."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agent_runtime.demo.shop import generate as shop
from agent_runtime.demo.shop.copying import copy_tasks

from .copying import comparisons, lookups
from .network import Batch
from .renaming import rename
from .samples import CONTEXT_WEIGHT, Encoder, Sample, batches, collate, render_turn

_MARKUP = re.compile(r"<[^>]*>")
RENAMED = 0.5
"""Share of the samples whose names and brands are replaced by words of random parts."""
HARD = 0.3
"""Share of the conversations that are of the kinds learnt last."""
HARD_KINDS = ("recover_order", "track_twin", "change_all", "change_both", "buy", "small_talk")
CHUNK = 192
"""Trajectories drawn, sorted by length and grouped at a time."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a stream stands: the chunk, the batches of it already given, and the share of copying in it."""

    chunk: int = 0
    given: int = 0
    copying: float = 1.0


class Stream:
    """Batches for one worker; workers with different `rank` never see the same trajectory."""

    def __init__(
        self,
        encoder: Encoder,
        prefix: Sequence[int],
        seed: int,
        *,
        rank: int = 0,
        budget: int = 4096,
        position: Position = Position(),
    ) -> None:
        self._encoder = encoder
        self._prefix = prefix
        self._seed = seed
        self._rank = rank
        self._budget = budget
        self.restore(position)

    def restore(self, position: Position) -> None:
        """Go on from a position."""
        self.position = position
        self._groups = self._chunk(position)

    def next(self, copying: float) -> Batch:
        """Return the next batch; a new chunk is drawn with `copying` as its share of copying tasks."""
        while self.position.given == len(self._groups):
            self.position = Position(self.position.chunk + 1, 0, copying)
            self._groups = self._chunk(self.position)
        group = self._groups[self.position.given]
        self.position = Position(self.position.chunk, self.position.given + 1, self.position.copying)
        context = CONTEXT_WEIGHT if self.position.copying > 0.5 else 0.0
        return collate(self._prefix, group, self._encoder.pad, context)

    def _chunk(self, position: Position) -> list[list[Sample]]:
        key = f"{self._seed}/{self._rank}/{position.chunk}"
        rng = random.Random(key)
        copies = round(CHUNK * position.copying)
        hard = round((CHUNK - copies) * HARD)
        seed = rng.getrandbits(48)
        drawn = [
            rename(messages, self._encoder.word_parts, rng) if rng.random() < RENAMED else messages
            for messages in (
                *exercises(seed, copies),
                *(task["messages"] for task in shop.generate(seed, "train", CHUNK - copies - hard)),
                *(task["messages"] for task in shop.generate(seed + 1, "train", hard, kinds=HARD_KINDS)),
            )
        ]
        samples = [self._encoder.sample(messages, rng) for messages in drawn]
        groups = list(batches(samples, self._budget))
        rng.shuffle(groups)
        return groups


def corpus(seed: int, n: int) -> Iterator[str]:
    """Yield the texts the tokenizer is trained on, whole turns with their roles."""
    for task in shop.generate(seed, "train", n):
        for message in task["messages"]:
            yield message["role"]
            text = render_turn(message) if message["role"] == "assistant" else message["content"]
            yield from _MARKUP.split(text)
    for prompt, _ in copy_tasks(seed, n // 20):
        yield prompt


def exercises(seed: int, n: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the messages of `n` exercises: half comparisons, a sixth look-ups, a third the shop's copying tasks."""
    half, sixth = n // 2, n // 6
    for task in (*comparisons(seed, half), *lookups(seed, sixth)):
        yield task["messages"]
    for prompt, answer in copy_tasks(seed, n - half - sixth):
        yield [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
