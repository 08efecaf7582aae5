"""The counter over recordings: what it may learn from before it is asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from agent_runtime.tools.values import ToolCall

from agent_runtime.replay.counter import ForcedCounter
from agent_runtime.replay.replaying import replay

pytestmark = pytest.mark.anyio


def trial(make: Any, task: str, number: int) -> Any:
    """Return one trial of a task: the same fixed call every time, and one that copies from the result before it."""
    return make.trajectory(
        make.turn(
            ToolCall("find", {"kind": task}), user=f"Do it, {number}.", results=[f'{{"item": "{task}-{number}"}}']
        ),
        make.turn(ToolCall("look", {"item": f"{task}-{number}"}), results=["fine"]),
        make.turn(text="Done."),
        id=f"{task}/{number}",
        group=task,
    )


async def rates(trajectories: list[Any], counter: ForcedCounter) -> dict[str, float | None]:
    done = await replay(trajectories, [counter])
    score = done.scores["counter"]
    return {tool: score.rate(lambda one, tool=tool: one.tool == tool).hit_at_1 for tool in ("find", "look")}


async def test_the_counter_never_learns_from_another_trial_of_the_same_task(make):
    trials = [trial(make, task, number) for task in "abcdef" for number in range(3)]
    counter = ForcedCounter(trials)
    hits = await rates(trials, counter)
    assert hits["find"] == 0.0  # what is constant in a task is known from that task alone
    assert hits["look"] == 1.0  # where the argument comes from is the same in all tasks
    assert counter.fit.to_json() == {
        "how": "leaving one group out",
        "groups": 6,
        "folds": 6,
        "trajectories": 18,
    }


async def test_other_recordings_teach_it_where_they_are_given(make):
    trials = [trial(make, "a", number) for number in range(3)]
    # The same call in many tasks; what only one task shows may be that task's own.
    others = [replace(trial(make, "a", number), group=str(number)) for number in range(10, 20)]
    counter = ForcedCounter(trials, fit=others)
    hits = await rates(trials, counter)
    assert hits == {"find": 1.0, "look": 1.0}
    assert (counter.fit.how, counter.fit.trajectories) == ("other recordings", 10)


async def test_a_single_task_is_learned_from_its_own_past_turns_only(make):
    turn = make.turn(ToolCall("find", {"kind": "a"}), user="Again.", results=["ok"])
    one = make.trajectory(*[turn] * 10)
    counter = ForcedCounter([one])
    done = await replay([one], [counter])
    assert counter.fit.how == "nothing"
    rate = done.scores["counter"].all
    assert 0 < rate.hits < rate.boundaries


async def test_trajectories_without_a_task_are_left_out_one_by_one_and_many_groups_together(make):
    alone = [make.trajectory(make.turn(make.find("x"), user="?"), id=str(number)) for number in range(120)]
    counter = ForcedCounter(alone)
    assert (counter.fit.groups, counter.fit.folds) == (120, 50)


async def test_what_it_learned_within_a_trajectory_is_gone_with_it(make):
    turn = make.turn(ToolCall("find", {"kind": "a"}), user="Again.", results=["ok"])
    trials = [make.trajectory(*[turn] * 6, id=str(number), group="a") for number in range(2)]
    done = await replay(trials, [ForcedCounter(trials)])
    first, second = ([answered.answers for answered in turns] for turns in done.answered)
    assert [answers["counter"][0].guess for answers in first] == [answers["counter"][0].guess for answers in second]
