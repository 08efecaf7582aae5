"""From trajectories to training rows: agent tokens, and speculator branches packed behind them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer

from .network import Batch
from .renaming import word_parts
from .tokens import SPECULATE

PROBE_EVERY = 16
"""Thinking tokens between two points where the speculator may be asked again."""
CONTEXT_WEIGHT = 0.1
"""Loss weight of tokens the model never writes itself (requests and tool results) while copying is learnt."""

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Branch:
    """A speculator continuation: it sees the row's first `at` tokens, then itself."""

    at: int
    ids: tuple[int, ...]
    reasoned: bool
    turn: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One trajectory as tokens behind the shared system prefix.

    ``written``: per token, whether the agent wrote it; ``turns``: per assistant turn, its first token and the
    token after its last (`<|im_end|>` included).
    """

    ids: tuple[int, ...]
    written: tuple[bool, ...]
    turns: tuple[tuple[int, int], ...]
    branches: tuple[Branch, ...]

    def __len__(self) -> int:
        return len(self.ids)


def render_call(function: dict[str, Any]) -> str:
    """Return a call as the chat template writes it."""
    name = json.dumps(function["name"], ensure_ascii=False)
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'


def render_turn(message: Message) -> str:
    """Return what the agent writes in this turn, as the chat template renders it, up to `<|im_end|>`."""
    thinking = message.get("reasoning_content")
    text = f"<think>\n{thinking}\n</think>\n" if thinking else ""
    content = message.get("content") or ""
    calls = "\n".join(render_call(call["function"]) for call in message.get("tool_calls") or ())
    return text + content + ("\n" if content and calls else "") + calls + "<|im_end|>"


class Encoder:
    """Turns trajectories into samples with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.word_parts = word_parts(tokenizer)
        self.speculate = self._id(SPECULATE)
        self.end = self._id("<|im_end|>")
        self.think = self._id("<think>")
        self.think_end = self._id("</think>")
        self.call_end = self._id("</tool_call>")
        self.pad = self._id("<|endoftext|>")

    def _id(self, token: str) -> int:
        found = self._tokenizer.token_to_id(token)
        if found is None:
            raise ValueError(f"the tokenizer has no token {token}; train it with pocket_training.tokens")
        return int(found)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text whose control tokens are parsed."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, control tokens included."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def sample(self, messages: Sequence[Message], rng: random.Random | None, branches: int = 3) -> Sample:
        """Encode a conversation after its system message.

        `rng` draws `branches` of the possible probes and their offset in the thinking; None keeps all, at
        multiples of `PROBE_EVERY`.
        """
        ids: list[int] = []
        written: list[bool] = []
        turns: list[tuple[int, int]] = []
        probes: list[Branch] = []
        for message in messages:
            if message["role"] != "assistant":
                part = self.encode(f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n")
                ids += part
                written += [False] * len(part)
                continue
            head = self.encode("<|im_start|>assistant\n")
            body = self.encode(render_turn(message))
            start = len(ids) + len(head)
            ids += [*head, *body, *self.encode("\n")]
            written += [False] * len(head) + [True] * len(body) + [False]
            turns.append((start, start + len(body)))
            probes += self._probes(message, start, body, len(turns) - 1, rng)
        if rng is not None and len(probes) > branches:
            probes = rng.sample(probes, branches)
        return Sample(tuple(ids), tuple(written), tuple(turns), tuple(probes))

    def _probes(
        self, message: Message, start: int, body: list[int], turn: int, rng: random.Random | None
    ) -> Iterator[Branch]:
        calls = message.get("tool_calls")
        ids = (self.speculate, *(self.encode(render_call(calls[0]["function"])) if calls else [self.end]))
        thinks = body[0] == self.think
        yield Branch(start, ids, False, turn)
        if thinks:
            shift = rng.randrange(PROBE_EVERY) if rng is not None and rng.random() < 0.5 else 0
            first = shift or PROBE_EVERY
            for offset in range(first, body.index(self.think_end), PROBE_EVERY):
                yield Branch(start + offset, ids, True, turn)


def width(sample: Sample) -> int:
    """Return how many tokens a sample takes in a batch."""
    return len(sample.ids) + sum(len(branch.ids) for branch in sample.branches)


def collate(prefix: Sequence[int], samples: Sequence[Sample], pad: int, context: float = 0.0) -> Batch:
    """Pad samples to one length; a branch sees its trajectory up to its point and itself, nothing sees a branch."""
    size, rows, length = len(prefix), len(samples), max(map(width, samples))
    ids = torch.full((rows, length), pad)
    targets = torch.zeros((rows, length), dtype=torch.long)
    weights = torch.zeros((rows, length))
    positions = torch.zeros((rows, length), dtype=torch.long)
    mask = torch.zeros((rows, length, size + length), dtype=torch.bool)
    mask[:, :, :size] = True
    causal = torch.ones((length, length), dtype=torch.bool).tril()
    for row, sample in enumerate(samples):
        count = len(sample.ids)
        ids[row, :count] = torch.tensor(sample.ids)
        targets[row, : count - 1] = ids[row, 1:count]
        written = torch.tensor(sample.written[1:])
        weights[row, : count - 1] = torch.where(written, 1.0, context)
        positions[row, :count] = torch.arange(size, size + count)
        mask[row, :count, size : size + count] = causal[:count, :count]
        at = count
        for branch in sample.branches:
            n = len(branch.ids)
            ids[row, at : at + n] = torch.tensor(branch.ids)
            targets[row, at : at + n - 1] = ids[row, at + 1 : at + n]
            weights[row, at : at + n - 1] = 1.0
            positions[row, at : at + n] = torch.arange(size + branch.at, size + branch.at + n)
            mask[row, at : at + n, size : size + branch.at] = True
            mask[row, at : at + n, size + at : size + at + n] = causal[:n, :n]
            at += n
    return Batch(torch.tensor(list(prefix)), ids, positions, mask, targets, weights)


def batches(samples: Iterable[Sample], budget: int) -> Iterator[list[Sample]]:
    """Group samples of similar length so that each padded group has at most `budget` tokens."""
    group: list[Sample] = []
    for sample in sorted(samples, key=width):
        if group and width(sample) * (len(group) + 1) > budget:
            yield group
            group = []
        group.append(sample)
    if group:
        yield group
