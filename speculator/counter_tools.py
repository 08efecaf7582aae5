"""Which tool comes next: back-off counts of what followed the last two steps, weighed with what was said.

The counts are interpolated by Witten and Bell's rule (1991): a context's own counts weigh n / (n + d) against the
shorter context, n being how often it was seen and d how many different tools followed it. Words of the last messages,
tools called before, and whether a tool's arguments are at hand move that estimate, by weights learned as in
`counter_choice`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .counter_choice import Feature, Weights
from .counter_conversation import Conversation

Context = tuple[str, ...]
Evidence = list[tuple[str, float]]
"""What speaks for tools, whichever they are, with its weight."""

ANY = "*"
"""Stands for "some tool" against "none"."""
END = "\0end"
"""Stands for "no further call" where that is one of the choices."""
RATE = 0.15
DECAY = 0.01
SETTLED = 0.01
UNSEEN = 1e-3
"""Added to a tool's count-based chance before its logarithm is taken."""
MOST_EVIDENCE = 20_000
"""Words and steps that have weights."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """How well a tool's arguments are known before it is called."""

    sure: int
    """Chance that all its arguments are right, in fifths."""
    repeats: bool
    """Whether it was called before with each of these values."""
    mention: int
    """Who just wrote one of them, as in `Conversation.mention`."""
    fresh: bool
    """Whether the last message brought one of them."""
    again: bool
    """Whether the tool was called last."""
    first: bool
    """Whether the tool was never called before."""


NOTHING = Readiness(sure=0, repeats=False, mention=0, fresh=False, again=False, first=False)
"""Of `END`, which has no arguments."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a turn's start tells of the tools, before anything is known of their arguments."""

    shares: Mapping[str, float]
    """The counts' estimate for every tool seen so far."""
    evidence: Evidence
    scores: Mapping[str, float]
    """By how much the evidence speaks for each tool."""
    any_call: float
    """How likely the turn calls any tool."""

    def likely(self, *, covered: float, most: int) -> list[str]:
        """Return the likeliest tools, as many as together hold the share `covered` of the chances, at most `most`."""
        weights = {tool: (share + UNSEEN) * math.exp(self.scores[tool]) for tool, share in self.shares.items()}
        left = (1.0 - covered) * sum(weights.values())
        ranked = sorted(weights, key=lambda tool: (weights[tool], tool))  # the least likely first
        while len(ranked) > 1 and weights[ranked[0]] <= left:
            left -= weights[ranked.pop(0)]
        return ranked[-most:][::-1]


class ToolCounts:
    """Order-2 back-off counts."""

    def __init__(self) -> None:
        self._counts: defaultdict[Context, Counter[str]] = defaultdict(Counter)

    def add(self, contexts: Iterable[Context], tool: str) -> None:
        """Count that `tool` followed in each of the contexts."""
        for context in contexts:
            self._counts[context][tool] += 1

    def probabilities(self, contexts: Iterable[Context]) -> dict[str, float]:
        """Return how likely each tool seen so far is next; `contexts` from the shortest, which is empty."""
        result: dict[str, float] = {}
        for context in contexts:
            counts = self._counts.get(context)
            if not counts:
                continue
            total = counts.total()
            own = total / (total + len(counts)) if result else 1.0
            result = {tool: (1 - own) * share for tool, share in result.items()}
            for tool, count in counts.items():
                result[tool] = result.get(tool, 0.0) + own * count / total
        return result

    def to_json(self) -> list[list[Any]]:
        """Return the counts as plain JSON."""
        return [[context, counts] for context, counts in self._counts.items()]

    def load(self, rows: Iterable[Any]) -> None:
        """Take over what `to_json` gave."""
        for context, counts in rows:
            self._counts[tuple(context)] = Counter(counts)


class ToolWeights:
    """Weights of the evidence for each tool."""

    def __init__(self) -> None:
        self._of_evidence: dict[str, Weights] = {}
        self._of_readiness = Weights({("counts",): 1.0}, rate=RATE, decay=DECAY)

    def scores(self, tools: Iterable[str], evidence: Evidence) -> dict[str, float]:
        """Return by how much the evidence speaks for each tool."""
        scores = dict.fromkeys(tools, 0.0)
        for name, value in evidence:
            weights = self._of_evidence.get(name)
            if weights is not None:
                for tool, weight in weights.known.items():
                    if tool in scores:
                        scores[tool] += weight * value
        return scores

    def score(self, tool: str, share: float, ready: Readiness) -> float:
        """Return by how much its counts and its arguments speak for a tool."""
        return sum([self._of_readiness[feature] * value for feature, value in _features(tool, share, ready)])

    def descend(self, tool: str, evidence: Evidence, error: float) -> None:
        """Move the weights of the evidence by the error of a tool's probability."""
        for name, value in evidence:
            weights = self._of_evidence.get(name)
            if weights is None:
                if len(self._of_evidence) >= MOST_EVIDENCE:
                    continue
                weights = self._of_evidence[name] = Weights(rate=RATE, decay=DECAY)
            weights.descend(tool, error * value)

    def descend_readiness(self, tool: str, share: float, ready: Readiness, error: float) -> None:
        """Move the weights of the counts and the arguments by the error of a tool's probability."""
        for feature, value in _features(tool, share, ready):
            self._of_readiness.descend(feature, error * value)

    def to_json(self) -> dict[str, Any]:
        """Return the weights as plain JSON."""
        return {
            "evidence": [[name, weights.to_json()] for name, weights in self._of_evidence.items()],
            "readiness": self._of_readiness.to_json(),
        }

    def load(self, data: Any) -> None:
        """Take over what `to_json` gave."""
        for name, rows in data["evidence"]:
            self._of_evidence[name] = Weights(rate=RATE, decay=DECAY)
            self._of_evidence[name].load(rows)
        self._of_readiness.load(data["readiness"])


