"""Which value an argument takes: candidates from the sources that gave it before, weighed by what speaks for each.

Counted are, per argument of a tool and per argument name over all tools, how often each source held the right value
when it held any, and in how many tasks a value came up (a value of one task alone is an id, no constant). The choice
among the candidates weighs that rate with the candidate's place: unused before used, first before later, next after the
one used last, mentioned just now, and so on.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from .counter_choice import HINT, Chooser, Feature
from .counter_conversation import IN_AGENT, IN_USER, Conversation, Seat, Source
from .counter_json import Key
from .counter_sources import ArgumentCounts

MOST_CANDIDATES = 16
"""Values from sources that are weighed for one argument."""
MOST_SAID = 48
"""Words of a message that may stand for a constant; of a longer one none is taken for a hint."""
UNUSED, USED, USED_LAST = 0, 1, 2
LATER = 2
"""Rank of every unused value after the second; used ones have the rank behind it."""
CONSTANT: Source = ("constant",)


class Candidate(NamedTuple):
    """What is known of a value that an argument may take."""

    tool: str
    argument: str
    source: Source
    """The source with the best rate among those that hold the value."""
    rate: int
    """Tenths of the time in which the source held the right value; -1 where this tool never took any from it."""
    use: int
    """Whether the argument had the value before in this conversation: `UNUSED`, `USED` or `USED_LAST`."""
    rank: int
    """Place among the source's unused values, newest message first."""
    following: int
    """1 for the first unused value after the one used last, 2 for the oldest unused one, 3 for both."""
    again: bool
    """Whether the tool was called last."""
    fresh: bool
    """Whether the last message brought it."""
    mention: int
    """Who wrote it, see `Conversation.mention`."""
    lead: str | None
    """The word before it in the user's text."""
    foreign: bool
    """Read from a text, and known from results as something else."""
    taken: bool
    """Whether another argument of the same call has it."""
    constant: Key | None = None
    """The value itself, where it is a constant."""
    named: int = 0
    """1 if the user's last message holds the constant's words, 2 if the agent's does, 3 for both."""
    said: frozenset[str] = frozenset()
    """Words of the user's last message, where the value is a constant: they may stand for it."""


def features(candidate: Candidate) -> list[Feature]:
    """Return what speaks for or against a candidate, for any argument and for this one alone."""
    tool, argument, source, use, mention = (
        candidate[0],
        candidate[1],
        candidate.source,
        candidate.use,
        candidate.mention,
    )
    kind = source[0]
    now = mention & (IN_USER | IN_AGENT)
    found: list[Feature]
    if candidate.constant is not None:
        found = [
            ("constant", candidate.rate),
            ("named", candidate.named),
            ("constant used", use),
            (tool, argument, "constant", candidate.constant),
            (tool, argument, "named", candidate.named),
            (tool, argument, "named", candidate.constant, candidate.named),
            (tool, argument, "constant used", use),
        ]
        found += [(HINT, tool, argument, candidate.constant, word) for word in sorted(candidate.said)]
    else:
        found = [
            ("rate", candidate.rate),
            ("kind", kind),
            ("use", kind, use),
            ("mention", mention),
            ("mention", now, use),
            ("rank", kind, candidate.rank),
            ("fresh", kind, candidate.fresh),
            ("rank", kind, candidate.rank, candidate.fresh, now),
            (tool, argument, "source", source),
            (tool, argument, "use", use),
            (tool, argument, "mention", now, use),
            (tool, argument, "rank", source, candidate.rank),
            (tool, argument, "fresh", candidate.fresh, use),
        ]
        if candidate.following:
            found += [
                ("following", candidate.following),
                ("following", candidate.following, candidate.again),
                (tool, argument, "following", candidate.following, candidate.again),
            ]
        if candidate.foreign:
            found += [("foreign",), (tool, argument, "foreign")]
        if candidate.lead is not None:
            found += [(argument, "lead", candidate.lead), (tool, argument, "lead", candidate.lead)]
    if candidate.taken:
        found += [("taken",), (tool, argument, "taken")]
    return found


START: dict[Feature, float] = {
    ("rate", -1): -1.5,
    **{("rate", tenth): -2.0 + 0.3 * tenth for tenth in range(10)},
    ("constant", -1): -3.0,
    **{("constant", tenth): -2.0 + 0.4 * tenth for tenth in range(10)},
    **{("rank", "result", rank): weight for rank, weight in enumerate((1.0, -0.5, -1.0, -1.5))},
    **{("use", kind, use): -0.7 for use in (USED, USED_LAST) for kind in ("result", "user", "agent")},
    **{("following", following): weight for following, weight in ((1, 0.7), (2, 0.3), (3, 0.8))},
    ("mention", IN_USER): 1.0,
    ("mention", IN_AGENT): 0.5,
    ("mention", IN_USER | IN_AGENT): 1.5,
    ("foreign",): -1.0,
    ("taken",): -1.0,
}
"""What holds of most tools, until an agent's own recordings say otherwise."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The likeliest value of an argument."""

    key: Key
    probability: float


