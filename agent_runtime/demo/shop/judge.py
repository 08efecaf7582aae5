"""Tasks as the evaluation sees them, and the judge of their outcome.

The judge looks at what changed in the shop and at the facts in the answer. It never compares texts with
the oracle's, so another way of solving a task counts as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .store import Store, Write
from .world import World


@dataclass(frozen=True, slots=True)
class Check:
    """What must be true at the end of a task.

    Attributes:
        state: The effects expected, as `Store.effects` reports them.
        facts: Strings the answer must contain.
        any_of: Groups of strings of which the answer must contain one each.
        forbid: Strings the answer must not contain.
    """

    state: dict[str, list[Any]] = field(default_factory=dict)
    facts: tuple[str, ...] = ()
    any_of: tuple[tuple[str, ...], ...] = ()
    forbid: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    """One request to the agent, in a world of its own, with what must come of it."""

    task_id: str
    kind: str
    phrasing: str
    request: str
    world: World
    check: Check

    @classmethod
    def from_dict(cls, trajectory: dict[str, Any]) -> Task:
        """Return the task of a generated trajectory, without the oracle's messages."""
        check = trajectory["check"]
        return cls(
            task_id=trajectory["task_id"],
            kind=trajectory["kind"],
            phrasing=trajectory["phrasing"],
            request=trajectory["request"],
            world=World.from_dict(trajectory["world"]),
            check=Check(
                state=check["state"],
                facts=tuple(check["facts"]),
                any_of=tuple(tuple(group) for group in check.get("any_of", ())),
                forbid=tuple(check.get("forbid", ())),
            ),
        )

    def start_world(self, store: Store) -> None:
        """Put `store` into the state this task begins with."""
        store.load(self.world)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a task succeeded, and if not, why."""

    success: bool
    reason: str = ""


def tasks(trajectories: Iterator[dict[str, Any]]) -> Iterator[Task]:
    """Yield the tasks of trajectories."""
    return map(Task.from_dict, trajectories)


def judge(task: Task, store: Store, answer: str, written: Sequence[Write] | None = None) -> Verdict:
    """Judge a finished task by the state of `store` and the facts in `answer`.

    `written` are the writes that took effect, by default those `store` has logged; more of them than the
    expected state accounts for is a failure, even where the state looks right.
    """
    written = store.writes if written is None else written
    expected = {kind: _sorted(rows) for kind, rows in task.check.state.items() if rows}
    actual = {kind: _sorted(rows) for kind, rows in store.effects().items() if rows}
    if actual != expected:
        return Verdict(False, f"the shop changed by {actual or 'nothing'}, expected {expected or 'nothing'}")
    if len(written) != sum(map(len, expected.values())):
        return Verdict(False, f"{len(written)} writes took effect, expected {sum(map(len, expected.values()))}")
    for fact in task.check.facts:
        if not mentions(answer, fact):
            return Verdict(False, f"the answer does not mention {fact!r}")
    for group in task.check.any_of:
        if not any(word.lower() in answer.lower() for word in group):
            return Verdict(False, f"the answer says none of {', '.join(map(repr, group))}")
    for word in task.check.forbid:
        if mentions(answer, word):
            return Verdict(False, f"the answer mentions {word!r}, which is wrong")
    return Verdict(True)


def mentions(answer: str, fact: str) -> bool:
    """Return whether `answer` contains `fact` as a whole: 5 is not in 51, in O-5114 or in 4.5."""
    pattern = rf"(?<![\w-])(?<!\d\.){re.escape(fact)}(?![\w-])(?!\.\d)"
    return re.search(pattern, answer, re.IGNORECASE) is not None


def _sorted(rows: list[Any]) -> list[Any]:
    return sorted([list(row) if isinstance(row, (list, tuple)) else row for row in rows], key=repr)
