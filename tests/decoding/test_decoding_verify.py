"""The verifier: what stands of a draft, with which token after it, and that nothing else changes with the draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from agent_runtime.decoding.draft_vocabulary import scatter_q, target_ids
from agent_runtime.decoding.drafts.base import ROOT, Proposal
from agent_runtime.decoding.drafts.errors import DraftUnsupported
from agent_runtime.decoding.errors import DecodingError
from agent_runtime.decoding.requests import Sampling
from agent_runtime.decoding.sampling import Sampler, draft_generator, draw
from agent_runtime.decoding.verify import Verified, verify, verify_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

TOKENS = 24
PROMPT = (3, 5, 5, 9)
CPU = torch.device("cpu")
Text = tuple[int, ...]
TABLE = torch.randn(TOKENS, TOKENS, generator=torch.Generator().manual_seed(7)) * 2
"""A model: logits by the token before."""

SAMPLINGS = [
    Sampling(),
    Sampling(repetition_penalty=1.5),
    Sampling(temperature=0.8, seed=4),
    Sampling(temperature=1.0, top_p=0.9, top_k=9, min_p=0.02, repetition_penalty=1.4, seed=5),
]


def sampler_of(sampling: Sampling, text: Sequence[int] = PROMPT, emitted: Sequence[int] = ()) -> Sampler:
    sampler = Sampler(sampling, vocab_size=TOKENS, device=CPU, prompt=text)
    for token in emitted:
        sampler.observe(token)
    return sampler


def paths_of(text: Text, proposal: Proposal | None) -> list[Text]:
    paths = [text]
    for index, token in enumerate(proposal.tokens if proposal is not None else ()):
        assert proposal is not None
        parent = proposal.parents[index] if proposal.parents else index - 1
        paths.append((*paths[1 + parent], token))
    return paths


def allowed(text: Text) -> Tensor:
    mask = torch.ones(TOKENS, dtype=torch.bool)
    mask[[(text[-1] * 5 + shift) % TOKENS for shift in range(9)]] = False
    return mask


def decode(
    sampling: Sampling, draft: Any = lambda text: None, *, count: int = 40, masked: bool = False, raw: Any = TABLE
) -> tuple[list[int], list[float], list[Verified]]:
    """Decode `count` tokens with what `draft` proposes for a text."""
    sampler = sampler_of(sampling)
    text: Text = PROMPT
    ids: list[int] = []
    logprobs: list[float] = []
    steps: list[Verified] = []
    while len(ids) < count:
        proposal = draft(text)
        paths = paths_of(text, proposal)
        logits = torch.stack([raw[path[-1]] for path in paths])
        found = verify(logits, proposal, sampler, [allowed(path) for path in paths] if masked else None)
        steps.append(found)
        for token, logprob in zip(found.tokens, found.logprobs, strict=True):
            sampler.observe(token)
            text = (*text, token)
            ids.append(token)
            logprobs.append(logprob)
    return ids[:count], logprobs[:count], steps


@st.composite
def proposals(draw_from: Any, guesses: Sequence[int]) -> Proposal:
    """A chain or a tree whose tokens are partly right: `guesses` are what will be emitted."""
    length = draw_from(st.integers(1, 7))
    if draw_from(st.booleans()):
        tokens = [
            guesses[at] if at < len(guesses) and draw_from(st.integers(0, 3)) else draw_from(st.integers(0, TOKENS - 1))
            for at in range(length)
        ]
        return Proposal("lookup", tuple(tokens))
    parents = [draw_from(st.integers(-1, index - 1)) for index in range(length)]
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent == ROOT else depths[parent] + 1)
    tokens = [
        guesses[depth] if depth < len(guesses) and draw_from(st.booleans()) else draw_from(st.integers(0, TOKENS - 1))
        for depth in depths
    ]
    return Proposal("medusa", tuple(tokens), tuple(parents))


@pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "greedy, penalised", "sampled", "all processors"])
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_seed_gives_the_same_tokens_and_logprobs_whatever_was_guessed(
    sampling: Sampling, masked: bool, data: st.DataObject
) -> None:
    """So penalties and masks at guessed positions are those that plain decoding would apply there."""
    plain, plain_logprobs, _ = decode(sampling, masked=masked)

    def draft(text: Text) -> Proposal | None:
        if data.draw(st.integers(0, 5)) == 0:
            return None
        return data.draw(proposals(plain[len(text) - len(PROMPT) :]))

    ids, logprobs, steps = decode(sampling, draft, masked=masked)
    assert ids == plain
    assert logprobs == pytest.approx(plain_logprobs, abs=1e-5)
    for step in steps:
        assert len(step.tokens) == len(step.logprobs) == step.accepted + 1 == len(step.path) + 1


def test_logprobs_are_the_raw_targets_without_mask_penalty_or_temperature() -> None:
    ids, logprobs, _ = decode(SAMPLINGS[3], lambda text: Proposal("lookup", (1, 2)), masked=True)
    text = [*PROMPT, *ids]
    raw = TABLE.log_softmax(-1)
    expected = [raw[text[at - 1], text[at]].item() for at in range(len(PROMPT), len(text))]
    assert logprobs == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_a_draft_that_is_the_target_is_accepted_whole_for_200_rounds(temperature: float) -> None:
    """With the bonus token after it, so a token lost or repeated there would show in the next round."""
    sampler = sampler_of(Sampling(temperature=temperature, seed=1))
    generator = draft_generator(1, 0, CPU)
    text: Text = PROMPT
    for round_ in range(200):
        tokens: list[int] = []
        rows: list[Tensor] = []
        for _ in range(1 + round_ % 5):
            row = TABLE[(*text, *tokens)[-1]]
            if temperature == 0:
                tokens.append(int(row.argmax()))
                continue
            q = sampler.distribution(row[None])[0]
            rows.append(q)
            tokens.append(int(torch.multinomial(q, 1, generator=generator)))
        proposal = Proposal("model", tuple(tokens), (), torch.stack(rows) if rows else None)
        logits = torch.stack([TABLE[path[-1]] for path in paths_of(text, proposal)])
        found = verify(logits, proposal, sampler)
        assert found.accepted == len(tokens) and found.tokens[:-1] == proposal.tokens
        assert found.path == tuple(range(len(tokens)))
        for token in found.tokens:
            sampler.observe(token)
            text = (*text, token)


def test_greedy_and_sampled_rows_in_one_batch_are_what_each_is_alone() -> None:
    generator = torch.Generator().manual_seed(3)
    hot = Sampling(temperature=1.0, top_p=0.9, seed=2)
    q = torch.rand(2, TOKENS, generator=generator).softmax(-1)
    cases: list[tuple[Sampling, Proposal | None, bool]] = [
        (Sampling(), None, False),
        (hot, Proposal("model", (1, 2), (), q), False),
        (Sampling(), Proposal("model", (1, 2), (), q), False),
        (Sampling(repetition_penalty=1.3), Proposal("lookup", (4, 4, 4)), True),
        (hot, Proposal("medusa", (1, 2, 3), (ROOT, ROOT, 0)), True),
        (hot, None, False),
    ]
    logits, masks = [], []
    for _, proposal, masked in cases:
        paths = paths_of(PROMPT, proposal)
        logits.append(torch.randn(len(paths), TOKENS, generator=generator) * 3)
        masks.append([allowed(path) for path in paths] if masked else None)
    together = verify_rows(
        logits, [proposal for _, proposal, _ in cases], [sampler_of(sampling) for sampling, _, _ in cases], masks
    )
    for at, (sampling, proposal, _) in enumerate(cases):
        alone = verify(logits[at], proposal, sampler_of(sampling), masks[at])
        assert together[at].tokens == alone.tokens and together[at].path == alone.path
        assert together[at].logprobs == pytest.approx(alone.logprobs)
        assert all(logprob <= 0 for logprob in alone.logprobs)


@pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
@pytest.mark.parametrize("penalty", [1.0, 1.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_ties_go_to_the_lowest_id_in_plain_decoding_and_in_verification(
    dtype: torch.dtype, penalty: float, masked: bool
) -> None:
    tied = (torch.randn(TOKENS, TOKENS, generator=torch.Generator().manual_seed(1)) * 2).round().to(dtype).float()
    sampling = Sampling(repetition_penalty=penalty)
    plain, _, _ = decode(sampling, masked=masked, raw=tied)
    sampler = sampler_of(sampling)
    text: Text = PROMPT
    for token in plain:
        scores = tied[text[-1]].clone()
        seen = torch.tensor(sorted(set(text)))
        scores[seen] = torch.where(scores[seen] < 0, scores[seen] * penalty, scores[seen] / penalty)
        if masked:
            scores[~allowed(text)] = float("-inf")
        assert token == min(id_ for id_ in range(TOKENS) if scores[id_] == scores.max())
        sampler.observe(token)
        text = (*text, token)
    at = len(PROMPT)
    guessed, _, steps = decode(
        sampling,
        lambda text: Proposal("lookup", tuple(plain[len(text) - at : len(text) - at + 4]) or (0,)),
        masked=masked,
        raw=tied,
    )
    assert guessed == plain
    assert steps[0].accepted == 4


def test_the_penalty_sees_guesses_on_their_own_path_only() -> None:
    """At every node of a tree it equals what the chain that leads there would give: siblings don't see each other."""
    sampling = Sampling(temperature=1.0, repetition_penalty=2.0, seed=1)
    tree = Proposal("medusa", (1, 2, 3, 4, 1), (ROOT, ROOT, 0, 1, 3))
    paths = paths_of(PROMPT, tree)
    logits = torch.stack([TABLE[path[-1]] for path in paths])
    found = sampler_of(sampling).distribution(logits, tree.tokens, parents=tree.parents)
    for row, path in enumerate(paths):
        emitted = path[len(PROMPT) :]
        alone = sampler_of(sampling, emitted=emitted).distribution(logits[row : row + 1])
        assert torch.equal(found[row], alone[0])


