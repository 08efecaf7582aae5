"""Where the value of an argument comes from, counted: sources that held it, and which of their values it was."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from .counter_conversation import Conversation, Source
from .counter_values import Key

MOST_CANDIDATES = 48
CONSTANT: Source = ("constant",)

Signature = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A value that an argument may take, and its chance."""

    key: Key
    probability: float

    @property
    def value(self) -> Any:
        """The value itself."""
        return json.loads(self.key)


class Rate:
    """How often something was right."""

    __slots__ = ("right", "seen")

    def __init__(self) -> None:
        self.seen = 0.0
        self.right = 0.0

    def add(self, right: bool) -> None:
        self.seen += 1
        self.right += right

    def towards(self, prior: float, weight: float) -> float:
        """Return the rate, pulled to `prior` by `weight` sightings."""
        return (self.right + prior * weight) / (self.seen + weight)


class ArgumentSources:
    """What is known of one argument of one tool."""

    def __init__(self) -> None:
        self.calls = 0
        self.sources: defaultdict[Source, Rate] = defaultdict(Rate)
        """Per source how often it had values, and how often the right one was among them."""
        self.signatures: defaultdict[Signature, Rate] = defaultdict(Rate)
        self.constants: dict[Key, int] = {}

    def candidates(self, conversation: Conversation, own: Source) -> list[tuple[Key, Signature]]:
        """Return the values that may come next with what speaks for each, from known sources."""
        best: dict[Key, Source] = {}
        ranked = sorted(
            ((rate.right / rate.seen, source) for source, rate in self.sources.items() if rate.right), reverse=True
        )
        for _, source in ranked:
            for key in reversed(conversation.values.get(source, ())):
                if key not in best:
                    best[key] = source
            if len(best) > MOST_CANDIDATES:
                break
        for key, count in self.constants.items():
            if count > 1 and key not in best:
                best[key] = CONSTANT
        used = conversation.used.get(own, [])
        last = used[-1] if used else None
        spent = set(used)
        groups: defaultdict[tuple[Source, int], list[tuple[int, int, Key]]] = defaultdict(list)
        for key, source in best.items():
            seat = conversation.values[source][key] if source is not CONSTANT else None
            use = 2 if key == last else 1 if key in spent else 0
            groups[source, use].append((-seat.message if seat else 0, seat.place if seat else 0, key))
        found: list[tuple[Key, Signature]] = []
        for (source, use), members in groups.items():
            members.sort()
            for index, (_, _, key) in enumerate(members):
                rank = min(index, 1) if source is not CONSTANT else -1
                found.append((key, (source, use, rank, self._mentions(conversation, key))))
        return found

    @staticmethod
    def _mentions(conversation: Conversation, key: Key) -> int:
        """Return 1 if the user's last message holds the value, 2 if the agent's does, 3 if both do."""
        mentions = 0
        for source in conversation.origins.get(key, ()):
            if source[0] in ("user", "agent"):
                seat = conversation.values[source].get(key)
                if seat is not None:
                    if seat.message == conversation.last_user:
                        mentions |= 1
                    elif seat.message == conversation.last_agent:
                        mentions |= 2
        return mentions

    def rank(self, conversation: Conversation, own: Source) -> list[Candidate]:
        """Return the candidates, the likeliest first."""
        found = [
            Candidate(key, self._probability(key, signature)) for key, signature in self.candidates(conversation, own)
        ]
        return sorted(found, key=lambda candidate: -candidate.probability)

    def _probability(self, key: Key, signature: Signature) -> float:
        source, use, rank, _ = signature
        if source is CONSTANT:
            base = self.constants[key] / (self.calls + 2)
            coarse = self.signatures[(source,)].towards(base, 2)
            return 0.5 * base + 0.5 * self.signatures[signature].towards(min(base, coarse), 2)
        prior = self.sources[source].towards(0.1, 2)
        middle = self.signatures[source, use, rank].towards(prior * (0.5 if rank == 0 else 0.1), 2)
        return self.signatures[signature].towards(middle, 2)

    def add(self, conversation: Conversation, own: Source, key: Key) -> None:
        """Learn that the argument had this value."""
        for candidate, signature in self.candidates(conversation, own):
            right = candidate == key
            self.signatures[signature].add(right)
            if signature[0] is CONSTANT:
                self.signatures[(CONSTANT,)].add(right)
            else:
                self.signatures[signature[:3]].add(right)
        self.calls += 1
        origins = conversation.origins.get(key, set())
        for source, rate in self.sources.items():
            if source not in origins and conversation.values.get(source):
                rate.add(False)
        for source in origins:
            self.sources[source].add(True)
        self.constants[key] = self.constants.get(key, 0) + 1
