"""Two runs side by side: turns aligned by their calls, and the first place where what was said differs.

Equal are runs whose task, messages, calls, results and ending are equal. Timing and guessing are shown beside them and
never make runs different: with guessing on and off they should be equal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from agent_runtime.tools.values import MalformedCall, ToolCall
from agent_runtime.traces.events import Event

from .conversation import RecordedCall, ReportedRun, ReportedTurn, read_run


@dataclass(frozen=True, slots=True)
class Difference:
    """One part that differs: its name and its text in both runs, None where a run lacks it."""

    part: str
    """`task`, `turn`, `thinking`, `text`, `call 1`, `result 1`, ..., `status`, `output` or `error`."""
    a: str | None
    b: str | None

    @property
    def offset(self) -> int:
        """Characters that both begin with."""
        a, b = self.a or "", self.b or ""
        return next(
            (at for at, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b))
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields and the offset."""
        return {"part": self.part, "a": self.a, "b": self.b, "offset": self.offset}


@dataclass(frozen=True, slots=True)
class AlignedTurn:
    """A turn of each run, or of one where the other has nothing like it."""

    a: ReportedTurn | None
    b: ReportedTurn | None
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class FirstDivergence:
    """Where two runs part; `turn` counts the aligned turns from 0, None before the first and after the last."""

    turn: int | None
    difference: Difference


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsDiff:
    """What two runs have in common and what they don't."""

    a: ReportedRun
    b: ReportedRun
    turns: tuple[AlignedTurn, ...]
    before: tuple[Difference, ...]
    """Of the task."""
    after: tuple[Difference, ...]
    """Of the ending."""

    @property
    def first(self) -> FirstDivergence | None:
        """The first difference; None where the runs are equal."""
        if self.before:
            return FirstDivergence(None, self.before[0])
        for number, turn in enumerate(self.turns):
            if turn.differences:
                return FirstDivergence(number, turn.differences[0])
        return FirstDivergence(None, self.after[0]) if self.after else None

    @property
    def equal(self) -> bool:
        """Whether the same was said and done in both."""
        return self.first is None

    def to_json(self) -> dict[str, Any]:
        """Return the object that `agent runs diff --json` prints, but for the runs' rows."""
        first = self.first
        return {
            "equal": self.equal,
            "first_divergence": None if first is None else {"turn": first.turn, **first.difference.to_json()},
            "turns": [
                {
                    "a": _turn_json(turn.a),
                    "b": _turn_json(turn.b),
                    "differences": [difference.to_json() for difference in turn.differences],
                }
                for turn in self.turns
            ],
            "before": [difference.to_json() for difference in self.before],
            "after": [difference.to_json() for difference in self.after],
        }


def diff_runs(a: Iterable[Event], b: Iterable[Event]) -> RunsDiff:
    """Compare the events of two runs; each may break off anywhere."""
    first, second = read_run(a), read_run(b)
    return RunsDiff(
        a=first,
        b=second,
        turns=tuple(_align(first.turns, second.turns)),
        before=tuple(_compare([("task", _task(first))], [("task", _task(second))])),
        after=tuple(_compare(_ending(first), _ending(second))),
    )


def _align(a: Sequence[ReportedTurn], b: Sequence[ReportedTurn]) -> Iterator[AlignedTurn]:
    """Pair the turns that make the same calls; between those, pair what stands in the same place."""
    matcher = SequenceMatcher(None, [_key(turn) for turn in a], [_key(turn) for turn in b], autojunk=False)
    for _, a_from, a_to, b_from, b_to in matcher.get_opcodes():
        for offset in range(max(a_to - a_from, b_to - b_from)):
            one = a[a_from + offset] if a_from + offset < a_to else None
            other = b[b_from + offset] if b_from + offset < b_to else None
            yield AlignedTurn(one, other, tuple(_differences(one, other)))


def _key(turn: ReportedTurn) -> tuple[str, ...]:
    return tuple(call_json(call.call) for call in turn.calls)


def _differences(a: ReportedTurn | None, b: ReportedTurn | None) -> Iterable[Difference]:
    if a is None or b is None:
        return (Difference("turn", _told(a) if a else None, _told(b) if b else None),)
    return _compare(_parts(a), _parts(b))


def _compare(a: Iterable[tuple[str, str]], b: Iterable[tuple[str, str]]) -> Iterator[Difference]:
    first, second = dict(a), dict(b)
    for part in dict.fromkeys([*first, *second]):
        if first.get(part) != second.get(part):
            yield Difference(part, first.get(part), second.get(part))


def _parts(turn: ReportedTurn) -> Iterator[tuple[str, str]]:
    """Yield what a turn says and gets, in the order in which it comes."""
    if turn.generation is not None:
        yield "thinking", turn.generation.thinking
        yield "text", turn.generation.text
    for call in turn.calls:
        yield f"call {call.index + 1}", call_json(call.call)
    for call in turn.calls:
        if call.outcome is not None:
            yield f"result {call.index + 1}", _result(call)


def _result(call: RecordedCall) -> str:
    assert call.outcome is not None
    status = call.outcome.status
    return call.outcome.content if status == "ok" else f"{status}: {call.outcome.content}"


def _told(turn: ReportedTurn) -> str:
    calls = " ".join(call_json(call.call) for call in turn.calls)
    return calls or (turn.generation.text if turn.generation else "")


def _task(run: ReportedRun) -> str:
    return run.started.task if run.started else ""


def _ending(run: ReportedRun) -> Iterator[tuple[str, str]]:
    if run.finished is None:
        yield "status", "interrupted"
        return
    yield "status", run.finished.status
    yield "output", run.finished.output
    if run.finished.error is not None:
        yield "error", run.finished.error


def call_json(call: ToolCall | MalformedCall) -> str:
    """Return a call as text in which equal calls are equal."""
    if isinstance(call, MalformedCall):
        return f"malformed: {call.text}"
    if not call.name and set(call.arguments) == {"malformed"}:  # as the dispatcher names it
        return f"malformed: {call.arguments['malformed']}"
    return f"{call.name}{json.dumps(dict(call.arguments), sort_keys=True, ensure_ascii=False)}"


def _turn_json(turn: ReportedTurn | None) -> dict[str, Any] | None:
    if turn is None:
        return None
    ledger = turn.ledger
    return {
        "turn": turn.turn,
        "calls": [call_json(call.call) for call in turn.calls],
        "took_ms": 1000 * (turn.ended_at - turn.started_at),
        "t_gen_ms": ledger.t_gen_ms,
        "t_tool_ms": ledger.t_tool_ms,
        "slowdown_ms": ledger.slowdown_ms,
        "hit": ledger.hit,
        "ending": ledger.ending,
        "lead_ms": ledger.lead_ms,
        "saved_ms": ledger.saved_ms,
        "wasted_ms": ledger.wasted_ms,
    }
