"""Task kinds about one or two orders named by their numbers."""

from __future__ import annotations

from typing import Any

from . import thinking
from .builder import Builder
from .thinking import RULES, Row
from .world import Order

ACTIONS = ("refund", "cancel")
NEGATIVES = ("not", "can't", "cannot", "refused", "no longer")
ASKING = ("?", "confirm")
DONE = {"refund": "refunded", "cancel": "cancelled"}


def done(action: str, order_id: object, amount: object) -> str:
    """Return the sentence that reports a write."""
    return f"Order {order_id} is {DONE[action]}, you get {amount} EUR back."


def shall_i(action: str, order_id: object, item: object, amount: object) -> str:
    """Return the question that asks for a confirmation."""
    return f"Shall I {action} order {order_id} ({item}, {amount} EUR)? Please confirm."


def report(action: str, results: list[dict[str, Any]]) -> str:
    """Return the sentences that report several writes, each done or refused."""
    return " ".join(
        f"Not {DONE[action]}: {result['message']}."
        if "error" in result
        else done(action, result["order_id"], result["amount"])
        for result in results
    )


def order_status(t: Builder) -> None:
    """Ask where order O-4821 is."""
    customer = t.customer()
    ending = t.rng.random()
    arrived = t.rng.choice(("shipped", "shipped", "shipped", "delivered"))
    order = t.order(customer, status=arrived if ending < 0.75 else t.rng.choice(("processing", "packed")))
    if ending > 0.88:
        wanted = t.names.order_id()
        t.kind = "dead_end"
    else:
        wanted = order.order_id
    email = customer.email if t.rng.random() < 0.15 else None
    t.ask("order_status", order=wanted, email=email, name=customer.name)
    (found,) = t.call(("get_order", {"order_id": wanted}))
    if "error" in found:
        t.check(wanted, any_of=("no order", "not find", "not exist"))
        t.answer(f"I can't help with that: {found['message']}.")
    elif found["tracking_id"] is None:
        t.kind = "dead_end"
        t.check(wanted, order.status)
        t.answer(f"Order {wanted} is {found['status']} and has not left us yet.")
    else:
        track_and_answer(t, order, found)


def track_and_answer(t: Builder, order: Order, found: dict[str, Any]) -> None:
    """Track the order that was found and say where it is."""
    (parcel,) = t.call(("track_shipment", {"tracking_id": found["tracking_id"]}))
    shipment = t.shipment(order)
    t.check(order.order_id, shipment.status, shipment.city, shipment.eta)
    if parcel["status"] == "delivered":
        t.answer(f"Order {found['order_id']} was delivered in {parcel['city']} on {parcel['eta']}.")
    else:
        t.answer(f"Order {found['order_id']} is {parcel['status']} in {parcel['city']}, due {parcel['eta']}.")


def change_by_id(t: Builder) -> None:
    """Refund or cancel order O-4821, after a look at the rules."""
    rng = t.rng
    action = rng.choice(ACTIONS)
    allowed = rng.random() < 0.7
    customer = t.customer()
    if action == "refund":
        by_date = not allowed and rng.random() < 0.5
        status = "delivered" if allowed or by_date else rng.choice(("shipped", "processing", "packed"))
        order = t.order(customer, status=status)
        t.recent_for_refund(order, recent=not by_date)
    else:
        ok = t.policy.cancel_statuses
        bad = tuple(status for status in ("processing", "packed", "shipped", "delivered") if status not in ok)
        order = t.order(customer, status=rng.choice(ok if allowed else bad))
    wanted = order.order_id
    if rng.random() < 0.06:
        wanted = t.names.order_id()
    confirmed = rng.random() < 0.7
    t.ask(f"{action}_by_id", order=wanted, confirmed=confirmed)
    found, policy = t.call(("get_order", {"order_id": wanted}), ("get_policy", {"topic": action}))
    if "error" in found:
        t.check(wanted, any_of=("no order", "not find", "not exist"))
        t.answer(f"I can't help with that: {found['message']}.")
        return
    check = thinking.refund_allowed if action == "refund" else thinking.cancel_allowed
    think, fine = check(found, policy)
    if not fine:
        t.check(wanted, any_of=NEGATIVES)
        if action == "refund":
            why = f"orders must be delivered and not older than {policy['orders_from']}"
        else:
            why = f"it is already {found['status']}"
            t.check(order.status)
        t.answer(f"Order {wanted} can not be {DONE[action]}: {why}.", think)
        return
    t.check(wanted, order.total)
    if confirmed:
        t.state[DONE[action]].append(wanted)
        (result,) = t.call((f"{action}_order", {"order_id": wanted}), think=think)
        t.answer(done(action, result["order_id"], result["amount"]))
    else:
        t.check(any_of=ASKING)
        t.answer(shall_i(action, wanted, found["item"], found["total"]), think)