def test_a_tree_goes_down_the_branch_that_the_target_chooses() -> None:
    tree = Proposal("medusa", (1, 2, 5, 6, 7, 6), (ROOT, ROOT, 0, 1, 3, 1))
    logits = torch.zeros(7, TOKENS)
    for row, token in enumerate([2, 9, 6, 9, 7, 8, 9]):
        logits[row, token] = 1
    found = verify(logits, tree, sampler_of(Sampling()))
    assert (found.tokens, found.path, found.accepted) == ((2, 6, 7, 8), (1, 3, 4), 3)


def fixed_uniforms(sampler: Sampler, value: float, monkeypatch: pytest.MonkeyPatch) -> Sampler:
    def numbers(rank: int, depths: Sequence[int], device: torch.device) -> Tensor:
        return torch.full((len(depths),), value, dtype=torch.float64)

    monkeypatch.setattr(sampler, "acceptance_uniforms", numbers)
    return sampler


def test_a_guess_of_probability_0_is_never_accepted_whatever_number_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.zeros(2, 4)
    logits[0, 1] = float("-inf")
    q = torch.tensor([[0.0, 1.0, 0.0, 0.0]])
    sampling = Sampling(temperature=1.0, seed=1)
    sampler = Sampler(sampling, vocab_size=4, device=CPU, prompt=[0])
    found = verify(logits, Proposal("model", (1,), (), q), fixed_uniforms(sampler, 0.0, monkeypatch))
    assert found.accepted == 0 and found.tokens[0] != 1


