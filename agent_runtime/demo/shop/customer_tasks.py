"""Task kinds that begin with the customer's email address."""

from __future__ import annotations

from typing import Any

from . import thinking
from .builder import Builder
from .order_tasks import (
    ACTIONS,
    DONE,
    chosen_order,
    finish_change,
    report,
    row_of,
    track_and_answer,
)
from .thinking import RULES, Row
from .world import Customer, Order

ASKING = ("?", "confirm")


def row_count(t: Builder, most: int) -> int:
    """Return how many orders a customer has: at least two, so that choosing is real."""
    return min(most, t.rng.choice((2, 2, 3, 3, 3, 4)))


def orders_of(t: Builder, email: str) -> list[dict[str, Any]]:
    """Find the customer and list the orders, one call after the other."""
    (customer,) = t.call(("find_customer", {"email": email}))
    (rows,) = t.call(("list_orders", {"customer_id": customer["customer_id"]}))
    result: list[dict[str, Any]] = rows
    return result


def maybe_unknown(t: Builder, customer: Customer, share: float) -> str:
    """Return the email to use: now and then one that no customer has."""
    return t.names.person()[1] if t.rng.random() < share else customer.email


def say_unknown(t: Builder, email: str) -> None:
    """Look up a customer who does not exist, and say so."""
    t.kind = "dead_end"
    (found,) = t.call(("find_customer", {"email": email}))
    t.check(email, any_of=("no customer", "not find", "not exist"))
    t.answer(f"I can't help with that: {found['message']}.")


def track_pick(t: Builder) -> None:
    """Ask where the latest (cheapest, ...) order is."""
    customer = t.customer()
    rule = t.rng.choice(("latest", "latest", "oldest", "cheapest", "dearest"))
    most = 3 if RULES[rule].field == "date" else 4
    orders = [t.order(customer, status="shipped") for _ in range(row_count(t, most))]
    email = maybe_unknown(t, customer, 0.04)
    t.ask("track_pick", email=email, name=customer.name, rule=t.which(rule))
    if email != customer.email:
        say_unknown(t, email)
        return
    rows = orders_of(t, email)
    think, best = thinking.pick([Row(row["order_id"], "", row[RULES[rule].field]) for row in rows], RULES[rule])
    (found,) = t.call(("get_order", {"order_id": best}), think=think)
    track_and_answer(t, chosen_order(orders, rule), found)


def change_pick(t: Builder) -> None:
    """Refund or cancel my latest (cheapest, ...) order."""
    rng = t.rng
    action, rule = rng.choice(ACTIONS), rng.choice(tuple(RULES))
    customer = t.customer()
    most = 3 if RULES[rule].field == "date" else 4
    good = "delivered" if action == "refund" else "processing"
    confirmed = rng.random() < 0.7
    refused = confirmed and rng.random() < 0.25
    size = row_count(t, most)
    orders = [t.order(customer, status=good if not refused else None) for _ in range(size)]
    truth = chosen_order(orders, rule)
    if action == "refund":
        t.recent_for_refund(truth, recent=not refused)
    email = maybe_unknown(t, customer, 0.04)
    t.ask("change_pick", email=email, name=customer.name, confirmed=confirmed, rule=t.which(rule), **t.act(action))
    if email != customer.email:
        say_unknown(t, email)
        return
    rows = orders_of(t, email)
    think, best = thinking.pick([Row(row["order_id"], "", row[RULES[rule].field]) for row in rows], RULES[rule])
    finish_change(t, action, truth, row_of(rows, best), confirmed, think)


def noun_of(item: str) -> str:
    """Return the last word of a product's name."""
    return item.rsplit(" ", 1)[1]


def twin_orders(t: Builder, customer: Customer, statuses: tuple[str, str]) -> tuple[str, list[Order]]:
    """Give a customer two orders of one kind of thing, and perhaps one of another; the twins come back."""
    noun, other = t.noun(), t.noun()
    twins = [t.order(customer, product=t.product(noun), status=status) for status in statuses]
    if t.rng.random() < 0.6:
        t.order(customer, product=t.product(other))
    return noun, twins


def change_twin(t: Builder) -> None:
    """Refund or cancel my lamp order, the later one of two."""
    rng = t.rng
    action, rule = rng.choice(ACTIONS), rng.choice(tuple(RULES))
    customer = t.customer()
    good = "delivered" if action == "refund" else "processing"
    noun, twins = twin_orders(t, customer, (good, good))
    truth = chosen_order(twins, rule)
    t.recent_for_refund(truth)
    confirmed = rng.random() < 0.7
    t.ask(
        "change_twin",
        email=customer.email,
        name=customer.name,
        confirmed=confirmed,
        rule=t.which(rule),
        noun=noun,
        nouns=f"{noun}s",
        **t.act(action),
    )
    rows = orders_of(t, customer.email)
    walk = []
    for row in rows:
        here = noun_of(row["item"])
        walk.append(Row(row["order_id"], here, row[RULES[rule].field] if here == noun else None))
    think, best = thinking.pick(walk, RULES[rule])
    finish_change(t, action, truth, row_of(rows, best), confirmed, think)


