"""The judge: what the oracle does succeeds, and what goes wrong is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agent_runtime.demo.shop.generate import KINDS, generate
from agent_runtime.demo.shop.handwritten import handwritten_tasks
from agent_runtime.demo.shop.judge import Check, Task, Verdict, judge, mentions
from agent_runtime.demo.shop.store import Store
from agent_runtime.demo.shop.world import World


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as opened:
        yield opened


def replay(trajectory: dict[str, Any], store: Store) -> tuple[Task, str]:
    """Run the oracle's calls on a fresh store and hold the results to the recorded ones."""
    task = Task.from_dict(trajectory)
    task.start_world(store)
    calls = [call["function"] for message in trajectory["messages"] for call in message.get("tool_calls", ())]
    results = [store.execute(call["name"], call["arguments"]) for call in calls]
    assert results == [message["content"] for message in trajectory["messages"] if message["role"] == "tool"]
    return task, trajectory["messages"][-1]["content"]


def writing_task() -> tuple[dict[str, Any], Task]:
    for trajectory in generate(4, "test", 200, kinds=["change_pick"]):
        task = Task.from_dict(trajectory)
        if any(task.check.state.values()):
            return trajectory, task
    raise AssertionError("no task of this kind writes")


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_oracle_succeeds_at_every_kind(kind: str, store: Store) -> None:
    for split in ("train", "test"):
        for trajectory in generate(9, split, 60, kinds=[kind]):  # type: ignore[arg-type]
            task, answer = replay(trajectory, store)
            assert judge(task, store, answer) == Verdict(True), trajectory["request"]


def test_a_task_without_its_write_fails(store: Store) -> None:
    trajectory, task = writing_task()
    task.start_world(store)
    verdict = judge(task, store, trajectory["messages"][-1]["content"])
    assert not verdict.success and "changed by nothing" in verdict.reason


def test_an_unwanted_write_fails_a_task_that_answers_well(store: Store) -> None:
    for trajectory in generate(4, "test", 300, kinds=["order_status", "track_pick"]):
        task, answer = replay(trajectory, store)
        for order in task.world.orders:
            store.execute("cancel_order", {"order_id": order.order_id})
        if store.writes:
            assert not judge(task, store, answer).success
            return
    raise AssertionError("nothing could be cancelled")


def test_an_answer_without_the_facts_fails(store: Store) -> None:
    trajectory, _ = writing_task()
    task, _ = replay(trajectory, store)
    verdict = judge(task, store, "It is done.")
    assert not verdict.success and "does not mention" in verdict.reason


def test_a_write_made_twice_fails_although_the_state_looks_right(store: Store) -> None:
    trajectory = next(
        item for item in generate(2, "test", 50, kinds=["watch_named"]) if any(item["check"]["state"].values())
    )
    task, answer = replay(trajectory, store)
    store.execute("watch_product", dict(zip(("product_id", "email"), task.check.state["watched"][0], strict=True)))
    verdict = judge(task, store, answer)
    assert not verdict.success and "2 writes" in verdict.reason


def test_a_forbidden_word_fails_a_comparison(store: Store) -> None:
    task = Task("t", "compare_orders", "train", "?", World(), Check(facts=("O-1111", "51"), forbid=("O-2222",)))
    assert judge(task, store, "Order O-1111: lamp, 51 EUR.").success
    assert not judge(task, store, "O-1111 51, O-2222 84.").success


def test_an_answer_that_denies_nothing_fails_where_a_refusal_is_due(store: Store) -> None:
    task = Task("t", "change_by_id", "train", "?", World(), Check(facts=("O-1111",), any_of=(("not", "refused"),)))
    assert judge(task, store, "Order O-1111 can not be refunded.").success
    assert not judge(task, store, "Order O-1111 is refunded.").success


@pytest.mark.parametrize(
    ("answer", "fact", "expected"),
    [
        ("You get 5 EUR.", "5", True),
        ("You get 51 EUR.", "5", False),
        ("Order O-5 is late.", "5", False),
        ("rated 4.5.", "4.5", True),
        ("rated 4.5.", "5", False),
        ("rated 4.5.", "4", False),
        ("Order O-4821.", "O-4821", True),
        ("Order O-48210.", "O-4821", False),
        ("in TURIN, due 09-27", "Turin", True),
    ],
)
def test_a_fact_counts_as_a_whole(answer: str, fact: str, expected: bool) -> None:
    assert mentions(answer, fact) is expected


def test_a_world_survives_json() -> None:
    for task in handwritten_tasks()[:1]:
        assert World.from_dict(task.world.to_dict()) == task.world
