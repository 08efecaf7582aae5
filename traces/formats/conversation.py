"""Puts the messages of a recording together as turns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from agent_runtime.tools.values import MalformedCall, ToolCall

from ..messages import AssistantMessage, SystemMessage, UserMessage
from ..trajectory import RecordedResult, RecordedTurn

_SHOWN_NOTES = 3


@dataclass(frozen=True, slots=True)
class Call:
    """A call with the id by which its result names it, where the recording has one."""

    call: ToolCall | MalformedCall
    id: str | None = None


@dataclass(slots=True)
class _Turn:
    before: tuple[SystemMessage | UserMessage, ...]
    message: AssistantMessage
    ids: list[str | None]
    generation_s: float | None
    results: list[RecordedResult | None] = field(default_factory=list)

    def open_call(self, id: str | None) -> int | None:
        """Return the number of the first call without result that has this id, or of the first one if it is None."""
        for number, result in enumerate(self.results):
            if result is None and (id is None or self.ids[number] == id):
                return number
        return None


class Conversation:
    """Takes messages in order. Ids may come again in later turns: a result belongs to the latest call with its id."""

    def __init__(self) -> None:
        self._turns: list[_Turn] = []
        self._before: list[SystemMessage | UserMessage] = []
        self._notes: list[str] = []

    @property
    def empty(self) -> bool:
        """Whether no message has come yet."""
        return not self._turns and not self._before

    def note(self, text: str) -> None:
        """Note something that was left out."""
        self._notes.append(text)

    def system(self, text: str) -> None:
        """Take a system message."""
        self._before.append(SystemMessage(text))

    def user(self, text: str) -> None:
        """Take a user message."""
        self._before.append(UserMessage(text))

    def assistant(
        self,
        text: str,
        calls: Iterable[Call] = (),
        *,
        thinking: str = "",
        generation_s: float | None = None,
    ) -> None:
        """Take a message of the model: a turn of its own."""
        calls = tuple(calls)
        message = AssistantMessage(text=text, thinking=thinking, calls=tuple(call.call for call in calls))
        self._turns.append(
            _Turn(
                before=tuple(self._before),
                message=message,
                ids=[call.id for call in calls],
                generation_s=generation_s,
                results=[None] * len(calls),
            )
        )
        self._before.clear()

    def result(self, result: RecordedResult, id: str | None = None) -> None:
        """Take the result of a call: of the latest one with this id, else of the latest turn's first without result."""
        if id is None:
            turns = self._turns[-1:]
        else:
            turns = self._turns[::-1]
        for turn in turns:
            number = turn.open_call(id)
            if number is not None:
                turn.results[number] = result
                return
        self.note(f"a result of no call ({id!r})" if id is not None else "a result of no call")

    def turns(self) -> tuple[RecordedTurn, ...]:
        """Return the turns."""
        return tuple(
            RecordedTurn(
                before=turn.before,
                message=turn.message,
                results=tuple(turn.results),
                generation_s=turn.generation_s,
            )
            for turn in self._turns
        )

    def after(self) -> tuple[SystemMessage | UserMessage, ...]:
        """Return what came after the last turn."""
        return tuple(self._before)

    def notes(self) -> str:
        """Return one line about what is missing or was left out; empty where all is whole."""
        missing = [
            f"call {number + 1} of turn {index + 1} ({getattr(turn.message.calls[number], 'name', 'malformed')})"
            for index, turn in enumerate(self._turns)
            for number, result in enumerate(turn.results)
            if result is None
        ]
        notes = list(self._notes)
        if missing:
            notes.append(f"no result: {_some(missing, ', ')}")
        return _some(notes, "; ")


def _some(texts: list[str], separator: str) -> str:
    shown = separator.join(texts[:_SHOWN_NOTES])
    more = len(texts) - _SHOWN_NOTES
    return f"{shown} and {more} more" if more > 0 else shown
