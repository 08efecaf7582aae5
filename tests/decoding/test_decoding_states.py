"""States that are not keys and values come back to what stands: convolutions by cropping, recurrent ones by a copy."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from agent_runtime.decoding.executor import Block
from agent_runtime.decoding.hf import HfExecutor
from agent_runtime.decoding.hf_cache import StateCache, tensors_of

from .conftest import VOCAB

IDS = [random.Random(5).randrange(VOCAB) for _ in range(60)]


class Calls:
    """Counts a model's forward passes."""

    def __init__(self, model: Any) -> None:
        self.number = 0
        self.hook = model.register_forward_pre_hook(self.count)

    def count(self, *_: Any) -> None:
        self.number += 1


def plain(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


@pytest.mark.parametrize("name", ["lfm2", "mamba", "qwen3-next", "falcon-h1"])
@pytest.mark.parametrize("kept", [0, 1, 3, 6])
@torch.inference_mode()
def test_a_state_goes_back_to_any_token_of_the_block(name: str, kept: int, model_of: Callable[[str], Any]) -> None:
    model = model_of(name)
    executor, expected = HfExecutor(model), plain(model, IDS)
    cache = executor.new_cache(64)
    executor.forward([Block(cache, IDS[:20], 20)])
    calls = Calls(model)
    for start in (20, 30, 40):  # more than once: what the first time leaves behind must do for the next
        mark = executor.mark(cache)
        wrong = [(token + 1) % VOCAB for token in IDS[start + kept : start + 8]]
        executor.forward([Block(cache, [*IDS[start : start + kept], *wrong], 0)])
        before = calls.number
        cache = executor.rewind(cache, mark, IDS[start : start + kept])
        del mark
        assert cache.length == start + kept
        assert calls.number == before or name != "lfm2", "a convolution needs no replay"
        logits = executor.forward([Block(cache, IDS[start + kept : start + 10], 0)])
        assert torch.allclose(logits, expected[start + kept : start + 10], atol=2e-4)
    calls.hook.remove()


@torch.inference_mode()
def test_what_nobody_goes_back_to_is_not_kept(model_of: Callable[[str], Any]) -> None:
    model = model_of("lfm2")
    executor, expected = HfExecutor(model), plain(model, IDS)
    cache = executor.new_cache(64)
    executor.forward([Block(cache, IDS[:10], 10)])
    assert isinstance(cache, StateCache)

    def convolutions() -> list[int]:
        return [state.shape[-1] for layer in cache.state.layers for state in getattr(layer, "conv_states", {}).values()]

    working = convolutions()
    mark = executor.mark(cache)
    executor.forward([Block(cache, IDS[10:30], 20)])
    assert convolutions() != working
    twin, _ = executor.fork(cache, 30, 64)
    assert isinstance(twin, StateCache)
    del mark  # every token was accepted
    gc.collect()
    logits = executor.forward([Block(cache, IDS[30:], 0)])
    assert convolutions() == working
    assert torch.allclose(logits, expected[30:], atol=2e-4)
    assert torch.allclose(executor.forward([Block(twin, IDS[30:], 0)]), expected[30:], atol=2e-4)
    assert sum(tensor.nbytes for tensor in tensors_of(twin.state)) == twin.nbytes
    assert [tensor.shape for tensor in tensors_of(twin.state)] == [tensor.shape for tensor in tensors_of(cache.state)]


@torch.inference_mode()
def test_a_library_that_crops_wrongly_is_found_out_at_the_start(
    model_of: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(self: StateCache, mark: Any, tokens: int) -> None:
        self.length = mark.length + tokens

    monkeypatch.setattr(StateCache, "rewind", wrong)
    model = model_of("lfm2")
    executor, expected = HfExecutor(model), plain(model, IDS)
    cache = executor.new_cache(64)
    executor.forward([Block(cache, IDS[:20], 20)])
    mark = executor.mark(cache)
    executor.forward([Block(cache, [1, 2, 3], 0)])
    cache = executor.rewind(cache, mark, ())
    assert torch.allclose(executor.forward([Block(cache, IDS[20:], 0)]), expected[20:], atol=2e-4)
