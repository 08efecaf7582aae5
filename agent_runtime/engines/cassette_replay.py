"""Replay: an engine and sessions that play a cassette, without any model, and tools that play what they once gave.

Nothing waits: events come as fast as they are read. What keeps its order is what the order decides: a probe is answered
after as many events of its message as it was when it was recorded, so that the same predictions are in time.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint

from agent_runtime.errors import EngineFailed, ReplayDiverged
from agent_runtime.tools import InvalidArguments, Tool, ToolContext, ToolFailure
from agent_runtime.tools.values import ToolCall, canonical_json
from agent_runtime.traces.messages import Message
from agent_runtime.traces.redaction import Redactor

from .base import CallClosed, Delta, EngineEvent, ProbeResult, PromptReady, SessionStatistics, ToolSchema
from .cassette_file import MessageRecord
from .cassette_requests import Conversation, sampled
from .cassette_tape import Tape
from .cassette_tools import CURRENT

if TYPE_CHECKING:
    from agent_runtime.decoding.requests import Sampling

_PATIENCE = 20
"""Rounds of the event loop in which a recorded probe is waited for; the run may not ask for it this time."""
_SETTLED = 3
"""Rounds of the event loop from a probe's answer to its guess's start."""

NOT_RECORDED = ProbeResult(call=None, confidence=0.0, tokens=0, completed=False)
"""The answer of a probe that the cassette doesn't hold: none."""


class ReplayEngine:
    """Plays a cassette.

    Args:
        tape: What was recorded.
        tools: The agent's tools, by name.
        secrets: Names of the arguments that were not written, by tool.
    """

    def __init__(self, tape: Tape, tools: Mapping[str, Tool], secrets: Mapping[str, Iterable[str]]) -> None:
        self._tape = tape
        self._tools = tools
        self._secrets = secrets

    @property
    def name(self) -> str:
        """The recorded model's name."""
        return self._tape.model

    async def open(self, tools: Sequence[ToolSchema]) -> ReplaySession:
        """Open a session that is played."""
        conversation = Conversation(Redactor(self._tape.key, self._secrets), tools)
        session = ReplaySession(self._tape, conversation, self._tools)
        CURRENT.set(session)
        return session

    async def aclose(self) -> None:
        """Do nothing."""


@dataclass(slots=True)
class _Turn:
    """One message that is or was played, and what the tools gave for its calls."""

    conversation: str
    record: MessageRecord
    number: int
    """How often the same message was played before, in whatever session."""
    delivered: int = 0
    over: bool = False
    answered: set[int] = field(default_factory=set)
    """Positions at which probes were answered."""
    writes: int = 0
    """Tools run so far that are no reads."""
    runs: dict[tuple[str, int], int] = field(default_factory=dict)
    """Runs so far, by call and by the number of writes before it."""


