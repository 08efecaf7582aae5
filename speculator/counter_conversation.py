"""What a conversation has shown so far, kept up to date message by message, so that no guess reads it again.

A source is where a value stood, as a plain tuple:

    ("result", tool, path)    a place in the results of a tool
    ("call", tool, argument)  an argument of earlier calls
    ("user", shape)           something of that shape in what the user wrote; `alias` and `dated` are worked out from it
    ("agent", shape)          the same in what the agent wrote
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, TypeVar

from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.messages import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage

from .counter_json import Key, fields, key_of, leaves, lists, objects, parse
from .counter_text import Span, aliases, spans, words, years

Source = tuple[str, ...]
K = TypeVar("K")
V = TypeVar("V")
Aliases = dict[str, Counter[str]]
"""Names with the codes they were introduced with."""

MOST_LEAVES = 400
"""Values of one message that are remembered."""
MOST_VALUES = 200
"""Values remembered of one source; those seen longest ago go first."""
MOST_NEWEST = 32
"""Values of one source that `newest_values` gives."""
MOST_RECORDS = 40
"""Objects remembered of one place; the oldest go first."""
MOST_ALIASES = 10_000
LONGEST_NUMBER = 18
"""Digits of a whole number in a text."""
SHORT_RESULT = 60
"""Characters of a result that isn't JSON and may be a value as a whole."""

IN_USER, IN_AGENT, EARLIER_USER, EARLIER_AGENT = 1, 2, 4, 8
"""Who mentioned a value: the last message of the user or agent, or an earlier one."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a value was seen last in a source: number of the message, and place in it."""

    message: int
    place: int