def test_a_residual_of_zeros_gives_a_token_of_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """q equal to p leaves nothing to replace a guess by; only rounding can reject it then."""
    sampler = Sampler(Sampling(temperature=1.0, seed=1), vocab_size=4, device=CPU, prompt=[0])
    q = torch.tensor([[0.5, 0.5, 0.0, 0.0]])
    logits = torch.tensor([[0.0, 0.0, float("-inf"), float("-inf")]]).repeat(2, 1)
    found = verify(logits, Proposal("model", (0,), (), q), fixed_uniforms(sampler, 1.0, monkeypatch))
    assert all(token in (0, 1) for token in found.tokens)


def test_what_follows_a_forbidden_guess_is_never_reached() -> None:
    """Its own mask may be missing or empty, and its logits anything."""
    mask = torch.ones(TOKENS, dtype=torch.bool)
    mask[5] = False
    empty = torch.zeros(TOKENS, dtype=torch.bool)
    logits = TABLE[:3].clone()
    logits[0, 5] = 100.0
    logits[1:] = float("nan")
    for sampling in (Sampling(), Sampling(temperature=1.0, seed=1)):
        q = torch.zeros(2, TOKENS).index_fill_(1, torch.tensor([5]), 1.0)
        for guesses in (Proposal("lookup", (5, 6)), Proposal("model", (5, 5), (), q)):
            for after in (None, empty):
                found = verify(logits, guesses, sampler_of(sampling), [mask, after, after])
                assert found.accepted == 0 and found.tokens[0] != 5 and found.logprobs[0] <= 0


def test_a_mask_after_the_texts_end_that_allows_nothing_leaves_the_guesses_before_it() -> None:
    end = torch.zeros(TOKENS, dtype=torch.bool)
    only = end.clone()
    only[5] = True
    for sampling in (Sampling(), Sampling(temperature=1.0, seed=1)):
        found = verify(TABLE[:2], Proposal("lookup", (5,)), sampler_of(sampling), [only, end])
        assert found.tokens[0] == 5 and found.accepted == 1


def test_a_sampled_draft_on_a_greedy_row_is_compared_with_the_highest_score() -> None:
    best = TABLE[PROMPT[-1]].argmax().item()
    other = (best + 1) % TOKENS
    q = torch.full((1, TOKENS), 1 / TOKENS)
    logits = torch.stack([TABLE[PROMPT[-1]], TABLE[best]])
    assert verify(logits, Proposal("model", (best,), (), q), sampler_of(Sampling())).accepted == 1
    assert verify(logits, Proposal("model", (other,), (), q), sampler_of(Sampling())).tokens == (best,)


