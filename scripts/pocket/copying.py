"""Warm-up exercises: facts in prose or JSON, repeated in another order and another notation.

They look nothing like a request, so they teach looking things up without teaching a wrong way to answer.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from agent_runtime.demo.shop.names import NOUNS, Names


def lookups(seed: int, n: int) -> Iterator[dict[str, Any]]:
    """Yield `n` exercises as trajectories of one request and one answer."""
    for index in range(n):
        rng = random.Random(f"lookup/{seed}/{index}")
        facts = _facts(rng, Names(rng, "train"))
        told, asked = rng.sample(facts, len(facts)), rng.sample(facts, rng.randint(3, len(facts)))
        forms = rng.choice((("prose", "json"), ("json", "prose"), ("json", "json"), ("prose", "prose")))
        yield {
            "messages": [
                {"role": "user", "content": _write(told, forms[0], rng)},
                {"role": "assistant", "content": _write(asked, forms[1], rng)},
            ]
        }


def _facts(rng: random.Random, names: Names) -> list[tuple[str, str]]:
    """Draw pairs of a key and a value; keys and values are of any kind."""
    facts: list[tuple[str, str]] = []
    count = rng.randint(5, 9)
    while len(facts) < count:
        name, email = names.person()
        pool = [
            names.order_id(),
            names.identifier("C", 3),
            names.identifier("P", 3),
            names.identifier("T", 4),
            f"{names.brand()} {rng.choice(NOUNS)}",
            name,
            email,
            email,
        ]
        key, value = rng.sample(pool, 2)
        if key != value:
            facts.append((key, value))
    return facts


def _write(facts: list[tuple[str, str]], form: str, rng: random.Random) -> str:
    if form == "json":
        compact = rng.random() < 0.5
        return json.dumps(dict(facts), separators=(",", ":") if compact else (", ", ": "))
    link, stop = rng.choice(((" is ", ". "), (" has ", ", "), (": ", ". "), (" ", ", ")))
    return stop.join(f"{key}{link}{value}" for key, value in facts) + rng.choice((".", "", "!"))
