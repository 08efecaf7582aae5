"""Task kinds about products: compare, buy, watch, ask."""

from __future__ import annotations

from typing import Any

from . import thinking
from .builder import Builder
from .thinking import BEST_RATED, CHEAPEST_PRODUCT, Row
from .world import Product

ASKING = ("?", "confirm")
NO_MATCH = ("no product", "no match", "not find", "not exist")
COUNT_WORDS = {1: ("one", "1"), 2: ("two", "2"), 3: ("three", "3")}


def shelf(t: Builder, noun: str, stocks: list[int]) -> list[Product]:
    """Add one product of a noun per stock."""
    return [t.product(noun, stock=stock) for stock in stocks]


def cheapest(products: list[Product], quantity: int) -> Product | None:
    """Return the cheapest product with enough stock."""
    enough = [product for product in products if product.stock >= quantity]
    return min(enough, key=lambda product: product.price) if enough else None


def walk_stock(rows: list[dict[str, Any]], quantity: int) -> tuple[str, str | None]:
    """Think about which of the rows is the cheapest with enough stock."""
    think, best = thinking.pick(
        [
            Row(row["product_id"], f"stock {row['stock']}", row["price"] if row["stock"] >= quantity else None)
            for row in rows
        ],
        CHEAPEST_PRODUCT,
    )
    return f"need {quantity}: {think}", best


def buy(t: Builder) -> None:
    """Order two of the cheapest lamp in stock."""
    rng = t.rng
    quantity = rng.choice((1, 1, 2, 3))
    noun = t.noun()
    by_name = rng.random() < 0.25
    if by_name:
        stocks = [rng.randint(quantity, 9) if rng.random() < 0.8 else rng.randint(0, quantity - 1)]
    else:
        good = rng.choice((1, 2, 2, 3)) if rng.random() < 0.9 else 0
        bad = {0: rng.randint(1, 3), 1: rng.randint(1, 3), 2: rng.randint(0, 2), 3: 0}[good]
        stocks = [rng.randint(quantity, 9) for _ in range(good)]
        stocks += [rng.choice((0, rng.randrange(quantity))) for _ in range(bad)]
    products = shelf(t, noun, stocks)
    customer = t.customer()
    email = t.names.person()[1] if rng.random() < 0.05 else customer.email
    query = products[0].name if by_name else noun
    if rng.random() < 0.05:
        query = t.product_name(noun) if by_name else t.noun()
    confirmed = rng.random() < 0.7
    t.ask(
        "buy_named" if by_name else "buy_cheapest",
        email=email,
        name=customer.name,
        confirmed=confirmed,
        count=rng.choice(COUNT_WORDS[quantity]),
        product=query,
        products=f"{query}s",
        things=query if quantity == 1 else f"{query}s",
    )
    query = t.said(f"{query}s" if f"{query}s".lower() in t.request.lower() else query)
    found, rows = t.call(("find_customer", {"email": email}), ("search_products", {"query": query}))
    if "error" in found:
        t.check(email, any_of=("no customer", "not find", "not exist"))
        t.answer(f"I can't help with that: {found['message']}.")
        return
    if "error" in rows:
        t.check(query, any_of=NO_MATCH)
        t.answer(f"I can't help with that: {rows['message']}.")
        return
    think, best = walk_stock(rows, quantity)
    truth = cheapest(products, quantity)
    if best is None or truth is None:
        t.check(query, any_of=("not enough", "out of stock", "no stock", "not in stock"))
        t.answer(f"There is not enough stock of {query}.", think)
        return
    row = next(row for row in rows if row["product_id"] == best)
    if not confirmed:
        t.check(truth.name, truth.price, any_of=ASKING)
        t.answer(f"Shall I order {quantity} x {row['name']} at {row['price']} EUR each? Please confirm.", think)
        return
    t.state["placed"].append([customer.customer_id, truth.product_id, truth.price * quantity])
    arguments = {"customer_id": found["customer_id"], "product_id": best, "quantity": quantity}
    (placed,) = t.call(("place_order", arguments), think=think)
    t.check(truth.name, f"O-{t.world.next_order}", truth.price * quantity)
    t.answer(f"Order {placed['order_id']} is placed: {quantity} x {row['name']}, {placed['total']} EUR.")


