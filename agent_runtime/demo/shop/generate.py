"""Generates tasks with the oracle's trajectories: the training data of the demo's model and its tests."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from . import customer_tasks, order_tasks, product_tasks, small_talk
from .builder import Builder
from .names import Split
from .store import Store

FORMAT_VERSION = 1

KINDS: dict[str, tuple[Callable[[Builder], None], float]] = {
    "order_status": (order_tasks.order_status, 0.8),
    "change_by_id": (order_tasks.change_by_id, 1.6),
    "change_both": (order_tasks.change_both, 0.8),
    "change_one_of": (order_tasks.change_one_of, 1.2),
    "compare_orders": (order_tasks.compare_orders, 0.7),
    "shipping_fee": (order_tasks.shipping_fee, 0.6),
    "track_pick": (customer_tasks.track_pick, 1.2),
    "change_pick": (customer_tasks.change_pick, 2.0),
    "change_twin": (customer_tasks.change_twin, 1.5),
    "track_twin": (customer_tasks.track_twin, 0.8),
    "change_all": (customer_tasks.change_all, 1.1),
    "account": (customer_tasks.account, 0.4),
    "recover_order": (customer_tasks.recover_order, 0.8),
    "either_email": (customer_tasks.either_email, 0.7),
    "buy": (product_tasks.buy, 2.4),
    "watch_named": (product_tasks.watch_named, 0.6),
    "watch_cheapest": (product_tasks.watch_cheapest, 1.1),
    "product_info": (product_tasks.product_info, 0.5),
    "rating_of_pick": (product_tasks.rating_of_cheapest, 1.3),
    "compare_products": (product_tasks.compare_products, 0.8),
    "small_talk": (small_talk.small_talk, 0.4),
}
"""Task kind -> (how to build one, its share). Single look-ups that end early are named ``dead_end``."""

HELDOUT_SHARE = 0.2
Phrasing = Literal["any", "train", "heldout"]


def generate(
    seed: int, split: Split, n: int, *, phrasing: Phrasing = "any", kinds: Sequence[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield `n` trajectories; the i-th depends on the arguments and i alone.

    The training split never uses held-out phrasings. ``any`` on the test split mixes them in for one task
    in five. `kinds` restricts the kinds. Raises ValueError for held-out phrasings of the training split.
    """
    if split == "train" and phrasing == "heldout":
        raise ValueError("held-out phrasings are for the test split; use split='test'")
    names = list(kinds) if kinds is not None else list(KINDS)
    weights = [KINDS[name][1] for name in names]
    with Store() as store:
        for index in range(n):
            rng = random.Random(f"{seed}/{split}/{index}")
            kind = rng.choices(names, weights)[0]
            heldout = rng.random() < HELDOUT_SHARE
            if phrasing != "any":
                heldout = phrasing == "heldout"
            heldout = heldout and split == "test"
            builder = Builder(rng, split, heldout, store)
            KINDS[kind][0](builder)
            yield {
                "task_id": f"{split}-{seed}-{index}",
                "kind": builder.kind or kind,
                "split": split,
                "phrasing": "heldout" if heldout else "train",
                "request": builder.request,
                "messages": builder.messages,
                "needs_reasoning": builder.needs_reasoning,
                "world": builder.world.to_dict(),
                "check": {
                    "state": builder.state,
                    "facts": builder.facts,
                    "any_of": builder.any_of,
                    "forbid": builder.forbid,
                },
            }
