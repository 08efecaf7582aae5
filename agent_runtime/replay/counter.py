"""The counter predictor led through recordings, fitted on what it may know of each."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agent_runtime.speculator.counter import CounterPredictor
from agent_runtime.traces.trajectory import Trajectory

from .forced import Answer, Answers, ForcedTurn
from .toolset import RecordedToolset

MOST_FOLDS = 50
"""Fits of a cross-validation; with more groups than that, several are left out together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How the counter was fitted, for reports."""

    how: Literal["other recordings", "leaving one group out", "nothing"]
    groups: int
    """Groups of the replayed trajectories: the tasks they try, or each its own where the recording names none."""
    folds: int
    """How many fits were made, each without the groups it was asked about."""
    trajectories: int
    """Trajectories that could be learned from."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {"how": self.how, "groups": self.groups, "folds": self.folds, "trajectories": self.trajectories}


class ForcedCounter:
    """Leads the counter through trajectories; in each it also learns from the turns that have passed.

    With `fit` it learns from those recordings first. Without, it learns from the replayed ones, but never from a
    trajectory of the group (task) that it is asked about. What it learns within a trajectory is forgotten at its end,
    so that trials of one task don't teach each other.

    Args:
        trajectories: What will be replayed.
        fit: Recordings to learn from, instead of the replayed ones.
        threshold: Confidence below which it abstains; 0 always names a call once it knows one.
    """

    source = "counter"

    def __init__(
        self, trajectories: Sequence[Trajectory], *, fit: Iterable[Trajectory] | None = None, threshold: float = 0.0
    ) -> None:
        self._threshold = threshold
        self._replayed = trajectories
        self._fitted: dict[int, CounterPredictor] = {}
        self._current = CounterPredictor(threshold=threshold)
        self._fixed: CounterPredictor | None = None
        groups = list(dict.fromkeys(group_of(trajectory) for trajectory in trajectories))
        if fit is not None:
            self._fixed = CounterPredictor(threshold=threshold)
            learned = 0
            for trajectory in fit:
                self._fixed.learn(trajectory)
                learned += 1
            self._folds: dict[str, int] = {}
            self.fit = Fit(how="other recordings", groups=len(groups), folds=1, trajectories=learned)
            return
        folds = min(len(groups), MOST_FOLDS)
        self._folds = {group: index % folds for index, group in enumerate(groups)}
        how: Literal["leaving one group out", "nothing"] = "leaving one group out" if folds > 1 else "nothing"
        self.fit = Fit(how=how, groups=len(groups), folds=folds, trajectories=len(trajectories) if folds > 1 else 0)

    async def begin(self, trajectory: Trajectory, toolset: RecordedToolset) -> None:
        """Take the counter that may be asked about this trajectory, as it was fitted."""
        self._current = copy.deepcopy(self._fixed or self._without(self._folds[group_of(trajectory)]))

    async def answer(self, turn: ForcedTurn) -> Answers:
        """Guess from counts."""
        began = time.perf_counter()
        guess = self._current.guess(turn.messages)
        return (Answer(guess=guess, seconds=time.perf_counter() - began),)

    async def reveal(self, turn: ForcedTurn) -> None:
        """Count the turn."""
        self._current.observe(turn.messages, turn.message)

    async def aclose(self) -> None:
        """Do nothing."""

    def _without(self, fold: int) -> CounterPredictor:
        """Return the counter fitted without the groups of a fold."""
        if fold not in self._fitted:
            counter = self._fitted[fold] = CounterPredictor(threshold=self._threshold)
            for trajectory in self._replayed:
                if self._folds[group_of(trajectory)] != fold:
                    counter.learn(trajectory)
        return self._fitted[fold]


def group_of(trajectory: Trajectory) -> str:
    """Return the task a trajectory belongs to, or a group of its own."""
    return f"group {trajectory.group}" if trajectory.group is not None else f"alone {trajectory.id}"