def change_both(t: Builder) -> None:
    """Refund or cancel two orders, both named."""
    rng = t.rng
    action = rng.choice(ACTIONS)
    customer = t.customer()
    good = "delivered" if action == "refund" else "processing"
    orders = [t.order(customer, status=good), t.order(customer, status=good if rng.random() < 0.8 else "shipped")]
    t.recent_for_refund(min(orders, key=lambda order: order.date))
    rng.shuffle(orders)
    ids = [order.order_id for order in orders]
    confirmed = any(order.status != good for order in orders) or rng.random() < 0.7
    t.ask("change_both", order=ids[0], order2=ids[1], confirmed=confirmed, **t.act(action))
    found = t.call(*(("get_order", {"order_id": order_id}) for order_id in ids))
    t.check(*ids)
    if confirmed:
        t.state[DONE[action]].extend(order.order_id for order in orders if order.status == good)
        t.check(*(order.total if order.status == good else order.status for order in orders))
        results = t.call(*((f"{action}_order", {"order_id": order_id}) for order_id in ids))
        t.answer(report(action, results))
    else:
        t.check(*(order.total for order in orders), any_of=ASKING)
        named = " and ".join(f"{row['order_id']} ({row['item']}, {row['total']} EUR)" for row in found)
        t.answer(f"Shall I {action} orders {named}? Please confirm.")


def change_one_of(t: Builder) -> None:
    """Refund or cancel the cheaper (later, ...) of two orders."""
    rng = t.rng
    action, rule = rng.choice(ACTIONS), rng.choice(tuple(RULES))
    customer = t.customer()
    good = "delivered" if action == "refund" else "processing"
    orders = [t.order(customer, status=good) for _ in range(2)]
    t.recent_for_refund(min(orders, key=lambda order: order.date))
    ids = [order.order_id for order in orders]
    confirmed = rng.random() < 0.7
    t.ask("change_one_of", order=ids[0], order2=ids[1], confirmed=confirmed, rule=t.which_of_two(rule), **t.act(action))
    found = t.call(*(("get_order", {"order_id": order_id}) for order_id in ids))
    think, best = thinking.pick([Row(row["order_id"], "", row[RULES[rule].field]) for row in found], RULES[rule])
    finish_change(t, action, chosen_order(orders, rule), row_of(found, best), confirmed, think)


def chosen_order(orders: list[Order], rule: str) -> Order:
    """Return the order a rule is about."""
    choose = max if RULES[rule].maximum else min
    return choose(orders, key=lambda order: getattr(order, RULES[rule].field))


def row_of(rows: list[dict[str, Any]], order_id: str | None) -> dict[str, Any]:
    """Return the row of an order."""
    return next(row for row in rows if row["order_id"] == order_id)


def finish_change(
    t: Builder, action: str, truth: Order, row: dict[str, Any], confirmed: bool, think: str | None
) -> None:
    """Write, or ask for the confirmation, and answer; `truth` is the order that should have been chosen."""
    t.check(truth.order_id)
    if not confirmed:
        t.check(truth.total, any_of=ASKING)
        t.answer(shall_i(action, row["order_id"], row["item"], row["total"]), think)
        return
    (result,) = t.call((f"{action}_order", {"order_id": row["order_id"]}), think=think)
    if "error" in result:
        t.check(any_of=NEGATIVES)
        t.answer(report(action, [result]))
        return
    t.check(truth.total)
    t.state[DONE[action]].append(truth.order_id)
    t.answer(report(action, [result]))


def compare_orders(t: Builder) -> None:
    """Ask which of two orders cost more, or is the later one."""
    rng = t.rng
    rule = rng.choice(tuple(RULES))
    customer = t.customer()
    orders = [t.order(customer) for _ in range(2)]
    ids = [order.order_id for order in orders]
    missing = rng.random() < 0.12
    if missing:
        ids[rng.randrange(2)] = t.names.order_id()
    t.ask("compare_orders", order=ids[0], order2=ids[1], rule=t.which_of_two(rule))
    found = t.call(*(("get_order", {"order_id": order_id}) for order_id in ids))
    if missing:
        bad = next(row for row in found if "error" in row)
        t.check(next(i for i in ids if i not in [order.order_id for order in orders]), any_of=("no order", "not find"))
        t.answer(f"I can't help with that: {bad['message']}.")
        return
    field = RULES[rule].field
    think, best = thinking.pick([Row(row["order_id"], "", row[field]) for row in found], RULES[rule])
    truth = chosen_order(orders, rule)
    other = next(order for order in orders if order is not truth)
    t.check(truth.order_id, getattr(truth, field), forbid=(other.order_id,))
    row = row_of(found, best)
    unit = " EUR" if field == "total" else ""
    t.answer(f"Order {best}: {row['item']}, {row[field]}{unit}.", think)


def shipping_fee(t: Builder) -> None:
    """Ask whether shipping is free for order O-4821."""
    order = t.order(t.customer())
    t.ask("shipping_fee", order=order.order_id)
    found, policy = t.call(("get_order", {"order_id": order.order_id}), ("get_policy", {"topic": "shipping"}))
    think, free = thinking.shipping_free(found, policy)
    if order.total >= t.policy.shipping_free_from:
        t.check(order.order_id, "free", forbid=("not free",))
    else:
        t.check(order.order_id, t.policy.shipping_fee, forbid=("is free",))
    if free:
        t.answer(f"Shipping is free for order {order.order_id}.", think)
    else:
        t.answer(f"Shipping for order {order.order_id} costs {policy['fee']} EUR.", think)
