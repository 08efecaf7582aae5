"""Renames the people, domains and brands of a trajectory, so that copying works for any word, not just the shop's.

The generator's invented words share one pattern. Customers have other names: words strung together from random
entries of the vocabulary teach the model to copy whatever stands there.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from agent_runtime.demo.shop.names import split_of

_EMAIL = re.compile(r"[\w.-]+@([\w-]+)\.\w+")
_NAMED = re.compile(r'"(?:item|name)":"([^"]+)"')
_WORD = re.compile(r"[a-z]+")
_KEPT = re.compile(r"^(?:.{1,2}|com|org|net)$")


def word_parts(tokenizer: Tokenizer) -> list[str]:
    """Return the vocabulary's entries that are lower-case letters only."""
    return sorted(text for text in tokenizer.get_vocab() if re.fullmatch(r"[a-z]+", text))


def random_word(parts: Sequence[str], rng: random.Random) -> str:
    """String parts together to a word of three to eleven letters that a test would not use."""
    while True:
        word = "".join(rng.choices(parts, k=rng.choice((1, 2, 2, 3, 3))))
        if 3 <= len(word) <= 11 and split_of(word) == "train":
            return word


def rename(messages: Sequence[dict[str, Any]], parts: Sequence[str], rng: random.Random) -> list[dict[str, Any]]:
    """Return the messages with every name, email and brand replaced throughout; nouns of products stay."""
    text = "\n".join(message.get("content") or "" for message in messages)
    words: set[str] = set()
    for found in _EMAIL.finditer(text):
        words.update(_WORD.findall(found[0].rsplit(".", 1)[0].lower()))
    for found in _NAMED.finditer(text):
        named = found[1].split()
        words.update(word.lower() for word in (named[:1] if named[-1].islower() else named))
    table = {word: random_word(parts, rng) for word in sorted(words) if not _KEPT.match(word)}
    if not table:
        return list(messages)
    pattern = re.compile(rf"(?<![A-Za-z])(?:{'|'.join(table)})(?![A-Za-z])", re.IGNORECASE)

    def replaced(found: re.Match[str]) -> str:
        word = table[found[0].lower()]
        return word.capitalize() if found[0][0].isupper() else word

    def walk(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub(replaced, value)
        if isinstance(value, list):
            return [walk(item) for item in value]
        if isinstance(value, dict):
            return {key: item if key in ("role", "name", "type") else walk(item) for key, item in value.items()}
        return value

    return [walk(message) for message in messages]
