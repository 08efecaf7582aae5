"""How often the counter guesses right on recordings of real agents, where they are at hand."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path

import pytest
from agent_runtime.speculator.counter import CounterPredictor
from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.formats import read

DATA = Path(__file__).parents[3] / "shared" / "data"
RECORDED = DATA / "tau-bench-airline-gpt-4o.json"
FOLDS = 5


@pytest.mark.slow
@pytest.mark.skipif(not RECORDED.exists(), reason="the recordings are not at hand")
def test_calls_of_tasks_that_were_left_out_are_guessed_as_often_as_promised() -> None:
    trajectories = list(read(RECORDED))
    effects = tomllib.loads((DATA / "tau-bench-airline-effects.toml").read_text())["tools"]
    tasks = sorted({trajectory.group or "" for trajectory in trajectories})
    exact: list[bool] = []
    by_name: list[bool] = []
    reads: list[bool] = []
    for fold in range(FOLDS):
        left_out = set(tasks[fold::FOLDS])
        fitted = CounterPredictor(threshold=0.0)
        for trajectory in trajectories:
            if trajectory.group not in left_out:
                fitted.learn(trajectory)
        for trajectory in trajectories:
            if trajectory.group not in left_out:
                continue
            predictor = copy.deepcopy(fitted)
            for number, turn in enumerate(trajectory.turns):
                messages = trajectory.messages_before(number)
                guess = predictor.guess(messages)
                predictor.observe(messages, turn.message)
                if turn.message.calls and isinstance(call := turn.message.calls[0], ToolCall):
                    exact.append(guess.call is not None and guess.call.canonical() == call.canonical())
                    by_name.append(guess.call is not None and guess.call.name == call.name)
                    if effects[call.name]["effect"] == "read" and call.name not in ("think", "calculate"):
                        reads.append(exact[-1])
    assert sum(exact) / len(exact) > 0.44
    assert sum(by_name) / len(by_name) > 0.60
    assert sum(reads) / len(reads) > 0.70
