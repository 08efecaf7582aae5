"""Thirty requests written by hand for the demo's world, never part of any training."""

from __future__ import annotations

from typing import Any

from .demo_world import DEMO_WORLD
from .judge import Check, Task

_ASKING = (("?", "confirm"),)
_NO = (("not", "can't", "cannot", "refused", "no longer"),)
_MISSING = (("no ", "not find", "not exist"),)


def _task(
    kind: str,
    request: str,
    facts: str = "",
    *,
    any_of: tuple[tuple[str, ...], ...] = (),
    forbid: str = "",
    **state: list[Any],
) -> tuple[str, str, Check]:
    return (
        kind,
        request,
        Check(
            state=state,
            facts=tuple(fact for fact in facts.split(";") if fact),
            any_of=any_of,
            forbid=tuple(word for word in forbid.split(";") if word),
        ),
    )


_ROWS = (
    _task("order_status", "Hi! Could you please tell me where O-7802 is at?", "O-7802;in transit;Turin;09-27"),
    _task("order_status", "where is my parcel? order O-5114", "O-5114;out for delivery;Graz;10-09"),
    _task("order_status", "I'd love to know when order O-7802 gets here.", "O-7802;Turin;09-27"),
    _task("dead_end", "Please track O-9999 for me", "O-9999", any_of=_MISSING),
    _task("dead_end", "Has order O-3153 been shipped?", "O-3153;processing"),
    _task(
        "change_by_id",
        "The kettle from order O-8167 leaks, refund it please. I confirm.",
        "O-8167;34",
        refunded=["O-8167"],
    ),
    _task("change_by_id", "Can I have my money back for O-7327? Go ahead if so, I am sure.", "O-7327", any_of=_NO),
    _task("change_by_id", "I would like a refund for order O-4126", "O-4126;59", any_of=_ASKING),
    _task("change_by_id", "Cancel O-4007, yes, do it now.", "O-4007;34", cancelled=["O-4007"]),
    _task("change_by_id", "Is it possible to cancel order O-6468?", "O-6468;packed", any_of=_NO),
    _task(
        "change_both",
        "Please refund both O-3773 and O-4126. Go ahead, it is confirmed.",
        "O-3773;189;O-4126;59",
        refunded=["O-3773", "O-4126"],
    ),
    _task(
        "change_one_of",
        "I have orders O-3153 and O-6079. Cancel the cheaper one. I confirm it.",
        "O-6079;12",
        cancelled=["O-6079"],
    ),
    _task("compare_orders", "Which one was more expensive, O-3773 or O-2589?", "O-3773;189", forbid="O-2589"),
    _task("shipping_fee", "Do I have to pay for the delivery of order O-8167?", "O-8167;5", forbid="is free"),
    _task("shipping_fee", "Is shipping for order O-4070 free?", "O-4070;free", forbid="not free"),
    _task(
        "track_pick", "Good day, my email is marta.haas@example.org, where is my newest order?", "O-7802;Turin;09-27"
    ),
    _task(
        "change_pick",
        "This is Nina Berg, nina_berg@example.com. Please cancel my latest order. Yes, I confirm.",
        "O-4007;34",
        cancelled=["O-4007"],
    ),
    _task(
        "change_pick", "Refund the most expensive order of nina_berg@example.com please.", "O-3773;189", any_of=_ASKING
    ),
    _task(
        "change_pick",
        "My mail is marta.haas@example.org. Refund my oldest order, go ahead.",
        "O-7327",
        any_of=_NO,
    ),
    _task(
        "change_twin",
        "I bought more than one lamp (omar.petrov@example.com). Refund the older one, I am sure.",
        "O-7048;38",
        refunded=["O-7048"],
    ),
    _task(
        "track_twin",
        "I am omar.petrov@example.com and one of my two lamps has not arrived. Where is it?",
        "O-5114;Graz;10-09",
    ),
    _task(
        "change_all",
        "Cancel all my orders that are still processing, I confirm. My email is ingrid@example.net.",
        "O-3153;77;O-6079;12",
        cancelled=["O-3153", "O-6079"],
    ),
    _task("account", "What is my tier and how many orders do I have? I am p.okafor@example.org", "basic;2"),
    _task(
        "either_email",
        "My account is omar@example.org or omar.petrov@example.com. Where is my latest order?",
        "O-5114;out for delivery;Graz",
    ),
    _task(
        "buy",
        "Order one of your cheapest lamps that is in stock, my email is p.okafor@example.org. Yes, go ahead.",
        "Lumen lamp;O-8639;38",
        placed=[["C-662", "P-920", 38]],
    ),
    _task("buy", "I'd like to order two Wren mugs. I am ingrid@example.net.", "Wren mug;12", any_of=_ASKING),
    _task(
        "watch_named",
        "Let me know when the Meridian kettle is back, please write to nina_berg@example.com",
        "Meridian kettle;nina_berg@example.com",
        watched=[["P-976", "nina_berg@example.com"]],
    ),
    _task(
        "compare_products",
        "Which one is better rated, the Aurora lamp or the Lumen lamp?",
        "Lumen lamp;4.7",
        forbid="Aurora lamp",
    ),
    _task("rating_of_pick", "How good is your cheapest tent?", "Willow tent;3.8;95"),
    _task("small_talk", "What are your opening hours?", "Mon-Sat 9-18"),
)


def handwritten_tasks() -> list[Task]:
    """Return the thirty requests as tasks; all start from `DEMO_WORLD`."""
    return [
        Task(f"handwritten-{index}", kind, "handwritten", request, DEMO_WORLD, check)
        for index, (kind, request, check) in enumerate(_ROWS)
    ]
