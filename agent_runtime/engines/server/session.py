"""One conversation with a served model: generations as streams, and probes beside them as requests of their own."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio

from agent_runtime.engines.base import (
    CallClosed,
    Delta,
    EngineEvent,
    Generated,
    ProbeResult,
    PromptReady,
    SessionStatistics,
    ToolSchema,
)
from agent_runtime.errors import ContextOverflow, EngineClosed, EngineFailed, ModelNotFound, UsageError
from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.messages import Message

from .faults import ServerRejected
from .prober import NO_ANSWER, Prober
from .reading import Reading
from .requests import chat_body, chat_messages, harmless_schema, marks_pattern
from .retrying import may_pass
from .served import Served
from .shared import ServedModel
from .turn import Turn

if TYPE_CHECKING:
    from agent_runtime.decoding.requests import Sampling

LEAST_ROOM = 64
"""Tokens that the context must have left for a message (fewer where the message may be shorter)."""
RESTARTS = 3
"""Times a message is begun again whose stream broke before anything of it was handed out."""
_CONTEXT = re.compile(
    r"context (?:length|window|size)|max_model_len|too long|exceeds? .*(?:tokens|limit)", re.IGNORECASE
)


class ServerSession:
    """A conversation with a served model; made by `ServerEngine.open`. It belongs to one event loop."""

    def __init__(
        self,
        model: ServedModel,
        tools: Sequence[ToolSchema],
        *,
        conversation: str,
        sampling: Sampling | None,
        on_close: Callable[[], None],
    ) -> None:
        self._model = model
        self._conversation = conversation
        self._tools = tuple(tools)
        self._marks = marks_pattern(model.text.tokenizer.get_added_vocab() if model.text is not None else None)
        self._functions = [harmless_schema(tool.as_function(), self._marks) for tool in tools]
        self._sampling = sampling or (model.text.sampling if model.text is not None else None)
        self._on_close = on_close
        self._turn: Turn | None = None
        self._prober = Prober(model, self._tools, functions=self._functions, marks=self._marks, count=self._add)
        self._scopes: set[anyio.CancelScope] = set()
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

    # --- the agent's message ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def generate(
        self, messages: Sequence[Message], *, sampling: Sampling | None = None, max_tokens: int
    ) -> AsyncIterator[AsyncIterator[EngineEvent]]:
        """Generate the next assistant message. Leaving the context early closes the request, so the server stops.

        Raises:
            ContextOverflow: the context has no room left for a message; raised before any decoding.
            EngineFailed: the server can't be reached, refuses, or the connection was lost in the middle of a message.
            UsageError: the server wants another API key, or doesn't know a sampling setting.
        """
        turn = self._turn = Turn(tuple(messages))  # before any waiting: a probe of this turn must find it
        self._add(turns=1)
        self._model.counts.requests += 1
        try:
            async with aclosing(self._events(turn, sampling or self._sampling, max_tokens)) as events:
                yield events
        finally:
            turn.over = True
            turn.begun.set()

    async def _events(
        self, turn: Turn, sampling: Sampling | None, max_tokens: int
    ) -> AsyncGenerator[EngineEvent, None]:
        """Stream one message; begin again where it broke before anything but the prompt was told of it."""
        prompt_told = handed_out = False
        for restart in range(RESTARTS + 1):
            streaming = False
            async with AsyncExitStack() as opened:
                try:
                    reading, chunks = await self._begin(opened, turn, sampling, max_tokens)
                    streaming = True
                    async with aclosing(self._read(turn, reading, chunks)) as events:
                        async for event in events:
                            if isinstance(event, PromptReady):
                                if prompt_told:
                                    continue
                                prompt_told = True
                            handed_out = handed_out or isinstance(event, Delta | CallClosed)
                            yield event
                    return
                except EngineFailed as error:
                    if turn.endpoint is not None:
                        self._model.failed(turn.endpoint, error)
                    again = streaming and may_pass(error) and not handed_out
                    if not again or restart == RESTARTS or not self._model.settings.retry_for:
                        raise
                    self._model.counts.retries += 1
                    turn.reading = None

    async def _begin(
        self, opened: AsyncExitStack, turn: Turn, sampling: Sampling | None, max_tokens: int
    ) -> tuple[Reading, AsyncIterator[dict[str, Any]]]:
        """Send the request, again where that may help, until its stream is open."""
        model = self._model
        async for attempt in model.retries(model.settings.retry_for).attempts():
            with attempt:
                endpoint = turn.endpoint = model.router.place(self._conversation)
                try:
                    with self._running():
                        served = await model.served(endpoint)
                        chunks = await self._ask(opened, served, turn.messages, sampling, max_tokens)
                except EngineFailed as error:
                    model.failed(endpoint, error)
                    raise
                model.router.works(endpoint)
        plain = sampling is None or not sampling.stop  # ids go on past a stop string that the text ends at
        reading = Reading(
            endpoint,
            text=model.text,
            functions=self._functions,
            by_ids=plain and model.settings.calls != "server",
            server_calls=self._parses_calls(served),
        )
        return reading, chunks

    async def _ask(
        self,
        opened: AsyncExitStack,
        served: Served,
        messages: tuple[Message, ...],
        sampling: Sampling | None,
        max_tokens: int,
    ) -> AsyncIterator[dict[str, Any]]:
        """Open one stream; where the server turns out not to take something, ask without it."""
        model = self._model
        max_tokens = await self._room(served, messages, max_tokens)
        if model.settings.calls == "client":
            served.refused.add("tool_choice")
        body = chat_body(
            served,
            model=model.name,
            messages=chat_messages(messages, self._marks),
            tools=self._functions,
            sampling=sampling,
            max_tokens=max_tokens,
        )
        while True:
            try:
                return await opened.enter_async_context(model.client.stream(served.endpoint, "chat/completions", body))
            except ServerRejected as error:
                if served.learn(error, body):
                    continue
                self._raise_known(error, served, max_tokens)
                raise

    async def _read(
        self, turn: Turn, reading: Reading, chunks: AsyncIterator[dict[str, Any]]
    ) -> AsyncGenerator[EngineEvent, None]:
        """Read a stream to its end, and measure it."""
        assert turn.endpoint is not None
        pacing = self._model.pacing(turn.endpoint)
        pacing.agents += 1
        slowdown, before, probes, busy = 0.0, 0.0, pacing.probes_begun, False
        try:
            while (chunk := await self._next(chunks)) is not None:
                tokens = reading.tokens
                events = reading.take(chunk)
                turn.reading = reading
                turn.begun.set()
                new, now = reading.tokens - tokens, anyio.current_time()
                busy = busy or pacing.probes > 0 or pacing.probes_begun > probes
                if new:
                    if tokens:  # the first comes with the prompt
                        slowdown += pacing.step(now - before, new, busy=busy)
                    before, probes, busy = now, pacing.probes_begun, pacing.probes > 0
                for event in events:
                    yield event
        finally:
            pacing.agents -= 1
        last = reading.end()
        if reading.drafting is None:
            served = await self._model.served(turn.endpoint)
            reading.drafting = await self._model.drafted(turn.endpoint) if served.drafts else None
        for event in last:
            yield self._finished(event, reading, slowdown) if isinstance(event, Generated) else event

    def _finished(self, event: Generated, reading: Reading, slowdown: float) -> Generated:
        """Count a message that is whole."""
        cached = min(reading.usage.cached_tokens or 0, event.prompt_tokens)
        self._add(
            prompt_tokens=event.prompt_tokens,
            reused_tokens=cached,
            prefilled_tokens=event.prompt_tokens - cached,
            completion_tokens=event.completion_tokens,
        )
        if reading.drafting is None:
            return replace(event, slowdown_ms=slowdown * 1000)
        self._model.add_drafting(reading.drafting)
        return replace(
            event,
            forwards=reading.forwards(event.completion_tokens),
            slowdown_ms=slowdown * 1000,
            drafting=(reading.drafting,),
        )

    def _parses_calls(self, served: Served) -> bool:
        return served.parses_calls and self._model.settings.calls != "client"

    # --- the probe --------------------------------------------------------------------------------------------

    async def probe(self, messages: Sequence[Message], *, position: int = 0, max_tokens: int) -> ProbeResult:
        """Ask speculator mode for the next call, at `position` tokens into the generation that is running.

        Where a generation runs, the probe waits for its first chunk: then the server has read the prefix, and its
        prefix cache serves the probe. Where guessing slows the agents down, or the server can't be asked, the answer is
        one that isn't completed; `ServerEngine.statistics` says why.

        Raises:
            EngineFailed: the server can't be reached, or refuses.
        """
        if not self._tools:
            return ProbeResult(call=None, confidence=1.0, tokens=0)
        turn = self._turn
        if turn is not None and (turn.over or turn.messages != tuple(messages)):
            turn = None
        with self._running():
            if turn is not None:
                await turn.begun.wait()
                if turn.over:
                    return NO_ANSWER
            place = turn.endpoint if turn is not None else None
            served = await self._model.served(place or self._model.router.place(self._conversation))
            return await self._prober.ask(served, turn, tuple(messages), position=position, max_tokens=max_tokens)

    def suggest(self, messages: Sequence[Message], call: ToolCall) -> None:
        """Do nothing: a server takes no drafts from outside; it has its own, as its configuration says."""

    # --- context ----------------------------------------------------------------------------------------------

    async def _room(self, served: Served, messages: tuple[Message, ...], max_tokens: int) -> int:
        """Return how long the message may be in what the context has left.

        Raises:
            ContextOverflow: that is too little.
        """
        context = served.context_tokens
        if context is None:
            return max_tokens
        prompt = await self._prober.render(messages)
        if prompt is None:
            return min(max_tokens, context)
        room = context - len(prompt)
        if room < min(max_tokens, LEAST_ROOM):
            raise ContextOverflow(len(prompt), min(max_tokens, LEAST_ROOM), context)
        return min(max_tokens, room)

    def _raise_known(self, error: ServerRejected, served: Served, max_tokens: int) -> None:
        """Raise what a refusal means, where that is known."""
        if error.status == 404 and "model" in error.reason:
            raise ModelNotFound(
                f"the server at {served.endpoint.place} has no model '{self._model.name}': {error.reason}"
            )
        if error.status == 404 and not served.endpoint.url.endswith("/v1"):
            raise UsageError(f"{served.endpoint.url} has no chat interface ({error.reason}): most addresses end in /v1")
        if error.status in (400, 413, 422) and _CONTEXT.search(error.reason):
            numbers = [int(number) for number in re.findall(r"\b\d{2,}\b", error.reason)]
            context = served.context_tokens or (numbers[0] if numbers else 0)
            prompt = max((number for number in numbers if number != context), default=context)
            raise ContextOverflow(prompt, min(max_tokens, LEAST_ROOM), context) from error

    # --- the session itself -----------------------------------------------------------------------------------

    def statistics(self) -> SessionStatistics:
        """Return counts of this session so far; tokens that probes read count as prompt tokens."""
        return self._counts

    async def aclose(self) -> None:
        """Cancel what still runs; the last session of an event loop closes its connections."""
        if self._closed:
            return
        self._closed = True
        for scope in self._scopes:
            scope.cancel()
        self._model.router.leave(self._conversation)
        self._on_close()
        await self._model.client.release()

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Let `aclose` cancel what happens inside, which then ends as an error."""
        if self._closed:
            raise EngineClosed(f"the session with {self._model.name} is closed: open a new one")
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)
        if scope.cancelled_caught:
            raise EngineClosed(f"the session with {self._model.name} was closed while it was in use")

    async def _next(self, chunks: AsyncIterator[dict[str, Any]]) -> dict[str, Any] | None:
        with self._running():
            return await anext(chunks, None)
        raise AssertionError("unreachable")

    def _add(self, **counts: int) -> None:
        now: Any = {name: getattr(self._counts, name) + count for name, count in counts.items()}
        self._counts = replace(self._counts, **now)
