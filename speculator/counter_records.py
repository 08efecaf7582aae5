"""Arguments that come together, from one object: an item of a result, or the arguments of an earlier call.

A template says which member of an object each argument is: `origin` and `destination` of a flight in a list, or the
same two the other way round for the way back. Templates are counted as they are found; which object of them comes next
is chosen as in `counter_arguments`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from .counter_choice import Chooser, Feature, as_feature
from .counter_conversation import IN_AGENT, IN_USER, Conversation, Record, Source
from .counter_json import Key, is_list_of_objects, key_of, projected

MOST_TEMPLATES = 5
"""Templates of one tool that are tried, the most frequent ones."""
MOST_KNOWN = 500
"""Templates of one tool that are counted."""
MOST_CANDIDATES = 16
"""Objects that are weighed for one tool."""
LEAST_COUNT = 2
"""Times a template was found before it is tried."""

Member = tuple[str, str, tuple[str, ...]]
"""Argument, path in the object, and the members that are kept where the value is a list of objects."""
Template = tuple[Source, tuple[Member, ...]]
Filled = tuple[tuple[str, Key], ...]
"""Arguments with their values."""


class Candidate(NamedTuple):
    """What is known of an object that may give a call's arguments."""

    tool: str
    template: Template
    use: int
    """0 if no earlier call had these values, 2 if the last one had, else 1."""
    rank: int
    """Place among the template's unused objects, newest message first: 0, 1, 2 for later ones; 3 for used ones."""
    following: int
    """1 for the first unused object after the one used last, 2 for the oldest unused one, 3 for both."""
    fresh: bool
    """Whether the last message brought it."""
    again: bool
    """Whether the tool was called last."""
    mention: int
    """Who just wrote any of its values: 1 the user, 2 the agent, 3 both."""


def features(candidate: Candidate) -> list[Feature]:
    """Return what speaks for or against an object, for any tool and for this one alone."""
    tool, template, use, rank, following, fresh, again, mention = candidate
    source, members = template
    kind = source[0]
    found: list[Feature] = [
        ("kind", kind),
        ("use", kind, use),
        ("rank", kind, rank),
        ("mention", mention),
        ("fresh", fresh, rank),
        ("rank", rank, mention, fresh),
        ("size", len(members)),
        (tool, "template", template),
        (tool, "use", template, use),
        (tool, "rank", template, rank),
        (tool, "mention", mention),
        (tool, "fresh", template, fresh, use),
    ]
    if following:
        found += [("following", following), ("following", following, again), (tool, "following", following, again)]
    return found


START: dict[Feature, float] = {
    **{("rank", "result", rank): weight for rank, weight in enumerate((0.5, -1.0, -1.5, -2.0))},
    **{("use", "result", use): -0.7 for use in (1, 2)},
    **{("following", following): weight for following, weight in ((1, 0.7), (2, 0.3), (3, 0.8))},
    **{("following", following, True): 1.5 for following in (1, 3)},
    ("mention", IN_USER): 0.5,
    ("mention", IN_USER | IN_AGENT): 0.7,
    ("size", 2): -0.5,
}


@dataclass(frozen=True, slots=True)
class RecordChoice:
    """The likeliest object's values."""

    arguments: Filled
    probability: float


