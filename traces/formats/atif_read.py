"""Reads ATIF documents: ours become the runs that they were, others become trajectories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from agent_runtime.tools.values import MalformedCall, ToolCall
from pydantic import ValidationError

from ..trajectory import RecordedResult, Trajectory
from .atif_format import IN_THE_STEP, OURS, call_id, models
from .chat_messages import tools_of
from .conversation import Call, Conversation
from .errors import Broken
from .own import first_error, load_event, load_info
from .records import read_records
from .runs import RecordedRun
from .source import Source
from .values import as_array, as_object, as_seconds, as_text

if TYPE_CHECKING:
    import atif


def read_atif(source: Source) -> Iterator[RecordedRun | Trajectory]:
    """Yield the runs and trajectories of a file; subagents' trajectories follow the one that holds them.

    Raises:
        MissingExtra: the package `atif` isn't installed.
    """
    model = models()
    for record in read_records(source):
        try:
            document = model.model_validate(record.value)
        except ValidationError as error:
            source.fault(record.place, f"no valid ATIF: {first_error(error)}")
            continue
        try:
            ours = _our_run(document)
        except Broken as broken:
            source.fault(record.place, f"what we wrote under extra is broken ({broken}); read without it")
            ours = None
        if ours is not None:
            yield ours
        else:
            yield from _trajectories(source, document, record.place)


def _our_run(document: atif.Trajectory) -> RecordedRun | None:
    ours = _ours(document.extra)
    if "run" not in ours:
        return None
    steps = {turn: step for step in document.steps if isinstance(turn := _ours(step.extra).get("turn"), int)}
    contents = {
        result.source_call_id: result.content
        for step in document.steps
        if step.observation is not None
        for result in step.observation.results
    }
    events = []
    for dumped in as_array(ours.get("events"), "events"):
        event = dict(as_object(dumped, "an event"))
        turn = event.get("turn")
        if event.get("type") == "generation_finished" and isinstance(turn, int) and turn in steps:
            event = _of_step(steps[turn]) | event
        outcome = event.get("outcome")
        if isinstance(outcome, dict) and "content" not in outcome and isinstance(turn, int):
            content = as_text(contents.get(call_id(turn, event.get("index", 0))), "a result")
            event["outcome"] = outcome | {"content": content}
        events.append(load_event(event))
    return RecordedRun(load_info(ours["run"]), tuple(events))


def _of_step(step: atif.Step) -> dict[str, Any]:
    """Return the fields of a `GenerationFinished` that its step holds."""
    calls = [call.call for call in _calls(step)]
    written = [
        {"text": call.text, "reason": call.reason}
        if isinstance(call, MalformedCall)
        else {"name": call.name, "arguments": call.arguments}
        for call in calls
    ]
    held = {"text": _text(step.message), "thinking": step.reasoning_content or "", "calls": written}
    assert held.keys() == set(IN_THE_STEP)
    return held


def _trajectories(source: Source, document: atif.Trajectory, place: str) -> Iterator[Trajectory]:
    conversation = Conversation()
    for step in document.steps:
        _take(conversation, step)
    if notes := conversation.notes():
        source.fault(place, notes)
    extra = document.model_dump(mode="json", exclude_none=True, exclude={"steps", "subagent_trajectories"})
    definitions = extra.get("agent", {}).pop("tool_definitions", None)
    if document.agent.model_name:
        extra["model"] = document.agent.model_name
    yield Trajectory(
        id=source.unique(document.trajectory_id or document.session_id, place),
        format="atif",
        tools=tools_of(definitions),
        turns=conversation.turns(),
        after=conversation.after(),
        extra=extra,
    )
    for number, subagent in enumerate(document.subagent_trajectories or (), 1):
        yield from _trajectories(source, subagent, f"{place}, subagent {number}")


def _take(conversation: Conversation, step: atif.Step) -> None:
    text = _text(step.message)
    results = step.observation.results if step.observation is not None else []
    if step.source != "agent":
        (conversation.system if step.source == "system" else conversation.user)(text)
        for result in results:  # feedback of the system that no call asked for
            conversation.system(_text(result.content))
        return
    calls = _calls(step)
    generation_s = as_seconds(_ours(step.extra).get("generation_s"))
    conversation.assistant(text, calls, thinking=step.reasoning_content or "", generation_s=generation_s)
    for result in results:
        content = _text(result.content)
        if result.source_call_id is None and not calls:
            conversation.user(content)  # an action that was no tool call: its outcome is what the agent is told next
            continue
        ours = _ours(result.extra)
        recorded = RecordedResult(
            content=content, latency_s=as_seconds(ours.get("latency_s")), failed=ours.get("failed") is True
        )
        conversation.result(recorded, result.source_call_id)


def _calls(step: atif.Step) -> list[Call]:
    calls = []
    for call in step.tool_calls or ():
        reason = _ours(call.extra).get("reason")
        made: ToolCall | MalformedCall
        if not call.function_name and isinstance(reason, str):
            made = MalformedCall(text=str(call.arguments.get("malformed", "")), reason=reason)
        else:
            made = ToolCall(call.function_name, call.arguments)
        calls.append(Call(made, call.tool_call_id))
    return calls


def _text(content: Any) -> str:
    """Return the text of a message or a result; parts without text are named in brackets."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text if part.text is not None else f"[{part.type}: {part.source.path}]" for part in content)


def _ours(extra: Mapping[str, Any] | None) -> Mapping[str, Any]:
    ours = (extra or {}).get(OURS)
    return ours if isinstance(ours, dict) else {}
