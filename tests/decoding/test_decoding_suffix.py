"""The suffix draft proposes what followed most often; its automaton counts exactly, at the same cost per token."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from agent_runtime.decoding.drafts import suffix
from agent_runtime.decoding.drafts.suffix import SuffixAutomaton, SuffixDraft, chance_of
from hypothesis import given, settings
from hypothesis import strategies as st


@dataclass
class StubRequest:
    """What the draft reads of a request."""

    owner: str = ""
    scope: str = ""
    background: bool = False


@dataclass
class StubRow:
    """What a draft may see of a row."""

    number: int
    tokens: list[int]
    prompt_tokens: int
    request: Any = field(default_factory=StubRequest)
    cache: Any = None
    hidden: Any = None


def row_of(number: int, prompt: list[int], **options: Any) -> StubRow:
    return StubRow(number, list(prompt), len(prompt), StubRequest(**options))


def state_of(automaton: SuffixAutomaton, context: tuple[int, ...]) -> int:
    state = 0
    for token in context:
        state = automaton._next(state, token)
        if state < 0:
            return state
    return state


def occurrences(texts: list[list[int]], depth: int) -> Counter[tuple[int, ...]]:
    return Counter(
        tuple(text[end - length : end])
        for text in texts
        for end in range(1, len(text) + 1)
        for length in range(1, min(depth, end) + 1)
    )


moves = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=70)


@settings(max_examples=300, deadline=None)
@given(moves, st.integers(2, 7))
def test_every_context_is_counted_exactly_also_in_texts_that_grow_side_by_side(
    steps: list[tuple[int, int]], depth: int
) -> None:
    texts: list[list[int]] = [[], [], []]
    ends = [0, 0, 0]
    automaton = SuffixAutomaton(depth)
    for which, token in steps:
        texts[which].append(token)
        ends[which] = automaton.extend(ends[which], token)
    counted = occurrences(texts, depth)
    for context, count in counted.items():
        assert automaton._count[state_of(automaton, context)] == count
    for context in {(*known[-3:], token) for known in counted for token in range(4)}:
        assert (state_of(automaton, context) > 0) == (context[-depth:] in counted) or len(context) > depth
    assert len(automaton) <= 2 * automaton.tokens + 1
    for text, end in zip(texts, ends, strict=True):
        if text:
            assert end == state_of(automaton, tuple(text[-depth:]))


@settings(max_examples=300, deadline=None)
@given(moves, st.integers(2, 6))
def test_the_longest_context_that_was_followed_and_its_likeliest_follower_are_found(
    steps: list[tuple[int, int]], depth: int
) -> None:
    texts: list[list[int]] = [[], [], []]
    ends = [0, 0, 0]
    seen: dict[tuple[int, ...], int] = {}
    automaton = SuffixAutomaton(depth)
    for clock, (which, token) in enumerate(steps):
        texts[which].append(token)
        ends[which] = automaton.extend(ends[which], token)
        for length in range(1, min(depth, len(texts[which])) + 1):
            seen[tuple(texts[which][-length:])] = clock
    counted = occurrences(texts, depth)
    for text, end in zip(texts, ends, strict=True):
        found = next(automaton.contexts(end), None)
        expected = None
        for length in range(min(depth - 1, len(text)), 0, -1):
            context = tuple(text[-length:])
            followers = {token: counted[*context, token] for token in range(4) if (*context, token) in counted}
            if followers:
                expected = context
                break
        if expected is None:
            assert found is None
            continue
        assert found is not None
        token, target, count, total = automaton.likeliest(found[0])
        best = max(followers, key=lambda token: (followers[token], seen[*expected, token]))
        assert (token, count, total) == (best, followers[best], sum(followers.values()))
        assert target == state_of(automaton, (*expected, token))


def propose(draft: SuffixDraft, row: StubRow, limit: int = 8) -> tuple[int, ...]:
    proposal = draft.propose(row, limit)
    return () if proposal is None else proposal.tokens


def test_the_more_frequent_continuation_is_proposed_even_where_another_is_newer() -> None:
    text = [1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2]
    assert propose(SuffixDraft(), row_of(1, text), 1) == (3,)


def test_equally_frequent_continuations_give_the_newer_one() -> None:
    assert propose(SuffixDraft(), row_of(1, [1, 2, 3, 9, 1, 2, 4, 9, 1, 2]), 1) == (4,)


def test_strength_rises_with_how_sure_the_counts_are() -> None:
    rare, common = [5, 1, 2, 3, 4, 8, 1], [5, *[1, 2, 3, 4, 8] * 12, 1]
    weak = SuffixDraft().propose(row_of(1, rare), 2)
    strong = SuffixDraft().propose(row_of(1, common), 2)
    assert weak is not None and strong is not None and weak.strength < strong.strength
    assert chance_of(1, 1, 1) < chance_of(2, 2, 1) < chance_of(2, 2, 8) < 1


def test_a_proposal_ends_where_its_chance_has_become_small() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1]
    assert propose(SuffixDraft(floor=0.9), row_of(1, text)) == (2,)
    assert len(propose(SuffixDraft(floor=0.0), row_of(1, text))) == 8


def test_rows_of_one_conversation_share_and_conversations_do_not() -> None:
    draft = SuffixDraft()
    first = row_of(1, [1, 2], owner="a")
    draft.propose(first, 4)
    first.tokens += [5, 6, 7]
    draft.forget(first)
    assert propose(draft, row_of(2, [9, 1, 2], owner="a"), 3)[:2] == (5, 6)
    assert propose(draft, row_of(3, [9, 1, 2], owner="b")) == ()
    assert propose(draft, row_of(4, [9, 1, 2])) == ()
    assert propose(draft, row_of(5, [9, 1, 2])) == ()  # rows without an owner share nothing either


def test_runs_share_only_where_they_name_the_same_scope() -> None:
    def wrote(draft: SuffixDraft, number: int, owner: str, scope: str) -> None:
        row = row_of(number, [1, 2], owner=owner, scope=scope)
        draft.propose(row, 4)
        row.tokens += [5, 6, 7]
        draft.forget(row)

    draft = SuffixDraft()
    wrote(draft, 1, "a", "support")
    assert propose(draft, row_of(2, [9, 1, 2], owner="b", scope="support"), 2) == (5, 6)
    assert propose(draft, row_of(3, [9, 1, 2], owner="b", scope="sales")) == ()
    assert propose(draft, row_of(4, [9, 1, 2], owner="b")) == ()
    assert propose(draft, row_of(5, [9, 1, 2], owner="a")) == ()
    apart = SuffixDraft(scope="run")
    wrote(apart, 6, "a", "support")
    assert propose(apart, row_of(7, [9, 1, 2], owner="b", scope="support")) == ()


def test_a_later_turn_does_not_count_the_earlier_ones_again() -> None:
    draft = SuffixDraft(depth=4)
    prompt = list(range(100))
    first = row_of(1, prompt, owner="a")
    draft.propose(first, 4)
    first.tokens += [200, 201]
    draft.forget(first)
    memory = next(iter(draft._memories.values()))
    assert memory.generations[0].tokens == 102
    draft.propose(row_of(2, [*prompt, 200, 201, 300], owner="a"), 4)
    assert memory.generations[0].tokens == 102 + 4 + 1  # the context before what is new, and that


def test_memory_is_bounded_and_keeps_the_newest_texts() -> None:
    draft = SuffixDraft(capacity=200, floor=0.0)
    row = row_of(1, [0], owner="a")
    sizes = []
    for start in range(0, 4000, 10):
        row.tokens += range(start, start + 10)
        draft.propose(row, 4)
        memory = next(iter(draft._memories.values()))
        assert len(memory.generations) <= 2
        sizes.append(sum(automaton.tokens for automaton in memory.generations))
    assert max(sizes) <= 200 + 100
    row.tokens += [3900, 3901]
    assert propose(draft, row, 3) == (3902, 3903, 3904)
    row.tokens += [100, 101]
    assert propose(draft, row, 3) == ()


def test_the_least_recently_used_memory_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix, "MEMORIES", 2)
    draft = SuffixDraft()
    for number, owner in enumerate(["a", "b", "a", "c"]):
        row = row_of(number, [1, 2, 3], owner=owner)
        draft.propose(row, 4)
        draft.forget(row)
    assert [key[1] for key in draft._memories] == ["a", "c"]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(4, 40))
def test_proposals_are_deterministic_and_don_t_depend_on_how_often_was_asked(text: list[int], capacity: int) -> None:
    often, once = SuffixDraft(capacity=capacity, depth=3), SuffixDraft(capacity=capacity, depth=3)
    row = row_of(1, text[:1], owner="a")
    for token in text[1:]:
        draft_often = often.propose(row, 5)
        row.tokens.append(token)
        assert draft_often is None or draft_often.q is None
    whole = row_of(2, text, owner="a")
    whole.prompt_tokens = 1
    assert often.propose(row, 5) == once.propose(whole, 5)