def watch_named(t: Builder) -> None:
    """Tell me when the Velora lamp is back."""
    rng = t.rng
    sold_out = rng.random() < 0.75
    product = t.product(t.noun(), stock=0 if sold_out else None)
    name, email = t.names.person()
    unknown = rng.random() < 0.06
    query = t.product_name() if unknown else product.name
    t.ask("watch_named", email=email, name=name, product=query)
    query = t.said(query)
    (rows,) = t.call(("search_products", {"query": query}))
    if "error" in rows:
        t.kind = "dead_end"
        t.check(query, any_of=NO_MATCH)
        t.answer(f"I can't help with that: {rows['message']}.")
    elif rows[0]["stock"] > 0:
        t.kind = "dead_end"
        t.check(product.name, product.stock, any_of=("in stock",))
        t.answer(f"No need to wait: {rows[0]['name']} is in stock, {rows[0]['stock']} left.")
    else:
        t.state["watched"].append([product.product_id, email])
        t.call(("watch_product", {"product_id": rows[0]["product_id"], "email": email}))
        t.check(product.name, email)
        t.answer(f"We will write to {email} when {rows[0]['name']} is back.")


def watch_cheapest(t: Builder) -> None:
    """Tell me when the cheapest lamp that is sold out is back."""
    rng = t.rng
    noun = t.noun()
    sold_out = rng.choice((1, 2, 2))
    products = shelf(t, noun, [0] * sold_out + [rng.randint(1, 9) for _ in range(rng.choice((1, 2)))])
    truth = min(products[:sold_out], key=lambda product: product.price)
    name, email = t.names.person()
    t.state["watched"].append([truth.product_id, email])
    t.ask("watch_cheapest", email=email, name=name, product=noun)
    (rows,) = t.call(("search_products", {"query": noun}))
    think, best = thinking.pick(
        [Row(row["product_id"], f"stock {row['stock']}", row["price"] if row["stock"] == 0 else None) for row in rows],
        CHEAPEST_PRODUCT,
    )
    row = next(row for row in rows if row["product_id"] == best)
    t.call(("watch_product", {"product_id": best, "email": email}), think=think)
    t.check(truth.name, email)
    t.answer(f"We will write to {email} when {row['name']} is back.")


def product_info(t: Builder) -> None:
    """Ask how the Velora lamp is rated."""
    product = t.product()
    unknown = t.rng.random() < 0.1
    query = t.product_name() if unknown else product.name
    t.ask("product_info", product=query)
    query = t.said(query)
    (rows,) = t.call(("search_products", {"query": query}))
    if unknown:
        t.kind = "dead_end"
        t.check(query, any_of=NO_MATCH)
        t.answer(f"I can't help with that: {rows['message']}.")
        return
    (found,) = t.call(("get_product", {"product_id": rows[0]["product_id"]}))
    t.check(product.name, product.rating, product.price, product.stock)
    t.answer(describe(found))


def describe(found: dict[str, Any]) -> str:
    """Return the sentence that describes a product."""
    return f"{found['name']}: rated {found['rating']}, {found['price']} EUR, {found['stock']} in stock."


def rating_of_cheapest(t: Builder) -> None:
    """Ask how the cheapest or dearest lamp is rated."""
    noun = t.noun()
    dearest = t.rng.random() < 0.4
    products = shelf(t, noun, [t.rng.randint(0, 9) for _ in range(t.rng.choice((2, 3, 3, 4)))])
    choose = max if dearest else min
    truth = choose(products, key=lambda product: product.price)
    rule = thinking.Rule("price", True, "higher", "dearest") if dearest else CHEAPEST_PRODUCT
    t.ask("rating_of_pick", product=noun, rule=t.which("dearest" if dearest else "cheapest"))
    (rows,) = t.call(("search_products", {"query": noun}))
    think, best = thinking.pick([Row(row["product_id"], "", row["price"]) for row in rows], rule)
    (found,) = t.call(("get_product", {"product_id": best}), think=think)
    t.check(truth.name, truth.rating, truth.price)
    t.answer(describe(found))


def compare_products(t: Builder) -> None:
    """Ask which of two products is rated better, or cheaper."""
    rng = t.rng
    products = [t.product(), t.product()]
    while products[0].rating == products[1].rating:
        products[1] = t.product()
    names = [product.name for product in products]
    by_rating = rng.random() < 0.5
    t.ask("compare_rating" if by_rating else "compare_price", product=names[0], product2=names[1])
    results = t.call(*(("search_products", {"query": t.said(name)}) for name in names))
    rows = [result[0] for result in results]
    if by_rating:
        rows = t.call(*(("get_product", {"product_id": row["product_id"]}) for row in rows))
        rule, truth = BEST_RATED, max(products, key=lambda product: product.rating)
        unit = "rated {}"
    else:
        rule, truth = CHEAPEST_PRODUCT, min(products, key=lambda product: product.price)
        unit = "{} EUR"
    think, best = thinking.pick([Row(row["product_id"], "", row[rule.field]) for row in rows], rule)
    row = next(row for row in rows if row["product_id"] == best)
    loser = next(product for product in products if product is not truth)
    t.check(truth.name, getattr(truth, rule.field), forbid=(loser.name,))
    t.answer(f"{row['name']}: {unit.format(row[rule.field])}.", think)
