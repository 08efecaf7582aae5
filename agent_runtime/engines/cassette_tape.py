"""What a cassette holds, found by request; shared by all sessions that play it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_runtime.errors import CassetteUnusable, ReplayDiverged
from agent_runtime.tools.values import MalformedCall, ToolCall, canonical_json

from .cassette_file import CallRecord, Header, MessageRecord, ProbeRecord, Record, ToolsRecord
from .cassette_requests import (
    Conversation,
    Plain,
    as_lines,
    conversation_key,
    describe,
    diff,
    first_difference,
    plain_assistant,
)

_Request = tuple[str, str]


class Tape:
    """The records of a cassette, and how far they are played.

    The same request may have been made several times; its recordings are played in their order, each once.

    Raises:
        CassetteUnusable: a record refers to one that isn't there.
    """

    def __init__(self, path: Path, header: Header, records: Iterable[Record]) -> None:
        self.path = path
        self.key = header.key
        self.model = header.model
        self.calls: dict[tuple[str, str], list[CallRecord]] = {}
        """What tools gave, by conversation and canonical call, in the order in which they ended."""
        self._tools: dict[str, tuple[Plain, ...]] = {}
        self._conversations: dict[str, tuple[Plain, ...]] = {}
        self._messages: dict[_Request, list[MessageRecord]] = {}
        self._following: dict[str | None, list[MessageRecord]] = {}
        self._results: dict[tuple[str, str], list[tuple[str, ...]]] = {}
        self._probes: dict[tuple[str, int], list[ProbeRecord]] = {}
        self._positions: dict[tuple[str, int], set[int]] = {}
        self._taken: dict[_Request, int] = {}
        self._said: dict[tuple[str, str], int] = {}
        self._asked: dict[tuple[str, int], int] = {}
        records = list(records)
        for record in records:
            if isinstance(record, ToolsRecord):
                self._tools[record.id] = record.tools
        # Keys are made anew from what they stand for: so a cassette may be edited by hand.
        named: dict[str, str] = {}
        for record in records:
            if isinstance(record, MessageRecord):
                try:
                    self._add_message(record, named)
                except (KeyError, IndexError, TypeError, ValueError, AttributeError):
                    raise self._incomplete(record) from None
        for record in records:
            if isinstance(record, ProbeRecord | CallRecord):
                self._add(record, named.get(record.conversation, record.conversation))

    def take(self, conversation: str, sampling: Mapping[str, Any] | None) -> tuple[MessageRecord, int] | None:
        """Return the next recording of a request, and how often its message was played before; None if none is left."""
        request = (conversation, canonical_json(sampling))
        recorded, number = self._messages.get(request, []), self._taken.get(request, 0)
        if number >= len(recorded):
            return None
        self._taken[request] = number + 1
        record = recorded[number]
        said = (conversation, _said(record))
        played = self._said[said] = self._said.get(said, -1) + 1
        return record, played

    def take_probe(self, conversation: str, position: int) -> ProbeRecord | None:
        """Return the next answer to a probe, the last of them again and again; None if it has none."""
        recorded = self._probes.get((conversation, position))
        if recorded is None:
            return None
        number = self._asked.get((conversation, position), 0)
        self._asked[conversation, position] = number + 1
        return recorded[min(number, len(recorded) - 1)]

    def positions_before(self, conversation: str, number: int) -> set[int]:
        """Return the positions of the probes that were answered right before event `number` of a message."""
        return self._positions.get((conversation, number), set())

    def results(self, record: MessageRecord, number: int) -> tuple[str, ...]:
        """Return what the model was told of the calls of a message, when it was said for the `number`th time."""
        told = self._results.get((record.conversation, _said(record)))
        return told[min(number, len(told) - 1)] if told else ()

    def calls_of(self, record: MessageRecord) -> tuple[ToolCall | MalformedCall, ...]:
        """Return the calls of a recorded message."""
        if record.generated is not None and not record.calls:
            return record.generated.message.calls
        return tuple(
            ToolCall(call["name"], call["arguments"])
            if "name" in call
            else MalformedCall(call["malformed"], call["reason"])
            for call in record.calls
        )

    def diverged(
        self,
        conversation: Conversation,
        messages: Sequence[Plain],
        sampling: Mapping[str, Any] | None,
        *,
        previous: str | None,
        message: int,
    ) -> ReplayDiverged:
        """Return the error that says how a request differs from the recorded one that is closest."""
        key = conversation.key(messages)
        closest = self._closest(key, messages, previous)
        asked = as_lines(conversation.tools, messages, sampling)
        if closest is None:
            what, difference = "the recording ends here", ""
        else:
            tools, recorded = self._tools[closest.tools], self._conversations[closest.conversation]
            difference = diff(as_lines(tools, recorded, closest.sampling), asked)
            number = first_difference(recorded, messages)
            if closest.conversation == key:
                what = "the sampling differs" if difference else "this request was made less often when it was recorded"
            elif tools != conversation.tools:
                what = "the agent's tools differ"
            else:
                what = f"message {number} of the request differs ({describe([*messages, *recorded[number:]][number])})"
        return ReplayDiverged(
            f"the run diverged from the cassette {self.path} when it asked for message {message} of the model: {what}; "
            "if that is meant, record anew under another name",
            difference,
        )

    def _closest(self, key: str, messages: Sequence[Plain], previous: str | None) -> MessageRecord | None:
        same = [record for (found, _), records in self._messages.items() if found == key for record in records]
        candidates = same or self._following.get(previous, [])
        unplayed = [record for record in candidates if not self._taken.get(_request(record))]
        return max(
            unplayed or candidates,
            key=lambda record: first_difference(self._conversations[record.conversation], messages),
            default=None,
        )

    # --- reading ----------------------------------------------------------------------------------------------

    def _add(self, record: ProbeRecord | CallRecord, conversation: str) -> None:
        if isinstance(record, ProbeRecord):
            self._probes.setdefault((conversation, record.position), []).append(record)
            self._positions.setdefault((conversation, record.after), set()).add(record.position)
        else:
            call = canonical_json({"name": record.tool, "arguments": record.arguments})
            self.calls.setdefault((conversation, call), []).append(record)

    def _add_message(self, record: MessageRecord, named: dict[str, str]) -> None:
        known: tuple[Plain, ...] = ()
        extends = named[record.extends] if record.extends is not None else None
        if extends is not None:
            known = self._conversations[extends]
            message, *results = record.messages
            told = tuple(result["content"] for result in results if result["role"] == "tool")
            self._results.setdefault((extends, canonical_json(message)), []).append(told)
        messages = (*known, *record.messages)
        conversation = named[record.conversation] = conversation_key(self._tools[record.tools], messages)
        self._conversations[conversation] = messages
        record = replace(record, conversation=conversation, extends=extends)
        as_lines((), messages, None)  # every message can be shown, so every one has its parts
        closed = [event[1] for event in record.events if event[0] == "call"]
        said = self.calls_of(record) if record.generated is None else record.generated.message.calls
        if not closed == list(range(len(said))) == list(range(len(self.calls_of(record)))):
            raise ValueError("the stream has other calls than the message")
        self._messages.setdefault(_request(record), []).append(record)
        self._following.setdefault(extends, []).append(record)

    def _incomplete(self, record: MessageRecord) -> CassetteUnusable:
        return CassetteUnusable(
            f"request {record.conversation} of the cassette {self.path} lacks a part, or what it builds on: "
            "restore the file, or delete it to record anew"
        )


def _request(record: MessageRecord) -> _Request:
    return record.conversation, canonical_json(record.sampling)


def _said(record: MessageRecord) -> str:
    """Return a recorded message in the form in which it stands in the request after it."""
    return canonical_json(plain_assistant(record.generated.message)) if record.generated is not None else ""
