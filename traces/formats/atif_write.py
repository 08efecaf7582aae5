"""Writes runs as ATIF v1.8 documents, one per line.

What the format has a field for stands in the steps. Under `extra.agent_runtime` of the document stand the run's row and
its events in their order, without the texts and calls that the steps hold; `atif_read` puts them together again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import timedelta
from importlib.metadata import version
from typing import Any, TextIO

from agent_runtime.tools.values import CallFinished, MalformedCall, ToolCall

from ..events import Event, GenerationFinished, Prefilled, RunStarted
from ..messages import SystemMessage, UserMessage
from ..trajectory import RecordedTool, RecordedTurn
from .atif_format import IN_THE_STEP, OURS, SCHEMA_VERSION, call_id, models
from .own import ROW_ADAPTER, dump_event
from .runs import IMPORTED, RecordedRun, trajectory_of


def write_atif(runs: Iterable[RecordedRun], file: TextIO) -> None:
    """Write runs as ATIF documents, one per line.

    Raises:
        MissingExtra: the package `atif` isn't installed.
    """
    for run in runs:
        file.write(json.dumps(to_atif(run), ensure_ascii=False) + "\n")


def to_atif(run: RecordedRun) -> dict[str, Any]:
    """Return a run as an ATIF v1.8 document, validated by the format's own models.

    Raises:
        MissingExtra: the package `atif` isn't installed.
    """
    model = models()
    info = run.info
    trajectory = trajectory_of(info, run.events)
    messages = _Messages(run)
    steps: list[dict[str, Any]] = []
    for recorded, turn in zip(trajectory.turns, sorted(messages.generated), strict=True):
        steps += map(_said, recorded.before)
        steps.append(messages.step(turn, recorded))
    steps += map(_said, trajectory.after)
    document = {
        "schema_version": SCHEMA_VERSION,
        "session_id": info.run_id,
        "trajectory_id": info.run_id,
        "agent": {
            "name": info.agent or "agent",
            "version": "unknown" if messages.imported else version("agent-runtime"),
            "model_name": info.model or None,
            "tool_definitions": [_definition(tool) for tool in trajectory.tools] or None,
        },
        "steps": [step | {"step_id": number} for number, step in enumerate(steps, 1)],
        "final_metrics": {
            "total_prompt_tokens": sum(event.prompt_tokens for event in messages.generated.values()),
            "total_completion_tokens": sum(event.completion_tokens for event in messages.generated.values()),
            "total_cached_tokens": sum(messages.cached.values())
            + sum(event.reused_later for event in messages.generated.values()),
            "total_steps": len(steps),
        },
        "extra": {
            OURS: {
                "version": 1,
                "run": ROW_ADAPTER.dump_python(info, mode="json"),
                "events": [messages.shortened(event) for event in run.events],
            }
        },
    }
    return model.model_validate(document).to_json_dict()


class _Messages:
    """The first message of each turn of a run, and the first result of each call."""

    def __init__(self, run: RecordedRun) -> None:
        self.imported = False
        self.generated: dict[int, GenerationFinished] = {}
        self.finished: dict[tuple[int, int], CallFinished] = {}
        self.cached: dict[int, int] = {}
        self._started_at = run.info.started_at
        for event in run.events:
            if isinstance(event, GenerationFinished):
                self.generated.setdefault(event.turn, event)
            elif isinstance(event, CallFinished):
                self.finished.setdefault((event.turn, event.index), event)
            elif isinstance(event, Prefilled):
                self.cached.setdefault(event.turn, event.reused_tokens)
            elif isinstance(event, RunStarted):
                self.imported = self.imported or IMPORTED in event.settings

    def step(self, turn: int, recorded: RecordedTurn) -> dict[str, Any]:
        """Return the step of a turn."""
        event = self.generated[turn]
        calls = [_call(call, call_id(turn, index)) for index, call in enumerate(event.calls)]
        results = [
            self._result(finished, recorded, index)
            for index in range(len(event.calls))
            if (finished := self.finished.get((turn, index))) is not None
        ]
        return {
            "source": "agent",
            "timestamp": self._timestamp(event.at),
            "message": event.text,
            "reasoning_content": event.thinking or None,
            "tool_calls": calls or None,
            "observation": {"results": results} if results else None,
            "metrics": None
            if self.imported
            else {
                "prompt_tokens": event.prompt_tokens,
                "completion_tokens": event.completion_tokens,
                "cached_tokens": self.cached[turn] + event.reused_later if turn in self.cached else None,
            },
            "extra": {OURS: {"turn": turn, "generation_s": recorded.generation_s}},
        }

    def shortened(self, event: Event) -> dict[str, Any]:
        """Return an event as JSON without what its step holds."""
        dumped = dump_event(event)
        if isinstance(event, GenerationFinished) and self.generated[event.turn] is event:
            for field in IN_THE_STEP:
                del dumped[field]
        elif isinstance(event, CallFinished) and self._in_a_step(event):
            del dumped["outcome"]["content"]
        return dumped

    def _in_a_step(self, event: CallFinished) -> bool:
        message = self.generated.get(event.turn)
        shown = message is not None and 0 <= event.index < len(message.calls)
        return shown and self.finished[event.turn, event.index] is event

    def _result(self, finished: CallFinished, recorded: RecordedTurn, index: int) -> dict[str, Any]:
        result = recorded.results[index]
        assert result is not None
        return {
            "source_call_id": call_id(finished.turn, index),
            "content": finished.outcome.content,
            "extra": {OURS: {"latency_s": result.latency_s, "failed": result.failed}},
        }

    def _timestamp(self, at: float) -> str | None:
        try:
            return (self._started_at + timedelta(seconds=at)).isoformat()
        except (OverflowError, ValueError):
            return None


def _said(message: SystemMessage | UserMessage) -> dict[str, Any]:
    source = "system" if isinstance(message, SystemMessage) else "user"
    return {"source": source, "message": message.content}


def _call(call: ToolCall | MalformedCall, id: str) -> dict[str, Any]:
    if isinstance(call, ToolCall):
        return {"tool_call_id": id, "function_name": call.name, "arguments": dict(call.arguments)}
    return {
        "tool_call_id": id,
        "function_name": "",
        "arguments": {"malformed": call.text},
        "extra": {OURS: {"reason": call.reason}},
    }


def _definition(tool: RecordedTool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}
