"""SWE-agent's `.traj` files: one object per file, with `history` (the messages) and mostly `trajectory` (the steps).

The history is what the model saw, so it is read where there is one; the steps bring `execution_time`. Actions are the
tool calls where the agent used function calling; else the command in backticks becomes a call of `bash`.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from typing import Any

from agent_runtime.tools.values import ToolCall

from ..trajectory import RecordedResult, Trajectory
from .chat_messages import calls_of
from .conversation import Call, Conversation
from .errors import Broken
from .json_stream import BrokenOff, JsonStream
from .json_text import loads
from .records import Record, read_items, read_records, shape_of
from .source import Source
from .values import as_array, as_object, as_seconds, as_text, first_label, label

SHELL = "bash"
"""The tool that an action in backticks calls: SWE-agent types it into a shell."""
_BLOCK = re.compile(r"```[^\n`]*\n(.*?)\n?```", re.S)
_KEPT = ("environment", "info", "instance_id", "problem_statement", "replay_config")


def looks_like(record: dict[str, Any]) -> bool:
    """Tell whether an object is a record of this format, or the outline of one."""
    return isinstance(record.get("history"), list) or isinstance(record.get("trajectory"), list)


def read_swe_agent(source: Source) -> Iterator[Trajectory]:
    """Yield the trajectory of a file; of a file with a run per line, one for each."""
    with source.open() as file:
        whole = shape_of(file) == "documents"
    if not whole:
        for record in read_records(source):
            try:
                value = as_object(record.value, "the record")
                parts = {key: as_array(value.get(key), key) for key in ("history", "trajectory")}
                kept = {key: value[key] for key in _KEPT if key in value}
                trajectory = _trajectory(source, kept, parts["history"], parts["trajectory"], record.place)
            except Broken as broken:
                source.fault(record.place, str(broken))
                continue
            yield trajectory
        return
    try:
        yield _walk(source)
    except Broken as broken:
        source.fault("the document", str(broken))


def _walk(source: Source) -> Trajectory:
    """Read a large file member by member: steps also hold every prompt, which is left out."""
    kept: dict[str, Any] = {}
    lists: dict[str, list[Any]] = {"history": [], "trajectory": []}
    with source.open() as file:
        stream = JsonStream(file)
        try:
            for key in stream.members():
                if key in lists and stream.peek() == b"[":
                    name = "message" if key == "history" else "step"
                    if not _take_items(lists[key], read_items(source, stream, name)):
                        break  # cut off: what came before is kept
                elif key in _KEPT:
                    kept[key] = loads(stream.take())
                else:
                    stream.skip()
        except BrokenOff as broken:
            if not any(lists.values()):
                raise
            source.fault("the document", f"{broken}; what came before is kept")
    return _trajectory(source, kept, lists["history"], lists["trajectory"], "the document")


def _take_items(taken: list[Any], items: Generator[Record, None, bool]) -> bool:
    """Add items to a list; tell whether the array they come from was whole."""
    while True:
        try:
            item = next(items)
        except StopIteration as end:
            return bool(end.value)
        taken.append(_slim(item.value, first=not taken))


def _slim(item: Any, *, first: bool) -> Any:
    """Return a step without the prompt it repeats, but for the first one's."""
    if first or not isinstance(item, dict):
        return item
    return {key: value for key, value in item.items() if key not in ("query", "messages")}


def _trajectory(source: Source, kept: dict[str, Any], history: list[Any], steps: list[Any], place: str) -> Trajectory:
    if not history and not steps:
        raise Broken("it has neither history nor trajectory")
    conversation = Conversation()
    if history:
        _take_history(conversation, history, _Steps(steps))
    else:
        _take_steps(conversation, steps)
    if notes := conversation.notes():
        source.fault(place, notes)
    info = kept.get("info")
    group = first_label(kept, ("instance_id",))
    if group is None and isinstance(info, dict):
        group = first_label(info, ("instance_id",))
    return Trajectory(
        id=source.unique(group or source.path.stem, place),
        format="swe-agent",
        group=group,
        turns=conversation.turns(),
        after=conversation.after(),
        extra=kept,
    )


