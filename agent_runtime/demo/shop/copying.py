"""Warm-up texts: copy a value out of prose or JSON, and think over rows as the real tasks do.

A model of this size learns to copy only after many plain examples. Each text is a prompt and its answer;
prompts begin with ``facts:`` or ``rows:`` and end in ``->`` and what is wanted, so that none looks like a
customer's request answered without its thinking.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from . import thinking
from .builder import STATUSES
from .names import CITIES, NOUNS, Names
from .store import to_json
from .thinking import BEST_RATED, CHEAPEST_PRODUCT, RULES, Row
from .world import Customer

Text = tuple[str, str]

_PROSE = (
    "{name} writes from {email} about {order} and the {product}.",
    "The {product} belongs to {order}. {name} has the address {email}.",
    "{email} is {name}, the parcel is {order}, in it a {product}.",
    "In {order} there is one {product}, it goes to {name}, {email}.",
    "We know {email}, that is {name}, by {order}; the {product} is theirs.",
    "It was {product} ({order}) for {name} ({email}).",
)
_KEYS = ("name", "email", "order", "product")


def copy_tasks(seed: int, n: int) -> Iterator[Text]:
    """Yield `n` pairs of prompt and answer made of the training split's words; the same for the same seed."""
    makers: tuple[tuple[Callable[[random.Random, Names], Text], float], ...] = (
        (_echo, 1.0),
        (_from_prose, 3.0),
        (_from_rows, 2.5),
        (_pick_order, 2.0),
        (_pick_product, 1.5),
        (_select_orders, 1.0),
        (_check_rules, 1.0),
    )
    functions, weights = zip(*makers, strict=True)
    for index in range(n):
        rng = random.Random(f"copy/{seed}/{index}")
        yield rng.choices(functions, weights)[0](rng, Names(rng, "train"))


def _facts(names: Names, rng: random.Random) -> dict[str, str]:
    name, email = names.person()
    product = f"{names.brand()} {rng.choice(NOUNS)}"
    return {"name": name, "email": email, "order": names.order_id(), "product": product}


def _echo(rng: random.Random, names: Names) -> Text:
    values = [value for _ in range(rng.randint(1, 2)) for value in _facts(names, rng).values()]
    values = rng.sample(values, rng.randint(2, 4))
    return f"facts: {', '.join(values)} -> all", ", ".join(values)


def _from_prose(rng: random.Random, names: Names) -> Text:
    people = [_facts(names, rng) for _ in range(rng.choice((1, 1, 2)))]
    prose = " ".join(rng.choice(_PROSE).format(**facts) for facts in people)
    if len(people) == 1:
        keys = rng.sample(_KEYS, rng.choice((1, 1, 2, 3)))
        if rng.random() < 0.5:
            return f"facts: {prose} -> json {', '.join(keys)}", to_json({key: people[0][key] for key in keys})
        return f"facts: {prose} -> {', '.join(keys)}", ", ".join(people[0][key] for key in keys)
    wanted, by = rng.sample(_KEYS, 2)
    facts = rng.choice(people)
    return f"facts: {prose} -> {wanted} of {facts[by]}", facts[wanted]


def _order_row(names: Names, rng: random.Random) -> dict[str, Any]:
    return {
        "order_id": names.order_id(),
        "item": f"{names.brand()} {rng.choice(NOUNS)}",
        "total": rng.randint(11, 99) if rng.random() < 0.85 else rng.randint(100, 240),
        "date": names.date(),
        "status": rng.choice(STATUSES),
    }


def _product_row(names: Names, rng: random.Random) -> dict[str, Any]:
    return {
        "product_id": names.identifier("P", 3),
        "name": f"{names.brand()} {rng.choice(NOUNS)}",
        "price": rng.randint(11, 99) if rng.random() < 0.85 else rng.randint(100, 240),
        "stock": rng.randint(0, 9),
    }


