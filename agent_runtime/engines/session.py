"""One conversation with a local model: generations and probes as rows of the model's thread."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from agent_runtime.decoding.errors import DecodingError
from agent_runtime.decoding.requests import CallGrammar, Finished, Ready, RowRequest, Sampling, StopReason, Tokens
from agent_runtime.errors import ContextOverflow, EngineClosed, EngineFailed
from agent_runtime.tools.values import MalformedCall, ToolCall
from agent_runtime.traces.events import Drafting, FinishReason
from agent_runtime.traces.messages import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage

from .base import CallClosed, Delta, EngineEvent, Generated, ProbeResult, PromptReady, SessionStatistics, ToolSchema
from .detokenize import Detokenizer
from .drafting import PROBE
from .parsing import merged

if TYPE_CHECKING:
    from agent_runtime.decoding.row import Row
    from agent_runtime.decoding.tally import DraftCounts

    from .loading import LoadedModel
    from .parsing import MessageParser, Part

_RENDERED_AT_ONCE = 20_000
"""Characters of a conversation above which it is rendered in a worker thread, so that the event loop goes on."""


@dataclass(slots=True)
class _Turn:
    """The conversation up to a generation: its messages, their ids, and the row that generates after them."""

    messages: tuple[Message, ...]
    prompt: tuple[int, ...]
    row: Row | None = None
    written: tuple[int, ...] = ()
    """What stands for the message so far, where no row generates it (`stand_in`)."""
    guessed: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Calls that probes have answered, canonical, as the tokens that the model would write."""
    suggestion: tuple[int, ...] = ()


LEAST_ROOM = 64
"""Tokens that the context must have left for a message (fewer where the message may be shorter); what is more than
that is cut to what the context holds."""