def _take_history(conversation: Conversation, history: list[Any], steps: _Steps) -> None:
    asked = False  # whether a command in backticks waits for its observation, which comes as a user message
    step: dict[str, Any] = {}
    for number, item in enumerate(history, 1):
        place = f"message {number}"
        message = as_object(item, place)
        role = message.get("role")
        content = as_text(message.get("content"), f"the content of {place}")
        if message.get("is_demo") is True or role == "system":
            conversation.system(content)
        elif role == "assistant":
            calls = calls_of(message, place)
            text, command = _command(message, content)
            asked = not calls and command is not None
            if asked and command is not None:
                calls = [_shell(command)]
            conversation.assistant(text if asked else content, calls, thinking=_thinking(message))
            step = steps.of(message.get("action"))
        elif role == "user" and not asked:
            conversation.user(content)
        elif role in ("user", "tool"):
            ids = message.get("tool_call_ids")
            id = label(ids[0]) if isinstance(ids, list) and ids else label(message.get("tool_call_id"))
            latency_s = as_seconds(step.get("execution_time"))
            conversation.result(RecordedResult(content=content, latency_s=latency_s), id)
            asked, step = False, {}
        else:
            raise Broken(f"{place} has the role {role!r}" if isinstance(role, str) else f"{place} has no role")
    if asked and isinstance(step.get("observation"), str):  # the last one is not always told to the model
        latency_s = as_seconds(step.get("execution_time"))
        conversation.result(RecordedResult(content=step["observation"], latency_s=latency_s))


def _take_steps(conversation: Conversation, steps: list[Any]) -> None:
    for number, item in enumerate(steps, 1):
        place = f"step {number}"
        step = as_object(item, place)
        if number == 1:
            _take_prompt(conversation, step.get("query") or step.get("messages"))
        response = as_text(step.get("response"), f"the response of {place}")
        calls = calls_of(step, place)
        text, command = _command(step, response)
        if not calls and command is not None:
            calls = [_shell(command)]
        conversation.assistant(text, calls, thinking=_thinking(step))
        if calls and "observation" in step:
            content = as_text(step.get("observation"), f"the observation of {place}")
            result = RecordedResult(content=content, latency_s=as_seconds(step.get("execution_time")))
            conversation.result(result, calls[0].id)


def _take_prompt(conversation: Conversation, prompt: Any) -> None:
    """Take the messages before the first step: the only ones that no step repeats."""
    for item in prompt if isinstance(prompt, list) else ():
        message = as_object(item, "a message of the prompt")
        content = as_text(message.get("content"), "a message of the prompt")
        (conversation.user if message.get("role") == "user" else conversation.system)(content)


def _shell(command: str) -> Call:
    return Call(ToolCall(SHELL, {"command": command}))


def _command(message: dict[str, Any], content: str) -> tuple[str, str | None]:
    """Return the text of a message without its command, and the command; None where there is none."""
    blocks = list(_BLOCK.finditer(content))
    text = content[: blocks[-1].start()] if blocks else content
    action = message.get("action")
    if isinstance(action, str):
        return text.rstrip(), action.strip() or None
    return text.rstrip(), blocks[-1][1].strip() or None if blocks else None


def _thinking(message: dict[str, Any]) -> str:
    blocks = message.get("thinking_blocks")
    texts = (block.get("thinking") for block in blocks if isinstance(block, dict)) if isinstance(blocks, list) else ()
    return "\n".join(text for text in texts if isinstance(text, str))


class _Steps:
    """The steps in their order, handed out to the messages that took the same action."""

    def __init__(self, steps: list[Any]) -> None:
        self._steps = [step for step in steps if isinstance(step, dict)]
        self._next = 0

    def of(self, action: Any) -> dict[str, Any]:
        """Return the next step with this action; an empty one where there is none."""
        for number in range(self._next, len(self._steps)):
            if _stripped(self._steps[number].get("action")) == _stripped(action):
                self._next = number + 1
                return self._steps[number]
        return {}


def _stripped(action: Any) -> str:
    return action.strip() if isinstance(action, str) else ""
