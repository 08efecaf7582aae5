"""Which draft and how many tokens: by what is accepted and by what a step costs; and the drafts that need no model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from agent_runtime.decoding.acceptance import START, Acceptance, closed_form
from agent_runtime.decoding.constrained import guide
from agent_runtime.decoding.costs import CostTable, measure_costs
from agent_runtime.decoding.drafter import Drafter, first_branch
from agent_runtime.decoding.drafts.base import Proposal
from agent_runtime.decoding.drafts.call import AGAIN, INSIDE, OPENING, CallDraft
from agent_runtime.decoding.drafts.grammar import GrammarDraft
from agent_runtime.decoding.drafts.layers import LayersDraft, search_layers, stored_layers
from agent_runtime.decoding.errors import ModelUnsupported
from agent_runtime.decoding.executor import Block, choose_executor
from agent_runtime.decoding.grammar import GrammarTokenizer, compile_grammar
from agent_runtime.decoding.lean import LeanExecutor
from agent_runtime.decoding.requests import CallGrammar, RowRequest
from agent_runtime.decoding.tally import Tally
from hypothesis import given
from hypothesis import strategies as st

FLAT = CostTable({1: 1.0, 32: 1.0})
STEEP = CostTable({1: 1.0, 2: 2.0, 32: 32.0})


@dataclass
class Row:
    """As much of a row as drafts look at."""

    tokens: list[int]
    prompt_tokens: int = 0
    number: int = 0
    background: bool = False
    suggestion: tuple[int, ...] = ()
    request: RowRequest = field(default_factory=lambda: RowRequest(prompt=(1,), max_new_tokens=100))
    cache: Any = None
    hidden: Any = None
    pending: int = 1
    tallies: dict[str, Tally] = field(default_factory=dict)

    def tally(self, kind: str) -> Tally:
        return self.tallies.setdefault(kind, Tally())


class Fixed:
    """Proposes the same tokens every time."""

    needs_hidden = False

    def __init__(self, kind: Any, length: int, strength: int = 0) -> None:
        self.kind, self.length, self.strength, self.asked = kind, length, strength, list[int]()

    def propose(self, row: Any, limit: int) -> Proposal | None:
        self.asked.append(limit)
        return Proposal(self.kind, tuple(range(min(limit, self.length))), strength=self.strength)

    def forget(self, row: Any) -> None:
        pass


def drafter(*drafts: Any, costs: CostTable = FLAT, fixed: int | None = None) -> Drafter:
    return Drafter(drafts, costs, vocab_size=100, trees=True, fixed=fixed)


def drafted(made: Drafter, row: Any, beside: int = 0) -> Proposal | None:
    found = made.draft(row, beside=beside)
    return None if found is None else found.proposal


def test_where_more_tokens_cost_nothing_all_are_drafted_and_where_they_cost_as_much_none() -> None:
    row: Any = Row([1, 2, 3])
    cheap, dear = drafter(Fixed("lookup", 8)), drafter(Fixed("lookup", 8), costs=STEEP)
    assert len(drafted(cheap, row).tokens) == 8  # type: ignore[union-attr]
    assert drafted(dear, row) is None


def test_the_length_follows_what_is_accepted() -> None:
    row: Any = Row([1, 2, 3])
    made = drafter(Fixed("lookup", 16), costs=CostTable({1: 1.0, 2: 1.2, 17: 3.0}))
    for _ in range(200):
        made.settle(row, Proposal("lookup", tuple(range(16))), 2)
    proposal = drafted(made, row)
    assert proposal is not None and len(proposal.tokens) == 2
    for _ in range(400):
        made.settle(row, Proposal("lookup", tuple(range(16))), 0)
    assert drafted(made, row) is None


def test_what_was_given_up_is_tried_again_some_time() -> None:
    row: Any = Row([1, 2, 3])
    made = drafter(Fixed("lookup", 4), costs=CostTable({1: 1.0, 2: 1.3, 5: 2.0}))
    for _ in range(300):
        made.settle(row, Proposal("lookup", tuple(range(4))), 0)
    tries = [drafted(made, row) for _ in range(8000)]
    assert tries[0] is None and any(proposal is not None for proposal in tries)


def test_evidence_and_probes_are_judged_apart() -> None:
    made = drafter(Fixed("lookup", 4, strength=1), costs=CostTable({1: 1.0, 2: 1.3, 5: 2.0}))
    agent: Any = Row([1, 2, 3])
    probe: Any = Row([1, 2, 3], background=True)
    for _ in range(100):
        made.settle(agent, Proposal("lookup", tuple(range(4)), strength=1), 0)
    assert drafted(made, agent) is None and drafted(made, probe) is not None


def test_the_draft_that_promises_most_is_taken() -> None:
    row: Any = Row([1, 2, 3])
    made = drafter(Fixed("lookup", 3), Fixed("suffix", 3), costs=CostTable({1: 1.0, 4: 1.5}))
    for _ in range(100):
        made.settle(row, Proposal("lookup", (0, 1, 2)), 1)
        made.settle(row, Proposal("suffix", (0, 1, 2)), 3)
    assert drafted(made, row).kind == "suffix"  # type: ignore[union-attr]


def test_a_draft_that_runs_a_model_is_not_asked_where_it_can_not_pay() -> None:
    row: Any = Row([1, 2, 3])
    model = Fixed("model", 4)
    made = drafter(model, costs=CostTable({1: 1.0, 2: 1.1, 32: 3.0}))
    for _ in range(100):
        made.settle(row, Proposal("model", (0, 1, 2, 3)), 0)
    assert drafted(made, row) is None and model.asked == []


def test_no_more_is_drafted_than_the_row_may_still_say() -> None:
    request = RowRequest(prompt=(1,), max_new_tokens=5)
    made = drafter(Fixed("lookup", 16))
    for said, most in ((0, 4), (3, 1), (4, 0)):
        row: Any = Row([1] + [9] * said, prompt_tokens=1, request=request)
        proposal = drafted(made, row)
        assert (0 if proposal is None else len(proposal.tokens)) == most


def test_a_fixed_length_is_kept_whatever_it_costs() -> None:
    row: Any = Row([1, 2, 3])
    assert len(drafted(drafter(Fixed("lookup", 16), costs=STEEP, fixed=3), row).tokens) == 3  # type: ignore[union-attr]


def test_a_cost_between_two_sizes_is_on_the_line_between_them_and_never_falls() -> None:
    costs = CostTable({1: 2.0, 4: 5.0, 8: 4.0})
    assert [costs.of(tokens) for tokens in (1, 2, 4, 8)] == [2.0, 3.0, 5.0, 5.0]
    assert CostTable({1: 2.0}).of(3) == 6.0
    assert CostTable({1: 1.0, 2: 1.5}).of(4) == 2.5
    assert costs.relative() == {1: 1.0, 4: 2.5, 8: 2.5}


def seen(costs: CostTable, *passes: tuple[int, float], times: int = 200) -> CostTable:
    for _ in range(times):
        for tokens, seconds in passes:
            costs.saw(tokens, seconds)
    return costs


def test_passes_that_take_longer_than_at_the_start_correct_the_table() -> None:
    costs = seen(CostTable({1: 1.0, 4: 1.5}), (1, 1.0), (1, 1.0), (4, 3.0), (4, 3.0), (4, 3.0), (4, 3.0), (4, 3.0))
    assert costs.step(4, drafted=True) > 1.8 * costs.of(4)
    made = drafter(Fixed("lookup", 3), costs=seen(CostTable({1: 1.0, 4: 1.5}), (1, 1.0), *[(4, 7.0)] * 5))
    assert drafted(made, Row([1, 2, 3])) is None  # 2.2 tokens for seven times the price
    assert drafted(drafter(Fixed("lookup", 3), costs=CostTable({1: 1.0, 4: 1.5})), Row([1, 2, 3])) is not None


def test_a_block_among_single_tokens_pays_for_those_it_makes_slower() -> None:
    costs = seen(CostTable({1: 1.0, 4: 1.5}), (4, 2.0), (1, 2.0), (1, 1.5), (1, 1.0), (1, 1.0), (1, 1.0))
    assert costs.step(1, drafted=False) == pytest.approx(1.0, abs=0.05)
    assert costs.step(4, drafted=True) == pytest.approx(2.0 + 1.0 + 0.5, abs=0.4)  # paces drift back a little
    costs.saw(4, 2.0)
    # After a block the next one is as quick as at the start. The way back has to be paid anyway, now or later.
    assert costs.step(4, drafted=True) == pytest.approx(1.5, abs=0.1)
    assert costs.step(1, drafted=False) == pytest.approx(1.0, abs=0.05)


def test_tokens_that_are_read_one_by_one_count_as_single_ones() -> None:
    costs = CostTable({1: 1.0, 2: 2.0, 4: 3.0}, singles=2)
    for _ in range(50):
        costs.saw(2, 2.0)
        costs.saw(1, 1.0)
    assert costs.step(2, drafted=False) == pytest.approx(2.0)
    costs.saw(500, 40.0)  # a prompt's chunk is a change, but says nothing about the pace of drafts
    assert costs.of(4) == 3.0


def test_steps_with_a_draft_have_an_overhead_of_their_own() -> None:
    costs = CostTable({1: 1.0, 4: 1.0})
    for _ in range(200):
        costs.took(0.1, drafted=False)
        costs.took(0.5, drafted=True)
    assert costs.step(1, drafted=False) == pytest.approx(1.1, abs=0.01)
    assert costs.step(4, drafted=True) == pytest.approx(1.5, abs=0.01)


def test_a_draft_that_never_pays_is_asked_less_often_but_again_at_once_when_it_does() -> None:
    draft = Fixed("lookup", 4)
    made = drafter(draft, costs=STEEP)
    row = Row([1, 2, 3])
    for _ in range(40):
        assert drafted(made, row) is None
    assert len(draft.asked) <= 14
    made.costs = FLAT
    assert any(drafted(made, row) is not None for _ in range(8))
    asked = len(draft.asked)
    assert all(drafted(made, row) is not None for _ in range(5))
    assert len(draft.asked) == asked + 5


def test_the_first_observations_are_averaged_and_unseen_positions_are_no_better_than_seen_ones() -> None:
    acceptance = Acceptance()
    key = ("lookup", 0, False)
    for _ in range(8):
        acceptance.observe(key, 5, 0)
    chances = list(islice(acceptance.chances(key), 6))
    assert chances == [pytest.approx(0.12)] * 6


@pytest.mark.parametrize("name", ["qwen3", "gpt2", "mamba"])
def test_costs_are_measured_on_any_model(name: str, model_of: Any) -> None:
    with torch.inference_mode():
        costs = measure_costs(choose_executor(model_of(name), "auto"), sizes=(1, 2, 4))
    assert 0 < costs.of(1) <= costs.of(4)


def test_the_closed_form_is_leviathans() -> None:
    assert closed_form(0, 0.5, 0.1) == 1.0
    assert closed_form(4, 1.0, 0.0) == 5.0
    assert closed_form(3, 0.8, 0.05) == pytest.approx((1 - 0.8**4) / 0.2 / 1.15)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), max_size=60))
def test_chances_stay_chances(seen: list[tuple[int, int]]) -> None:
    acceptance = Acceptance()
    key = ("lookup", 0, False)
    for proposed, accepted in seen:
        acceptance.observe(key, proposed, min(proposed, accepted))
        acceptance.passed_over(key)
    chances = acceptance.chances(key)
    assert all(0.0 <= next(chances) <= 1.0 for _ in range(40))
    assert set(START) == {"call", "lookup", "suffix", "grammar", "model", "layers", "medusa"}


def test_the_first_branch_of_a_tree_follows_first_children() -> None:
    tree = Proposal("medusa", (1, 2, 3, 4, 5), (-1, -1, 0, 0, 2))
    assert first_branch(tree) == Proposal("medusa", (1, 3, 5))


# -- call -----------------------------------------------------------------------------------------------------------


def call(said: Sequence[int], limit: int = 32, text: tuple[int, ...] = (7, 8, 9, 8, 5, 0)) -> Proposal | None:
    row: Any = Row([1, 2, *said], prompt_tokens=2, suggestion=text)
    return CallDraft().propose(row, limit)


def test_the_guessed_call_is_drafted_from_where_the_answer_has_got_to() -> None:
    assert call([]) == Proposal("call", (7, 8, 9, 8, 5, 0), strength=OPENING)
    assert call([], limit=2) == Proposal("call", (7, 8), strength=OPENING)
    assert call([4, 4, 7]) == Proposal("call", (8, 9, 8, 5, 0), strength=INSIDE)
    assert call([7, 8, 9]) == Proposal("call", (8, 5, 0), strength=INSIDE)
    assert call([7, 8, 6, 9, 8]) == Proposal("call", (5, 0), strength=AGAIN)  # it departed, and is back
    assert call([4, 4, 4]) is None and call([7, 8, 9, 8, 5, 0]) is None
    assert call([], text=()) is None


# -- grammar --------------------------------------------------------------------------------------------------------


def test_what_the_schema_forces_in_an_open_call_is_drafted_on_a_free_row(tokenizer: Any) -> None:
    grammar = compile_grammar(
        GrammarTokenizer(tokenizer),
        {
            "type": "object",
            "properties": {"name": {"enum": ["get_order"]}, "n": {"enum": [1, 2]}},
            "required": ["name", "n"],
            "additionalProperties": False,
        },
    )
    opener = tuple(tokenizer.encode("<tool_call>", add_special_tokens=False))
    request = RowRequest(prompt=(1,), max_new_tokens=50, call_grammar=CallGrammar(opener=opener, start=grammar.start))
    draft = GrammarDraft()
    row: Any = Row([1], prompt_tokens=1, request=request)
    assert draft.propose(row, 32) is None  # no call is open
    row.tokens += tokenizer.encode("hello", add_special_tokens=False) + list(opener)
    proposal = draft.propose(row, 64)
    assert proposal is not None and tokenizer.decode(proposal.tokens).startswith('{"name":"get_order","n":')
    row.tokens += proposal.tokens
    assert draft.propose(row, 64) is None  # 1 or 2: a choice
    row.tokens += tokenizer.encode("x", add_special_tokens=False)
    assert draft.propose(row, 64) is None  # it has left the grammar
    row.tokens += list(opener)
    assert draft.propose(row, 64) == proposal  # the next call is followed anew
    draft.forget(row)
    assert not draft._readings


# -- layers ---------------------------------------------------------------------------------------------------------


def test_the_target_with_layers_left_out_drafts_on_its_own_cache_and_leaves_it_as_it_was(qwen3: Any) -> None:
    with torch.inference_mode():
        executor = LeanExecutor(qwen3)
        cache: Any = executor.new_cache(64)
        executor.forward([Block(cache, [3, 4, 5, 6], 4)])
        before = cache.buffer[:, :, :, :4].clone()
        row: Any = Row([3, 4, 5, 6, 7], cache=cache)
        proposal = LayersDraft(executor, [1]).propose(row, 4)
        assert proposal is not None and len(proposal.tokens) == 4 and proposal.is_chain
        assert cache.length == 4 and torch.equal(cache.buffer[:, :, :, :4], before)


def test_layers_are_searched_once_per_model_and_kept(qwen3: Any, model_of: Any, tmp_path: Path) -> None:
    rng = random.Random(0)
    texts = [[rng.randrange(300) for _ in range(40)] for _ in range(2)]
    with torch.inference_mode():
        executor = LeanExecutor(qwen3)
    assert stored_layers(executor, (), tmp_path) == ()
    found = stored_layers(executor, texts, tmp_path)
    assert found == search_layers(executor, texts) and len(found) == 1
    assert stored_layers(executor, (), tmp_path) == found
    next(iter(tmp_path.iterdir())).write_text("{broken", encoding="utf-8")
    assert stored_layers(executor, (), tmp_path) == ()


@pytest.mark.parametrize("layers", [[], [0, 1], [1, 0], [5]])
def test_layers_that_can_not_be_kept_are_refused(qwen3: Any, layers: list[int]) -> None:
    with torch.inference_mode():
        executor = LeanExecutor(qwen3)
    with pytest.raises(ModelUnsupported, match="can't keep layers"):
        LayersDraft(executor, layers)


def test_only_the_lean_executor_leaves_layers_out(model_of: Any) -> None:
    with torch.inference_mode():
        executor = choose_executor(model_of("gpt2"), "auto")
    with pytest.raises(ModelUnsupported, match="lean executor only"):
        LayersDraft(executor, [0])


# -- grammar walks --------------------------------------------------------------------------------------------------


class Words:
    """A constraint over whole sequences: what may come next is what continues one of them."""

    def __init__(self, texts: Sequence[tuple[int, ...]]) -> None:
        self.texts = texts
        self.said: list[int] = []

    def _next(self) -> set[int]:
        size = len(self.said)
        return {text[size] for text in self.texts if text[:size] == tuple(self.said) and len(text) > size}

    def allowed(self) -> torch.Tensor:
        mask = torch.zeros(10, dtype=torch.bool)
        mask[list(self._next())] = True
        return mask

    def forced(self) -> list[int]:
        said, found = list(self.said), list[int]()
        while len(following := self._next()) == 1 and not self.finished():
            found.append(following.pop())
            self.said.append(found[-1])
        self.said = said
        return found

    def advance(self, token: int) -> None:
        assert token in self._next()
        self.said.append(token)

    def rollback(self, count: int) -> None:
        del self.said[len(self.said) - count :]

    def finished(self) -> bool:
        return tuple(self.said) in self.texts


TEXTS = st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6).map(tuple), min_size=2, max_size=6, unique=True)


@given(TEXTS, st.lists(st.integers(0, 3), max_size=8), st.integers(1, 8), st.booleans())
def test_a_walk_is_allowed_masked_at_every_position_and_taken_back(
    texts: list[tuple[int, ...]], wanted: list[int], limit: int, to_end: bool
) -> None:
    constraint = Words(texts)
    for token in constraint.forced():
        constraint.advance(token)
    begun = list(constraint.said)
    walk = guide(constraint, wanted, limit, vocab_size=10, to_end=to_end)
    assert constraint.said == begun
    assert len(walk.masks) == len(walk.tokens) + 1 and len(walk.tokens) <= limit
    for at, token in enumerate(walk.tokens):
        mask = walk.masks[at]
        assert mask is not None
        # A forced token's mask holds it alone; any other's is the grammar's own.
        assert bool(mask[token]) and set(mask.nonzero().flatten().tolist()) <= constraint._next()
        constraint.advance(token)
    last = walk.masks[-1]
    if last is None:
        assert constraint.finished()
    else:
        assert set(last.nonzero().flatten().tolist()) == constraint._next() or walk.ends
    if walk.ends and not to_end and not constraint.finished():
        assert len(constraint.forced()) + len(constraint.said) == 6


def test_a_simple_namespace_is_enough_of_a_row_for_drafts_without_a_suggestion() -> None:
    row: Any = SimpleNamespace(tokens=[1, 2], prompt_tokens=1)
    assert CallDraft().propose(row, 4) is None
