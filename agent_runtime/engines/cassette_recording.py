"""Recording: an engine and sessions that note down what another engine's sessions stream and answer."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from agent_runtime.errors import EngineClosed, EngineFailed
from agent_runtime.tools import Tool, ToolContext
from agent_runtime.tools.execute import render
from agent_runtime.tools.failures import failure_of
from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.messages import AssistantMessage, Message
from agent_runtime.traces.redaction import Redactor

from .base import (
    CallClosed,
    Delta,
    Engine,
    EngineEvent,
    Generated,
    ProbeResult,
    PromptReady,
    Session,
    SessionStatistics,
    ToolSchema,
)
from .cassette_file import CallRecord, CassetteWriter, MessageRecord, ProbeRecord, Record, StreamEvent, ToolsRecord
from .cassette_requests import Conversation, Plain, plain_assistant, sampled
from .cassette_tools import CURRENT

if TYPE_CHECKING:
    from agent_runtime.decoding.requests import Sampling

_GENERATED = TypeAdapter(Generated)
_PROBE = TypeAdapter(ProbeResult)


class RecordingEngine:
    """Another engine, recorded.

    Args:
        writer: Where to.
        engine: Whose sessions are recorded.
        secrets: Names of the arguments that must not be written, by tool.
    """

    def __init__(self, writer: CassetteWriter, engine: Engine, secrets: Mapping[str, Iterable[str]]) -> None:
        self._writer = writer
        self._engine = engine
        self._secrets = secrets

    @property
    def name(self) -> str:
        """The recorded engine's name."""
        return self._engine.name

    async def open(self, tools: Sequence[ToolSchema]) -> RecordingSession:
        """Open a session that is recorded."""
        inner = await self._engine.open(tools)
        conversation = Conversation(Redactor(self._writer.key, self._secrets), tools)
        session = RecordingSession(inner, conversation, self._writer, model=self.name)
        CURRENT.set(session)
        return session

    async def aclose(self) -> None:
        """Close the recorded engine."""
        await self._engine.aclose()


class RecordingSession:
    """Another session, recorded; made by `RecordingEngine.open`."""

    def __init__(self, inner: Session, conversation: Conversation, writer: CassetteWriter, *, model: str) -> None:
        self._inner = inner
        self._conversation = conversation
        self._writer = writer
        self._model = model
        self._turns: list[str] = []
        self._waiting: list[Callable[[str], CallRecord]] = []
        self._numbering = threading.Lock()
        self._last: tuple[str, tuple[Plain, ...]] | None = None
        self._running: _Take | None = None

    @asynccontextmanager
    async def generate(
        self, messages: Sequence[Message], *, sampling: Sampling | None = None, max_tokens: int
    ) -> AsyncIterator[AsyncIterator[EngineEvent]]:
        """Generate as the recorded session does."""
        plain = self._conversation.plain(messages)
        take = self._running = _Take(self._conversation.key(plain))
        self._begin_turn(take.conversation)
        error: str | None = None
        try:
            stream = self._inner.generate(messages, sampling=sampling, max_tokens=max_tokens)
            async with stream as events, aclosing(take.listen(events)) as heard:
                yield heard
        except EngineClosed:
            raise
        except EngineFailed as failed:
            error = str(failed)
            raise
        finally:
            self._running = None
            if take.events or (error is not None and self._writer.begun):
                self._note_message(take, plain, sampled(sampling), error)

    async def probe(self, messages: Sequence[Message], *, position: int = 0, max_tokens: int) -> ProbeResult:
        """Probe as the recorded session does."""
        result = await self._inner.probe(messages, position=position, max_tokens=max_tokens)
        if result.completed:
            key = self._conversation.key(self._conversation.plain(messages))
            running = self._running
            redacted = _PROBE.validate_python(self._conversation.redact(_PROBE.dump_python(result)))
            after = len(running.events) if running is not None and running.conversation == key else 0
            self._write(ProbeRecord(conversation=key, position=position, after=after, result=redacted))
        return result

    def suggest(self, messages: Sequence[Message], call: ToolCall) -> None:
        """Pass the suggestion on."""
        self._inner.suggest(messages, call)

    def bind(
        self, tool: Tool, valid: Mapping[str, Any], context: ToolContext, function: Callable[[], Any]
    ) -> Callable[[], Any]:
        """Return `function`, with a note of what it gives or raises; a run that is cancelled leaves none."""

        async def run_async() -> str:
            try:
                content = render(await function())
            except (Exception, SystemExit) as error:
                self._note_call(tool, valid, context.turn, failure_of(error).content, ok=False)
                raise
            self._note_call(tool, valid, context.turn, content, ok=True)
            return content

        def run_sync() -> str:
            try:
                content = render(function())
            except (Exception, SystemExit) as error:
                self._note_call(tool, valid, context.turn, failure_of(error).content, ok=False)
                raise
            self._note_call(tool, valid, context.turn, content, ok=True)
            return content

        return run_async if tool.is_async else run_sync

    def statistics(self) -> SessionStatistics:
        """Return the recorded session's counts."""
        return self._inner.statistics()

    async def aclose(self) -> None:
        """Close the recorded session."""
        await self._inner.aclose()

    # --- notes ------------------------------------------------------------------------------------------------

    def _write(self, record: Record) -> None:
        self._writer.write(record, model=self._model)

    def _begin_turn(self, conversation: str) -> None:
        """Give the conversation its turn's number, and note the calls that were guessed before its message began."""
        with self._numbering:
            self._turns.append(conversation)
            waiting, self._waiting = self._waiting, []
        for record in waiting:  # all of this turn: nothing is run for a later one
            self._write(record(conversation))

    def _note_message(
        self, take: _Take, plain: tuple[Plain, ...], sampling: dict[str, Any] | None, error: str | None
    ) -> None:
        known, last = 0, self._last
        if last is not None and plain[: len(last[1])] == last[1]:
            known = len(last[1])
        self._write(ToolsRecord(id=self._conversation.tools_id, tools=self._conversation.tools))
        self._write(
            take.record(
                self._conversation,
                extends=last[0] if last is not None and known else None,
                tools=self._conversation.tools_id,
                messages=plain[known:],
                sampling=sampling,
                error=error,
            )
        )
        self._last = (take.conversation, plain)

    def _note_call(self, tool: Tool, valid: Mapping[str, Any], turn: int, content: str, *, ok: bool) -> None:
        """Note a tool's run; may be called from its thread."""
        _, arguments = self._conversation.call_key(tool.name, valid)
        content = self._conversation.text(content)

        def record(conversation: str) -> CallRecord:
            return CallRecord(conversation=conversation, tool=tool.name, arguments=arguments, ok=ok, content=content)

        with self._numbering:
            begun = turn < len(self._turns)
            if not begun:
                self._waiting.append(record)
        if begun:
            self._write(record(self._turns[turn]))


