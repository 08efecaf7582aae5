"""The lean executor computes what the library's forward computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from agent_runtime.decoding.errors import ModelUnsupported
from agent_runtime.decoding.executor import FINAL, Block, choose_executor
from agent_runtime.decoding.lean import LeanExecutor, why_not_lean
from agent_runtime.decoding.linear import Linear, pack
from agent_runtime.decoding.memory import available_bytes
from agent_runtime.decoding.one_row import OneRow, why_not_one_row
from transformers import AutoModelForCausalLM, Qwen3Config

from .conftest import BASE, CONFIGS, VOCAB, build

LEAN = ["llama", "llama-biased", "llama3-rope", "qwen2", "qwen3", "qwen3-yarn", "mistral"]


def reference(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids])).logits[0]


def some_ids(count: int, seed: int = 0) -> list[int]:
    return torch.randint(0, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("name", LEAN)
@torch.inference_mode()
def test_ragged_blocks_give_the_logits_of_the_plain_forward(name: str) -> None:
    model = build(CONFIGS[name]())
    ids, other = some_ids(90), some_ids(60, seed=1)
    expected, expected_other = reference(model, ids), reference(model, other)
    executor = LeanExecutor(model)
    a, b = executor.new_cache(4), executor.new_cache(200)
    parts = [(0, 40, 0, 7), (40, 41, 7, 8), (41, 42, 8, 30), (42, 90, 30, 60)]
    ours, ours_other = [], []
    for start, end, other_start, other_end in parts:
        logits = executor.forward([Block(a, ids[start:end], 0), Block(b, other[other_start:other_end], 0)])
        ours.append(logits[: end - start])
        ours_other.append(logits[end - start :])
    scale = expected.abs().max()
    assert (torch.cat(ours) - expected).abs().max() < 1e-5 * scale
    assert (torch.cat(ours_other) - expected_other).abs().max() < 1e-5 * scale
    assert (a.length, b.length) == (90, 60)


@pytest.mark.parametrize("several_threads", [False, True])
@pytest.mark.parametrize("name", LEAN)
@torch.inference_mode()
def test_single_tokens_give_the_logits_of_the_plain_forward(
    name: str, several_threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if several_threads:  # products and all else are torch's then
        monkeypatch.setattr("agent_runtime.decoding.lean.why_not_one_row", lambda executor: "there are several threads")
    model = build(CONFIGS[name]())
    ids = some_ids(300, seed=2)
    expected = reference(model, ids)
    executor = LeanExecutor(model)
    cache = executor.new_cache(4)
    ours = torch.cat([executor.forward([Block(cache, [token], 0)]) for token in ids])
    assert (ours - expected).abs().max() < 1e-5 * expected.abs().max()
    assert cache.length == 300
    executor.crop(cache, 120)
    again = torch.cat([executor.forward([Block(cache, [token], 0)]) for token in ids[120:140]])
    assert torch.equal(again, ours[120:140])


@torch.inference_mode()
def test_a_single_tokens_states_are_those_of_a_block_and_stay_as_they_are(qwen3: Any) -> None:
    executor = LeanExecutor(qwen3)
    ids, taps = some_ids(30), (0, 1, FINAL)
    one, block = executor.new_cache(30), executor.new_cache(30)
    executor.forward([Block(one, ids[:28], 28)])
    logits, states = executor.forward_tapped([Block(one, ids[28:29], 0)], taps)
    kept = [logits.clone(), *(state.clone() for state in states)]
    executor.forward([Block(one, ids[29:], 0)])  # the next step may not write over what this one returned
    assert all(torch.equal(a, b) for a, b in zip([logits, *states], kept, strict=True))
    expected, expected_states = executor.forward_tapped([Block(block, ids[:29], 28)], taps)
    assert torch.allclose(logits, expected, atol=1e-5)
    for ours, theirs in zip(states, expected_states, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


@torch.inference_mode()
def test_two_tokens_go_one_by_one_and_leave_no_trace_where_the_second_fails(
    qwen3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, ids = LeanExecutor(qwen3), some_ids(40)
    expected = reference(qwen3, ids)
    a, b = executor.new_cache(40), executor.new_cache(40)
    executor.forward([Block(a, ids[:20], 20), Block(b, ids[:30], 30)])
    real = OneRow.run

    def failing(self: OneRow, cache: Any, *arguments: Any) -> Any:
        if cache is b:
            raise MemoryError
        return real(self, cache, *arguments)

    monkeypatch.setattr(OneRow, "run", failing)
    with pytest.raises(MemoryError):
        executor.forward([Block(a, ids[20:21], 0), Block(b, ids[30:31], 0)])
    assert (a.length, b.length) == (20, 30)
    monkeypatch.undo()
    rows = executor.forward([Block(a, ids[20:21], 0), Block(b, ids[30:31], 0)])
    chain = executor.forward([Block(a, ids[21:23], 0)])
    assert torch.allclose(torch.cat([rows, chain]), expected[[20, 30, 21, 22]], atol=1e-4)
    siblings = executor.forward([Block(b, [ids[31], ids[31]], 0, tree=(-1, -1))])
    assert torch.allclose(siblings, expected[[31, 31]], atol=1e-4)


def test_one_row_is_for_float32_and_one_thread_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not_one_row(LeanExecutor(build(CONFIGS["qwen2"]()))) is None
    assert "float32" in str(why_not_one_row(LeanExecutor(build(CONFIGS["qwen3"]()).to(torch.bfloat16))))
    assert "biases" in str(why_not_one_row(LeanExecutor(build(CONFIGS["llama-biased"]()))))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert "threads" in str(why_not_one_row(LeanExecutor(build(CONFIGS["qwen3"]()))))


@torch.inference_mode()
def test_28_layers_stay_within_1e_4() -> None:
    model = build(Qwen3Config(**{**BASE, "num_hidden_layers": 28}, head_dim=32))
    ids = some_ids(50)
    expected = reference(model, ids)
    executor = LeanExecutor(model)
    cache = executor.new_cache(64)
    ours = torch.cat([executor.forward([Block(cache, [token], 0)]) for token in ids])
    assert (ours - expected).norm() / expected.norm() < 1e-4


@torch.inference_mode()
def test_only_the_wanted_logits_are_computed_and_they_are_the_right_ones(qwen3: Any) -> None:
    executor = LeanExecutor(qwen3)
    ids = some_ids(20)
    expected = reference(qwen3, ids)
    a, b = executor.new_cache(1), executor.new_cache(1)
    logits = executor.forward([Block(a, ids, 20), Block(b, ids, 18)])
    assert logits.shape == (2, VOCAB)
    assert torch.allclose(logits, expected[18:], atol=1e-4)


@torch.no_grad()
def test_the_loaded_model_shares_the_fused_weights_and_stays_usable() -> None:
    model = build(CONFIGS["qwen2"]())
    ids = some_ids(12)
    before = reference(model, ids)
    held = sum(p.nbytes for p in model.parameters())
    executor = LeanExecutor(model)
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.parameters()}
    assert sum(storages.values()) <= held
    assert executor.layers[0].qkv.weight.data_ptr() == model.model.layers[0].self_attn.q_proj.weight.data_ptr()
    assert torch.allclose(reference(model, ids), before, atol=1e-5)
    with torch.enable_grad():
        model(input_ids=torch.tensor([ids])).logits.sum().backward()
    assert model.model.layers[0].self_attn.q_proj.weight.grad is not None


@torch.inference_mode()
def test_a_model_in_bfloat16_stays_near_the_library(tmp_path: Any) -> None:
    model = build(CONFIGS["qwen3"]()).to(torch.bfloat16)
    ids = some_ids(30)
    expected = reference(model, ids).float()
    executor = LeanExecutor(model)
    cache = executor.new_cache(64)
    ours = torch.cat([executor.forward([Block(cache, ids[:20], 0)]), executor.forward([Block(cache, ids[20:21], 0)])])
    assert (ours - expected[:21]).norm() / expected[:21].norm() < 0.03


def test_models_it_cannot_run_are_named_with_the_reason() -> None:
    assert "sliding" in str(why_not_lean(build(CONFIGS["mistral-sliding"]())))
    assert "gemma3" in str(why_not_lean(build(CONFIGS["gemma3"]())))
    dynamic = Qwen3Config(**BASE, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
    model = AutoModelForCausalLM.from_config(dynamic)
    assert "rotation 'dynamic'" in str(why_not_lean(model))
    with pytest.raises(ModelUnsupported, match="dynamic"), torch.inference_mode():
        choose_executor(model, "lean")


@torch.inference_mode()
def test_packed_products_equal_plain_ones_for_every_number_of_rows() -> None:
    torch.manual_seed(0)
    for bias in (None, torch.randn(48)):
        layer = Linear(torch.randn(48, 32), bias)
        if not pack([layer]):
            pytest.skip("this build of torch has no packed products")
        for rows in (1, 2, 3, 5, 8, 17, 64):
            x, residual = torch.randn(rows, 32), torch.randn(rows, 48)
            expected = x @ layer.weight if bias is None else x @ layer.weight + bias
            assert torch.allclose(layer(x), expected, atol=1e-5)
            assert torch.allclose(layer.add_to(residual, x), residual + expected, atol=1e-5)


def test_low_precision_weights_and_what_does_not_fit_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not pack([Linear(torch.randn(4, 4, dtype=torch.bfloat16), None)])
    large = [Linear(torch.randn(48, 32), None)]
    monkeypatch.setattr("agent_runtime.decoding.linear.PACKED_BYTES", 1000)
    for free in (None, 3 * large[0].weight.nbytes):
        monkeypatch.setattr("agent_runtime.decoding.linear.available_bytes", lambda free=free: free)
        assert not pack(large) and large[0].packed is None
    monkeypatch.setattr("agent_runtime.decoding.linear.available_bytes", lambda: 5 * large[0].weight.nbytes)
    assert pack(large) or not torch.backends.mkldnn.is_available()


def test_free_memory_is_that_of_the_machine_or_of_the_container_whichever_is_less(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr("agent_runtime.decoding.memory.MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr("agent_runtime.decoding.memory.CGROUP", tmp_path)
    (tmp_path / "meminfo").write_text("MemTotal:   900 kB\nMemAvailable:   500 kB\n")
    assert available_bytes() == 500 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert available_bytes() == 500 * 1024
    (tmp_path / "memory.max").write_text("101000\n")
    assert available_bytes() == 100_000
    (tmp_path / "meminfo").write_text("nothing that is known")
    assert available_bytes() == 100_000 or available_bytes() is not None
