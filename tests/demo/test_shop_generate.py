"""The generator of the shop's tasks: deterministic, rich enough, and fair about what it keeps out of the training."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from functools import cache
from typing import Any

import pytest

from agent_runtime.demo.shop import phrases
from agent_runtime.demo.shop.copying import copy_tasks
from agent_runtime.demo.shop.generate import KINDS, generate
from agent_runtime.demo.shop.grammar import Pool, count, expand, parse
from agent_runtime.demo.shop.handwritten import handwritten_tasks
from agent_runtime.demo.shop.names import split_of

Trajectory = dict[str, Any]

IDENTIFIER = re.compile(r"\b[COPT]-\d{3,4}\b")
PLAIN_KINDS = {"small_talk", "dead_end"}
POOLS: dict[str, Pool] = {
    **phrases.BODIES,
    "opening": phrases.OPENING,
    "closing": phrases.CLOSING,
    "remark": phrases.REMARK,
    "identity": phrases.IDENTITY,
    "confirmed": phrases.CONFIRMED,
    "undecided": phrases.UNDECIDED,
}


@cache
def sample(split: str, n: int = 1500) -> tuple[Trajectory, ...]:
    return tuple(generate(11, split, n))  # type: ignore[arg-type]


def calls_of(trajectory: Trajectory) -> list[dict[str, Any]]:
    return [call["function"] for message in trajectory["messages"] for call in message.get("tool_calls", ())]


def boundaries(trajectories: tuple[Trajectory, ...]) -> list[dict[str, Any]]:
    return [message for item in trajectories for message in item["messages"] if message.get("tool_calls")]


def rough_tokens(text: str) -> int:
    return len(re.findall(r"[A-Za-z]+|\d|[^\w]", text))


def test_equal_seeds_give_equal_trajectories_and_a_longer_run_begins_like_a_shorter_one() -> None:
    short, long = list(generate(5, "test", 20)), list(generate(5, "test", 40))
    assert json.dumps(long[:20]) == json.dumps(short)
    assert json.dumps(list(generate(6, "test", 20))) != json.dumps(short)


def test_trajectories_are_plain_json() -> None:
    for trajectory in sample("train", 1500)[:200]:
        assert json.loads(json.dumps(trajectory)) == trajectory


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_kind_occurs(split: str) -> None:
    kinds = Counter(item["kind"] for item in sample(split))
    assert kinds.keys() == KINDS.keys() | {"dead_end"}


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_task_takes_two_to_six_calls_unless_it_is_small_talk_or_a_dead_end(split: str) -> None:
    for trajectory in sample(split):
        number = len(calls_of(trajectory))
        if trajectory["kind"] == "small_talk":
            assert number == 0
        elif trajectory["kind"] == "dead_end":
            assert number == 1
        else:
            assert 2 <= number <= 6, trajectory["request"]


@pytest.mark.parametrize("split", ["train", "test"])
def test_at_least_a_fifth_of_the_boundaries_need_reasoning(split: str) -> None:
    turns = boundaries(sample(split))
    thought = [turn for turn in turns if turn["reasoning_content"] is not None]
    assert len(thought) / len(turns) >= 0.2


def test_needs_reasoning_is_said_of_exactly_the_turns_that_think() -> None:
    for trajectory in sample("train"):
        turns = [message for message in trajectory["messages"] if message["role"] == "assistant"]
        assert trajectory["needs_reasoning"] == [turn["reasoning_content"] is not None for turn in turns]


def test_thinking_takes_20_to_80_tokens() -> None:
    lengths = [
        rough_tokens(message["reasoning_content"])
        for item in sample("train")
        for message in item["messages"]
        if message.get("reasoning_content")
    ]
    assert min(lengths) >= 20
    assert max(lengths) <= 86  # the model's own tokenizer counts six fewer


def test_the_row_to_choose_stands_anywhere_in_the_list() -> None:
    places: Counter[int] = Counter()
    for trajectory in generate(1, "train", 400, kinds=["track_pick"]):
        rows = [json.loads(m["content"]) for m in trajectory["messages"] if m.get("name") == "list_orders"]
        if rows and len(rows[0]) == 3:
            chosen = calls_of(trajectory)[2]["arguments"]["order_id"]
            places[[row["order_id"] for row in rows[0]].index(chosen)] += 1
    total = sum(places.values())
    assert all(places[place] / total > 0.2 for place in range(3))


def test_some_turns_make_several_calls_at_once() -> None:
    assert any(len(turn["tool_calls"]) > 1 for turn in boundaries(sample("train")))


def test_no_phrasing_is_both_trained_on_and_held_out() -> None:
    for name, pool in POOLS.items():
        assert not set(pool.train) & set(pool.heldout), name


def test_a_fifth_of_the_phrasings_of_each_task_is_held_out() -> None:
    train = sum(len(pool.train) for pool in POOLS.values())
    heldout = sum(len(pool.heldout) for pool in POOLS.values())
    assert 0.15 <= heldout / (train + heldout) <= 0.25


def test_each_tool_task_has_at_least_twelve_phrasings_to_train_on() -> None:
    small_talk = {"greeting", "thanks", "hours", "phone", "abilities", "shop_name"}
    for name, pool in phrases.BODIES.items():
        if name not in small_talk:
            assert len(pool.train) >= 12, name
            assert sum(map(count, pool.train)) * 1000 > 10_000, name


def test_training_requests_contain_no_held_out_sentence() -> None:
    pool = phrases.BODIES["order_status"]
    starts = [template.split("{order}")[0] for template in pool.heldout if "(" not in template.split("{order}")[0]]
    assert starts
    for trajectory in sample("train"):
        assert not any(start in trajectory["request"] for start in starts)


def test_held_out_phrasings_are_refused_for_training() -> None:
    with pytest.raises(ValueError, match="test split"):
        next(generate(1, "train", 1, phrasing="heldout"))


def test_the_test_split_mixes_in_about_a_fifth_of_held_out_phrasings() -> None:
    shares = Counter(item["phrasing"] for item in sample("test"))
    assert 0.15 < shares["heldout"] / sum(shares.values()) < 0.25
    assert {item["phrasing"] for item in generate(2, "test", 50, phrasing="heldout")} == {"heldout"}
    assert {item["phrasing"] for item in generate(2, "test", 50, phrasing="train")} == {"train"}


def test_identifiers_emails_and_products_of_the_splits_are_disjoint() -> None:
    def entities(split: str) -> set[str]:
        found: set[str] = set()
        for item in sample(split):
            world = item["world"]
            found |= {row[0] for table in ("customers", "products", "orders", "shipments") for row in world[table]}
            found |= {row[2] for row in world["customers"]} | {row[1] for row in world["products"]}
        return found

    assert not entities("train") & entities("test")


def test_every_identifier_a_training_text_mentions_belongs_to_the_training_split() -> None:
    for item in sample("train"):
        for identifier in IDENTIFIER.findall(json.dumps(item["messages"])):
            assert split_of(identifier) == "train" or identifier == f"O-{item['world']['next_order']}"


def test_handwritten_requests_are_thirty_and_share_no_identifier_with_the_training() -> None:
    requests = [task.request for task in handwritten_tasks()]
    assert len(set(requests)) == 30
    for task in handwritten_tasks():
        for identifier in IDENTIFIER.findall(json.dumps(task.world.to_dict())):
            assert split_of(identifier) == "test"


def test_copy_tasks_are_deterministic_and_their_answers_can_be_read_off_the_prompt() -> None:
    texts = list(copy_tasks(3, 400))
    assert texts == list(copy_tasks(3, 400))
    for prompt, answer in texts:
        assert prompt.startswith(("facts: ", "rows: ")) and " -> " in prompt
        for identifier in IDENTIFIER.findall(answer):
            assert identifier in prompt


def test_the_grammar_expands_nested_alternatives_and_refuses_open_ones() -> None:
    template = "a(b|c(d|e)|)"
    assert count(template) == 4
    assert {expand(template, random.Random(seed)) for seed in range(60)} == {"ab", "acd", "ace", "a"}
    for broken in ("a(b", "a)b"):
        with pytest.raises(ValueError, match="unmatched"):
            parse(broken)
