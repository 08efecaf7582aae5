"""tau-bench's `historical_trajectories`: one JSON array, each item the trial of a task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..trajectory import Trajectory
from .chat_messages import take_messages
from .conversation import Conversation
from .errors import Broken
from .records import convert, read_records
from .source import Source
from .values import as_object, label, without

_KNOWN = frozenset({"traj"})


def looks_like(record: dict[str, Any]) -> bool:
    """Tell whether an object is a record of this format."""
    return isinstance(record.get("traj"), list)


def read_tau_bench(source: Source) -> Iterator[Trajectory]:
    """Yield the trials of a file."""

    def trial(value: Any, place: str) -> Trajectory:
        return _trajectory(source, value, place)

    return convert(source, read_records(source), trial)


def _trajectory(source: Source, value: Any, place: str) -> Trajectory:
    record = as_object(value, "the record")
    if "traj" not in record:
        raise Broken("it has no traj")
    conversation = Conversation()
    take_messages(conversation, record["traj"], "traj")
    if notes := conversation.notes():
        source.fault(place, notes)
    task, trial = label(record.get("task_id")), label(record.get("trial"))
    parts = [part for part in (task, trial) if part is not None]
    return Trajectory(
        id=source.unique("-".join(parts) or None, place),
        format="tau-bench",
        group=task,
        turns=conversation.turns(),
        after=conversation.after(),
        extra=without(record, _KNOWN),
    )
