"""Tiny random models in folders of their own, and a model thread that writes what a test says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from agent_runtime.decoding.requests import Finished, Ready, RowRequest, Tokens
from agent_runtime.decoding.threads import configure_threads
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from agent_runtime.engines.base import ToolSchema
from agent_runtime.engines.local import LocalEngine

logging.set_verbosity_error()
logging.disable_progress_bar()
configure_threads(1)

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|speculate|>")
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
TEMPLATE = """
{%- if tools %}{{ '<|im_start|>system\n' }}{% for tool in tools %}{{ tool.function | tojson }}{{ '\n' }}{% endfor %}
{{- '<|im_end|>\n' }}{% endif %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}
{%- if m.reasoning_content and loop.last %}{{ '<think>\n' + m.reasoning_content + '\n</think>\n' }}{% endif %}
{{- m.content }}
{%- for call in m.tool_calls or [] %}{{ '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}
""".strip()
"""ChatML that drops the thinking of earlier turns."""
RESPONSE_TEMPLATE = {
    "version": 1,
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open_pattern": r"<think>\n?", "close_pattern": r"\n?</think>\n?", "content": "text"},
        "tool_calls": {
            "open_pattern": r"\n?<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"content": "text"},
    },
}
TOOLS = (
    ToolSchema(
        name="get_order",
        description="Look an order up.",
        parameters={
            "type": "object",
            "properties": {
                "order_id": {"type": "string", "maxLength": 4},
                "part": {"enum": ["items", "status"]},
                "count": {"type": "integer", "minimum": 0, "maximum": 99},
            },
            "required": ["order_id"],
        },
    ),
    ToolSchema(name="list_orders", description="List them.", parameters={"type": "object", "properties": {}}),
)


def byte_tokenizer(*, trained: bool) -> PreTrainedTokenizerFast:
    """A token per byte, and the control tokens of ChatML; `trained` declares parsing and speculator mode."""
    vocabulary = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    raw.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKS])
    declared: dict[str, Any] = {}
    if trained:
        declared["response_template"] = RESPONSE_TEMPLATE
        declared["speculator"] = {"suffix": "<|speculate|>", "no_call": "<|im_end|>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
        **declared,
    )


def random_model(tokenizer: PreTrainedTokenizerFast, *, seed: int = 0, context: int = 4096) -> Qwen3ForCausalLM:
    """A random Qwen3 whose logits are spread out, so that greedy choices are no ties."""
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer) + 8,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            intermediate_size=64,
            max_position_embeddings=context,
            eos_token_id=tokenizer.eos_token_id,
        )
    ).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(4)
    model.generation_config = GenerationConfig(do_sample=False, eos_token_id=tokenizer.eos_token_id)
    return model


@pytest.fixture(scope="session")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Write a tiny random model; each kind once."""
    made: dict[tuple[Any, ...], Path] = {}

    def make(*, trained: bool = True, seed: int = 0, context: int = 4096) -> Path:
        key = (trained, seed, context)
        if key not in made:
            folder = tmp_path_factory.mktemp("model")
            tokenizer = byte_tokenizer(trained=trained)
            tokenizer.save_pretrained(folder)
            random_model(tokenizer, seed=seed, context=context).save_pretrained(folder)
            made[key] = folder
        return made[key]

    return make


@pytest.fixture(scope="session")
def folder(make_folder: Callable[..., Path]) -> Path:
    return make_folder()


@pytest.fixture
def broken_folder(
    make_folder: Callable[..., Path], tmp_path: Path
) -> Callable[[Callable[[dict[str, Any]], None]], Path]:
    """Copy the folder with its tokenizer_config.json changed."""

    def copy(change: Callable[[dict[str, Any]], None]) -> Path:
        for file in make_folder(trained=False).iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        path = tmp_path / "tokenizer_config.json"
        config = json.loads(path.read_text())
        change(config)
        path.write_text(json.dumps(config))
        return tmp_path

    return copy


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class PuppetRow:
    """A row that emits what it was told; the last item waits for `gate` if there is one."""

    def __init__(
        self, request: RowRequest, steps: Sequence[Sequence[int]], reason: str, gate: anyio.Event | None
    ) -> None:
        self.request = request
        self._steps = steps
        self._reason = reason
        self._gate = gate
        self._cancelled = False
        self.emitted: list[int] = []
        self._events = self._play()

    async def _play(self) -> Any:
        yield Ready(prompt_tokens=len(self.request.prompt), reused_tokens=0, bytes_copied=0)
        for step in self._steps:
            self.emitted += step
            yield Tokens(ids=tuple(step), logprobs=(0.0,) * len(step))
        if self._gate is not None:
            await self._gate.wait()
        yield Finished(
            reason="cancelled" if self._cancelled else self._reason,  # type: ignore[arg-type]
            new_tokens=len(self.emitted),
            forwards=len(self._steps),
            shared_forwards=0,
            prefill_s=0.0,
            decode_s=0.0,
            slowdown_s=0.0,
        )

    def __aiter__(self) -> Any:
        return self._events

    @property
    def tokens_so_far(self) -> tuple[int, ...]:
        return tuple(self.emitted)

    def cancel(self) -> None:
        self._cancelled = True
        if self._gate is not None:
            self._gate.set()

    async def aclose(self) -> None:
        self.cancel()
        await self._events.aclose()


class PuppetWorker:
    """Stands in for the model thread: every row says `text`, `size` tokens a step, and ends with `reason`."""

    def __init__(self, tokenizer: Any, text: str, *, size: int, reason: str, gate: anyio.Event | None) -> None:
        ids = tokenizer.encode(text, add_special_tokens=False)
        self._steps = [ids[start : start + size] for start in range(0, len(ids), size)]
        self._reason = reason
        self._gate = gate
        self.requests: list[RowRequest] = []
        self.vocab_size = len(tokenizer)

    def submit(self, request: RowRequest) -> PuppetRow:
        self.requests.append(request)
        return PuppetRow(request, self._steps, self._reason, self._gate)

    def forget(self, owner: str) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture(scope="session")
def engines(make_folder: Callable[..., Path]) -> Iterator[Callable[..., LocalEngine]]:
    """Engines by kind of model, each loaded once for all tests."""
    made: dict[tuple[Any, ...], LocalEngine] = {}

    def get(*, trained: bool = True, seed: int = 0, context: int = 4096) -> LocalEngine:
        key = (trained, seed, context)
        if key not in made:
            made[key] = LocalEngine(make_folder(trained=trained, seed=seed, context=context), device="cpu")
        return made[key]

    yield get
    for engine in made.values():
        anyio.run(engine.aclose)


@pytest.fixture
def puppet(engines: Callable[..., LocalEngine]) -> Any:
    """Open a session whose model says a given text."""

    async def open_session(
        text: str, *, trained: bool = True, size: int = 3, reason: str = "eos", gate: anyio.Event | None = None
    ) -> Any:
        engine = engines(trained=trained)
        session = await engine.open(TOOLS)
        from dataclasses import replace

        worker = PuppetWorker(session._model.tokenizer, text, size=size, reason=reason, gate=gate)
        session._model = replace(session._model, worker=worker)  # type: ignore[type-var]
        return session

    return open_session
