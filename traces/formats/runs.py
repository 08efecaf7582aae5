"""Runs of this runtime as trajectories, and trajectories of other agents as runs: events like those we record.

What a foreign trajectory holds and events can't (what users said in between, descriptions of tools, that a time is
unknown) goes into the settings of its `RunStarted`, so that nothing is lost on the way there and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from agent_runtime.tools.values import CallDemanded, CallFinished, CallStarted, Outcome, ToolCall

from ..events import Event, GenerationFinished, RunFinished, RunStarted, TurnFinished, TurnStarted
from ..messages import AssistantMessage, SystemMessage, UserMessage
from ..store import RunRow
from ..trajectory import RecordedResult, RecordedTool, RecordedTurn, Trajectory
from .chat_messages import tools_of
from .errors import Broken
from .values import as_array, as_object, as_string

OWN = "own"
UNKNOWN = "unknown"
IMPORTED = "imported"
"""The key of a `RunStarted`'s settings under which an imported trajectory keeps what events can't hold."""
_NOT_RUN = frozenset({"invalid_arguments", "unknown_tool", "denied", "limit"})
"""Outcomes of calls whose tool never ran, and so took no time."""

_Opening = tuple[SystemMessage | UserMessage, ...]


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run with its events, as the store holds it."""

    info: RunRow
    events: tuple[Event, ...]


def trajectory_of(info: RunRow, events: Iterable[Event]) -> Trajectory:
    """Return a recorded run as a trajectory; a run that broke off ends with its last whole message.

    Latencies and generation times are those the events hold, in seconds. An imported run becomes again the trajectory
    that was imported.
    """
    started: RunStarted | None = None
    generated: dict[int, GenerationFinished] = {}
    finished: dict[tuple[int, int], CallFinished] = {}
    for event in events:
        match event:
            case RunStarted():
                started = started or event
            case GenerationFinished():
                generated.setdefault(event.turn, event)
            case CallFinished():
                finished.setdefault((event.turn, event.index), event)
    settings = started.settings if started else {}
    turns = tuple(
        RecordedTurn(
            message=AssistantMessage(text=event.text, thinking=event.thinking, calls=tuple(event.calls)),
            results=tuple(_result(finished.get((turn, index))) for index in range(len(event.calls))),
            generation_s=event.generation_ms / 1000,
        )
        for turn, event in sorted(generated.items())
    )
    opening: _Opening = (UserMessage(started.task if started else info.task),)
    instructions = settings.get("instructions")
    if isinstance(instructions, str) and instructions:
        opening = (SystemMessage(instructions), *opening)
    trajectory = Trajectory(
        id=info.run_id,
        format=OWN,
        group=info.task or None,
        tools=_tools(settings.get("tools")),
        turns=(replace(turns[0], before=opening), *turns[1:]) if turns else (),
        after=() if turns else opening,
        extra={
            "agent": info.agent,
            "model": info.model,
            "status": info.status,
            "started": info.started_at.isoformat(),
            "output": info.output,
            "error": info.error,
        },
    )
    imported = settings.get(IMPORTED)
    if isinstance(imported, Mapping):
        try:
            return _as_it_was(trajectory, imported)
        except Broken:
            pass  # somebody changed it: what the events say is still true
    return trajectory


def run_of(trajectory: Trajectory, run_id: str = "") -> RecordedRun:
    """Return a trajectory of another agent as a run; its clock starts at 0 and unknown times take none of it."""
    events = tuple(_events(trajectory))
    end = events[-1].at
    now = datetime.now(UTC)
    first, last = events[0], events[-1]
    assert isinstance(first, RunStarted) and isinstance(last, RunFinished)
    info = RunRow(
        run_id=run_id,
        agent=first.agent,
        model=first.model,
        task=first.task,
        status=last.status,
        started_at=now,
        ended_at=now,
        heartbeat_at=now,
        host="",
        pid=0,
        output=last.output,
        error=None,
        wall_ms=end * 1000,
        summary=None,
    )
    return RecordedRun(info, events)


def _result(event: CallFinished | None) -> RecordedResult | None:
    if event is None:
        return None
    outcome = event.outcome
    latency = None if outcome.status in _NOT_RUN else max(0.0, outcome.seconds)
    return RecordedResult(content=outcome.content, latency_s=latency, failed=outcome.status != "ok")


def _tools(value: Any) -> tuple[RecordedTool, ...]:
    try:
        return tools_of(value)
    except Broken:
        return ()


