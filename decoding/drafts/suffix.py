"""Draft by frequency: what followed most often after the longest known end of a row's text.

A suffix automaton (Blumer et al., "The smallest automaton recognizing the subwords of a text", 1985), built online and
cut at contexts of `depth` tokens, counts how often every context occurred in the texts of a conversation or, where rows
name a scope, of all runs in that scope. Drafting from such counts is SuffixDecoding's idea (Oliaro et al.,
arXiv:2411.04975), which uses a suffix tree.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from agent_runtime.decoding.cache import common_prefix

from .base import DraftedRow, DraftKind, Proposal

DEPTH = 16
"""Tokens of a context at most."""
CAPACITY = 1 << 16
"""Tokens that are remembered at most per conversation or scope; at least the newest half of them."""
MEMORIES = 32
"""Conversations and scopes remembered at a time; the least recently used one goes."""
TEXTS = 8
"""Newest texts of a memory that a new one is compared with."""
ESCAPE = 3.0
"""Weight of the unseen after a context of one token, in observations; fits what the demo's agent writes."""
FLOOR = 0.1
"""Estimated chance to stand as a whole below which a proposal isn't made longer."""
CLASSES = (0.3, 0.5, 0.65, 0.8, 0.9)
"""Borders between the classes of estimated chance."""
ROOT_STATE = 0
NONE = -1


class SuffixAutomaton:
    """Counts the contexts of up to `depth` tokens in texts that grow at their ends, several at a time.

    A state stands for all contexts that end at the same places of the texts: the longest has `length` tokens, the
    shortest one more than the state that `link` leads to. `extend` takes constant time, `depth` steps at most.
    """

    def __init__(self, depth: int = DEPTH) -> None:
        if depth < 2:
            raise ValueError(f"SuffixAutomaton: depth is {depth}; it must be at least 2.")
        self.depth = depth
        self.tokens = 0
        """Tokens taken up, over all texts."""
        self._length = array("i", [0])
        self._link = array("i", [NONE])
        self._count = array("i", [0])
        self._newest = array("q", [0])  # when the state's contexts last ended, in tokens taken up
        # Most states have one way on, so it lies in two arrays; further ones of a state lie in a dictionary of its own.
        self._token = array("i", [NONE])
        self._target = array("i", [NONE])
        self._more: dict[int, dict[int, int]] = {}

    def __len__(self) -> int:
        return len(self._length)

    def extend(self, last: int, token: int) -> int:
        """Append `token` to the text whose present end is state `last` (0 = an empty text); return its new end.

        A text's end is the state of its last `depth` tokens, or of all of them.
        """
        length, link = self._length, self._link
        full = length[last] == self.depth
        # A full context gives its first token up for the new one.
        start = link[last] if full and length[link[last]] == self.depth - 1 else last
        end = self._next(start, token)
        if end == NONE:
            end = self._add(start, token, self.depth if full else length[last] + 1)
        elif not full and length[end] != length[start] + 1:
            end = self._split(start, token, end)
        self.tokens += 1
        count, newest, state = self._count, self._newest, end
        while state > ROOT_STATE:
            count[state] += 1
            newest[state] = self.tokens
            state = link[state]
        return end

    def contexts(self, last: int) -> Iterator[tuple[int, int]]:
        """Yield (state, tokens) of the contexts of a text's end, longest first, that something has followed before."""
        state = self._usable(last)
        while state > ROOT_STATE:
            if self._token[state] != NONE:
                yield state, self._length[state]
            state = self._link[state]

    def likeliest(self, state: int) -> tuple[int, int, int, int]:
        """Return (token, next state, its count, count of all) of what followed a state most often.

        Of equally frequent ones the one seen last counts. Token and state are -1 where nothing followed.
        """
        state = self._usable(state)
        token, target = self._token[state], self._target[state]
        if target == NONE:
            return NONE, NONE, 0, 0
        best = total = self._count[target]
        more = self._more.get(state)
        if more is not None:
            newest = self._newest[target]
            for other_token, other in more.items():
                count = self._count[other]
                total += count
                if count > best or (count == best and self._newest[other] > newest):
                    token, target, best, newest = other_token, other, count, self._newest[other]
        return token, target, best, total

    def shorter(self, state: int) -> int:
        """Return the state of the next shorter context; 0 = the empty one."""
        return max(self._link[state], ROOT_STATE)

    def longest(self, state: int) -> int:
        """Return the tokens of a state's longest context."""
        return self._length[state]

    def _usable(self, state: int) -> int:
        """Leave a full context that has no ways on of its own for the one without its first token."""
        link = self._link[state]
        if self._length[state] == self.depth and self._length[link] == self.depth - 1:
            return link
        return state

    def _next(self, state: int, token: int) -> int:
        if self._token[state] == token:
            return self._target[state]
        more = self._more.get(state)
        return NONE if more is None else more.get(token, NONE)

    def _set(self, state: int, token: int, target: int) -> None:
        if self._token[state] in (NONE, token):
            self._token[state], self._target[state] = token, target
        else:
            self._more.setdefault(state, {})[token] = target

    def _new(self, length: int, link: int) -> int:
        self._length.append(length)
        self._link.append(link)
        self._count.append(0)
        self._newest.append(0)
        self._token.append(NONE)
        self._target.append(NONE)
        return len(self._length) - 1

    def _add(self, start: int, token: int, length: int) -> int:
        """Add the state of a context that is new; it follows `start` and what that links to."""
        added = self._new(length, ROOT_STATE)
        state = start
        while state != NONE and (known := self._next(state, token)) == NONE:
            self._set(state, token, added)
            state = self._link[state]
        if state != NONE:
            if self._length[known] != self._length[state] + 1:
                known = self._split(state, token, known)
            self._link[added] = known
        return added

    def _split(self, start: int, token: int, state: int) -> int:
        """Give the contexts of `state` that follow `start` a state of their own: they will end at more places."""
        short = self._new(self._length[start] + 1, self._link[state])
        self._count[short], self._newest[short] = self._count[state], self._newest[state]
        self._token[short], self._target[short] = self._token[state], self._target[state]
        more = self._more.get(state)
        if more is not None:
            self._more[short] = dict(more)
        self._link[state] = short
        while start != NONE and self._next(start, token) == state:
            self._set(start, token, short)
            start = self._link[start]
        return short