@dataclass(frozen=True, slots=True)
class Record:
    """An object of a result, or the arguments of a call."""

    message: int
    place: int
    fields: Mapping[str, Key]
    """Its scalars by path; of several at one path the first."""
    lists: Mapping[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    """Its lists of objects by path."""


@dataclass(slots=True)
class Conversation:
    """The state of one conversation. `extend` costs what the new messages cost, whatever came before."""

    aliases: Aliases = field(default_factory=dict)
    """Shared with the predictor: what one conversation introduces the next one knows."""
    group: str = ""
    """The task it belongs to."""
    messages: list[Message] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    """What happened, blurred: `user`, or a tool's name, with `!` behind it where its result was an error."""
    steps_seen: set[str] = field(default_factory=set)
    result: str = ""
    """Kind of the last result: `error`, `empty`, `list`, `object` or `text`; empty after a user message."""
    user_words: frozenset[str] = frozenset()
    """Words of the user's last message."""
    agent_words: frozenset[str] = frozenset()
    """Words of the agent's last text."""
    values: dict[Source, OrderedDict[Key, Seat]] = field(default_factory=dict)
    """Per source its values, the one seen last at the end."""
    origins: defaultdict[Key, set[Source]] = field(default_factory=lambda: defaultdict(set))
    """Per value the sources in which it was seen."""
    last_seen: dict[Key, int] = field(default_factory=dict)
    """Per value the last message that holds it."""
    leads: dict[Key, str] = field(default_factory=dict)
    """The word before a value where the user wrote it last."""
    records: defaultdict[Source, list[Record]] = field(default_factory=lambda: defaultdict(list))
    """Objects of results by ("result", tool, path), and arguments by ("call", tool)."""
    used: defaultdict[Source, list[Key]] = field(default_factory=lambda: defaultdict(list))
    """Per ("call", tool, argument) its values so far, in order."""
    _newest_values: dict[Source, list[tuple[Key, Seat]]] = field(default_factory=dict)
    _user: int = -1
    _agent: int = -1
    _in_user: dict[Key, int] = field(default_factory=dict)
    _in_agent: dict[Key, int] = field(default_factory=dict)
    _years: Counter[str] = field(default_factory=Counter)

    def extend(self, messages: Sequence[Message]) -> None:
        """Take in further messages."""
        for message in messages:
            self.messages.append(message)
            match message:
                case SystemMessage():
                    self._years.update(years(message.content))
                case UserMessage():
                    self._step("user")
                    self.result = ""
                    self.user_words = words(message.content)
                    self._user = self.newest
                    self._read("user", message.content)
                case AssistantMessage():
                    if message.text:
                        self.agent_words = words(message.text)
                        self._agent = self.newest
                        self._read("agent", message.text)
                    for call in message.calls:
                        if isinstance(call, ToolCall):
                            self._take_call(call)
                case ToolMessage():
                    self._take_result(message)

    @contextmanager
    def calling(self, calls: Sequence[ToolCall]) -> Iterator[None]:
        """Show the conversation in the middle of a turn that has made `calls` so far; undone afterwards."""
        undo: list[Callable[[], None]] = []
        try:
            for call in calls:
                undo.append(self._before_call(call))
                self._take_call(call)
            yield
        finally:
            for back in reversed(undo):
                back()

    def _before_call(self, call: ToolCall) -> Callable[[], None]:
        """Return what puts everything back that `_take_call` changes."""
        step, place = len(self.steps), ("call", call.name)
        seen, records = call.name in self.steps_seen, list(self.records.get(place, ()))
        sources = [(*place, name) for name in call.arguments]
        used = {source: len(self.used.get(source, ())) for source in sources}
        values = {source: OrderedDict(found) for source in sources if (found := self.values.get(source))}
        keys = {key_of(value) for value in call.arguments.values()}
        last_seen = {key: self.last_seen.get(key) for key in keys}
        origins = {key: set(self.origins.get(key, ())) for key in keys}

        def back() -> None:
            del self.steps[step:]
            if not seen:
                self.steps_seen.discard(call.name)
            _put_back(self.records, place, records)
            for source in sources:
                _put_back(self.used, source, self.used[source][: used[source]])
                _put_back(self.values, source, values.get(source))
                self._newest_values.pop(source, None)
            for key in keys:
                _put_back(self.last_seen, key, last_seen[key])
                _put_back(self.origins, key, origins[key])

        return back

    @property
    def newest(self) -> int:
        """Number of the last message."""
        return len(self.messages) - 1

    def starts(self, messages: Sequence[Message]) -> bool:
        """Tell whether `messages` begin with what was taken in."""
        count = len(self.messages)
        if not 0 < count <= len(messages) or messages[count - 1] != self.messages[-1]:
            return False
        return list(messages[:count]) == self.messages

    def newest_values(self, source: Source) -> list[tuple[Key, Seat]]:
        """Return the last values of a source, newest message first and in the message's own order."""
        found = self._newest_values.get(source)
        if found is None:
            values = self.values.get(source)
            found = list(islice(reversed(values.items()), MOST_NEWEST)) if values else []
            found.sort(key=lambda item: (-item[1].message, item[1].place))
            self._newest_values[source] = found
        return found

    def mention(self, key: Key) -> int:
        """Return who mentioned a value, as a sum of `IN_USER`, `IN_AGENT`, `EARLIER_USER` and `EARLIER_AGENT`."""
        user, agent = self._in_user.get(key), self._in_agent.get(key)
        by_user = 0 if user is None else IN_USER if user == self._user else EARLIER_USER
        by_agent = 0 if agent is None else IN_AGENT if agent == self._agent else EARLIER_AGENT
        return by_user + by_agent

    def _step(self, step: str) -> None:
        self.steps.append(step)
        self.steps_seen.add(step)

    def _read(self, who: Literal["user", "agent"], text: str) -> None:
        self._years.update(years(text))
        for name, code in aliases(text):
            if name in self.aliases or len(self.aliases) < MOST_ALIASES:
                self.aliases.setdefault(name, Counter())[code] += 1
        for place, span in enumerate(islice(spans(text), MOST_LEAVES)):
            for form, value in self._readings(span):
                key = key_of(value)
                self._see((who, form), key, place)
                if who == "user":
                    self._in_user[key] = self.newest
                    self.leads[key] = span.lead
                else:
                    self._in_agent[key] = self.newest

    def _readings(self, span: Span) -> list[tuple[str, Any]]:
        """Return what a piece of text may stand for, with the shape of each reading."""
        readings: list[tuple[str, Any]] = [(span.shape, span.value)]
        if span.shape == "9" and len(span.value) <= LONGEST_NUMBER:
            readings.append(("number", int(span.value)))
        elif span.shape == "day" and self._years:
            readings.append(("dated", f"{self._years.most_common(1)[0][0]}-{span.value}"))
        elif span.shape == "name" and span.value in self.aliases:
            readings.append(("alias", self.aliases[span.value].most_common(1)[0][0]))
        return readings

    def _take_call(self, call: ToolCall) -> None:
        self._step(call.name)
        keys = {name: key_of(value) for name, value in call.arguments.items()}
        self._keep(("call", call.name), Record(self.newest, 0, keys))
        for name, key in keys.items():
            source = ("call", call.name, name)
            self.used[source].append(key)
            self._see(source, key, 0)

    def _take_result(self, message: ToolMessage) -> None:
        document = parse(message.content)
        self.result = _kind(message.content, document)
        if self.result == "error" and self.steps and self.steps[-1] == message.name:
            self.steps.pop()
            self._step(f"{message.name}!")
        if document is None:
            if self.result == "text" and len(message.content) <= SHORT_RESULT:
                self._see(("result", message.name, ""), key_of(message.content), 0)
            return
        for place, (path, leaf) in enumerate(islice(leaves(document), MOST_LEAVES)):
            self._see(("result", message.name, path), key_of(leaf), place)
        for place, (path, value) in enumerate(islice(objects(document), MOST_RECORDS)):
            record = Record(self.newest, place, fields(value), lists(value))
            self._keep(("result", message.name, path), record)

    def _keep(self, source: Source, record: Record) -> None:
        kept = self.records[source]
        kept.append(record)
        if len(kept) > MOST_RECORDS:
            del kept[0]

    def _see(self, source: Source, key: Key, place: int) -> None:
        values = self.values.setdefault(source, OrderedDict())
        self.last_seen[key] = self.newest
        seat = values.get(key)
        if seat is not None and seat.message == self.newest:
            return  # its first place in a message counts
        if len(values) >= MOST_VALUES and next(iter(values.values())).message == self.newest:
            return  # of a longer list the beginning counts
        self._newest_values.pop(source, None)
        values[key] = Seat(self.newest, place)
        values.move_to_end(key)
        self.origins[key].add(source)
        if len(values) > MOST_VALUES:
            values.popitem(last=False)


def _put_back(where: dict[K, V], key: K, value: V | None) -> None:
    """Set what a key had, which is nothing where `value` is empty or None."""
    if value or isinstance(value, int):
        where[key] = value
    else:
        where.pop(key, None)


def _kind(content: str, document: Any) -> str:
    if document is None:
        head = content.lstrip()[:12].lower()
        return "error" if head.startswith(("error", "exception", "traceback")) else "text" if head else "empty"
    if isinstance(document, Mapping):
        return "error" if "error" in document else "object"
    return "list" if document else "empty"
