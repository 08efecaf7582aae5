"""The lookup draft copies on from the most recent longest match in the row's own context, found without a rescan."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from agent_runtime.decoding.drafts.lookup import LookupDraft, Match, TailIndex, strength_of
from agent_runtime.decoding.requests import RowRequest
from hypothesis import given, settings
from hypothesis import strategies as st


@dataclass
class StubRow:
    """What a draft may see of a row."""

    number: int
    request: RowRequest
    tokens: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    cache: Any = None
    hidden: Any = None


def row_of(number: int, prompt: list[int], **options: Any) -> StubRow:
    request = RowRequest(prompt=tuple(prompt), max_new_tokens=100, **options)
    return StubRow(number, request, list(prompt), len(prompt))


def longest_match(text: list[int], longest: int) -> tuple[int, int]:
    """The definition: over all earlier positions, the most shared tokens; the newest of equals."""
    best, last = (0, -1), len(text) - 1
    for end in range(last):
        length = 0
        while length < longest and length <= end and text[end - length] == text[last - length]:
            length += 1
        if length and length >= best[0]:
            best = (length, end)
    return best


def continuation(text: list[int], limit: int, longest: int, shortest: int = 1) -> tuple[int, ...] | None:
    length, end = longest_match(text, longest)
    if length < shortest:
        return None
    copied = list(text)
    for _ in range(limit):
        copied.append(copied[end + 1 + len(copied) - len(text)])
    return tuple(copied[len(text) :])


texts = st.lists(st.integers(0, 3), min_size=1, max_size=80)


@settings(max_examples=300, deadline=None)
@given(texts, st.integers(1, 9))
def test_every_position_finds_the_most_recent_longest_match(text: list[int], longest: int) -> None:
    index = TailIndex(longest)
    for at in range(len(text)):
        expected = longest_match(text[: at + 1], longest)
        found = index.find(text, at)
        assert index.add(text, at) == found
        assert (found.length, found.end if found.length else -1) == expected


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_what_is_proposed_depends_on_the_rows_own_tokens_alone(data: st.DataObject) -> None:
    """Turns and probes of one conversation come and go in any order; each sees what a fresh index would find."""
    longest = data.draw(st.integers(2, 6))
    draft = LookupDraft(longest=longest)
    history = data.draw(texts)
    rows: list[StubRow] = []
    for number in range(data.draw(st.integers(1, 12))):
        if rows and data.draw(st.booleans()):
            row = data.draw(st.sampled_from(rows))
        else:
            background = data.draw(st.booleans())
            keep = data.draw(st.integers(1, len(history)))
            start = history if data.draw(st.booleans()) else history[:keep]
            row = row_of(number, [*start, *data.draw(texts)], owner="a", background=background)
            if not background:
                history = list(row.tokens)
            rows.append(row)
        if data.draw(st.booleans()):
            row.tokens.extend(data.draw(texts))
        limit = data.draw(st.integers(1, 10))
        proposal = draft.propose(row, limit)
        expected = continuation(row.tokens, limit, longest)
        assert (None if proposal is None else proposal.tokens) == expected
        if proposal is not None:
            assert proposal.q is None and proposal.is_chain
            assert proposal.strength == strength_of(longest_match(row.tokens, longest)[0])
        if data.draw(st.booleans()):
            rows.remove(row)
            draft.forget(row)


def test_the_newest_of_equal_matches_is_copied() -> None:
    proposal = LookupDraft().propose(row_of(1, [7, 1, 2, 8, 1, 2, 9, 5, 1, 2]), 3)
    assert proposal is not None and proposal.tokens == (9, 5, 1)


def test_a_longer_match_is_preferred_to_a_newer_one() -> None:
    proposal = LookupDraft().propose(row_of(1, [6, 1, 2, 8, 9, 1, 2, 4, 3, 6, 1, 2]), 1)
    assert proposal is not None and proposal.tokens == (8,)


def test_a_match_that_reaches_the_end_repeats_itself() -> None:
    proposal = LookupDraft().propose(row_of(1, [5, 1, 2, 1, 2, 1, 2]), 5)
    assert proposal is not None and proposal.tokens == (1, 2, 1, 2, 1)


def test_matches_shorter_than_asked_for_are_not_proposed() -> None:
    row = row_of(1, [1, 2, 3, 4, 2])
    assert LookupDraft(shortest=2).propose(row, 4) is None
    assert LookupDraft(shortest=1).propose(row, 4) is not None
    assert LookupDraft().propose(row, 0) is None
    assert LookupDraft().propose(row_of(2, [1, 2, 3]), 4) is None


def test_strength_is_the_class_of_the_matchs_length() -> None:
    assert [strength_of(length) for length in (1, 2, 3, 4, 5, 8, 9, 16, 40)] == [0, 1, 2, 2, 3, 3, 4, 4, 4]


def test_a_later_turn_reads_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[int] = []
    add = TailIndex.add

    def counting(self: TailIndex, text: list[int], at: int) -> Match:
        added.append(at)
        return add(self, text, at)

    monkeypatch.setattr(TailIndex, "add", counting)
    draft = LookupDraft()
    prompt = list(range(500))
    first = row_of(1, prompt, owner="a")
    draft.propose(first, 4)
    probe = row_of(2, [*prompt, 7, 8, 9], owner="a", background=True)
    draft.propose(probe, 4)
    assert len(added) == 504  # the prompt's last token once for either row
    draft.forget(first)
    draft.forget(probe)
    second = row_of(3, [*prompt, 1, 2, 3, 4], owner="a")
    draft.propose(second, 4)
    second.tokens.append(5)
    draft.propose(second, 4)
    assert added[504:] == [499, 500, 501, 502, 503, 504]


def test_the_cost_of_a_token_does_not_grow_with_the_text() -> None:
    """Counted in comparisons: at most one walk of `longest` steps per token, also in endless repetition."""
    counted = 0

    class Counting(TailIndex):
        def _shared(self, text: list[int], at: int, other: int, known: int, until: int) -> int:
            nonlocal counted
            shared = super()._shared(text, at, other, known, until)
            counted += 1 + shared - known
            return shared

    for text in ([1] * 5000, [1, 2] * 2500, [index % 7 for index in range(5000)]):
        index, counted = Counting(16), 0
        for at in range(len(text)):
            index.add(text, at)
        assert counted <= 2 * 16 * len(text)
