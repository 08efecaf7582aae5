"""Sampling follows the library's processors; streams are seeded and apart; log-probabilities are the raw target's."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
import torch
from agent_runtime.decoding.requests import RowRequest, Sampling
from agent_runtime.decoding.sampling import Sampler, UniformStream, draft_generator, draw
from agent_runtime.decoding.verify import verify_rows
from agent_runtime.decoding.worker import ModelWorker
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from .conftest import VOCAB, collect

SETTINGS = [
    Sampling(temperature=0.7, seed=1),
    Sampling(temperature=1.3, top_k=7, seed=2),
    Sampling(temperature=1.0, top_p=0.8, seed=3),
    Sampling(temperature=2.0, min_p=0.1, seed=4),
    Sampling(temperature=0.8, top_k=20, top_p=0.9, min_p=0.05, repetition_penalty=1.3, seed=5),
    Sampling(temperature=1.0, top_p=0.0, seed=6),
]
PROMPT = (3, 5, 5, 9, 11)


def library(sampling: Sampling) -> LogitsProcessorList:
    chain = LogitsProcessorList()
    if sampling.repetition_penalty != 1.0:
        chain.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    chain.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        chain.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        chain.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        chain.append(MinPLogitsWarper(sampling.min_p))
    return chain


def sampler_of(sampling: Sampling, vocab: int) -> Sampler:
    return Sampler(sampling, vocab_size=vocab, device=torch.device("cpu"), prompt=PROMPT)


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_processed_scores_equal_the_librarys(sampling: Sampling) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        logits = torch.randn(VOCAB, generator=generator) * 3
        expected = library(sampling)(torch.tensor([PROMPT]), logits[None].clone())[0]
        assert torch.equal(sampler_of(sampling, VOCAB).processed(logits[None])[0], expected)


@pytest.mark.parametrize("sampling", SETTINGS[:5], ids=str)
def test_draws_follow_the_librarys_distribution(sampling: Sampling) -> None:
    """Chi-square over 24 tokens and 4,000 draws, at 1e-4 per setting: five settings raise 5e-4 false alarms a run.

    Seeds are fixed, so a run that passes once always passes.
    """
    logits = torch.randn(24, generator=torch.Generator().manual_seed(1)) * 2
    expected = library(sampling)(torch.tensor([PROMPT]), logits[None].clone())[0].softmax(-1) * 4000
    sampler = sampler_of(sampling, 24)
    counts = torch.zeros(24)
    for _ in range(4000):
        counts[sampler.choose(logits[None])] += 1
        sampler.position += 1  # without `observe`, whose penalty would change the next draw's distribution
    assert counts[expected == 0].sum() == 0
    kept = expected >= 5
    observed = torch.cat([counts[kept], counts[~kept].sum()[None]])
    wanted = torch.cat([expected[kept], expected[~kept].sum()[None]])
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    statistic = ((observed - wanted) ** 2 / wanted).sum()
    freedom = len(wanted) - 1
    # Wilson and Hilferty's approximation of the 1 - 1e-4 quantile of chi-square.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.719 * (2 / (9 * freedom)) ** 0.5) ** 3 if freedom else 1e-6
    assert statistic <= limit


def test_greedy_takes_the_lowest_id_among_equals_and_masks_apply() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[:, [40, 17, 200]] = 2.0
    mask = torch.zeros(VOCAB - 20, dtype=torch.bool)
    mask[[41, 90]] = True
    greedy = sampler_of(Sampling(), VOCAB)
    plain, masked = verify_rows([logits[:1], logits[1:]], [None, None], [greedy, greedy], [None, [mask]])
    assert plain.tokens + masked.tokens == (17, 41)
    raw = logits[0].log_softmax(-1)
    assert plain.logprobs + masked.logprobs == pytest.approx([raw[17].item(), raw[41].item()], abs=1e-6)


@pytest.mark.parametrize("vocab", [40, 700])
@pytest.mark.parametrize("spread", [0.1, 4.0])
def test_top_p_finds_the_same_floor_for_one_position_as_for_many(vocab: int, spread: float) -> None:
    """Peaked scores are settled by the few highest, flat ones by sorting all; a block may hold both."""
    logits = torch.randn(6, vocab, generator=torch.Generator().manual_seed(2)) * spread
    logits[::2] *= 20
    sampler = sampler_of(Sampling(temperature=0.9, top_p=0.93), vocab)
    together = sampler.distribution(logits, drafted=(1, 2, 3, 4, 5))
    for row in range(6):
        assert torch.equal(sampler.distribution(logits[row : row + 1])[0], together[row])
    expected = library(sampler.sampling)(torch.tensor([PROMPT]), logits.clone()).softmax(-1)
    assert torch.allclose(together, expected, atol=1e-6)


def test_a_draw_never_gives_a_token_of_probability_0() -> None:
    probabilities = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).expand(5, -1)
    highest = 1 - 2.0**-48
    uniforms = torch.tensor([0.0, 0.499999, 0.5, 0.75, highest], dtype=torch.float64)
    assert draw(probabilities, uniforms).tolist() == [1, 1, 3, 3, 3]


def test_numbers_belong_to_positions_and_streams_are_independent() -> None:
    """Correlations of 20,000 numbers at 5 standard errors: three false alarms in 1e6 a run, seeds fixed."""
    count = 20_000
    choice, acceptance = UniformStream(5, "choice"), UniformStream(5, "acceptance/0")
    first = torch.tensor(choice.at(range(count)), dtype=torch.float64)
    assert first[100:200].tolist() == choice.at(range(100, 200)) == UniformStream(5, "choice").at(range(100, 200))
    assert 0 <= first.min() and first.max() < 1
    others = [
        torch.tensor(acceptance.at(range(count)), dtype=torch.float64),
        torch.tensor(UniformStream(6, "choice").at(range(count)), dtype=torch.float64),
        torch.rand(count, dtype=torch.float64, generator=draft_generator(5, 0, "cpu")),
        first.roll(1),
    ]
    limit = 5 / count**0.5
    assert abs(first.mean() - 0.5) < limit * 12**-0.5
    assert all(abs(torch.corrcoef(torch.stack([first, other]))[0, 1]) < limit for other in others)


def test_drafts_of_one_row_have_generators_of_their_own_and_a_seed_reproduces_them() -> None:
    def numbers(seed: int | None, number: int) -> list[float]:
        found: list[float] = torch.rand(4, generator=draft_generator(seed, number, "cpu")).tolist()
        return found

    assert numbers(3, 0) == numbers(3, 0)
    assert len({tuple(numbers(seed, number)) for seed, number in ((3, 0), (3, 1), (4, 0), (None, 0), (None, 0))}) == 5


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", -0.1), ("top_p", 1.5), ("top_k", -1), ("min_p", 2.0), ("repetition_penalty", 0)],
)
def test_values_out_of_range_are_named(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        Sampling(**{field: value})


@pytest.mark.anyio
async def test_a_seed_reproduces_a_row_whatever_probes_draw(qwen3: Any) -> None:
    sampling = Sampling(temperature=1.0, top_p=0.95, seed=12)
    request = RowRequest(prompt=tuple(range(20)), max_new_tokens=60, sampling=sampling, owner="a")
    with ModelWorker(qwen3) as worker:
        alone = await collect(worker, request)
        runs: list[Any] = []

        async def agent() -> None:
            runs.append(await collect(worker, request))

        async def probe(seed: int | None) -> None:
            await collect(
                worker,
                RowRequest(
                    prompt=(*range(20), 4),
                    max_new_tokens=10,
                    sampling=Sampling(temperature=1.5, seed=seed),
                    owner="a",
                    background=True,
                ),
            )

        async with anyio.create_task_group() as group:
            group.start_soon(agent)
            for seed in (12, None, 3):
                group.start_soon(probe, seed)
        assert runs[0].ids == alone.ids
        other = await collect(
            worker,
            RowRequest(prompt=tuple(range(20)), max_new_tokens=60, sampling=Sampling(temperature=1.0, seed=13)),
        )
        assert other.ids != alone.ids


@pytest.mark.anyio
async def test_logprobs_are_those_of_the_raw_target_and_the_penalty_matches_generate(qwen3: Any) -> None:
    prompt = list(range(30))
    sampling = Sampling(repetition_penalty=1.7)
    with ModelWorker(qwen3) as worker:
        run = await collect(worker, RowRequest(prompt=tuple(prompt), max_new_tokens=40, sampling=sampling))
    ids = torch.tensor([prompt])
    expected = qwen3.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=40,
        do_sample=False,
        repetition_penalty=1.7,
        eos_token_id=None,
        pad_token_id=0,
    )[0]
    assert run.ids == expected[30:].tolist()
    with torch.inference_mode():
        raw = qwen3(input_ids=expected[None]).logits[0].log_softmax(-1)
    wanted = [raw[29 + at, token].item() for at, token in enumerate(run.ids)]
    assert run.logprobs == pytest.approx(wanted, abs=1e-3)
