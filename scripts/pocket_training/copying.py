"""Warm-up exercises: facts repeated in another order and another notation, and many comparisons in a row.

They look nothing like a request, so they teach looking things up and comparing without teaching a wrong way to
answer. Every token of an answer teaches something, where a whole conversation has one or two comparisons.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from agent_runtime.demo.shop.names import NOUNS, Names
from agent_runtime.demo.shop.thinking import BEST_RATED, CHEAPEST_PRODUCT, RULES, Row, pick


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


def comparisons(seed: int, n: int) -> Iterator[dict[str, Any]]:
    """Yield `n` exercises that walk over several lists as the agent's thinking does."""
    rules = (*RULES.values(), CHEAPEST_PRODUCT, BEST_RATED)
    for index in range(n):
        rng = random.Random(f"comparison/{seed}/{index}")
        names = Names(rng, "train")
        asked, answers = [], []
        for _ in range(rng.randint(3, 5)):
            rule = rng.choice(rules)
            values = _values(rule.field, rng, names, rng.randint(2, 6))
            labels = [names.order_id() if rule.field in ("date", "total") else names.identifier("P", 3) for _ in values]
            thinking, _ = pick([Row(label, "", value) for label, value in zip(labels, values, strict=True)], rule)
            listed = ", ".join(f"{label} {value}" for label, value in zip(labels, values, strict=True))
            asked.append(f"{rule.title}: {listed}")
            answers.append(thinking)
        yield {
            "messages": [
                {"role": "user", "content": "walk " + "; ".join(asked)},
                {"role": "assistant", "content": "\n".join(answers)},
            ]
        }


def _values(field: str, rng: random.Random, names: Names, count: int) -> list[Any]:
    """Draw distinct values, often close to each other."""
    values: list[Any] = []
    while len(values) < count:
        if field == "date":
            value: Any = names.date()
            if values and rng.random() < 0.3:
                value = values[-1][:3] + value[3:]
        elif field == "rating":
            value = rng.randint(21, 49) / 10
        else:
            value = rng.randint(11, 99) if rng.random() < 0.75 else rng.randint(100, 240)
            if values and rng.random() < 0.2:
                value = max(11, values[-1] + rng.randint(-9, 9))
        if value not in values:
            values.append(value)
    return values


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