class _Take:
    """One stream as it is heard."""

    def __init__(self, conversation: str) -> None:
        self.conversation = conversation
        self.events: list[EngineEvent] = []

    async def listen(self, stream: AsyncIterator[EngineEvent]) -> AsyncGenerator[EngineEvent, None]:
        """Hand the events on."""
        async for event in stream:
            self.events.append(event)
            yield event

    def record(self, conversation: Conversation, *, error: str | None, **request: Any) -> MessageRecord:
        """Return what was heard, without secrets."""
        last = self.events[-1] if self.events else None
        generated = None
        heard = tuple(event.call for event in self.events if isinstance(event, CallClosed))
        calls = conversation.redact(plain_assistant(AssistantMessage(calls=heard)))["calls"]
        if isinstance(last, Generated):
            generated = _GENERATED.validate_python(conversation.redact(_GENERATED.dump_python(last)))
        texts = {kind: iter(self._slices(conversation, kind)) for kind in ("thinking", "text")}
        numbers = iter(range(len(calls)))
        events: list[StreamEvent] = []
        for event in self.events:
            match event:
                case PromptReady():
                    events.append(("prompt", event.prompt_tokens, event.reused_tokens))
                case Delta():
                    events.append((event.kind, next(texts[event.kind]), event.tokens))
                case CallClosed():
                    events.append(("call", next(numbers)))
                case Generated():
                    pass
        return MessageRecord(
            conversation=self.conversation,
            events=tuple(events),
            generated=generated,
            calls=() if generated is not None and generated.message.calls == heard else tuple(calls),
            error=error,
            **request,
        )

    def _slices(self, conversation: Conversation, kind: str) -> list[str]:
        """Return the texts of the deltas without secrets, which may begin in one delta and end in another."""
        pieces = [event.text for event in self.events if isinstance(event, Delta) and event.kind == kind]
        whole = "".join(pieces)
        redacted = conversation.text(whole)
        if redacted == whole:
            return pieces
        slices, start = [], 0
        for piece in pieces[:-1]:
            slices.append(redacted[start : start + len(piece)])
            start += len(piece)
        return [*slices, redacted[start:]]