class LocalSession:
    """A conversation with a local model; made by `LocalEngine.open`. It belongs to one event loop.

    Each turn is rendered anew by the chat template, and the model's thread re-uses whatever prefix it has cached:
    also where the template drops earlier thinking, only what follows the change is read again.
    """

    def __init__(
        self,
        model: LoadedModel,
        tools: Sequence[ToolSchema],
        *,
        owner: str,
        sampling: Sampling | None,
        on_close: Callable[[LocalSession], None],
    ) -> None:
        self.owner = owner
        self._model = model
        self._tools = tuple(tools)
        self._functions = [tool.as_function() for tool in tools]
        self._sampling = sampling or model.sampling
        self._on_close = on_close
        self._grammar = model.known_grammar(self._tools)
        self._turn: _Turn | None = None
        self._rendering = anyio.Lock()
        self._rows: set[Row] = set()
        self._closed = False
        self._counts = SessionStatistics(
            turns=0,
            prompt_tokens=0,
            reused_tokens=0,
            prefilled_tokens=0,
            completion_tokens=0,
            probes=0,
            probe_tokens=0,
            bytes_copied=0,
        )

    @asynccontextmanager
    async def generate(
        self, messages: Sequence[Message], *, sampling: Sampling | None = None, max_tokens: int
    ) -> AsyncIterator[AsyncIterator[EngineEvent]]:
        """Generate the next assistant message. Leaving the context early cancels the generation.

        Raises:
            ContextOverflow: the context has no room left for a message; raised before any decoding.
            EngineFailed: the template refuses the conversation, or decoding broke.
        """
        turn = await self._rendered(messages)
        context = self._model.context_tokens
        if context is not None:
            room = context - len(turn.prompt)
            if room < min(max_tokens, LEAST_ROOM):
                raise ContextOverflow(len(turn.prompt), min(max_tokens, LEAST_ROOM), context)
            max_tokens = min(max_tokens, room)
        request = RowRequest(
            prompt=turn.prompt,
            max_new_tokens=max_tokens,
            sampling=sampling or self._sampling,
            stop_ids=self._model.eos_ids,
            owner=self.owner,
            drafts=self._model.drafts,
            scope=self._scope(turn.messages),
            suggestion=turn.suggestion,
            call_grammar=self._call_grammar(),
        )
        self._add(turns=1)
        async with self._row(request) as row:
            turn.row = row
            async with aclosing(self._events(row)) as events:
                yield events

    async def _events(self, row: Row) -> AsyncGenerator[EngineEvent, None]:
        """Turn a row's tokens into the events of a message."""
        reading = _Reading(self._model, self._functions)
        ready: Ready | None = None
        async for event in row:
            match event:
                case Ready():
                    ready = event
                    self._count_prompt(event)
                    yield PromptReady(prompt_tokens=event.prompt_tokens, reused_tokens=event.reused_tokens)
                case Tokens():
                    self._add(completion_tokens=len(event.ids))
                    for part in reading.take(event.ids):
                        yield part
                case Finished(reason="cancelled"):
                    raise EngineClosed(f"the session with {self._model.name} was closed during a generation")
                case Finished():
                    for part in reading.end(event):
                        yield part
                    message = reading.parser.message
                    yield Generated(
                        message=message,
                        finish_reason=_finish_reason(event.reason, message),
                        prompt_tokens=ready.prompt_tokens if ready is not None else len(row.request.prompt),
                        completion_tokens=event.new_tokens,
                        thinking_tokens=reading.thinking_tokens,
                        forwards=event.forwards,
                        slowdown_ms=event.slowdown_s * 1000,
                        drafting=tuple(map(_drafting, event.drafting)),
                        verify_ms=event.verify_s * 1000,
                        host_ms=1000 * max(0.0, event.decode_s - event.forward_s - _draft_s(event)),
                    )

    async def probe(self, messages: Sequence[Message], *, position: int = 0, max_tokens: int) -> ProbeResult:
        """Ask speculator mode for the next call, at `position` tokens into the generation that is running.

        Greedy, under the grammar of the tools; the confidence is the product of the answer's probabilities without the
        grammar, up to the last token that it left a choice about.

        Raises:
            EngineFailed: the tools can't be put into a grammar, or decoding broke.
        """
        model = self._model
        if not self._tools:
            return ProbeResult(call=None, confidence=1.0, tokens=0)
        grammar = await anyio.to_thread.run_sync(model.grammar, self._tools) if self._grammar is None else self._grammar
        turn = await self._rendered(messages)
        so_far = turn.row.tokens_so_far if turn.row is not None else turn.written
        written = so_far[:position]
        prompt = turn.prompt + written + model.speculator.suffix(model.decode(written) if written else "")
        if model.context_tokens is not None:
            max_tokens = min(max_tokens, model.context_tokens - len(prompt))
        if max_tokens < 1:
            return ProbeResult(call=None, confidence=0.0, tokens=0, completed=False)
        request = RowRequest(
            prompt=prompt,
            max_new_tokens=max_tokens,
            stop_ids=frozenset({model.speculator.no_call}),
            constraint=grammar.start(),
            owner=self.owner,
            background=True,
            drafts=PROBE,
            score_end=False,  # the closing of a call says nothing about the call
        )
        ids: list[int] = []
        logprobs: list[float] = []
        bytes_copied, finished = 0, None
        async with self._row(request) as row:
            async for event in row:
                match event:
                    case Ready():
                        bytes_copied = event.bytes_copied
                        self._count_prompt(event)
                    case Tokens():
                        ids += event.ids
                        logprobs += event.logprobs
                    case Finished(reason="cancelled"):
                        raise EngineClosed(f"the session with {model.name} was closed during a probe")
                    case Finished():
                        finished = event
        self._add(probes=1, probe_tokens=len(ids))
        no_call = ids == [model.speculator.no_call]
        call = None if no_call else model.speculator.form.read(model.decode(ids))
        completed = no_call or call is not None
        if call is not None:
            turn.guessed[call.canonical()] = model.as_written(ids)
        return ProbeResult(
            call=call,
            confidence=min(1.0, math.exp(sum(logprobs))) if completed else 0.0,
            tokens=len(ids),
            bytes_copied=bytes_copied,
            co_decoded=finished is not None and finished.shared_forwards > 0,
            completed=completed,
        )

    @property
    def model(self) -> LoadedModel:
        """The model, and what speaks its language."""
        return self._model

    async def stand_in(self, messages: Sequence[Message], tokens: Sequence[int]) -> None:
        """Let probes after `messages` find `tokens` as the message so far, until something is generated.

        Raises:
            EngineFailed: the template refuses the conversation.
        """
        turn = await self._rendered(messages)
        turn.row, turn.written = None, tuple(tokens)

    def suggest(self, messages: Sequence[Message], call: ToolCall) -> None:
        """Draft the tokens of `call` for the message after `messages`, as a probe wrote it or the template would."""
        turn = self._turn
        if turn is None or turn.messages != tuple(messages):
            return
        tokens = turn.guessed.get(call.canonical())
        turn.suggestion = tokens if tokens is not None else self._model.as_call(call)
        if turn.row is not None:
            turn.row.suggest(turn.suggestion)

    def statistics(self) -> SessionStatistics:
        """Return counts of this session so far; tokens that probes read count as prompt tokens."""
        return self._counts

    async def aclose(self) -> None:
        """Cancel what still runs, and let the model's thread drop this conversation's cache when it likes."""
        if self._closed:
            return
        self._closed = True
        for row in self._rows:
            row.cancel()  # whoever reads it sees its end
        self._on_close(self)

    def _scope(self, messages: Sequence[Message]) -> str:
        """Name the agent, if earlier runs of it may serve as drafts: its instructions and tools tell it from others."""
        if not self._model.shares_drafts:
            return ""
        instructions = [message.content for message in messages if isinstance(message, SystemMessage)]
        return json.dumps([instructions, self._functions], sort_keys=True, default=dict)

    def _call_grammar(self) -> CallGrammar | None:
        grammar = self._model.known_grammar(self._tools) if self._tools else None
        return self._model.call_grammar(grammar) if grammar is not None else None

    # --- rows -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _row(self, request: RowRequest) -> AsyncIterator[Row]:
        """Decode a row; on leaving, the model's thread has let go of it."""
        if self._closed:
            raise EngineClosed(f"the session with {self._model.name} is closed: open a new one")
        try:
            row = self._model.worker.submit(request)
            self._rows.add(row)
            try:
                yield row
            finally:
                self._rows.discard(row)
                with anyio.CancelScope(shield=True):
                    await row.aclose()
        except DecodingError as error:
            raise EngineFailed(f"{self._model.name} can't go on: {error}") from error

    async def _rendered(self, messages: Sequence[Message]) -> _Turn:
        """Return the turn that begins after `messages`, rendered once for its generation and all its probes."""
        wanted = tuple(messages)
        async with self._rendering:
            if self._turn is None or self._turn.messages != wanted:
                render = self._model.template.render
                if sum(map(_length, wanted)) > _RENDERED_AT_ONCE:
                    prompt = await anyio.to_thread.run_sync(render, wanted, self._functions)
                else:
                    prompt = render(wanted, self._functions)
                self._turn = _Turn(wanted, prompt)
            return self._turn

    # --- counting ---------------------------------------------------------------------------------------------

    def _count_prompt(self, ready: Ready) -> None:
        self._add(
            prompt_tokens=ready.prompt_tokens,
            reused_tokens=ready.reused_tokens,
            prefilled_tokens=ready.prompt_tokens - ready.reused_tokens,
            bytes_copied=ready.bytes_copied,
        )

    def _add(self, **counts: int) -> None:
        now: Any = {name: getattr(self._counts, name) + count for name, count in counts.items()}
        self._counts = replace(self._counts, **now)