def track_twin(t: Builder) -> None:
    """Ask where the lamp is that has not arrived yet."""
    customer = t.customer()
    statuses = ("shipped", "delivered") if t.rng.random() < 0.5 else ("delivered", "shipped")
    noun, twins = twin_orders(t, customer, statuses)
    truth = next(order for order in twins if order.status == "shipped")
    t.ask("track_twin", email=customer.email, name=customer.name, noun=noun, nouns=f"{noun}s")
    rows = orders_of(t, customer.email)
    walk = []
    for row in rows:
        here = noun_of(row["item"])
        note = f"{here} {row['status']}" if here == noun else here
        walk.append((row["order_id"], note, here == noun and row["status"] == "shipped"))
    think, chosen = thinking.select(walk, noun, "track")
    (found,) = t.call(("get_order", {"order_id": chosen[0]}), think=think)
    track_and_answer(t, truth, found)


def change_all(t: Builder) -> None:
    """Refund all my delivered orders, or cancel all that are still in processing."""
    rng = t.rng
    action = rng.choice(ACTIONS)
    good = "delivered" if action == "refund" else "processing"
    customer = t.customer()
    count = rng.choice((1, 2, 2))
    rest = tuple(status for status in ("delivered", "shipped", "processing", "packed") if status != good)
    orders = [t.order(customer, status=good) for _ in range(count)]
    orders += [t.order(customer, status=rng.choice(rest)) for _ in range(rng.choice((1, 1, 2)))]
    good_orders = orders[:count]
    t.recent_for_refund(min(good_orders, key=lambda order: order.date))
    confirmed = rng.random() < 0.7
    t.ask(f"{action}_all", email=customer.email, name=customer.name, confirmed=confirmed, **t.act(action))
    rows = orders_of(t, customer.email)
    walk = [(row["order_id"], row["status"], row["status"] == good) for row in rows]
    think, chosen = thinking.select(walk, good, action)
    t.check(*(fact for order in good_orders for fact in (order.order_id, order.total)))
    if confirmed:
        t.state[DONE[action]].extend(order.order_id for order in good_orders)
        results = t.call(*((f"{action}_order", {"order_id": order_id}) for order_id in chosen), think=think)
        t.answer(report(action, results))
    else:
        t.check(any_of=ASKING)
        picked = [row_of(rows, order_id) for order_id in chosen]
        named = " and ".join(f"{row['order_id']} ({row['item']}, {row['total']} EUR)" for row in picked)
        t.answer(f"Shall I {action} order{'s' if len(picked) > 1 else ''} {named}? Please confirm.", think)


def account(t: Builder) -> None:
    """Ask for the tier and the number of orders."""
    customer = t.customer()
    count = t.rng.randint(1, 4)
    for _ in range(count):
        t.order(customer)
    t.ask("account", email=customer.email, name=customer.name)
    (found,) = t.call(("find_customer", {"email": customer.email}))
    (rows,) = t.call(("list_orders", {"customer_id": found["customer_id"]}))
    t.check(customer.tier, count)
    listed = ", ".join(row["order_id"] for row in rows)
    t.answer(f"You are a {found['tier']} customer with {len(rows)} order{'s' if len(rows) > 1 else ''}: {listed}.")


def recover_order(t: Builder) -> None:
    """Track my lamp, order O-4821 if I remember well; where the number is wrong, the item decides."""
    customer = t.customer()
    noun, *others = [t.noun() for _ in range(t.rng.choice((2, 3)))]
    truth = t.order(customer, product=t.product(noun), status="shipped")
    for other in others:
        t.order(customer, product=t.product(other))
    right = t.rng.random() < 0.3
    noted = truth.order_id if right else t.names.order_id()
    t.ask("recover_order", email=customer.email, name=customer.name, noun=noun, order=noted)
    (found,) = t.call(("get_order", {"order_id": noted}))
    if not right:
        rows = orders_of(t, customer.email)
        walk = [(row["order_id"], noun_of(row["item"]), noun_of(row["item"]) == noun) for row in rows]
        think, chosen = thinking.select(walk, noun, "track")
        (found,) = t.call(("get_order", {"order_id": chosen[0]}), think=think)
    track_and_answer(t, truth, found)


def either_email(t: Builder) -> None:
    """Two email addresses, the first of which may be unknown."""
    customer = t.customer()
    orders = [t.order(customer, status="shipped") for _ in range(2)]
    other = t.names.person()[1]
    first_is_known = t.rng.random() < 0.3
    emails = (customer.email, other) if first_is_known else (other, customer.email)
    rule = t.rng.choice(tuple(RULES))
    t.ask("either_email", name=customer.name, email1=emails[0], email2=emails[1], rule=t.which(rule))
    if not first_is_known:
        t.call(("find_customer", {"email": other}))
    rows = orders_of(t, customer.email)
    think, best = thinking.pick([Row(row["order_id"], "", row[RULES[rule].field]) for row in rows], RULES[rule])
    (found,) = t.call(("get_order", {"order_id": best}), think=think)
    track_and_answer(t, chosen_order(orders, rule), found)