class Records:
    """The templates of all tools."""

    def __init__(self) -> None:
        self._templates: defaultdict[str, Counter[Template]] = defaultdict(Counter)
        self._best: dict[str, list[Template]] = {}
        self._chooser: Chooser[Candidate] = Chooser(features, start=START)

    def choose(self, conversation: Conversation, tool: str) -> RecordChoice | None:
        """Return the likeliest object's values; None where no template fits."""
        filled, candidates = self._candidates(conversation, tool)
        if not filled:
            return None
        probabilities = self._chooser.probabilities(candidates)
        best = max(range(len(filled)), key=probabilities.__getitem__)
        return RecordChoice(filled[best], probabilities[best])

    def learn(self, conversation: Conversation, tool: str, arguments: Mapping[str, Any]) -> None:
        """Learn that the tool was called with these arguments."""
        if len(arguments) < 2:
            return
        keys = {name: key_of(value) for name, value in arguments.items()}
        filled, candidates = self._candidates(conversation, tool)
        if filled:
            right = [at for at, values in enumerate(filled) if all(keys.get(name) == key for name, key in values)]
            self._chooser.learn(candidates, right)
        counts = self._templates[tool]
        for source, records in conversation.records.items():
            members = max((_members(record, keys, arguments) for record in reversed(records)), key=len)
            if len(members) > 1 and ((source, members) in counts or len(counts) < MOST_KNOWN):
                counts[source, members] += 1
        self._best.pop(tool, None)

    def _candidates(self, conversation: Conversation, tool: str) -> tuple[list[Filled], list[Candidate]]:
        filled: list[Filled] = []
        found: list[Candidate] = []
        seen: set[Filled] = set()
        calls = conversation.records.get(("call", tool), [])
        again = conversation.steps[-1:] == [tool]
        for template in self._best_templates(tool):
            source, members = template
            records = conversation.records.get(source)
            if not records:
                continue
            objects = [(record, values) for record in records if (values := _fill(record, members)) is not None]
            uses = {values: _use(calls, values) for _, values in objects}
            oldest, after_last = _next(objects, uses)
            unused = 0
            for record, values in sorted(objects, key=lambda item: (-item[0].message, item[0].place)):
                if values in seen:
                    continue
                seen.add(values)
                use = uses[values]
                rank = 3 if use else min(2, unused)
                unused += not use
                following = (values == after_last) + 2 * (values == oldest)
                fresh = record.message == conversation.newest
                mention = _mention(conversation, values)
                filled.append(values)
                found.append(Candidate(tool, template, use, rank, following, fresh, again, mention))
                if len(filled) >= MOST_CANDIDATES:
                    return filled, found
        return filled, found

    def _best_templates(self, tool: str) -> list[Template]:
        best = self._best.get(tool)
        if best is None:
            counts = self._templates.get(tool, Counter())
            best = [template for template, count in counts.most_common(MOST_TEMPLATES) if count >= LEAST_COUNT]
            self._best[tool] = best
        return best

    def to_json(self) -> dict[str, Any]:
        """Return what was learned as plain JSON."""
        return {
            "templates": [
                [tool, *template, count]
                for tool, counts in self._templates.items()
                for template, count in counts.items()
            ],
            "weights": self._chooser.weights.to_json(),
        }

    def load(self, data: Any) -> None:
        """Take over what `to_json` gave."""
        for tool, source, members, count in data["templates"]:
            self._templates[tool][as_feature(source), as_feature(members)] = count
        self._best.clear()
        self._chooser.load(data["weights"])


def _members(record: Record, keys: Mapping[str, Key], arguments: Mapping[str, Any]) -> tuple[Member, ...]:
    """Return which members of an object the arguments are."""
    members: list[Member] = []
    for name, key in sorted(keys.items()):
        paths = [path for path, value in record.fields.items() if value == key]
        if paths:
            alike = [path for path in paths if path.rpartition(".")[2] == name]
            members.append((name, (alike or paths)[0], ()))
        elif is_list_of_objects(arguments[name]):
            kept = tuple(sorted(arguments[name][0]))
            same = [path for path, items in record.lists.items() if projected(items, kept) == key]
            members += [(name, path, kept) for path in same[:1]]
    return tuple(members)


def _fill(record: Record, members: tuple[Member, ...]) -> Filled | None:
    values = []
    for name, path, kept in members:
        key = projected(record.lists[path], kept) if kept and path in record.lists else record.fields.get(path)
        if key is None:
            return None
        values.append((name, key))
    return tuple(values)


def _use(calls: list[Record], values: Filled) -> int:
    for age, call in enumerate(reversed(calls)):
        if all(call.fields.get(name) == key for name, key in values):
            return 1 if age else 2
    return 0


def _next(objects: list[tuple[Record, Filled]], uses: Mapping[Filled, int]) -> tuple[Filled | None, Filled | None]:
    """Return the oldest unused object's values, and those of the first unused one after the one used last."""
    oldest = None
    passed = False
    for _, values in objects:
        if uses[values] == 2:
            passed = True
        elif not uses[values]:
            if passed:
                return oldest or values, values
            oldest = oldest or values
    return oldest, None


def _mention(conversation: Conversation, values: Filled) -> int:
    mentioned = 0
    for _, key in values:
        mentioned |= conversation.mention(key)
    return mentioned & (IN_USER | IN_AGENT)