class _Memory:
    """Automata over the same texts, the oldest first: a younger one grows up to replace it, so nothing is rebuilt."""

    def __init__(self, depth: int, capacity: int) -> None:
        self._depth = depth
        self._capacity = capacity
        self.generations = [SuffixAutomaton(depth)]
        self.newest: deque[_Follower] = deque(maxlen=TEXTS)

    def join(self, text: list[int]) -> int:
        """Return from where a new text is to be taken up: a context before it leaves what is known, if it begins so."""
        shared = [common_prefix(text, other.text, other.taken) for other in self.newest]
        return max(0, max(shared, default=0) - self._depth)

    def extend(self, ends: dict[SuffixAutomaton, int], token: int) -> None:
        """Append a token to the text that ends at `ends`."""
        for automaton in self.generations:
            ends[automaton] = automaton.extend(ends.get(automaton, ROOT_STATE), token)
        if self.generations[0].tokens >= self._capacity:
            self.generations.pop(0)
        if len(self.generations) == 1 and self.generations[0].tokens >= self._capacity // 2:
            self.generations.append(SuffixAutomaton(self._depth))


@dataclass(slots=True, eq=False)
class _Follower:
    """One row: its text, how much of it is taken up, and where that ends in every automaton."""

    memory: _Memory
    text: list[int]
    taken: int
    ends: dict[SuffixAutomaton, int] = field(default_factory=dict)

    def catch_up(self) -> None:
        """Take up what the row has got since."""
        for at in range(self.taken, len(self.text)):
            self.memory.extend(self.ends, self.text[at])
        self.taken = len(self.text)
        if len(self.ends) > len(self.memory.generations):
            self.ends = {automaton: self.ends.get(automaton, ROOT_STATE) for automaton in self.memory.generations}


