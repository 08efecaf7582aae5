"""A quick look at a checkpoint: which whole turns and guesses are exact when the oracle's history is given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from agent_runtime.demo.shop.generate import generate

from .network import Network
from .samples import Encoder, batches, collate


class Miss(NamedTuple):
    """A turn that is not exact: where the first wrong token stands, and what was said instead."""

    kind: str
    before: str
    expected: str
    said: str


class Forced(NamedTuple):
    """Shares of exact turns and guesses, by group, with the misses."""

    shares: dict[str, str]
    misses: list[Miss]


@torch.inference_mode()
def forced(
    network: Network,
    encoder: Encoder,
    prefix: Sequence[int],
    *,
    seed: int = 7,
    n: int = 64,
    split: Any = "test",
) -> Forced:
    """Score `n` trajectories of `split` teacher-forced, in fp32."""
    tasks = list(generate(seed, split, n))
    samples = {}
    for task in tasks:
        sample = encoder.sample(task["messages"], None)
        samples[id(sample)] = (task, sample)
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    misses = []

    def count(name: str, ok: bool) -> None:
        total[name] += 1
        right[name] += ok

    for group in batches([sample for _, sample in samples.values()], 8192):
        batch = collate(prefix, group, encoder.pad)
        hidden = network.hidden(batch, torch.float32)
        said = F.linear(hidden, network.model.embed_tokens.weight).argmax(-1).view(batch.ids.shape)
        exact = said == batch.targets
        for row, sample in enumerate(group):
            task, _ = samples[id(sample)]
            whole = True
            replies = [m for m in task["messages"] if m["role"] == "assistant"]
            for (start, stop), reply in zip(sample.turns, replies, strict=True):
                ok = bool(exact[row, start - 1 : stop - 1].all())
                whole &= ok
                form = "call" if reply.get("tool_calls") else "answer"
                count(f"turn/{'think+' if reply.get('reasoning_content') else ''}{form}", ok)
                if not ok:
                    first = start + int((~exact[row, start - 1 : stop - 1]).nonzero()[0])
                    misses.append(
                        Miss(
                            task["kind"],
                            encoder.decode(sample.ids[start:first]),
                            encoder.decode(sample.ids[first:stop]),
                            encoder.decode(said[row, first - 1 : first + 5].tolist()),
                        )
                    )
            count(f"task/{task['phrasing']}", whole)
            count(f"kind/{task['kind']}", whole)
            count("task/all", whole)
            at = len(sample.ids)
            for branch in sample.branches:
                ok = bool(exact[row, at : at + len(branch.ids) - 1].all())
                at += len(branch.ids)
                no_call = len(branch.ids) == 2
                reply = replies[branch.turn]
                thinks = bool(reply.get("reasoning_content"))
                where = "in thinking" if branch.reasoned else "thinking turn" if thinks else "plain turn"
                count(f"guess/{where}{' (no call)' if no_call else ''}", ok)
    shares = {name: f"{right[name] / total[name]:.3f} of {total[name]}" for name in sorted(total)}
    return Forced(shares, misses)
