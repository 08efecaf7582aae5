"""The `layers` draft: the target itself with some of its layers left out, on the target's own keys and values.

Self-speculative decoding (Zhang et al., "Draft & Verify", arXiv:2309.08168): no second model, no second cache. What the
draft writes into the cache is overwritten when the target verifies.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from agent_runtime.decoding.errors import ModelUnsupported
from agent_runtime.decoding.executor import Block
from agent_runtime.decoding.lean import LeanExecutor
from torch import Tensor

from .base import DraftedRow, DraftKind, Proposal

if TYPE_CHECKING:
    from agent_runtime.decoding.executor import Executor

_log = logging.getLogger(__name__)


class LayersDraft:
    """Decodes greedily through `layers` only.

    Args:
        executor: the target's; the lean one.
        layers: indices of the layers that are kept, ascending.

    Raises:
        ModelUnsupported: the executor can't leave layers out, or there is nothing left or nothing left out.
    """

    kind: DraftKind = "layers"
    needs_hidden = False

    def __init__(self, executor: Executor, layers: Sequence[int]) -> None:
        self._executor = _lean(executor)
        self.layers = tuple(layers)
        everything = range(len(self._executor.layers))
        if not 0 < len(self.layers) < len(everything) or any(
            layer not in everything or (index and layer <= self.layers[index - 1])
            for index, layer in enumerate(self.layers)
        ):
            raise ModelUnsupported(
                f"The layers draft can't keep layers {list(self.layers)} of {len(everything)}: "
                "name some of them, in ascending order."
            )

    def propose(self, row: DraftedRow, limit: int) -> Proposal | None:
        """Return up to `limit` tokens that the shortened model would choose."""
        cache = row.cache
        if cache is None or cache.length == 0 or limit < 1:
            return None
        length = cache.length
        fed = row.tokens[length:]
        tokens: list[int] = []
        try:
            while len(tokens) < limit:
                logits, _ = self._executor.run([Block(cache, fed, len(fed) - 1)], self.layers, ())
                tokens.append(int(logits[-1].argmax()))
                fed = tokens[-1:]
        finally:
            self._executor.crop(cache, length)
        return Proposal("layers", tuple(tokens))

    def forget(self, row: DraftedRow) -> None:
        """Nothing is kept."""


def search_layers(executor: Executor, texts: Sequence[Sequence[int]], *, context: int = 16) -> tuple[int, ...]:
    """Return the layers to keep: what agrees with the whole model most for what it costs.

    Layers are left out one after the other, each time the one whose loss costs least agreement on `texts` (token ids,
    as recorded runs hold them). Of the sets found on the way, the one with the highest expected gain of a two-token
    draft is returned: (1 + a + a^2) / (1 + 2 c), with agreement a and the kept share c.

    Raises:
        ModelUnsupported: the executor can't leave layers out, or the model has one layer only.
    """
    lean = _lean(executor)
    kept = list(range(len(lean.layers)))
    if len(kept) < 2:
        raise ModelUnsupported("The layers draft needs a model of at least two layers.")
    with torch.inference_mode():
        wanted = [_greedy(lean, text, kept, context) for text in texts]
        best, value = tuple(kept[:-1]), -1.0
        while len(kept) > 1:
            tried = []
            for layer in kept:
                fewer = [other for other in kept if other != layer]
                same = [
                    (_greedy(lean, text, fewer, context) == of_all) for text, of_all in zip(texts, wanted, strict=True)
                ]
                tried.append((float(torch.cat(same).float().mean()), fewer))
            agreement, kept = max(tried, key=lambda found: found[0])
            gain = (1 + agreement + agreement**2) / (1 + 2 * _share(lean, kept))
            if gain > value:
                best, value = tuple(kept), gain
    return best


def stored_layers(executor: Executor, texts: Sequence[Sequence[int]], folder: Path) -> tuple[int, ...]:
    """Return `search_layers`' answer, searched once per model and kept in `folder`; () without texts to search on."""
    lean = _lean(executor)
    path = folder / f"{fingerprint(lean)}.json"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))["layers"]
        if stored and all(isinstance(layer, int) and 0 <= layer < len(lean.layers) for layer in stored):
            return tuple(stored)
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not searched yet, or not readable: search
    if not texts:
        return ()
    found = search_layers(lean, texts)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"layers": found}), encoding="utf-8")
    except OSError as error:
        _log.warning("can't keep the layers found for drafting in %s: %s", path, error)
    return found


def fingerprint(executor: LeanExecutor) -> str:
    """Return a name for a model's weights: a hash over a sample of each layer's."""
    digest = hashlib.sha256()
    for layer in executor.layers:
        weight = layer.qkv.weight.flatten()
        sample = weight[:: max(1, weight.numel() // 64)][:64]
        digest.update(sample.float().cpu().numpy().tobytes())
    return digest.hexdigest()[:24]


def _share(executor: LeanExecutor, kept: Sequence[int]) -> float:
    """Return the share of the model's weights that a pass through `kept` reads, the output matrix included."""
    of_layer = [
        sum(product.weight.numel() for product in (layer.qkv, layer.output, layer.gate_up, layer.down))
        for layer in executor.layers
    ]
    head = executor.head.weight.numel()
    return (sum(of_layer[layer] for layer in kept) + head) / (sum(of_layer) + head)


def _greedy(executor: LeanExecutor, text: Sequence[int], layers: Sequence[int], context: int) -> Tensor:
    """Return what a model of `layers` would choose after every token of `text` from `context` on."""
    cache = executor.new_cache(len(text))
    logits, _ = executor.run([Block(cache, text, min(context, len(text) - 1))], layers, ())
    return logits.argmax(-1)


def _lean(executor: Executor) -> LeanExecutor:
    if not isinstance(executor, LeanExecutor):
        raise ModelUnsupported(
            "The layers draft runs on the lean executor only (Llama, Mistral, Qwen2 and Qwen3); choose another draft."
        )
    return executor
