"""The demo's model as it ships: any tool that reads Hugging Face folders can use it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils.chat_parsing import ResponseParser

from agent_runtime.demo import pocket
from agent_runtime.demo.shop.generate import generate
from agent_runtime.demo.shop.instructions import INSTRUCTIONS

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from pocket_training.decoding import Decoder
from pocket_training.folder import read
from pocket_training.prompts import system_text, tool_schemas
from pocket_training.samples import Encoder, render_turn

FOLDER = Path(pocket.__file__).parent


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(FOLDER).eval()


def conversation(task: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "system", "content": INSTRUCTIONS}, *task["messages"]]


def render(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]], prompt: bool = False) -> str:
    return str(
        tokenizer.apply_chat_template(messages, tools=tool_schemas(), tokenize=False, add_generation_prompt=prompt)
    )


def test_the_folder_is_small_and_of_a_known_architecture(model: Any) -> None:
    assert (FOLDER / "model.safetensors").stat().st_size <= 16_000_000
    assert sum(parameter.numel() for parameter in model.parameters()) <= 8_000_000
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert model.dtype == torch.float32
    assert model.config.max_position_embeddings == 2048


def test_the_special_tokens_are_those_the_configurations_name(tokenizer: PreTrainedTokenizerBase, model: Any) -> None:
    assert tokenizer.eos_token == "<|im_end|>" and tokenizer.pad_token == "<|endoftext|>"
    assert model.generation_config.eos_token_id == model.config.eos_token_id == tokenizer.eos_token_id
    assert model.config.vocab_size == len(tokenizer)
    text = "<think>\na\n</think>\n<tool_call>\n{}\n</tool_call><|im_end|><|speculate|>"
    kept = tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True)
    assert kept == "<think>\na\n</think>\n<tool_call>\n{}\n</tool_call>"


def test_the_speculator_is_declared_in_the_tokenizer_configuration(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    declared = {"suffix": "<|speculate|>", "no_call": "<|im_end|>"}
    assert json.loads((FOLDER / "tokenizer_config.json").read_text())["speculator"] == declared
    assert tokenizer.init_kwargs["speculator"] == declared
    for text in declared.values():
        assert len(tokenizer(text)["input_ids"]) == 1


def test_the_template_renders_exactly_the_tokens_of_the_training(tokenizer: PreTrainedTokenizerBase) -> None:
    encoder = Encoder(tokenizer.backend_tokenizer)
    for task in generate(21, "test", 60):
        ids = [*encoder.encode(system_text()), *encoder.sample(task["messages"], None).ids]
        assert tokenizer(render(tokenizer, conversation(task)), add_special_tokens=False)["input_ids"] == ids


def test_a_prompt_and_what_is_said_after_it_are_the_history_of_the_next_turn(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    for task in generate(22, "test", 40):
        messages = conversation(task)
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                before = render(tokenizer, messages[:index], prompt=True)
                after = render(tokenizer, messages[: index + 1])
                assert after == before + render_turn(message) + "\n"


def test_arguments_may_be_text_and_calls_may_carry_ids(tokenizer: PreTrainedTokenizerBase) -> None:
    arguments = {"customer_id": "C-101", "product_id": "P-202", "quantity": 2}
    plain = {"type": "function", "function": {"name": "place_order", "arguments": arguments}}
    text = {"id": "call-1", **plain, "function": {"name": "place_order", "arguments": json.dumps(arguments)}}
    rendered = [
        render(
            tokenizer,
            [
                {"role": "user", "content": "hello"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call-1", "content": "{}"},
            ],
            prompt=True,
        )
        for call in (plain, text)
    ]
    assert rendered[0] == rendered[1]
    assert (
        '{"name": "place_order", "arguments": {"customer_id": "C-101", "product_id": "P-202", "quantity": 2}}'
        in rendered[0]
    )


def test_the_library_parses_a_response_in_one_piece_and_streamed(tokenizer: PreTrainedTokenizerBase) -> None:
    for task in generate(23, "test", 40):
        messages = conversation(task)
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            prefix, said = render(tokenizer, messages[:index], prompt=True), render_turn(message)
            expected = {key: message[key] for key in ("reasoning_content", "content", "tool_calls") if message.get(key)}
            parsed = tokenizer.parse_response(said, prefix=prefix)
            assert {key: value for key, value in parsed.items() if key != "role"} == expected
            stream = ResponseParser(tokenizer.response_template, prefix=prefix)
            closed = [
                event["value"]
                for character in said
                for event in stream.feed(character)
                if event["type"] == "region_close" and event["field"] == "tool_calls"
            ]
            assert closed == message.get("tool_calls", [])
            assert stream.finalize()[0] == parsed


def test_the_network_of_the_training_and_the_library_compute_the_same(
    tokenizer: PreTrainedTokenizerBase, model: Any
) -> None:
    network, _ = read(FOLDER)
    task = next(iter(generate(24, "test", 1)))
    ids = tokenizer(render(tokenizer, conversation(task)), add_special_tokens=False)["input_ids"]
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0, -1]
    torch.testing.assert_close(Decoder(network, 1).feed([ids])[0], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("order_id", ["O-4821", "O-1175"])
@pytest.mark.parametrize("speculate", [False, True])
def test_it_copies_an_order_number_into_its_first_call(
    tokenizer: PreTrainedTokenizerBase, model: Any, order_id: str, speculate: bool
) -> None:
    messages = [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": f"Where is my order {order_id}?"},
    ]
    prompt = render(tokenizer, messages, prompt=True) + ("<|speculate|>" if speculate else "")
    inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
    with torch.inference_mode():
        output = model.generate(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=40
        )
    said = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    call = f'<tool_call>\n{{"name": "get_order", "arguments": {{"order_id": "{order_id}"}}}}\n</tool_call>'
    assert said.startswith(call)
