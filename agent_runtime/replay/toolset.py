"""The tools of recorded trajectories: their schemas, what the operator's catalogue says of them, and equality of calls.

A recorded tool can't be run. It exists to compare calls and to tell which of them may start early.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agent_runtime.tools import Catalogue, Contract, Gate, InvalidArguments, Tool, ToolDefinitionError, Toolset
from agent_runtime.tools.values import MalformedCall, ToolCall
from agent_runtime.traces.trajectory import RecordedTool, Trajectory

from .schemas import infer_parameters

Runner = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
"""Runs a tool, given by its name, on arguments."""


@dataclass(frozen=True)
class RecordedToolset:
    """The tools of some trajectories that were told of the same ones."""

    tools: Toolset
    gate: Gate = field(default_factory=Gate)
    inferred: frozenset[str] = frozenset()
    """Tools whose schema was read off the recorded calls, since the recording has none that fits them."""

    def canonical(self, call: ToolCall | MalformedCall) -> str:
        """Return a call in the form in which calls are compared."""
        if isinstance(call, MalformedCall):
            return _json(["malformed", call.text])
        tool = self.tools.get(call.name)
        if tool is not None:
            try:
                return _json([call.name, tool.validate(call.arguments)])
            except InvalidArguments:
                pass
        return _json([call.name, dict(call.arguments)])

    def canonical_value(self, call: ToolCall, name: str) -> str | None:
        """Return one argument of a call in the form in which it is compared; None where the call leaves it out."""
        arguments: Mapping[str, Any] = call.arguments
        tool = self.tools.get(call.name)
        if tool is not None:
            try:
                arguments = tool.validate(arguments)
            except InvalidArguments:
                pass
        return _json(arguments[name]) if name in arguments else None

    def is_pre_executable(self, call: ToolCall | MalformedCall) -> bool:
        """Tell whether a guess of this very call might start before the agent asks."""
        tool = self.tools.get(call.name) if isinstance(call, ToolCall) else None
        if tool is None or not self.gate.decide(tool).allowed:
            return False
        try:
            tool.validate(call.arguments if isinstance(call, ToolCall) else {})
        except InvalidArguments:
            return False
        return True

    def running(self, run: Runner) -> Toolset:
        """Return the same tools, with `run(name, arguments)` behind each."""
        return Toolset(replace(tool, function=_function(run, tool.name)) for tool in self.tools)


def toolsets(
    trajectories: Sequence[Trajectory], *, catalogue: Catalogue | None = None, gate: Gate | None = None
) -> list[RecordedToolset]:
    """Return the toolset of each trajectory; those that were told of the same tools share one.

    A tool keeps its recorded schema where all its recorded calls fit it. A tool without a schema, or one whose calls
    break it, gets the schema that its calls show.
    """
    keys = [_key(trajectory.tools) for trajectory in trajectories]
    groups: dict[str, list[Trajectory]] = {}
    for key, trajectory in zip(keys, trajectories, strict=True):
        groups.setdefault(key, []).append(trajectory)
    made = {key: _toolset(group, catalogue, gate or Gate()) for key, group in groups.items()}
    return [made[key] for key in keys]


def _toolset(trajectories: Sequence[Trajectory], catalogue: Catalogue | None, gate: Gate) -> RecordedToolset:
    calls: dict[str, list[Mapping[str, Any]]] = {}
    for trajectory in trajectories:
        for turn in trajectory.turns:
            for call in turn.message.calls:
                if isinstance(call, ToolCall):
                    calls.setdefault(call.name, []).append(call.arguments)
    described = {tool.name: tool for tool in trajectories[0].tools}
    tools, inferred = [], set()
    for name in dict.fromkeys([*described, *calls]):
        tool = _tool(described.get(name), name, calls.get(name, []))
        if tool is None:
            inferred.add(name)
            tool = _made(name, described.get(name), infer_parameters(calls.get(name, [])))
        if catalogue is not None:
            tool = tool.with_contract(catalogue.effective(name, tool.contract))
        tools.append(tool)
    return RecordedToolset(Toolset(tools), gate, frozenset(inferred))


def _tool(described: RecordedTool | None, name: str, calls: Iterable[Mapping[str, Any]]) -> Tool | None:
    """Return the tool with its recorded schema; None if there is none that the recorded calls fit."""
    if described is None or not described.parameters:
        return None
    try:
        tool = _made(name, described, described.parameters)
        for arguments in calls:
            tool.validate(arguments)
    except (ToolDefinitionError, InvalidArguments, TypeError, AttributeError):  # a recording may hold any JSON there
        return None
    return tool


def _made(name: str, described: RecordedTool | None, parameters: Mapping[str, Any]) -> Tool:
    description = described.description if described is not None else ""
    contract = Contract()
    tool = Tool.from_schema("recorded", description, parameters, _cannot_run, contract, trusted=True)
    return replace(tool, name=name)  # a recording may hold names that this runtime would not take


async def _cannot_run(arguments: Mapping[str, Any]) -> str:
    raise RuntimeError("a recorded tool can't be run")


def _function(run: Runner, name: str) -> Callable[[Mapping[str, Any]], Awaitable[Any]]:
    async def call(arguments: Mapping[str, Any]) -> Any:
        return await run(name, arguments)

    return call


def _key(tools: Sequence[RecordedTool]) -> str:
    return _json([[tool.name, tool.description, tool.parameters] for tool in tools])


def _json(value: Any) -> str:
    # Recordings may hold NaN, which strict JSON has not.
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=dict)
