"""What pocket's drafts learn from: its hidden states at everything that it writes, and what it says there itself.

The oracle's conversations go through pocket once, teacher-forced. Where its likeliest token is the next one all along
a turn, that turn is its own greedy output for this history; a forward pass finds that out in a small part of the time
that decoding takes. What pocket says otherwise is in its hidden states still. The drafts are judged on conversations
that pocket really played.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from agent_runtime.demo.shop.generate import generate
from agent_runtime.demo.shop.judge import Task

from .judging import Player
from .network import Network
from .prompts import system_text
from .renaming import rename
from .samples import Encoder, Message, Sample, batches, collate

SHARD = 128
"""Conversations per file of hidden states."""
RENAMED = 0.5
"""Share of conversations whose names are replaced by random words."""
BUDGET = 4096
"""Tokens per batch, padding included."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """A batch's samples and its teacher: `hidden` fp16 [asked, width] in the order in which `collate` asks."""

    samples: Sequence[Sample]
    hidden: Tensor


@dataclass(frozen=True, slots=True)
class Piece:
    """What pocket says in one go: a turn, or a speculator's call.

    ``hidden``: fp16 [n, width], the states after the final norm from which the ``n`` tokens were chosen;
    ``tokens``: [n].
    """

    hidden: Tensor
    tokens: Tensor


class Teacher:
    """Pocket, frozen, and the conversations of one seed that it is asked about."""

    def __init__(self, network: Network, encoder: Encoder, folder: Path, seed: int) -> None:
        """Keep hidden states in `folder`, so that they are computed once."""
        self.network = network.requires_grad_(False)
        self.encoder = encoder
        self.prefix = encoder.encode(system_text())
        self._folder = folder
        self._seed = seed

    @property
    def head(self) -> Tensor:
        """The output matrix [vocab, width]."""
        return self.network.model.embed_tokens.weight.detach()

    def shard(self, number: int) -> list[Lesson]:
        """Return the lessons of one shard; they depend on the seed, its number and the weights alone."""
        rng = random.Random(f"drafts/{self._seed}/{number}")
        tasks = generate(rng.getrandbits(48), "train", SHARD)
        samples = [self._sample(task["messages"], rng) for task in tasks]
        groups = list(batches(samples, BUDGET))
        path = self._folder / f"hidden-{self._seed}-{number:03}.safetensors"
        if not path.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            hidden = {f"{at:03}": self.hidden(group) for at, group in enumerate(groups)}
            save_file(hidden, path.with_suffix(".new"))
            path.with_suffix(".new").replace(path)
        states = load_file(path)
        return [Lesson(group, states[f"{at:03}"]) for at, group in enumerate(groups)]

    def _sample(self, messages: Sequence[Message], rng: random.Random) -> Sample:
        # With the training's names alone the draft model learns them by heart: 89 % right there and 81 % on others.
        if rng.random() < RENAMED:
            messages = rename(messages, self.encoder.word_parts, rng)
        return self.encoder.sample(messages, rng)

    @torch.inference_mode()
    def hidden(self, group: Sequence[Sample]) -> Tensor:
        """Return the hidden states fp16 [asked, width] of a group of samples."""
        batch = collate(self.prefix, group, self.encoder.pad)
        return self.network.hidden(batch, torch.float32)[batch.weights.reshape(-1) > 0].half()

    def pieces(self, lesson: Lesson) -> Iterator[Piece]:
        """Yield the turns and calls of a lesson that pocket says exactly so itself."""
        said = F.linear(lesson.hidden.float(), self.head).argmax(-1)
        at = 0
        for sample in lesson.samples:
            turns = [sample.ids[start:stop] for start, stop in sample.turns]
            for ids in (*turns, *(branch.ids[1:] for branch in sample.branches)):
                end = at + len(ids)
                tokens = torch.tensor(ids)
                if torch.equal(said[at:end], tokens):
                    yield Piece(lesson.hidden[at:end], tokens)
                at = end
        if at != lesson.hidden.shape[0]:
            raise ValueError(f"a lesson of {lesson.hidden.shape[0]} positions was cut into {at}")


def played(teacher: Teacher, path: Path, *, seed: int, tasks: int) -> list[Lesson]:
    """Let pocket play generated tasks of the test's names greedily, once; return the conversations without branches."""
    if not path.exists():
        player = Player(teacher.network, teacher.encoder)
        episodes = player.play([Task.from_dict(task) for task in generate(seed, "test", tasks)], probe=False)
        lines = [json.dumps(episode.messages) for episode in episodes if len(episode.messages) > 1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
    conversations = [json.loads(line) for line in path.read_text().splitlines()]
    samples = [teacher.encoder.sample(messages, random.Random(0), branches=0) for messages in conversations]
    return [Lesson(group, teacher.hidden(group)) for group in batches(samples, BUDGET)]
