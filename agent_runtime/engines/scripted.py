"""A model that says what a script tells it: a deterministic test double, also under a virtual clock."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio

from agent_runtime.errors import EngineFailed
from agent_runtime.tools.values import MalformedCall, ToolCall
from agent_runtime.traces.events import FinishReason
from agent_runtime.traces.messages import AssistantMessage, Message

from .base import CallClosed, Delta, EngineEvent, Generated, ProbeResult, PromptReady, SessionStatistics, ToolSchema

if TYPE_CHECKING:
    from agent_runtime.decoding.requests import Sampling


@dataclass(frozen=True, slots=True)
class Think:
    """Thinking: one token a word, `delay` seconds before each."""

    text: str
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Say:
    """Visible text: one token a word, `delay` seconds before each."""

    text: str
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Call:
    """A call, closed `delay` seconds after what came before; it counts as `tokens` tokens."""

    call: ToolCall | MalformedCall
    delay: float = 0.0
    tokens: int = 8


@dataclass(frozen=True, slots=True)
class Break:
    """The stream breaks with `error`, `delay` seconds after what came before."""

    error: Exception
    delay: float = 0.0


Item = Think | Say | Call | Break | ToolCall | MalformedCall | str


@dataclass(frozen=True, slots=True)
class Probe:
    """What a probe answers: a call, or None for "no call"; after `delay` seconds. `error` is raised instead."""

    call: ToolCall | None = None
    confidence: float = 1.0
    delay: float = 0.0
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message and the answers of the probes made in its turn, in order; further probes say "no call"."""

    items: tuple[Item, ...] = ()
    probes: tuple[Probe, ...] = ()
    prefill: float = 0.0
    """Seconds until the prompt is read."""
    finish_reason: FinishReason | None = None


class ScriptedEngine:
    """Plays a script, turn by turn, over all its sessions in the order in which they ask.

    Args:
        turns: A `Turn`, or its items alone: texts (`str` is `Say`), calls, `Think`, `Say`, `Call`, `Break`.
        delays: Seconds before each token and call that names no delay of its own.
        name: The model's name in traces.
    """

    def __init__(
        self, turns: Sequence[Turn | Item | Sequence[Item]], delays: float = 0.0, *, name: str = "scripted"
    ) -> None:
        self._turns = [_turn(turn) for turn in turns]
        self._delays = delays
        self._name = name
        self._next = 0
        self.conversations: list[tuple[Message, ...]] = []
        """The messages that each generation was given, in order."""
        self.probed: list[tuple[tuple[Message, ...], int]] = []
        """The messages and position that each probe was given, in order."""
        self.tools: list[tuple[ToolSchema, ...]] = []
        """The tools that each session was opened with."""

    @property
    def name(self) -> str:
        """The name it was given."""
        return self._name

    async def open(self, tools: Sequence[ToolSchema]) -> ScriptedSession:
        """Open a session; all sessions share the script."""
        self.tools.append(tuple(tools))
        return ScriptedSession(self)

    async def aclose(self) -> None:
        """Do nothing; the script stays where it is."""

    def assert_complete(self) -> None:
        """Check that every turn of the script was played.

        Raises:
            AssertionError: turns are left.
        """
        if self._next < len(self._turns):
            raise AssertionError(f"{self._next} of {len(self._turns)} turns of the script were played")

    def peek(self) -> Turn:
        """Return the turn that is played next; an empty one at the script's end."""
        return self._turns[self._next] if self._next < len(self._turns) else Turn()

    def take(self, messages: Sequence[Message]) -> Turn:
        """Return the turn that is played now, and go on to the next.

        Raises:
            EngineFailed: the script is over.
        """
        if self._next >= len(self._turns):
            raise EngineFailed(f"the script has {len(self._turns)} turns and was asked for one more")
        self._next += 1
        self.conversations.append(tuple(messages))
        return self._turns[self._next - 1]

    def delay(self, own: float) -> float:
        """Return the delay of an item."""
        return own or self._delays