def _distinct(make: Callable[[], dict[str, Any]], count: int, field: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        row = make()
        if all(row[field] != other[field] for other in rows):
            rows.append(row)
    return rows


def _from_rows(rng: random.Random, names: Names) -> Text:
    kind = rng.randrange(3)
    if kind == 0:
        rows = _distinct(lambda: _order_row(names, rng), rng.randint(1, 3), "total")
    elif kind == 1:
        rows = _distinct(lambda: _product_row(names, rng), rng.randint(1, 3), "price")
    else:
        name, email = names.person()
        customer = Customer(names.identifier("C", 3), name, email, rng.choice(("basic", "silver", "gold")))
        shipment = {"tracking_id": names.identifier("T", 4), "city": rng.choice(CITIES), "eta": names.date()}
        rows = [asdict(customer), shipment]
    row = rng.choice(rows)
    key = next(iter(row))
    wanted = rng.choice([field for field in row if field != key])
    if rng.random() < 0.5 and wanted in ("item", "name", "total", "price", "city", "email"):
        return f"rows: {to_json(rows)} -> {key} of {row[wanted]}", str(row[key])
    if rng.random() < 0.3:
        return f"rows: {to_json(rows)} -> json {row[key]} {wanted}", to_json({key: row[key], wanted: row[wanted]})
    return f"rows: {to_json(rows)} -> {wanted} of {row[key]}", str(row[wanted])


def _pick_order(rng: random.Random, names: Names) -> Text:
    rule = RULES[rng.choice(tuple(RULES))]
    count = rng.choice((2, 3, 3)) if rule.field == "date" else rng.choice((2, 3, 3, 4))
    rows = _distinct(lambda: _order_row(names, rng), count, rule.field)
    think, _ = thinking.pick([Row(row["order_id"], "", row[rule.field]) for row in rows], rule)
    return f"rows: {to_json(rows)} -> {rule.title}", think


def _pick_product(rng: random.Random, names: Names) -> Text:
    rows = _distinct(lambda: _product_row(names, rng), rng.choice((2, 3)), "price")
    if rng.random() < 0.3:
        for row in rows:
            row["rating"] = rng.randint(21, 49) / 10
        think, _ = thinking.pick([Row(row["product_id"], "", row["rating"]) for row in rows], BEST_RATED)
        return f"rows: {to_json(rows)} -> best", think
    need = rng.choice((1, 1, 2, 3))
    for row in rows:
        row["stock"] = rng.choice((row["stock"], 0))
    walk = [
        Row(row["product_id"], f"stock {row['stock']}", row["price"] if row["stock"] >= need else None) for row in rows
    ]
    think, _ = thinking.pick(walk, CHEAPEST_PRODUCT)
    return f"rows: {to_json(rows)} -> cheapest with stock {need}", f"need {need}: {think}"


def _select_orders(rng: random.Random, names: Names) -> Text:
    rows = _distinct(lambda: _order_row(names, rng), rng.choice((2, 3)), "total")
    verb, status = rng.choice((("refund", "delivered"), ("cancel", "processing")))
    walk = [(row["order_id"], row["status"], row["status"] == status) for row in rows]
    think, _ = thinking.select(walk, status, verb)
    return f"rows: {to_json(rows)} -> {verb} all {status}", think


def _check_rules(rng: random.Random, names: Names) -> Text:
    row = _order_row(names, rng)
    topic = rng.choice(("refund", "cancel", "shipping"))
    policy: dict[str, Any] = {"topic": topic}
    if topic == "refund":
        policy |= {"status": "delivered", "orders_from": names.date()}
        think, _ = thinking.refund_allowed(row, policy)
    elif topic == "cancel":
        policy |= {"statuses": rng.choice((["processing"], ["processing", "packed"]))}
        think, _ = thinking.cancel_allowed(row, policy)
    else:
        policy |= {"fee": rng.randint(3, 9), "free_from": rng.choice((40, 50, 60, 70, 80))}
        think, _ = thinking.shipping_free(row, policy)
    return f"rows: {to_json([row, policy])} -> {topic} rule", think
