"""Writes runs as a trace for Perfetto and Chrome's tracing page (the JSON trace event format).

Lanes, one thread each: the model, the tools (more of them where calls run side by side), and one for every guess, with
an arrow from a guess to the call it served. Times are microseconds since the run's start.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TextIO

from agent_runtime.tools.values import (
    CallDemanded,
    CallFinished,
    GuessEnded,
    GuessProposed,
    GuessStarted,
    ToolCall,
)

from ..events import (
    Event,
    GenerationFinished,
    Prefilled,
    ProbeFinished,
    ProbeStarted,
    RunFinished,
    RunStarted,
    TurnFinished,
    TurnStarted,
)
from .runs import RecordedRun

_MODEL = 1
_PROBES = 2
_TOOLS = 10
_GUESSES = 1000
_LONGEST_TEXT = 2000
"""Characters shown of a text; a trace viewer is no place to read more."""


def write_perfetto(runs: Iterable[RecordedRun], file: TextIO) -> None:
    """Write runs as one trace, each a process of its own."""
    events: list[dict[str, Any]] = []
    for process, run in enumerate(runs, 1):
        events += _Trace(run.events, process, run.info.run_id).events
    json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file, ensure_ascii=False)
    file.write("\n")


def perfetto(events: Iterable[Event], name: str = "run") -> dict[str, Any]:
    """Return the events of one run as a JSON trace: `json.dump` it to a file and open that in Perfetto."""
    return {"traceEvents": _Trace(events, 1, name).events, "displayTimeUnit": "ms"}


class _Trace:
    """The trace events of one run; made by a single pass over its events."""

    def __init__(self, events: Iterable[Event], process: int, name: str) -> None:
        self.events: list[dict[str, Any]] = []
        self._process = process
        self._turns: dict[int, float] = {}
        self._prefilled: dict[int, float] = {}
        self._probes: dict[tuple[int, int], ProbeStarted] = {}
        self._last_probe: dict[int, tuple[float, ProbeFinished]] = {}
        self._proposed: dict[int, GuessProposed] = {}
        self._started: dict[int, float] = {}
        self._ended: dict[int, GuessEnded] = {}
        self._served: dict[int, CallFinished] = {}
        self._demanded: dict[tuple[int, int], CallDemanded] = {}
        self._tool_lanes: list[float] = []
        """When each lane of the tools is free again."""
        self._named: set[int] = set()
        self._end = 0.0
        calls: list[CallFinished] = []
        for event in events:
            self._end = max(self._end, event.at)
            if isinstance(event, CallFinished):
                calls.append(event)
                if event.guess is not None:
                    self._served.setdefault(event.guess, event)
            elif isinstance(event, RunStarted):
                name = f"{event.agent} {name}"
            else:
                self._take(event)
        self._name_lane(_MODEL, "model")
        self._meta("process_name", 0, name=name)
        for turn in sorted(self._turns):  # broken off
            self._slice(_MODEL, f"turn {turn}", self._turns[turn], self._end, {"complete": False})
        for guess in self._proposed:
            self._guess(guess)
        for call in sorted(calls, key=self._begin):
            self._call(call)

    def _take(self, event: Event) -> None:
        match event:
            case TurnStarted():
                self._turns[event.turn] = event.at
            case Prefilled():
                self._prefilled[event.turn] = event.at
                arguments = {"prompt_tokens": event.prompt_tokens, "reused_tokens": event.reused_tokens}
                self._slice(_MODEL, "prefill", self._turns.get(event.turn, event.at), event.at, arguments)
            case GenerationFinished():
                self._generation(event)
            case TurnFinished():
                start = self._turns.pop(event.turn, event.at)
                self._slice(_MODEL, f"turn {event.turn}", start, event.at, {})
            case ProbeStarted():
                self._probes[event.turn, event.probe] = event
            case ProbeFinished():
                self._probe(event)
            case GuessProposed():
                self._proposed.setdefault(event.guess, event)
                self._probe_of(event)
            case GuessStarted():
                self._started.setdefault(event.guess, event.at)
            case GuessEnded():
                self._ended.setdefault(event.guess, event)
            case CallDemanded():
                self._demanded.setdefault((event.turn, event.index), event)
                self._instant(_MODEL, f"demand {event.call.name}", event.at, _shown(event.call))
            case RunFinished():
                self._instant(_MODEL, event.status, event.at, {"error": event.error} if event.error else {})
            case _:
                pass

    def _generation(self, event: GenerationFinished) -> None:
        start = max(
            event.at - event.generation_ms / 1000,
            self._prefilled.get(event.turn, self._turns.get(event.turn, 0.0)),
        )
        arguments: dict[str, Any] = {
            "thinking": event.thinking[:_LONGEST_TEXT],
            "text": event.text[:_LONGEST_TEXT],
            "finish_reason": event.finish_reason,
            "completion_tokens": event.completion_tokens,
            "forwards": event.forwards,
            "slowdown_ms": event.slowdown_ms,
        }
        self._slice(_MODEL, "generate", start, event.at, arguments)

    def _probe(self, event: ProbeFinished) -> None:
        started = self._probes.pop((event.turn, event.probe), None)
        start = started.at if started else event.at - event.probe_ms / 1000
        if event.completed and event.call is not None:
            self._last_probe[event.turn] = (start, event)  # drawn in the lane of the guess that comes of it
            return
        self._name_lane(_PROBES, "probes without a guess")
        self._slice(_PROBES, "no call" if event.completed else "cut off", start, event.at, _of_probe(event))

    def _probe_of(self, proposed: GuessProposed) -> None:
        start, probe = self._last_probe.pop(proposed.turn, (0.0, None))
        if probe is not None and probe.call == proposed.call:
            self._slice(_GUESSES + proposed.guess, "probe", start, probe.at, _of_probe(probe))

    def _guess(self, guess: int) -> None:
        proposed, ended = self._proposed[guess], self._ended.get(guess)
        lane = _GUESSES + guess
        self._name_lane(lane, f"guess {guess}: {proposed.call.name}")
        arguments = _shown(proposed.call) | {"confidence": proposed.confidence, "source": proposed.source}
        if ended is not None:
            arguments |= {
                "ending": ended.ending,
                "reason": ended.reason,
                "lead_ms": ended.lead_ms,
                "saved_ms": ended.saved_ms,
                "wasted_ms": ended.wasted_ms,
            }
        ending = ended.ending if ended is not None else "unfinished"
        start = self._started.get(guess)
        if start is None:
            self._instant(lane, f"{ending} {proposed.call.name}", ended.at if ended else proposed.at, arguments)
            return
        served = self._served.get(guess)
        end = served.outcome.ended_at if served else ended.at if ended else self._end
        self._slice(lane, f"{ending} {proposed.call.name}", start, end, arguments)

    def _begin(self, call: CallFinished) -> float:
        """Return when a call began to be waited for: at its demand where a guess served it."""
        demanded = self._demanded.get((call.turn, call.index))
        if call.guess is not None and demanded is not None:
            return demanded.at
        return call.outcome.started_at

    def _call(self, call: CallFinished) -> None:
        start = self._begin(call)
        end = call.at if call.guess is not None else call.outcome.ended_at
        lane = self._free_tool_lane(start, end)
        arguments = {
            "status": call.outcome.status,
            "content": call.outcome.content[:_LONGEST_TEXT],
            "turn": call.turn,
            "guess": call.guess,
        }
        self._slice(lane, call.tool or "malformed call", start, end, arguments)
        if call.guess is not None and call.guess in self._started:
            flow = {"name": "served", "cat": "guess", "id": self._process * 1_000_000 + call.guess}
            self._add("s", _GUESSES + call.guess, self._started[call.guess], flow)
            self._add("f", lane, start, flow | {"bp": "e"})

    def _free_tool_lane(self, start: float, end: float) -> int:
        """Return a lane in which nothing runs at `start`: slices of one lane may only nest."""
        for number, free in enumerate(self._tool_lanes):
            if free <= start:
                self._tool_lanes[number] = end
                return _TOOLS + number
        self._tool_lanes.append(end)
        number = len(self._tool_lanes) - 1
        self._name_lane(_TOOLS + number, "tools" if number == 0 else f"tools {number + 1}")
        return _TOOLS + number

    def _slice(self, lane: int, name: str, start: float, end: float, arguments: dict[str, Any]) -> None:
        duration = max(0.0, end - start) * 1e6
        self._add("X", lane, start, {"name": name, "dur": round(duration, 3), "args": arguments})

    def _instant(self, lane: int, name: str, at: float, arguments: dict[str, Any]) -> None:
        self._add("i", lane, at, {"name": name, "s": "t", "args": arguments})

    def _add(self, phase: str, lane: int, at: float, fields: dict[str, Any]) -> None:
        self.events.append({"ph": phase, "pid": self._process, "tid": lane, "ts": round(at * 1e6, 3)} | fields)

    def _name_lane(self, lane: int, name: str) -> None:
        if lane not in self._named:
            self._named.add(lane)
            self._meta("thread_name", lane, name=name)
            self._meta("thread_sort_index", lane, sort_index=lane)

    def _meta(self, what: str, lane: int, **arguments: Any) -> None:
        self.events.append({"ph": "M", "pid": self._process, "tid": lane, "name": what, "args": arguments})


def _shown(call: ToolCall) -> dict[str, Any]:
    return {"arguments": dict(call.arguments)}


def _of_probe(event: ProbeFinished) -> dict[str, Any]:
    return {"tokens": event.tokens, "confidence": event.confidence, "co_decoded": event.co_decoded}
