"""tau2-bench results: one object with `info`, `tasks` and `simulations`, or one file per simulation.

Messages of the model carry `generation_time_seconds`. Calls that the simulated user makes on tools of its own are left
out and counted: the agent neither makes them nor sees what they give.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..trajectory import RecordedResult, Trajectory
from .chat_messages import calls_of, thinking_of
from .conversation import Conversation
from .errors import Broken
from .json_stream import BrokenOff, JsonStream
from .json_text import loads
from .records import Record, convert, read_items, read_records
from .source import Source
from .values import as_array, as_object, as_seconds, as_text, first_label, label, without

_KNOWN = frozenset({"messages", "ticks", "policy"})


def looks_like(record: dict[str, Any]) -> bool:
    """Tell whether an object is a file of results, a single simulation, or the outline of one."""
    if isinstance(record.get("simulations"), list):
        return True
    return isinstance(record.get("messages"), list) and "termination_reason" in record


def read_tau2(source: Source) -> Iterator[Trajectory]:
    """Yield the simulations of a file."""
    info: dict[str, Any] = {}

    def simulation(value: Any, place: str) -> Trajectory:
        return _trajectory(source, value, place, info)

    return convert(source, _simulations(source, info), simulation)


def _simulations(source: Source, info: dict[str, Any]) -> Iterator[Record]:
    """Yield the simulations, one in memory at a time, and fill in what the file says of all of them."""
    with source.open() as file:
        stream = JsonStream(file)
        whole = stream.peek() == b"{"
        try:
            for key in stream.members() if whole else ():
                if key == "messages":  # the file is one simulation
                    whole = False
                    break
                if key == "simulations" and stream.peek() == b"[":
                    if not (yield from read_items(source, stream, "simulation")):
                        return
                elif key == "info":
                    value = loads(stream.take())
                    info |= value if isinstance(value, dict) else {}
                else:
                    stream.skip()
        except BrokenOff as broken:
            source.fault("the document", str(broken))
            return
    if not whole:
        yield from read_records(source)


def _trajectory(source: Source, value: Any, place: str, info: dict[str, Any]) -> Trajectory:
    simulation = as_object(value, "the simulation")
    if "messages" not in simulation:
        raise Broken("it has no messages")
    environment = info.get("environment_info")
    policy = simulation.get("policy")
    if not isinstance(policy, str) and isinstance(environment, dict):
        policy = environment.get("policy")
    conversation = Conversation()
    if isinstance(policy, str) and policy:
        conversation.system(policy)
    by_user = _take_messages(conversation, simulation["messages"])
    if notes := conversation.notes():
        source.fault(place, notes)
    extra = without(simulation, _KNOWN)
    if by_user:
        extra["user_tool_calls"] = by_user
    agent = info.get("agent_info")
    if isinstance(agent, dict) and isinstance(agent.get("llm"), str):
        extra["model"] = agent["llm"]
    if isinstance(environment, dict) and isinstance(environment.get("domain_name"), str):
        extra["domain"] = environment["domain_name"]
    task, trial = label(simulation.get("task_id")), label(simulation.get("trial"))
    id = first_label(simulation, ("id",)) or "-".join(part for part in (task, trial) if part is not None)
    return Trajectory(
        id=source.unique(id or None, place),
        format="tau2",
        group=task,
        turns=conversation.turns(),
        after=conversation.after(),
        extra=extra,
    )


def _take_messages(conversation: Conversation, messages: Any) -> int:
    """Put a simulation's messages into a conversation; return how many calls the simulated user made."""
    by_user = 0
    for number, item in enumerate(as_array(messages, "messages"), 1):
        place = f"message {number}"
        message = as_object(item, place)
        role = message.get("role")
        if role == "assistant":
            text = as_text(message.get("content"), f"the content of {place}")
            generation_s = as_seconds(message.get("generation_time_seconds"))
            calls = calls_of(message, place)
            conversation.assistant(text, calls, thinking=thinking_of(message), generation_s=generation_s)
        elif role == "user":
            by_user += len(as_array(message.get("tool_calls"), f"tool_calls of {place}"))
            text = as_text(message.get("content"), f"the content of {place}")
            if text or not message.get("tool_calls"):
                conversation.user(text)
        elif role == "system":
            conversation.system(as_text(message.get("content"), f"the content of {place}"))
        elif role == "tool":
            for result in as_array(message.get("tool_messages"), f"tool_messages of {place}") or [message]:
                _take_result(conversation, as_object(result, f"a result of {place}"), place)
        else:
            raise Broken(f"{place} has the role {role!r}" if isinstance(role, str) else f"{place} has no role")
    return by_user


def _take_result(conversation: Conversation, message: dict[str, Any], place: str) -> None:
    if message.get("requestor") == "user":
        return
    content = as_text(message.get("content"), f"the content of {place}")
    result = RecordedResult(content=content, failed=message.get("error") is True)
    conversation.result(result, first_label(message, ("id", "tool_call_id")))
