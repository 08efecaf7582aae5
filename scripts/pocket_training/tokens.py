"""The tokenizer, the chat template and what else ships beside the weights."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY = 1024
SPECULATE = "<|speculate|>"
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", SPECULATE)
"""Tokens that decoding skips."""
MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Tokens that decoding keeps, because parsers look for them."""

PIECES = r"\p{L}+|\p{N}|\n|[^\p{L}\p{N}\n]+"
"""Merges stay inside a word or a run of punctuation: no word carries the space or quote before it, so a name in
prose and the same name in JSON are the same tokens. Digits and newlines are single."""

TEMPLATE = Path(__file__).with_name("chat_template.jinja")

RESPONSE_TEMPLATE: dict[str, Any] = {
    "version": 1,
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {
            "open_pattern": r"<think>\n?",
            "close_pattern": r"\n?</think>\n?",
            "content": "text",
        },
        "tool_calls": {
            "open_pattern": r"\n?<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\n?|<\|endoftext\|>", "content": "text"},
    },
}


def train_tokenizer(texts: Iterable[str], vocabulary: int = VOCABULARY) -> Tokenizer:
    """Train a byte-level BPE whose merges never cross the border of a word, a digit or a newline."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(CONTROL) - len(MARKUP),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKUP])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the tokenizer, its configuration and the chat template in Hugging Face format."""
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=["<|im_start|>", SPECULATE],
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE.read_text(),
    )
    fast.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config["response_template"] = RESPONSE_TEMPLATE
    config["speculator"] = {"suffix": SPECULATE, "no_call": "<|im_end|>"}
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")
