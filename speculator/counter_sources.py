"""Where an argument's values came from, counted: how often each source held the right one, and what is constant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .counter_choice import as_feature
from .counter_conversation import Conversation, Source
from .counter_json import Key

MOST_SOURCES = 8
"""Sources that are asked for values."""
MOST_CONSTANTS = 8
"""Constants that are weighed for one argument."""
MOST_KNOWN = 2000
"""Sources, and constants, that are counted for one argument."""
MOST_GROUPS = 32
"""Tasks after which a constant counts as seen everywhere."""
LEAST_RATE = 0.03
"""Sources that were right less often are not asked."""


class Rate:
    """How often something that could have been right was."""

    __slots__ = ("right", "seen")

    def __init__(self, seen: int = 0, right: int = 0) -> None:
        self.seen = seen
        self.right = right

    @property
    def value(self) -> float:
        """The rate, with one failure added."""
        return self.right / (self.seen + 1)


class Constant:
    """How often a value came up, and in which tasks."""

    __slots__ = ("groups", "uses")

    def __init__(self, uses: int = 0, groups: Iterable[str] = ()) -> None:
        self.uses = uses
        self.groups = set(groups)


class ArgumentCounts:
    """What was counted of one argument."""

    def __init__(self) -> None:
        self.calls = 0
        self.sources: dict[Source, Rate] = {}
        self.constants: dict[Key, Constant] = {}
        self.groups: set[str] = set()
        self._best: list[Source] | None = None
        self._common: list[tuple[Key, Constant]] | None = None

    def best_sources(self) -> list[Source]:
        """Return the sources with the best rates, the best first."""
        if self._best is None:
            rated = [(rate.value, source) for source, rate in self.sources.items() if rate.right]
            good = sorted((item for item in rated if item[0] > LEAST_RATE), key=lambda item: (-item[0], item[1]))
            self._best = [source for _, source in good[:MOST_SOURCES]]
        return self._best

    def tenth(self, source: Source) -> int:
        """Return the rate of a source in tenths; -1 if it never was seen."""
        rate = self.sources.get(source)
        return -1 if rate is None else min(9, int(10 * rate.value))

    def common_constants(self, group: str) -> list[tuple[Key, int]]:
        """Return values that came up before, outside of `group`, with the share of tasks they came up in, in tenths.

        The share is -1 for a value of one task of several: most likely an id, worth a try where nothing else is known.
        """
        if self._common is None:
            often = [(key, constant) for key, constant in self.constants.items() if constant.uses > 1]
            often.sort(key=lambda item: (-len(item[1].groups), -item[1].uses, item[0]))
            self._common = often[: 2 * MOST_CONSTANTS]
        found = [(key, len(constant.groups - {group})) for key, constant in self._common]
        tasks = len(self.groups)
        return [(key, min(9, 10 * count // tasks) if count > 1 or tasks == 1 else -1) for key, count in found if count][
            :MOST_CONSTANTS
        ]

    def add(self, conversation: Conversation, key: Key) -> None:
        """Count that the argument had this value."""
        self.calls += 1
        self._best = self._common = None
        origins = conversation.origins.get(key, set())
        for source, rate in self.sources.items():
            rate.seen += source not in origins and bool(conversation.values.get(source))
        for source in origins:
            if source in self.sources or len(self.sources) < MOST_KNOWN:
                rate = self.sources.setdefault(source, Rate())
                rate.seen += 1
                rate.right += 1
        if key not in self.constants and len(self.constants) >= MOST_KNOWN:
            self.constants = {value: known for value, known in self.constants.items() if len(known.groups) > 1}
        constant = self.constants.setdefault(key, Constant())
        constant.uses += 1
        for groups in (constant.groups, self.groups):
            if len(groups) < MOST_GROUPS:
                groups.add(conversation.group)

    def to_json(self) -> dict[str, Any]:
        """Return the counts as plain JSON."""
        return {
            "calls": self.calls,
            "sources": [[source, rate.seen, rate.right] for source, rate in self.sources.items()],
            "constants": [[key, known.uses, sorted(known.groups)] for key, known in self.constants.items()],
            "groups": sorted(self.groups),
        }

    @classmethod
    def from_json(cls, data: Any) -> ArgumentCounts:
        """Return the counts that `to_json` gave."""
        counts = cls()
        counts.calls = data["calls"]
        counts.sources = {as_feature(source): Rate(seen, right) for source, seen, right in data["sources"]}
        counts.constants = {key: Constant(uses, groups) for key, uses, groups in data["constants"]}
        counts.groups = set(data["groups"])
        return counts