class ScriptedSession:
    """One conversation with a script; made by `ScriptedEngine.open`."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine
        self._current: tuple[tuple[Message, ...], Turn] | None = None
        self._probes = 0
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
        """Play the script's next turn; it is cut off after `max_tokens` tokens."""
        turn = self._engine.take(messages)
        self._enter(messages, turn)
        async with aclosing(self._events(turn, len(messages), max_tokens)) as events:
            yield events

    def _enter(self, messages: Sequence[Message], turn: Turn) -> None:
        key = tuple(messages)
        if self._current is None or self._current[0] != key:
            self._current, self._probes = (key, turn), 0

    async def _events(self, turn: Turn, prompt_tokens: int, max_tokens: int) -> AsyncGenerator[EngineEvent, None]:
        engine = self._engine
        if turn.prefill:
            await anyio.sleep(turn.prefill)
        yield PromptReady(prompt_tokens=prompt_tokens, reused_tokens=0)
        message = AssistantMessage()
        tokens = thinking = 0
        for token in _tokens(turn.items):
            if tokens >= max_tokens:
                break
            if delay := engine.delay(token.delay):
                await anyio.sleep(delay)
            match token:
                case Break():
                    raise token.error
                case Call():
                    tokens += token.tokens
                    message = replace(message, calls=(*message.calls, token.call))
                    yield CallClosed(call=token.call)
                case Think():
                    tokens, thinking = tokens + 1, thinking + 1
                    message = replace(message, thinking=message.thinking + token.text)
                    yield Delta(kind="thinking", text=token.text, tokens=tokens)
                case Say():
                    tokens += 1
                    message = replace(message, text=message.text + token.text)
                    yield Delta(kind="text", text=token.text, tokens=tokens)
        cut: FinishReason = "length" if tokens >= max_tokens else "calls" if message.calls else "stop"
        self._counts = replace(
            self._counts,
            turns=self._counts.turns + 1,
            prompt_tokens=self._counts.prompt_tokens + prompt_tokens,
            prefilled_tokens=self._counts.prefilled_tokens + prompt_tokens,
            completion_tokens=self._counts.completion_tokens + tokens,
        )
        yield Generated(
            message=message,
            finish_reason=turn.finish_reason or cut,
            prompt_tokens=prompt_tokens,
            completion_tokens=tokens,
            thinking_tokens=thinking,
            forwards=max(0, tokens - 1),  # the first token comes with the prompt
            slowdown_ms=0.0,
        )

    async def probe(self, messages: Sequence[Message], *, position: int = 0, max_tokens: int) -> ProbeResult:
        """Give the next answer of the turn that runs, or of the one that comes next."""
        key = tuple(messages)
        if self._current is None or self._current[0] != key:
            self._enter(messages, self._engine.peek())
        assert self._current is not None
        self._engine.probed.append((key, position))
        answers, number = self._current[1].probes, self._probes
        self._probes += 1
        answer = answers[number] if number < len(answers) else Probe()
        if answer.delay:
            await anyio.sleep(answer.delay)
        if answer.error is not None:
            raise answer.error
        self._counts = replace(self._counts, probes=self._counts.probes + 1)
        return ProbeResult(call=answer.call, confidence=answer.confidence, tokens=0)

    def suggest(self, messages: Sequence[Message], call: ToolCall) -> None:
        """Do nothing: the script says what it says."""

    def statistics(self) -> SessionStatistics:
        """Return counts of this session so far; each message counts as one prompt token."""
        return self._counts

    async def aclose(self) -> None:
        """Do nothing."""


def _turn(turn: Turn | Item | Sequence[Item]) -> Turn:
    if isinstance(turn, Turn):
        return turn
    if isinstance(turn, str | Think | Say | Call | Break | ToolCall | MalformedCall):
        return Turn(items=(turn,))
    return Turn(items=tuple(turn))


def _tokens(items: Sequence[Item]) -> list[Think | Say | Call | Break]:
    """Return the items with texts cut into words."""
    tokens: list[Think | Say | Call | Break] = []
    for item in items:
        match item:
            case str():
                tokens += [Say(word) for word in _words(item)]
            case Think() | Say():
                tokens += [replace(item, text=word) for word in _words(item.text)]
            case ToolCall() | MalformedCall():
                tokens.append(Call(item))
            case Call() | Break():
                tokens.append(item)
    return tokens


def _words(text: str) -> list[str]:
    """Return the words of a text, each with the space before it."""
    parts = text.split(" ")
    return [part if index == 0 else " " + part for index, part in enumerate(parts)] if text else []
