"""The agent's thinking: walks over rows that keep the best so far in sight.

The model is small, so a walk first names what is wanted, writes every comparison next to the two values it
compares, and says in one word how they compare and in the next whether that wins: ``dearest: O-4821 51, O-1175
84 vs 51 higher yes``. One word for both would have to know the values and a wish written far away at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Rule(NamedTuple):
    """Which of several rows is wanted: the field compared, the wish for its maximum, and the words used."""

    field: str
    maximum: bool
    mark: str
    title: str


RULES = {
    "latest": Rule("date", True, "later", "latest"),
    "oldest": Rule("date", False, "earlier", "oldest"),
    "cheapest": Rule("total", False, "lower", "cheapest"),
    "dearest": Rule("total", True, "higher", "dearest"),
}
_OPPOSITE = {"later": "earlier", "earlier": "later", "lower": "higher", "higher": "lower"}
CHEAPEST_PRODUCT = Rule("price", False, "lower", "cheapest")
BEST_RATED = Rule("rating", True, "higher", "best")


class Row(NamedTuple):
    """One row of a walk: its identifier, a note on whether it counts, and its value (None: left out)."""

    label: str
    note: str
    value: Any


def pick(rows: Iterable[Row], rule: Rule) -> tuple[str, str | None]:
    """Walk over `rows` and return the thinking and the label of the best, or None if no row counts."""
    best: Row | None = None
    steps = []
    for row in rows:
        step = f"{row.label} {row.note}".rstrip()
        if row.value is None:
            steps.append(f"{step} no")
            continue
        step = f"{step} {row.value}"
        if best is None:
            best = row
        else:
            wins = row.value > best.value if rule.maximum else row.value < best.value
            verdict = f"{rule.mark} yes" if wins else f"{_OPPOSITE[rule.mark]} no"
            step += f" vs {best.value} {'equal no' if row.value == best.value else verdict}"
            best = row if wins else best
        steps.append(step)
    walk = ", ".join(steps)
    if best is None:
        return f"{rule.title}: {walk}. none is left.", None
    return f"{rule.title}: {walk}. {best.label}.", best.label


def select(rows: Sequence[tuple[str, str, bool]], sought: str, verb: str) -> tuple[str, list[str]]:
    """Walk over (label, note, wanted), with what is sought said first; return the thinking and the wanted labels."""
    chosen = [label for label, _, wanted in rows if wanted]
    walk = ", ".join(f"{label} {note} {'yes' if wanted else 'no'}" for label, note, wanted in rows)
    return f"{sought}: {walk}. {verb} {', '.join(chosen) if chosen else 'none'}.", chosen


def refund_allowed(order: dict[str, Any], policy: dict[str, Any]) -> tuple[str, bool]:
    """Check an order against the refund rules: delivered, and not older than the first date."""
    delivered = order["status"] == policy["status"]
    recent = order["date"] >= policy["orders_from"]
    allowed = delivered and recent
    return (
        f"{order['order_id']} {order['status']} {'ok' if delivered else 'no'}, "
        f"{order['date']} vs {policy['orders_from']} {'later ok' if recent else 'earlier no'}. "
        f"{'allowed' if allowed else 'not allowed'}."
    ), allowed


def cancel_allowed(order: dict[str, Any], policy: dict[str, Any]) -> tuple[str, bool]:
    """Check an order's status against those that may still be cancelled."""
    allowed = order["status"] in policy["statuses"]
    return (
        f"{order['order_id']} is {order['status']}, cancel while {', '.join(policy['statuses'])}: "
        f"{'yes. allowed' if allowed else 'no. not allowed'}."
    ), allowed


def shipping_free(order: dict[str, Any], policy: dict[str, Any]) -> tuple[str, bool]:
    """Compare an order's total with the amount from which shipping is free."""
    free = order["total"] >= policy["free_from"]
    return (
        f"{order['order_id']} {order['total']}, free from {policy['free_from']}: "
        f"{order['total']} vs {policy['free_from']} {'higher. free' if free else 'lower. fee ' + str(policy['fee'])}."
    ), free
