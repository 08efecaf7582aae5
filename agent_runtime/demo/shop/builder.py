"""Builds one trajectory: a small world, a request, and the oracle's turns executed on a real store."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from typing import Any

from . import phrases
from .grammar import Pool, expand
from .names import CITIES, NOUNS, Names, Split
from .store import Store
from .world import Customer, Order, Policy, Product, Shipment, World

Call = tuple[str, dict[str, Any]]

STATUSES = ("delivered", "delivered", "shipped", "shipped", "processing", "packed")
LOWERCASE_SHARE = 0.1
TIERS = ("basic", "silver", "gold")
SHIPMENT_STATUSES = ("in transit", "out for delivery", "at the depot", "delayed")


class Builder:
    """Collects the rows, the request, the turns and the check of one task.

    The oracle decides from the results it reads, as the model must; the check comes from the rows.
    """

    def __init__(self, rng: random.Random, split: Split, heldout: bool, store: Store) -> None:
        self.rng = rng
        self.names = Names(rng, split)
        self.heldout = heldout
        self.request = ""
        self.kind: str | None = None
        self.messages: list[dict[str, Any]] = []
        self.needs_reasoning: list[bool] = []
        self.state: dict[str, list[Any]] = {"refunded": [], "cancelled": [], "placed": [], "watched": []}
        self.facts: list[str] = []
        self.any_of: list[list[str]] = []
        self.forbid: list[str] = []
        self.world = World()
        self._store = store
        self._lowercase = False
        self._nouns: set[str] = set()
        self._customers: list[Customer] = []
        self._products: list[Product] = []
        self._orders: list[Order] = []
        self._shipments: list[Shipment] = []
        self.policy = Policy(
            refund_from=self.names.date(),
            cancel_statuses=rng.choice((("processing",), ("processing", "packed"))),
            shipping_fee=rng.randint(3, 9),
            shipping_free_from=rng.choice((40, 50, 60, 70, 80)),
        )

    # Rows

    def customer(self) -> Customer:
        """Add a customer."""
        name, email = self.names.person()
        row = Customer(self.names.identifier("C", 3), name, email, self.rng.choice(TIERS))
        self._customers.append(row)
        return row

    def product(
        self,
        noun: str | None = None,
        *,
        name: str | None = None,
        stock: int | None = None,
        price: int | None = None,
    ) -> Product:
        """Add a product; the price is not that of another product of this world."""
        rng = self.rng
        name = name or self.product_name(noun)
        taken = {row.price for row in self._products}
        while price is None or price in taken:
            price = rng.randint(11, 99) if rng.random() < 0.9 else rng.randint(100, 240)
        stock = rng.randint(1, 9) if stock is None else stock
        row = Product(self.names.identifier("P", 3), name, price, stock, rng.randint(21, 49) / 10)
        self._products.append(row)
        return row

    def product_name(self, noun: str | None = None) -> str:
        """Return the name of a product that does not exist yet."""
        return f"{self.names.brand()} {noun or self.noun()}"

    def noun(self) -> str:
        """Return a noun that no product of this world has, so that a search for it is the task's own."""
        noun = self.rng.choice([noun for noun in NOUNS if noun not in self._nouns])
        self._nouns.add(noun)
        return noun

    def order(
        self,
        customer: Customer,
        *,
        product: Product | None = None,
        status: str | None = None,
        date: str | None = None,
    ) -> Order:
        """Add an order, with a shipment once it has left; total and date differ from all others'."""
        rng = self.rng
        product = product or self.product()
        status = status or rng.choice(STATUSES)
        dates, totals = {row.date for row in self._orders}, {row.total for row in self._orders}
        while date is None or date in dates:
            date = self.names.date()
        total = product.price
        while total in totals:
            total += product.price
        tracking_id = None
        if status in ("shipped", "delivered"):
            tracking_id = self.names.identifier("T", 4)
            progress = "delivered" if status == "delivered" else rng.choice(SHIPMENT_STATUSES)
            self._shipments.append(Shipment(tracking_id, progress, rng.choice(CITIES), self.names.date()))
        row = Order(
            self.names.order_id(),
            customer.customer_id,
            product.product_id,
            product.name,
            total,
            date,
            status,
            tracking_id,
        )
        self._orders.append(row)
        return row

    def shipment(self, order: Order) -> Shipment:
        """Return the shipment of an order that has left."""
        return next(row for row in self._shipments if row.tracking_id == order.tracking_id)

    def other_rows(self) -> None:
        """Add rows that have nothing to do with the task."""
        stranger = self.customer()
        for _ in range(self.rng.randint(1, 2)):
            self.order(stranger)

    def recent_for_refund(self, order: Order, recent: bool = True) -> None:
        """Set the refund rule so that `order` is (or is not) recent enough."""
        cutoff = order.date
        for _ in range(100):
            cutoff = self.names.date()
            if cutoff != order.date and (order.date > cutoff) == recent:
                break
        else:
            cutoff = "01-01" if recent else "12-01"
        self.policy = replace(self.policy, refund_from=cutoff)

    # The request

    def phrase(self, pool: Pool) -> str:
        """Return one phrasing of a pool, from the part this task may use."""
        return expand(self.rng.choice(pool.heldout if self.heldout else pool.train), self.rng)

    def act(self, action: str) -> dict[str, Any]:
        """Return the words for an action: the demand to do it, and the thing wished for."""
        return {"act": self.phrase(phrases.ACTS[action]), "want": self.phrase(phrases.WANTS[action])}

    def which(self, rule: str) -> str:
        """Return the words for a rule such as the latest."""
        return self.phrase(phrases.RULES[rule])

    def which_of_two(self, rule: str) -> str:
        """Return the words for a rule that compares two."""
        return self.phrase(phrases.COMPARATIVES[rule])

    def ask(
        self,
        body: str,
        *,
        email: str | None = None,
        name: str = "",
        confirmed: bool | None = None,
        frame: bool = True,
        **slots: object,
    ) -> None:
        """Compose the request and start the conversation.

        `body` names a pool of `phrases.BODIES`; `confirmed` is None where nothing has to be confirmed;
        `frame` allows an opening and a closing.
        """
        rng = self.rng
        text = self.phrase(phrases.BODIES[body])
        parts = [text]
        if email is not None and "{email}" not in text:
            parts.insert(rng.choice((0, 1)), self.phrase(phrases.IDENTITY))
        if confirmed:
            place = len(parts) if rng.random() < 0.7 else parts.index(text) + 1
            parts.insert(place, self.phrase(phrases.CONFIRMED))
        elif confirmed is False and rng.random() < 0.4:
            parts.append(self.phrase(phrases.UNDECIDED))
        if frame and rng.random() < 0.12:
            parts.insert(rng.randint(0, len(parts)), self.phrase(phrases.REMARK))
        if frame and rng.random() < 0.45:
            parts.insert(0, self.phrase(phrases.OPENING))
        if frame and rng.random() < 0.3:
            parts.append(self.phrase(phrases.CLOSING))
        request = compose(parts, {"email": email, "name": name, **slots})
        self._lowercase = rng.random() < LOWERCASE_SHARE
        self.start(_in_lower_case(request) if self._lowercase else request)

    def said(self, words: str) -> str:
        """Return words of the request as they were typed."""
        return words.lower() if self._lowercase else words

    def start(self, request: str) -> None:
        """Freeze the world, load it into the store and open the conversation with `request`."""
        if not self._customers or self.rng.random() < 0.5:
            self.other_rows()
        order_rows = self._orders[:]
        self.rng.shuffle(order_rows)
        product_rows = self._products[:]
        self.rng.shuffle(product_rows)
        self.world = World(
            customers=tuple(self._customers),
            products=tuple(product_rows),
            orders=tuple(order_rows),
            shipments=tuple(self._shipments),
            policy=self.policy,
            next_order=int(self.names.order_id()[2:]),
        )
        self._store.load(self.world)
        self.request = request
        self.messages.append({"role": "user", "content": request})

    # The oracle's turns

    def call(self, *calls: Call, think: str | None = None) -> list[Any]:
        """Make the calls of one turn and return what the tools answered."""
        self.needs_reasoning.append(think is not None)
        self.messages.append(
            {
                "role": "assistant",
                "reasoning_content": think,
                "content": "",
                "tool_calls": [
                    {"type": "function", "function": {"name": name, "arguments": arguments}}
                    for name, arguments in calls
                ],
            }
        )
        results = []
        for name, arguments in calls:
            content = self._store.execute(name, arguments)
            self.messages.append({"role": "tool", "name": name, "content": content})
            results.append(json.loads(content))
        return results

    def answer(self, text: str, think: str | None = None) -> None:
        """End the task with the agent's answer."""
        self.needs_reasoning.append(think is not None)
        self.messages.append({"role": "assistant", "reasoning_content": think, "content": text})

    def check(self, *facts: object, any_of: tuple[str, ...] = (), forbid: tuple[str, ...] = ()) -> None:
        """State what the answer must contain, what it must contain one of, and what it must not contain."""
        self.facts.extend(str(fact) for fact in facts)
        if any_of:
            self.any_of.append(list(any_of))
        self.forbid.extend(forbid)


def compose(parts: list[str], slots: dict[str, object]) -> str:
    """Join the parts of a request, fill the slots and set capitals where sentences begin."""
    request = ""
    for part in parts:
        text = part.format(**slots)
        follows_comma = request.endswith((",", ":"))
        if follows_comma and not part.startswith(("I ", "I'", "{")):
            text = text[0].lower() + text[1:]
        elif not follows_comma:
            text = text[0].upper() + text[1:]
        request += f" {text}"
    request = " ".join(request.split()).replace(" '", "'")
    return re.sub(r"(?<=[.?!] )[a-z]", lambda match: match.group().upper(), request)


def _in_lower_case(request: str) -> str:
    """Return the request as a customer in a hurry types it; identifiers keep their letter."""
    lowered = re.sub(r"\b[a-z](?=-\d)", lambda match: match.group().upper(), request.lower())
    return lowered.rstrip(".!")