class Arguments:
    """All arguments of all tools."""

    def __init__(self) -> None:
        self._of_tool: defaultdict[tuple[str, str], ArgumentCounts] = defaultdict(ArgumentCounts)
        self._of_name: defaultdict[str, ArgumentCounts] = defaultdict(ArgumentCounts)
        self._chooser: Chooser[Candidate] = Chooser(features, start=START)

    def choose(
        self, conversation: Conversation, tool: str, argument: str, taken: Collection[Key] = ()
    ) -> Choice | None:
        """Return the likeliest value; None where there is no candidate.

        Args:
            conversation: What is known so far.
            tool: Name of the tool.
            argument: Name of the argument.
            taken: Values of the call's other arguments.
        """
        keys, candidates = self._candidates(conversation, tool, argument, taken)
        if not keys:
            return None
        probabilities = self._chooser.probabilities(candidates)
        best = max(range(len(keys)), key=probabilities.__getitem__)
        return Choice(keys[best], probabilities[best])

    def learn(
        self, conversation: Conversation, tool: str, argument: str, key: Key, taken: Collection[Key] = ()
    ) -> None:
        """Learn that the argument had the value `key`."""
        keys, candidates = self._candidates(conversation, tool, argument, taken)
        if keys:
            self._chooser.learn(candidates, [index for index, value in enumerate(keys) if value == key])
        self._of_tool[tool, argument].add(conversation, key)
        self._of_name[argument].add(conversation, key)

    def _candidates(
        self, conversation: Conversation, tool: str, argument: str, taken: Collection[Key]
    ) -> tuple[list[Key], list[Candidate]]:
        own = self._of_tool[tool, argument]
        sources = list(own.best_sources())
        sources += [source for source in self._of_name[argument].best_sources() if source not in sources]
        used = conversation.used.get(("call", tool, argument), [])
        again = conversation.steps[-1:] == [tool]
        keys: list[Key] = []
        found: list[Candidate] = []
        seen: set[Key] = set()
        for source in sources:
            values = conversation.newest_values(source)
            if not values:
                continue
            new = [item for item in values[:MOST_CANDIDATES] if item[0] not in seen]
            seen.update(key for key, _ in new)
            tenth = own.tenth(source)
            text = source[0] in ("user", "agent")
            for key, use, rank, following, fresh in _placed(new, used, conversation.newest):
                mention = conversation.mention(key)
                found.append(
                    Candidate(
                        tool=tool,
                        argument=argument,
                        source=source,
                        rate=tenth,
                        use=use,
                        rank=rank,
                        following=following,
                        again=again,
                        fresh=fresh,
                        mention=mention & (IN_USER | IN_AGENT) if mention & IN_USER else mention,
                        lead=conversation.leads.get(key) if mention else None,
                        foreign=text and _is_foreign(conversation, key, sources),
                        taken=key in taken,
                    )
                )
                keys.append(key)
            if len(keys) >= MOST_CANDIDATES:
                break
        said = conversation.user_words if len(conversation.user_words) <= MOST_SAID else frozenset()
        for key, tenth in own.common_constants(conversation.group):
            if key not in seen:
                keys.append(key)
                found.append(
                    Candidate(
                        tool=tool,
                        argument=argument,
                        source=CONSTANT,
                        rate=tenth,
                        use=_use(key, used),
                        rank=0,
                        following=0,
                        again=again,
                        fresh=False,
                        mention=0,
                        lead=None,
                        foreign=False,
                        taken=key in taken,
                        constant=key,
                        named=_named(conversation, key),
                        said=said,
                    )
                )
        return keys, found

    def to_json(self) -> dict[str, Any]:
        """Return what was learned as plain JSON."""
        return {
            "of_tool": [[*slot, counts.to_json()] for slot, counts in self._of_tool.items() if counts.calls],
            "of_name": [[name, counts.to_json()] for name, counts in self._of_name.items() if counts.calls],
            "weights": self._chooser.weights.to_json(),
        }

    def load(self, data: Any) -> None:
        """Take over what `to_json` gave."""
        for tool, argument, counts in data["of_tool"]:
            self._of_tool[tool, argument] = ArgumentCounts.from_json(counts)
        for name, counts in data["of_name"]:
            self._of_name[name] = ArgumentCounts.from_json(counts)
        self._chooser.load(data["weights"])


def _placed(values: list[tuple[Key, Seat]], used: list[Key], newest: int) -> Iterable[tuple[Key, int, int, int, bool]]:
    """Yield (value, use, rank, following, fresh) for a source's values as `_newest` gives them."""
    spent = set(used)
    last = used[-1] if used else None
    oldest = after_last = None
    passed = False
    for key, _ in sorted(values, key=lambda item: (item[1].message, item[1].place)):
        if key == last:
            passed = True
        elif key not in spent:
            oldest = oldest or key
            if passed:
                after_last = key
                break
    unused = 0
    for key, seat in values:
        use = USED_LAST if key == last else USED if key in spent else UNUSED
        rank = LATER + 1 if use else min(LATER, unused)
        unused += not use
        yield key, use, rank, (key == after_last) + 2 * (key == oldest), seat.message == newest


def _use(key: Key, used: list[Key]) -> int:
    return UNUSED if key not in used else USED_LAST if used[-1] == key else USED


def _is_foreign(conversation: Conversation, key: Key, sources: list[Source]) -> bool:
    return any(origin[0] == "result" and origin not in sources for origin in conversation.origins[key])


@lru_cache(maxsize=4096)
def _words_of(key: Key) -> tuple[str, ...]:
    value = json.loads(key)
    return tuple(value.lower().replace("_", " ").split()) if isinstance(value, str) else ()


def _named(conversation: Conversation, key: Key) -> int:
    """Return who just used all words of a constant: 1 the user, 2 the agent, 3 both."""
    named = _words_of(key)
    if not named:
        return 0
    by_user = all(word in conversation.user_words for word in named)
    by_agent = all(word in conversation.agent_words for word in named)
    return IN_USER * by_user + IN_AGENT * by_agent