def test_acceptance_is_independent_of_the_number_that_drew_the_guess() -> None:
    """A flat target and draft under one seed: every guess stands, also where drafting and accepting share their seed.

    With a target half as likely on the guess, half of the guesses must stand: 4,000 rows within 5 standard errors (one
    false alarm in 1e6 runs, seeds fixed). Numbers used twice would accept low ids always and high ones never.
    """
    half = torch.zeros(2, 8)
    half[:, 4:] = -1e9  # p is 1/4 on ids 0 to 3
    q = torch.full((1, 8), 1 / 8)
    accepted = [0] * 8
    drawn = [0] * 8
    for seed in range(4000):
        sampler = Sampler(Sampling(temperature=1.0, seed=seed), vocab_size=8, device=CPU, prompt=[0])
        u = torch.rand(1, dtype=torch.float64, generator=draft_generator(seed, 0, CPU))
        guess = int(draw(q, u))
        drawn[guess] += 1
        accepted[guess] += verify(half, Proposal("model", (guess,), (), q), sampler).accepted
    assert accepted[:4] == drawn[:4] and accepted[4:] == [0] * 4
    lower = torch.zeros(2, 8)
    lower[:, :4] = torch.tensor(1 / 3).log()  # p is 1/16 on ids 0 to 3, where half of the guesses stand
    stood = tried = 0
    for seed in range(4000):
        sampler = Sampler(Sampling(temperature=1.0, seed=seed), vocab_size=8, device=CPU, prompt=[0])
        u = torch.rand(1, dtype=torch.float64, generator=draft_generator(seed, 0, CPU))
        guess = int(draw(q, u))
        if guess < 4:
            tried += 1
            stood += verify(lower, Proposal("model", (guess,), (), q), sampler).accepted
    assert abs(stood - tried / 2) < 5 * (tried / 4) ** 0.5


def test_a_reduced_vocabulary_maps_there_and_back_by_offsets_and_by_ids() -> None:
    ids = torch.tensor([0, 2, 3, 7, 11, 19])
    offsets = ids - torch.arange(6)
    assert torch.equal(target_ids(offsets, TOKENS, "offsets"), ids)
    assert torch.equal(target_ids(ids, TOKENS, "ids"), ids)
    q = torch.rand(3, 6, generator=torch.Generator().manual_seed(0)).softmax(-1)
    spread = scatter_q(q, ids, TOKENS)
    assert spread.shape == (3, TOKENS)
    assert torch.equal(spread[:, ids], q)
    assert torch.equal(spread.sum(-1), q.sum(-1))


@pytest.mark.parametrize(
    ("d2t", "form"),
    [
        ([0, 2, 3, 7, 11, 20], "offsets"),  # ids taken for offsets reach beyond the vocabulary
        ([0, 1, 1, 4, 7, 14], "ids"),  # offsets taken for ids repeat themselves
        ([-1, 2, 3], "ids"),
    ],
)
def test_a_vocabulary_map_taken_the_wrong_way_is_refused(d2t: list[int], form: Any) -> None:
    with pytest.raises(DraftUnsupported, match=f"read as {form}"):
        target_ids(torch.tensor(d2t), TOKENS, form)


def test_a_draft_of_a_smaller_vocabulary_is_verified_over_the_whole_one() -> None:
    """The target's padding beyond the tokenizer's ids stays possible only where the target gives it mass."""
    ids = torch.tensor([1, 4, 6])
    q = scatter_q(torch.tensor([[0.2, 0.3, 0.5]]), ids, TOKENS)
    seen = set()
    for seed in range(300):
        sampler = sampler_of(Sampling(temperature=1.0, seed=seed))
        guess = int(draw(q, torch.rand(1, dtype=torch.float64, generator=draft_generator(seed, 0, CPU))))
        seen.add(verify(TABLE[:2] / 4, Proposal("medusa", (guess,), (), q), sampler).tokens[0])
    assert len(seen) > len(ids)


@pytest.mark.parametrize(
    ("rows", "proposal", "masks", "message"),
    [
        (2, None, None, "0 guesses needs logits of 1 positions, not 2"),
        (2, Proposal("lookup", (1, 2)), None, "2 guesses needs logits of 3 positions, not 2"),
        (2, Proposal("lookup", (1,)), [None], "2 positions needs as many masks, not 1"),
        (3, Proposal("medusa", (1, 2), (ROOT,)), None, "2 tokens and 1 parents"),
        (2, Proposal("medusa", (1,), (), torch.ones(1, 4)), None, "scatter_q"),
    ],
)
def test_what_does_not_belong_together_is_refused(rows: int, proposal: Any, masks: Any, message: str) -> None:
    with pytest.raises(DecodingError, match=message):
        verify(TABLE[:rows], proposal, sampler_of(Sampling()), masks)