class SuffixDraft:
    """Proposes what followed most often. Deterministic: a point mass, exact at any temperature.

    Rows of one owner (a conversation) share a memory. Rows whose request names a `scope` share that scope's instead, so
    texts of earlier runs serve later ones, and can be inferred from how fast those are: name a scope only for
    runs that may know of each other. A text is taken up from where it leaves those that the memory holds.
    """

    kind: DraftKind = "suffix"
    needs_hidden = False

    def __init__(
        self,
        *,
        scope: Literal["run", "agent"] = "agent",
        depth: int = DEPTH,
        capacity: int = CAPACITY,
        floor: float = FLOOR,
    ) -> None:
        """Start empty.

        Args:
            scope: "run" leaves the scopes that requests name out of account.
            depth: tokens of a context at most.
            capacity: tokens remembered per memory at most; the newest half of them always is.
            floor: a proposal ends where its estimated chance to stand as a whole falls below this.
        """
        self._scope = scope
        self._depth = depth
        self._capacity = max(2, capacity)
        self._floor = floor
        self._memories: OrderedDict[tuple[str, str], _Memory] = OrderedDict()
        self._rows: dict[int, _Follower] = {}

    def propose(self, row: DraftedRow, limit: int) -> Proposal | None:
        """Return up to `limit` tokens, each the likeliest after those before it."""
        follower = self._follow(row)
        automaton = follower.memory.generations[0]
        state, known = next(automaton.contexts(follower.ends.get(automaton, ROOT_STATE)), (ROOT_STATE, 0))
        tokens: list[int] = []
        chance, first = 1.0, 0.0
        while len(tokens) < limit and state > ROOT_STATE:
            token, target, count, total = automaton.likeliest(state)
            if target == NONE:
                state = automaton.shorter(state)
                known = min(known, automaton.longest(state))
                continue
            estimate = chance_of(count, total, known)
            chance *= estimate
            if tokens and chance < self._floor:
                break
            first = first or estimate
            tokens.append(token)
            state, known = target, known + 1
        if not tokens:
            return None
        return Proposal("suffix", tuple(tokens), strength=sum(first >= border for border in CLASSES))

    def forget(self, row: DraftedRow) -> None:
        """Take up the rest of a row that is over; its text stays remembered."""
        follower = self._rows.pop(row.number, None)
        if follower is not None:
            follower.catch_up()
            follower.ends.clear()  # its text may be looked at for long; automata that were replaced should not stay

    def _follow(self, row: DraftedRow) -> _Follower:
        follower = self._rows.get(row.number)
        if follower is None:
            memory = self._memory(row)
            follower = self._rows[row.number] = _Follower(memory, row.tokens, memory.join(row.tokens))
            memory.newest.append(follower)
        follower.catch_up()
        return follower

    def _memory(self, row: DraftedRow) -> _Memory:
        request = row.request
        if self._scope == "agent" and request.scope:
            key = ("scope", request.scope)
        elif request.owner:
            key = ("owner", request.owner)
        else:
            key = ("row", str(row.number))  # nobody's row shares with nobody
        memory = self._memories.get(key)
        if memory is None:
            memory = self._memories[key] = _Memory(self._depth, self._capacity)
        self._memories.move_to_end(key)
        if len(self._memories) > MEMORIES:
            self._memories.popitem(last=False)
        return memory


def chance_of(count: int, total: int, known: int) -> float:
    """Estimate the chance of what followed a context of `known` tokens `count` of `total` times.

    Something new is given the weight of `ESCAPE` / `known` observations: the longer the context, the rarer.
    """
    return count / (total + ESCAPE / known)
