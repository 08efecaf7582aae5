"""Draft by copying: what followed the most recent longest match of the row's end in its own context.

The idea is prompt lookup (Saxena, 2023; Yang et al., arXiv:2304.04487), which rescans the context at every step and
takes the leftmost match. Here an index grows with the text instead, and the newest of the longest matches counts, for
agents copy from the latest tool result.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from agent_runtime.decoding.cache import common_prefix

from .base import DraftedRow, DraftKind, Proposal

LONGEST = 16
"""Tokens of a row's end that are compared at most."""
OWNERS = 64
"""Conversations whose prompts stay indexed between their turns."""
START = -1
"""Stands for what comes before a text's first token."""


class _Node:
    """Where contexts of `depth` equal tokens part: the newest position that has them, and the ways on."""

    __slots__ = ("children", "depth", "newest")

    def __init__(self, depth: int, newest: int, children: dict[int, _Node | int]) -> None:
        self.depth = depth
        self.newest = newest
        self.children = children


@dataclass(frozen=True, slots=True)
class Match:
    """`length` tokens up to position `end` equal those at the position asked about; 0 if nothing does."""

    length: int
    end: int


NOTHING = Match(0, -1)


class TailIndex:
    """The contexts of a text's positions, read backwards, as a compressed tree of at most `longest` levels.

    That is the suffix tree of the reversed text, cut at that depth. Adding a position and finding its match both walk
    one path, so either takes at most `longest` comparisons, however long the text is; a position adds two nodes at most
    and none where its whole context is known. The text itself lies with the caller.
    """

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._root = _Node(0, -1, {})

    def add(self, text: list[int], at: int) -> Match:
        """Add position `at`, later than all before; return its most recent longest match among those."""
        node, depth, newest = self._root, 0, -1
        while True:
            token = text[at - depth]  # every earlier context is shorter than this one, so this one can't be used up
            child = node.children.get(token)
            if child is None:
                node.children[token] = at
                return Match(depth, newest)
            other, until = (child, self._longest) if isinstance(child, int) else (child.newest, child.depth)
            shared = self._shared(text, at, other, depth + 1, until)
            if shared < until:
                apart = text[other - shared] if other >= shared else START
                node.children[token] = _Node(shared, at, {apart: child, text[at - shared]: at})
                return Match(shared, other)
            if isinstance(child, int):
                node.children[token] = at
                return Match(shared, other)
            child.newest = at
            node, depth, newest = child, shared, other

    def find(self, text: list[int], at: int) -> Match:
        """Return the most recent longest match of position `at`, which is later than all that were added."""
        node, depth = self._root, 0
        while (child := node.children.get(text[at - depth])) is not None:
            other, until = (child, self._longest) if isinstance(child, int) else (child.newest, child.depth)
            shared = self._shared(text, at, other, depth + 1, until)
            if isinstance(child, int) or shared < until:
                return Match(shared, other)
            node, depth = child, shared
        return Match(depth, node.newest)

    def _shared(self, text: list[int], at: int, other: int, known: int, until: int) -> int:
        """Return how many tokens up to `at` and `other` agree, at most `until`, of which `known` do."""
        until = min(until, other + 1)
        while known < until and text[at - known] == text[other - known]:
            known += 1
        return known


@dataclass(slots=True)
class _Base:
    """The index of a conversation's prompt, shared by its rows and not changed while several use it."""

    tokens: list[int]
    index: TailIndex
    rows: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Follower:
    """One row: its part of a shared base, and an index of what follows there."""

    base: _Base
    own: TailIndex
    length: int
    """Tokens of the row that are indexed."""
    match: Match = NOTHING
    """Of the last indexed token, among the row's own part."""


class LookupDraft:
    """Copies on from the most recent longest match. Deterministic: a point mass, exact at any temperature.

    A turn's prompt begins with that of the turn before, and a probe's with its agent's, so prompts are indexed once per
    conversation: a row keeps an index of its own only for what comes after.
    """

    kind: DraftKind = "lookup"
    needs_hidden = False

    def __init__(self, *, shortest: int = 1, longest: int = LONGEST) -> None:
        """Start empty.

        Args:
            shortest: tokens that must match. Matches of one token stand less often; the proposal's strength says so,
                and the choice of its length takes that into account.
            longest: tokens that are compared at most.
        """
        self._shortest = max(1, shortest)
        self._longest = longest
        self._bases: OrderedDict[str, _Base] = OrderedDict()
        self._rows: dict[int, _Follower] = {}

    def propose(self, row: DraftedRow, limit: int) -> Proposal | None:
        """Return the `limit` tokens after the match; a match that runs into the end repeats itself."""
        text = row.tokens
        follower = self._rows.get(row.number)
        if follower is None:
            follower = self._rows[row.number] = self._start(row)
        for at in range(follower.length, len(text)):
            follower.match = follower.own.add(text, at)
        follower.length = len(text)
        match = follower.match
        if match.length < self._longest:
            earlier = follower.base.index.find(text, len(text) - 1)
            if earlier.length > match.length:
                match = earlier
        if match.length < self._shortest or limit < 1:
            return None
        tokens = text[match.end + 1 : match.end + 1 + limit]
        period = len(tokens)
        while len(tokens) < limit:
            tokens.append(tokens[len(tokens) - period])
        return Proposal("lookup", tuple(tokens), strength=strength_of(match.length))

    def forget(self, row: DraftedRow) -> None:
        """Drop what is kept for a row; its conversation's prompt stays indexed for the next turn."""
        follower = self._rows.pop(row.number, None)
        if follower is not None:
            follower.base.rows.discard(row.number)

    def _start(self, row: DraftedRow) -> _Follower:
        # Without the prompt's last token: what is asked for is always later than what the base holds.
        owner, text, prompt = row.request.owner, row.tokens, row.prompt_tokens - 1
        base = self._bases.get(owner)
        if base is not None:
            held = len(base.tokens)
            if common_prefix(base.tokens, text, min(held, prompt)) < held:
                base = None  # the conversation was rewritten
        # A probe's prompt ends in what the agent's will not have: it only joins a base that is there.
        background = row.request.background
        if base is None:
            base = _Base([], TailIndex(self._longest))
            if not background:
                self._bases[owner] = base
        if owner in self._bases:
            self._bases.move_to_end(owner)
        if len(self._bases) > OWNERS:
            self._bases.popitem(last=False)
        if not base.rows and (not background or not base.tokens):
            for at in range(len(base.tokens), prompt):
                base.index.add(text, at)
            base.tokens.extend(text[len(base.tokens) : prompt])
        base.rows.add(row.number)
        return _Follower(base, TailIndex(self._longest), len(base.tokens))


def strength_of(length: int) -> int:
    """Return the class of a match's length: 0 for one token, then up to 2, 4, 8 and more."""
    return min((length - 1).bit_length(), 4)