class _Reading:
    """One message as it is read: tokens to text to parts to events."""

    def __init__(self, model: LoadedModel, functions: Sequence[dict[str, Any]]) -> None:
        self.parser: MessageParser = model.parser(functions)
        self.tokens = 0
        self.thinking_tokens = 0
        self._eos_ids = model.eos_ids
        self._detokenizer = Detokenizer(model.decode)

    def take(self, ids: Sequence[int]) -> list[EngineEvent]:
        """Take the tokens of one step."""
        parts: list[Part] = []
        for token in ids:
            self.tokens += 1
            if token not in self._eos_ids:
                parts += self.parser.feed(self._detokenizer.push(token))
                self.thinking_tokens += self.parser.is_thinking
        return self._as_events(parts)

    def end(self, finished: Finished) -> list[EngineEvent]:
        """Take the end of the message."""
        parts = self.parser.feed(self._detokenizer.flush() + finished.tail)
        parts += self.parser.finish(whole=finished.reason == "eos")
        return self._as_events(parts)

    def _as_events(self, parts: Sequence[Part]) -> list[EngineEvent]:
        events: list[EngineEvent] = []
        for part in merged(parts):
            if isinstance(part, ToolCall | MalformedCall):
                events.append(CallClosed(call=part))
            else:
                events.append(Delta(kind=part[0], text=part[1], tokens=self.tokens))
        return events


def _drafting(counts: DraftCounts) -> Drafting:
    return Drafting(
        kind=counts.kind,
        drafts=counts.drafts,
        draft_tokens=counts.draft_tokens,
        accepted_per_position=counts.accepted_per_position,
        draft_ms=counts.draft_s * 1000,
    )


def _draft_s(finished: Finished) -> float:
    return sum(counts.draft_s for counts in finished.drafting)


def _finish_reason(reason: StopReason, message: AssistantMessage) -> FinishReason:
    if reason in ("length", "stop_string"):
        return "length" if reason == "length" else "stop_string"
    return "calls" if message.calls else "stop"


def _length(message: Message) -> int:
    match message:
        case SystemMessage() | UserMessage() | ToolMessage():
            return len(message.content)
        case AssistantMessage():
            return len(message.text) + len(message.thinking)
