"""Emits the spans of recorded runs through OpenTelemetry's API, named by its `gen_ai` conventions.

A run is an `invoke_agent` span; in it are a `chat` span per message and an `execute_tool` span per demanded call.
Guesses are spans called `speculate`, with attributes of ours under `agent_runtime.guess`; the call that a guess served
links to it. What was said and called is left out unless it is asked for, as the conventions want it.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from agent_runtime.tools.values import (
    CallDemanded,
    CallFinished,
    GuessEnded,
    GuessProposed,
    GuessStarted,
    MalformedCall,
    ToolCall,
)

from ..events import GenerationFinished, Prefilled, RunFinished
from .errors import MissingExtra
from .runs import RecordedRun

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

PROVIDER = "agent-runtime"


def emit_spans(run: RecordedRun, tracer: Tracer | None = None, *, content: bool = False) -> None:
    """Emit a recorded run as spans that begin and end when it all happened.

    Args:
        run: The run.
        tracer: Where to; None takes the tracer of the provider that the program has set up.
        content: Whether what was said, and the arguments and results of calls, are written too.

    Raises:
        MissingExtra: the package `opentelemetry-api` isn't installed.
    """
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise MissingExtra.of("OpenTelemetry", "opentelemetry-api", "otel") from error
    _Spans(run, tracer or trace.get_tracer("agent_runtime"), content).emit()


class _Spans:
    """The spans of one run."""

    def __init__(self, run: RecordedRun, tracer: Tracer, content: bool) -> None:
        self._run = run
        self._tracer = tracer
        self._content = content
        self._proposed: dict[int, GuessProposed] = {}
        self._started: dict[int, float] = {}
        self._guesses: dict[int, Span] = {}
        self._served: dict[int, CallFinished] = {}
        self._demanded: dict[tuple[int, int], CallDemanded] = {}
        self._cached: dict[int, int] = {}
        for event in run.events:
            if isinstance(event, CallFinished) and event.guess is not None:
                self._served.setdefault(event.guess, event)

    def emit(self) -> None:
        """Emit the run's span and all those in it."""
        from opentelemetry import trace

        info = self._run.info
        end = max((event.at for event in self._run.events), default=0.0)
        root = self._span(
            f"invoke_agent {info.agent}".rstrip(),
            0.0,
            None,
            {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": info.agent,
                "gen_ai.conversation.id": info.run_id,
                "gen_ai.request.model": info.model,
                "agent_runtime.run.status": info.status,
            },
        )
        self._context = trace.set_span_in_context(root)
        for event in self._run.events:
            match event:
                case Prefilled():
                    self._cached[event.turn] = event.reused_tokens
                case GenerationFinished():
                    self._chat(event)
                case GuessProposed():
                    self._proposed[event.guess] = event
                case GuessStarted():
                    self._started[event.guess] = event.at
                case GuessEnded():
                    self._guess(event)
                case CallDemanded():
                    self._demanded[event.turn, event.index] = event
                case RunFinished() if event.error is not None:
                    self._fail(root, event.status, event.error)
                case _:
                    pass
        for event in self._run.events:  # once the guesses have their spans, to which the calls link
            if isinstance(event, CallFinished):
                self._call(event)
        root.end(self._time(end))

    def _chat(self, event: GenerationFinished) -> None:
        model = self._run.info.model
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": model,
            "gen_ai.response.model": model,
            "gen_ai.response.finish_reasons": [_FINISH_REASONS.get(event.finish_reason, event.finish_reason)],
            "gen_ai.usage.input_tokens": event.prompt_tokens,
            "gen_ai.usage.output_tokens": event.completion_tokens,
            "agent_runtime.turn": event.turn,
            "agent_runtime.slowdown_ms": event.slowdown_ms,
        }
        if event.turn in self._cached:
            attributes["gen_ai.usage.cache_read.input_tokens"] = self._cached[event.turn] + event.reused_later
        if self._content:
            attributes["gen_ai.output.messages"] = json.dumps([_message(event)], ensure_ascii=False)
        span = self._span(f"chat {model}".rstrip(), event.at - event.generation_ms / 1000, self._context, attributes)
        span.end(self._time(event.at))

    def _guess(self, event: GuessEnded) -> None:
        proposed = self._proposed.get(event.guess)
        attributes: dict[str, Any] = {
            "agent_runtime.turn": event.turn,
            "agent_runtime.guess.number": event.guess,
            "agent_runtime.guess.ending": event.ending,
            "agent_runtime.guess.matched": event.matched,
            "agent_runtime.guess.executed": event.executed,
            "agent_runtime.guess.lead_ms": event.lead_ms,
            "agent_runtime.guess.saved_ms": event.saved_ms,
            "agent_runtime.guess.wasted_ms": event.wasted_ms,
            "gen_ai.tool.name": event.tool,
        }
        if event.reason is not None:
            attributes["agent_runtime.guess.reason"] = event.reason
        if proposed is not None:
            attributes["agent_runtime.guess.confidence"] = proposed.confidence
            attributes["agent_runtime.guess.source"] = proposed.source
            attributes["agent_runtime.guess.index"] = proposed.index
            if self._content:
                attributes["gen_ai.tool.call.arguments"] = _json(dict(proposed.call.arguments))
        start = self._started.get(event.guess, proposed.at if proposed is not None else event.at)
        served = self._served.get(event.guess)
        end = served.outcome.ended_at if served is not None else event.at
        span = self._span(f"speculate {event.tool}".rstrip(), start, self._context, attributes)
        self._guesses[event.guess] = span
        span.end(self._time(max(start, end)))

    def _call(self, event: CallFinished) -> None:
        from opentelemetry.trace import Link

        demanded = self._demanded.get((event.turn, event.index))
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": event.tool,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": f"call_{event.turn}_{event.index}",
            "agent_runtime.turn": event.turn,
            "agent_runtime.tool.seconds": event.outcome.seconds,
        }
        if self._content:
            if demanded is not None:
                attributes["gen_ai.tool.call.arguments"] = _json(dict(demanded.call.arguments))
            attributes["gen_ai.tool.call.result"] = event.outcome.content
        guess = self._guesses.get(event.guess) if event.guess is not None else None
        links = [Link(guess.get_span_context())] if guess is not None else []
        # As long as the agent waited; where a guess served the call, the tool itself began earlier.
        start = demanded.at if guess is not None and demanded is not None else event.outcome.started_at
        end = event.at if guess is not None else event.outcome.ended_at
        name = f"execute_tool {event.tool}".rstrip()
        span = self._tracer.start_span(
            name, context=self._context, attributes=attributes, links=links, start_time=self._time(start)
        )
        if event.outcome.status != "ok":
            self._fail(span, event.outcome.error or event.outcome.status, event.outcome.status)
        span.end(self._time(max(start, end)))

    def _span(self, name: str, start: float, context: Context | None, attributes: dict[str, Any]) -> Span:
        attributes["gen_ai.provider.name"] = PROVIDER
        return self._tracer.start_span(name, context=context, attributes=attributes, start_time=self._time(start))

    def _fail(self, span: Span, kind: str, text: str) -> None:
        from opentelemetry.trace import Status, StatusCode

        span.set_attribute("error.type", kind)
        span.set_status(Status(StatusCode.ERROR, text))

    def _time(self, at: float) -> int:
        """Return nanoseconds since 1970 of a moment `at` seconds after the run's start."""
        return _nanoseconds(self._run.info.started_at) + round(at * 1e9)


_FINISH_REASONS = {"calls": "tool_call", "stop_string": "stop"}


def _nanoseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000) * 1000


def _message(event: GenerationFinished) -> dict[str, Any]:
    """Return a message of the model in the conventions' form."""
    parts: list[dict[str, Any]] = []
    if event.thinking:
        parts.append({"type": "reasoning", "content": event.thinking})
    if event.text:
        parts.append({"type": "text", "content": event.text})
    parts += [_call_part(call, f"call_{event.turn}_{index}") for index, call in enumerate(event.calls)]
    reason = _FINISH_REASONS.get(event.finish_reason, event.finish_reason)
    return {"role": "assistant", "parts": parts, "finish_reason": reason}


def _call_part(call: ToolCall | MalformedCall, id: str) -> dict[str, Any]:
    if isinstance(call, MalformedCall):
        return {"type": "tool_call", "id": id, "name": "", "arguments": call.text}
    return {"type": "tool_call", "id": id, "name": call.name, "arguments": dict(call.arguments)}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