class Tools:
    """Chooses the next tool."""

    def __init__(self) -> None:
        self._counts = ToolCounts()
        self._weights = ToolWeights()

    def outlook(self, conversation: Conversation) -> Outlook:
        """Return what the counts and the evidence say at a turn's start."""
        shares = self._counts.probabilities(_contexts(conversation))
        evidence = _evidence(conversation)
        scores = self._weights.scores([*shares, ANY], evidence)
        return Outlook(shares, evidence, scores, 1 / (1 + math.exp(-scores.pop(ANY))))

    def probabilities(self, outlook: Outlook, ready: Mapping[str, Readiness]) -> dict[str, float]:
        """Return how likely each tool of `ready` is next, given that one of them is called."""
        scores = {
            tool: outlook.scores[tool] + self._weights.score(tool, outlook.shares[tool], readiness)
            for tool, readiness in ready.items()
        }
        top = max(scores.values())
        raised = {tool: math.exp(score - top) for tool, score in scores.items()}
        total = sum(raised.values())
        return {tool: value / total for tool, value in raised.items()}

    def learn(
        self, conversation: Conversation, outlook: Outlook, ready: Mapping[str, Readiness], tool: str | None
    ) -> None:
        """Learn that `tool` was called, None for no call; the rest is what was known before."""
        self._weights.descend(ANY, outlook.evidence, outlook.any_call - (tool is not None))
        if tool is None:
            return
        if tool in ready:
            for name, probability in self.probabilities(outlook, ready).items():
                error = probability - (name == tool)
                if abs(error) >= SETTLED:
                    self._weights.descend(name, outlook.evidence, error)
                    self._weights.descend_readiness(name, outlook.shares[name], ready[name], error)
        self._counts.add(_contexts(conversation), tool)

    def to_json(self) -> dict[str, Any]:
        """Return what was learned as plain JSON."""
        return {"counts": self._counts.to_json(), "weights": self._weights.to_json()}

    def load(self, data: Any) -> None:
        """Take over what `to_json` gave."""
        self._counts.load(data["counts"])
        self._weights.load(data["weights"])


def _evidence(conversation: Conversation) -> Evidence:
    """Return what in a conversation may speak for one tool or another.

    Words weigh less the more there are of them, and less when a result stands between them and the turn.
    """
    before, last = _last_two(conversation)
    spoken = last == "user"
    found = [
        ("", 0.5),
        (f"after {last}", 1.0),
        (f"after {before}, {last}", 1.0),
        (f"result {conversation.result}", 1.0),
        (f"result {conversation.result} of {last}", 0.5),
    ]
    for who, words, weight in (
        ("user", conversation.user_words, 3.0 if spoken else 0.6),
        ("agent", conversation.agent_words, 3.0 if spoken else 2.0),
    ):
        if words:
            value = weight / math.sqrt(len(words))
            found += [(f"{who}: {word}", value) for word in sorted(words)]
    found += [(f"earlier {step}", 0.5) for step in sorted(conversation.steps_seen)]
    return found


def _last_two(conversation: Conversation) -> tuple[str, str]:
    before, last = ("start", "start", *conversation.steps[-2:])[-2:]
    return before, last


def _contexts(conversation: Conversation) -> list[Context]:
    before, last = _last_two(conversation)
    return [(), (last,), (before, last), (before, last, conversation.result)]


def _features(tool: str, share: float, ready: Readiness) -> list[tuple[Feature, float]]:
    sure, repeats, mention, fresh = ready.sure, ready.repeats, ready.mention, ready.fresh
    return [
        (("counts",), math.log(share + UNSEEN)),
        (("sure", sure), 0.5),
        (("repeats", repeats, sure > 2), 0.5),
        (("mention", mention, repeats), 0.5),
        (("fresh", fresh, repeats), 0.5),
        (("again", ready.again, repeats, sure > 2), 0.5),
        (("first", ready.first, sure), 0.5),
        ((tool, "first", ready.first, sure > 2), 0.5),
        ((tool, "again", ready.again, repeats, sure > 2), 0.5),
        ((tool, "sure", sure), 0.5),
        ((tool, "repeats", repeats), 0.5),
        ((tool, "mention", mention, repeats), 0.5),
        ((tool, "fresh", fresh, repeats), 0.5),
    ]