class ReplaySession:
    """One conversation that is played; made by `ReplayEngine.open`."""

    def __init__(self, tape: Tape, conversation: Conversation, tools: Mapping[str, Tool]) -> None:
        self._tape = tape
        self._conversation = conversation
        self._tools = tools
        self._turns: list[_Turn] = []
        self._answered_early: dict[str, set[int]] = {}
        self._progress = anyio.Event()
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
        """Play the message that was recorded for this request.

        Raises:
            ReplayDiverged: there is none, or its recording was broken off.
            EngineFailed: so did the recorded engine.
        """
        plain = self._conversation.plain(messages)
        key = self._conversation.key(plain)
        taken = self._tape.take(key, sampled(sampling))
        if taken is None:
            previous = self._turns[-1].conversation if self._turns else None
            raise self._tape.diverged(
                self._conversation, plain, sampled(sampling), previous=previous, message=len(self._turns) + 1
            )
        turn = _Turn(key, *taken, answered=self._answered_early.pop(key, set()))
        self._turns.append(turn)
        self._advance()
        try:
            async with aclosing(self._events(turn)) as events:
                yield events
        finally:
            turn.over = True
            self._advance()

    async def _events(self, turn: _Turn) -> AsyncGenerator[EngineEvent, None]:
        record = turn.record
        calls = self._tape.calls_of(record)
        for number, event in enumerate(record.events):
            await self._let_probes_answer(turn, number)
            turn.delivered = number + 1
            self._advance()
            match event:
                case ("prompt", tokens, reused):
                    yield PromptReady(prompt_tokens=tokens, reused_tokens=reused)
                case ("call", index):
                    yield CallClosed(call=calls[index])
                case (kind, text, tokens):
                    yield Delta(kind=kind, text=text, tokens=tokens)
        await self._let_probes_answer(turn, len(record.events))
        if record.generated is not None:
            generated = record.generated
            self._count(
                turns=1,
                prompt_tokens=generated.prompt_tokens,
                prefilled_tokens=generated.prompt_tokens,
                completion_tokens=generated.completion_tokens,
            )
            # Nothing was decoded, so nothing was slowed down: the run's times are its own.
            yield replace(generated, slowdown_ms=0.0, verify_ms=0.0, host_ms=0.0)
        elif record.error is not None:
            raise EngineFailed(record.error)
        else:
            raise ReplayDiverged(
                f"the cassette {self._tape.path} holds message {len(self._turns)} of the run only in part, since "
                "its recording was broken off there: delete the file to record anew"
            )

    async def probe(self, messages: Sequence[Message], *, position: int = 0, max_tokens: int) -> ProbeResult:
        """Give the recorded answer, after as many events as then; one that wasn't recorded is no answer."""
        key = self._conversation.key(self._conversation.plain(messages))
        record = self._tape.take_probe(key, position)
        await checkpoint()
        if record is None:
            return NOT_RECORDED
        for _ in range(_PATIENCE):
            if not record.after or self._running(key) is not None:
                break
            await checkpoint()  # the message may be about to begin; it doesn't if it waits for this very answer
        while (turn := self._running(key)) is not None and not turn.over and turn.delivered < record.after:
            await self._progress.wait()
        (turn.answered if turn is not None else self._answered_early.setdefault(key, set())).add(position)
        self._count(probes=1, probe_tokens=record.result.tokens)
        return record.result

    def suggest(self, messages: Sequence[Message], call: ToolCall) -> None:
        """Do nothing: no token is drafted."""

    def bind(
        self, tool: Tool, valid: Mapping[str, Any], context: ToolContext, function: Callable[[], Any]
    ) -> Callable[[], Any]:
        """Return what plays the tool; `function` is never called."""
        return partial(self._play, tool, valid, context.turn)

    async def _play(self, tool: Tool, valid: Mapping[str, Any], number: int) -> str:
        """Give what the tool gave in this turn.

        What the model was told of the call comes first: it holds also where the tool was stopped, and where a guess saw
        something else than the call after it. Runs that the model was told nothing of come from their own records.
        """
        while len(self._turns) <= number:
            await self._progress.wait()
        turn = self._turns[number]
        call, _ = self._conversation.call_key(tool.name, valid)
        before = turn.writes
        turn.writes += not tool.contract.is_read
        run = turn.runs[call, before] = turn.runs.get((call, before), -1) + 1
        told = [(after, content) for key, after, content in self._told(turn) if key == call]
        own = self._tape.calls.get((turn.conversation, call), [])
        if told:
            later = [(after, content) for after, content in told if after >= before] or told[-1:]
            alike = [content for after, content in later if after == later[0][0]]
            content = alike[min(run, len(alike) - 1)]
            ok = next((record.ok for record in own if record.content == content), _failure(content) is None)
        elif own:
            record = own[min(sum(turn.runs[key] + 1 for key in turn.runs if key[0] == call), len(own)) - 1]
            content, ok = record.content, record.ok
        else:
            raise ToolFailure("not_recorded", f"the cassette {self._tape.path} doesn't hold this call")
        failure = None if ok else _failure(content)
        if failure is not None:
            raise ToolFailure(*failure)
        return content

    def _told(self, turn: _Turn) -> list[tuple[str, int, str]]:
        """Return, per call of the turn, its key, the number of writes before it, and what the model was told of it."""
        told: list[tuple[str, int, str]] = []
        writes = 0
        results = self._tape.results(turn.record, turn.number)
        for call, content in zip(self._tape.calls_of(turn.record), results, strict=False):
            tool = self._tools.get(call.name) if isinstance(call, ToolCall) else None
            if tool is None or not isinstance(call, ToolCall):
                continue
            try:
                key, _ = self._conversation.call_key(tool.name, tool.validate(call.arguments))
            except InvalidArguments:
                continue
            told.append((key, writes, content))
            writes += not tool.contract.is_read
        return told

    def statistics(self) -> SessionStatistics:
        """Return counts of this session so far, as they were recorded."""
        return self._counts

    async def aclose(self) -> None:
        """Do nothing."""

    # --- order ------------------------------------------------------------------------------------------------

    def _running(self, key: str) -> _Turn | None:
        turn = self._turns[-1] if self._turns else None
        return turn if turn is not None and turn.conversation == key else None

    async def _let_probes_answer(self, turn: _Turn, number: int) -> None:
        """Let the probes that were answered before event `number` be answered before it, and their guesses start."""
        await checkpoint()
        due = self._tape.positions_before(turn.conversation, number)
        for position in due:
            for _ in range(_PATIENCE):
                if position in turn.answered:
                    break
                await checkpoint()
        for _ in range(_SETTLED if turn.answered & due else 0):
            await checkpoint()

    def _advance(self) -> None:
        """Wake everyone who waits for progress; they look again."""
        progress, self._progress = self._progress, anyio.Event()
        progress.set()

    def _count(self, **counts: int) -> None:
        now: Any = {name: getattr(self._counts, name) + count for name, count in counts.items()}
        self._counts = replace(self._counts, **now)


def _failure(content: str) -> tuple[str, str] | None:
    """Return kind and message if a result is how a model is told of a failure."""
    if not content.startswith('{"error":'):
        return None
    try:
        value = json.loads(content)
    except ValueError:
        return None
    if value.keys() != {"error", "message"} or canonical_json(value) != content:
        return None
    return str(value["error"]), str(value["message"])