def _events(trajectory: Trajectory) -> Iterator[Event]:
    task = next((m.content for m in _said(trajectory) if isinstance(m, UserMessage)), "")
    model = next((v for key in ("model", "model_name") if isinstance(v := trajectory.extra.get(key), str)), UNKNOWN)
    settings = {IMPORTED: _beyond_events(trajectory)}
    yield RunStarted(at=0.0, agent=trajectory.format, model=model, task=task, settings=settings)
    at = 0.0
    for number, turn in enumerate(trajectory.turns):
        yield TurnStarted(turn=number, at=at)
        at += turn.generation_s or 0.0
        calls = turn.message.calls
        for index, call in enumerate(calls):
            asked = call if isinstance(call, ToolCall) else ToolCall("", {"malformed": call.text})
            yield CallDemanded(turn=number, at=at, index=index, call=asked, pre_executable=False)
        yield GenerationFinished(
            turn=number,
            at=at,
            thinking=turn.message.thinking,
            text=turn.message.text,
            calls=calls,
            finish_reason="calls" if calls else "stop",
            prompt_tokens=0,
            completion_tokens=0,
            thinking_tokens=0,
            forwards=0,
            generation_ms=(turn.generation_s or 0.0) * 1000,
            slowdown_ms=0.0,
        )
        yield from _call_events(number, turn, at)
        at += max((result.latency_s or 0.0 for result in turn.results if result is not None), default=0.0)
        yield TurnFinished(turn=number, at=at)
    output = trajectory.turns[-1].message.text if trajectory.turns else ""
    yield RunFinished(at=at, status="done", output=output)


def _call_events(number: int, turn: RecordedTurn, at: float) -> Iterator[Event]:
    """Yield how the calls of a turn ran: all from the message's end, side by side."""
    answered = [(index, result) for index, result in enumerate(turn.results) if result is not None]
    for index, _ in answered:
        name = getattr(turn.message.calls[index], "name", "")
        yield CallStarted(turn=number, at=at, index=index, tool=name, effect="write")
    for index, result in sorted(answered, key=lambda pair: pair[1].latency_s or 0.0):
        end = at + (result.latency_s or 0.0)
        outcome = Outcome(
            status="error" if result.failed else "ok",
            content=result.content,
            started_at=at,
            ended_at=end,
            error="recorded" if result.failed else None,
        )
        name = getattr(turn.message.calls[index], "name", "")
        yield CallFinished(turn=number, at=end, index=index, tool=name, outcome=outcome)


def _said(trajectory: Trajectory) -> Iterator[SystemMessage | UserMessage]:
    for turn in trajectory.turns:
        yield from turn.before
    yield from trajectory.after


def _beyond_events(trajectory: Trajectory) -> dict[str, Any]:
    """Return, as JSON, what events can't hold of a trajectory."""
    times = {
        str(number): [turn.generation_s, *(result.latency_s if result else None for result in turn.results)]
        for number, turn in enumerate(trajectory.turns)
    }
    return {
        "format": trajectory.format,
        "id": trajectory.id,
        "group": trajectory.group,
        "tools": [
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
            for tool in trajectory.tools
        ],
        "before": {str(number): _messages(turn.before) for number, turn in enumerate(trajectory.turns) if turn.before},
        "after": _messages(trajectory.after),
        "times": times,
        "extra": trajectory.extra,
    }


def _as_it_was(trajectory: Trajectory, imported: Mapping[str, Any]) -> Trajectory:
    before = as_object(imported.get("before"), "before")
    times = as_object(imported.get("times"), "times")
    turns = []
    for number, turn in enumerate(trajectory.turns):
        generation_s, *latencies = as_array(times.get(str(number)), "times") or [None]
        if len(latencies) != len(turn.results):
            raise Broken("times of other calls")
        results = tuple(
            None if result is None else replace(result, latency_s=latency)
            for result, latency in zip(turn.results, latencies, strict=True)
        )
        opening = _said_before(before.get(str(number)))
        turns.append(replace(turn, before=opening, results=results, generation_s=generation_s))
    group = imported.get("group")
    return replace(
        trajectory,
        id=as_string(imported.get("id"), "id"),
        format=as_string(imported.get("format"), "format"),
        group=group if isinstance(group, str) else None,
        tools=tools_of(imported.get("tools")),
        turns=tuple(turns),
        after=_said_before(imported.get("after")),
        extra=as_object(imported.get("extra"), "extra"),
    )


def _messages(messages: _Opening) -> list[list[str]]:
    return [["system" if isinstance(m, SystemMessage) else "user", m.content] for m in messages]


def _said_before(value: Any) -> _Opening:
    messages: list[SystemMessage | UserMessage] = []
    for pair in as_array(value, "messages"):
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)):
            raise Broken("a message is no pair of role and text")
        messages.append(SystemMessage(pair[1]) if pair[0] == "system" else UserMessage(pair[1]))
    return tuple(messages)
