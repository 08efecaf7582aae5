"""Tiny random models and a tokenizer, made on the spot, and a few ways to drive a worker."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from agent_runtime.decoding.requests import Finished, Ready, RowRequest, Tokens
from agent_runtime.decoding.threads import configure_threads
from agent_runtime.decoding.worker import ModelWorker
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    FalconH1Config,
    Gemma3TextConfig,
    GPT2Config,
    Lfm2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    Qwen3NextConfig,
)
from transformers.utils import logging

logging.set_verbosity_error()
configure_threads(1)

VOCAB = 300
BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 1024,
}
MIXED = ["linear_attention", "full_attention"]
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**BASE),
    "llama-biased": lambda: LlamaConfig(**BASE, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "llama3-rope": lambda: LlamaConfig(
        **BASE,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "qwen2": lambda: Qwen2Config(**BASE, tie_word_embeddings=True),
    "qwen3": lambda: Qwen3Config(**BASE, head_dim=32),
    "qwen3-yarn": lambda: Qwen3Config(
        **BASE,
        head_dim=16,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 256,
        },
    ),
    "mistral": lambda: MistralConfig(**BASE, sliding_window=None),
    "mistral-sliding": lambda: MistralConfig(**BASE, sliding_window=12),
    "gemma3": lambda: Gemma3TextConfig(
        **BASE, head_dim=16, sliding_window=12, layer_types=["sliding_attention", "full_attention"]
    ),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCAB, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0, n_positions=1024
    ),
    "mamba": lambda: MambaConfig(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, state_size=8),
    "lfm2": lambda: Lfm2Config(**BASE, layer_types=["conv", "full_attention"]),
    "qwen3-next": lambda: Qwen3NextConfig(
        **BASE,
        head_dim=16,
        layer_types=MIXED,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        mlp_only_layers=[],
    ),
    "falcon-h1": lambda: FalconH1Config(
        **BASE,
        head_dim=16,
        mamba_d_ssm=64,
        mamba_n_heads=4,
        mamba_d_head=16,
        mamba_n_groups=1,
        mamba_d_state=8,
        mamba_chunk_size=8,
    ),
}


def build(config: Any, seed: int = 0) -> Any:
    """A random model whose logits are spread out, so that greedy choices are not ties."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(3)
        elif parameter.dim() == 1:
            parameter.data.add_(0.2 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="session")
def model_of() -> Callable[[str], Any]:
    """Models by name, each built once."""
    built: dict[str, Any] = {}

    def get(name: str) -> Any:
        if name not in built:
            built[name] = build(CONFIGS[name]())
        return built[name]

    return get


@pytest.fixture(scope="session")
def qwen3(model_of: Callable[[str], Any]) -> Any:
    return model_of("qwen3")


def plain_greedy(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    """Decode without any cache: the whole text through the model for every token."""
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def generate_greedy(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    """Decode with the library's own `generate`."""
    ids = torch.tensor([list(prompt)])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist()


@dataclass
class Run:
    """What one row yielded."""

    ready: Ready | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finished: Finished | None = None


async def collect(worker: ModelWorker, request: RowRequest) -> Run:
    """Submit a row and read it to its end."""
    run = Run()
    async for event in worker.submit(request):
        match event:
            case Ready():
                run.ready = event
            case Tokens():
                run.ids += event.ids
                run.logprobs += event.logprobs
            case Finished():
                run.finished = event
    return run


class Gate:
    """Records every forward of a worker and, once closed, lets them pass one permit at a time."""

    def __init__(self, worker: ModelWorker) -> None:
        self.forwards: list[list[tuple[int, int]]] = []
        """Per forward and block: the cache's length before, the block's tokens."""
        self._permits = threading.Semaphore(0)
        self._open = True
        self._arrived = threading.Semaphore(0)
        self._executor: Any = worker._executor
        self._forward = self._executor.forward_tapped
        self._executor.forward_tapped = self.forward

    def forward(self, blocks: Any, taps: Any) -> Any:
        if not self._open:
            self._arrived.release()
            assert self._permits.acquire(timeout=30)
        self.forwards.append([(block.cache.length, len(block.tokens)) for block in blocks])
        return self._forward(blocks, taps)

    def close(self) -> None:
        self._open = False

    def wait_for_a_forward(self) -> None:
        """Block until the model thread stands before a forward."""
        assert self._arrived.acquire(timeout=30)

    def let_pass(self, count: int = 1) -> None:
        self._permits.release(count)

    def open(self) -> None:
        self._open = True
        self._permits.release(10_000)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE trained on a few calls."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    text = '{"name":"get_order","arguments":{"order_id":"A-1001"}} no call hello world weather in Paris "city"'
    bpe.train_from_iterator(
        [text] * 20,
        trainers.BpeTrainer(
            vocab_size=VOCAB,
            special_tokens=["<eos>", "<tool_call>", "</tool_call>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<eos>")


# -- laws: every sequence of a few tokens against what was drawn ----------------------------------------------------

Sequence3 = tuple[int, ...]


def sequence_law(following: Callable[[Sequence3], Sequence[float]], length: int = 3) -> dict[Sequence3, float]:
    """The exact probability of every sequence of `length` tokens, given the law of the token after each beginning."""
    law: dict[Sequence3, float] = {(): 1.0}
    for _ in range(length):
        law = {(*begun, token): p * q for begun, p in law.items() if p for token, q in enumerate(following(begun))}
    return law


def chi_square(counts: Counter[Sequence3], law: dict[Sequence3, float]) -> float:
    """The p-value of Pearson's test; cells that expect fewer than 5 are merged. 0 if something impossible was drawn."""
    drawn = sum(counts.values())
    if any(not law.get(cell) for cell in counts):
        return 0.0
    statistic, cells, rest, rest_expected = 0.0, 0, 0, 0.0
    for cell, p in law.items():
        expected = p * drawn
        if expected < 5:
            rest, rest_expected = rest + counts[cell], rest_expected + expected
        else:
            statistic, cells = statistic + (counts[cell] - expected) ** 2 / expected, cells + 1
    if rest_expected >= 5:
        statistic, cells = statistic + (rest - rest_expected) ** 2 / rest_expected, cells + 1
    if cells < 2:
        return 1.0
    half = torch.tensor([(cells - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def law_p_values(counts: Counter[Sequence3], law: dict[Sequence3, float]) -> list[float]:
    """P-values for whole sequences and for the token at each position, which shows small faults sooner."""
    values = [chi_square(counts, law)]
    for at in range(len(next(iter(law)))):
        at_counts: Counter[Sequence3] = Counter()
        at_law: dict[Sequence3, float] = {}
        for cell, count in counts.items():
            at_counts[cell[at : at + 1]] += count
        for cell, p in law.items():
            at_law[cell[at : at + 1]] = at_law.get(cell[at : at + 1], 0.0) + p
        values.append(chi_square(at_counts, at_law))
    return values
