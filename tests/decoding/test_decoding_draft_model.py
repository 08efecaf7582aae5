"""A draft model follows its rows: caches in step, exact sampling, tokenizers compared, memory bounded."""

from __future__ import annotations

import copy
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
import torch
from agent_runtime.decoding.drafts.base import Proposal
from agent_runtime.decoding.drafts.errors import DraftUnsupported, TokenizersDiffer
from agent_runtime.decoding.drafts.loading import load_draft_model
from agent_runtime.decoding.drafts.model import ModelDraft
from agent_runtime.decoding.drafts.tokenizers import difference, same_tokenizer
from agent_runtime.decoding.executor import Block, RowCache, choose_executor
from agent_runtime.decoding.grammar import GrammarTokenizer, compile_grammar
from agent_runtime.decoding.lean import LeanExecutor
from agent_runtime.decoding.quantised import quantise
from agent_runtime.decoding.requests import RowRequest, Sampling
from agent_runtime.decoding.sampling import Sampler
from agent_runtime.decoding.verify import Verified, verify
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast

from agent_runtime.demo import pocket

from .conftest import CONFIGS, VOCAB, build, plain_greedy

POCKET = Path(pocket.__file__).parent
PROMPT = tuple((5 * index + 11) % VOCAB for index in range(30))


@dataclass
class Row:
    """A row as a draft sees it, and a bare loop of drafting and verifying around it."""

    request: RowRequest
    number: int = 0
    hidden: torch.Tensor | None = None
    cache: RowCache | None = None
    tokens: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt)


class Loop:
    """The target beside a draft: one verification per step."""

    def __init__(self, target: Any, draft: ModelDraft, request: RowRequest, number: int = 0) -> None:
        self.executor = target if isinstance(target, LeanExecutor) else choose_executor(target, "auto")
        self.draft = draft
        self.row = Row(request, number)
        self.row.cache = self.executor.new_cache(64)
        self.sampler = Sampler(
            request.sampling,
            vocab_size=self.executor.vocab_size,
            device=torch.device("cpu"),
            prompt=request.prompt,
        )
        self.proposals: list[Proposal] = []

    def step(self, limit: int) -> Verified:
        tokens, cache = self.row.tokens, self.row.cache
        assert cache is not None
        proposal = self.draft.propose(self.row, limit)
        guesses = () if proposal is None else proposal.tokens
        if proposal is not None:
            self.proposals.append(proposal)
        pending = [*tokens[cache.length :], *guesses]
        with torch.inference_mode():
            logits = self.executor.forward([Block(cache, pending, len(pending) - len(guesses) - 1)])
        verified = verify(logits, proposal, self.sampler)
        tokens.extend(verified.tokens)
        for token in verified.tokens:
            self.sampler.observe(token)
        self.executor.crop(cache, len(tokens) - 1)
        return verified

    def new_tokens(self) -> list[int]:
        return self.row.tokens[self.row.prompt_tokens :]


def request(**options: Any) -> RowRequest:
    return RowRequest(**{"prompt": PROMPT, "max_new_tokens": 900, **options})


@pytest.fixture(scope="module")
def other() -> Any:
    """A model that agrees with the target only now and then."""
    return build(CONFIGS["qwen3"](), seed=1)


def noisy(model: Any, seed: int, scale: float) -> Any:
    """A copy with disturbed weights: a draft that is often, not always, right."""
    twin = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    for parameter in twin.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data.add_(noise * parameter.data.abs().mean() * scale)
    return twin


@pytest.mark.parametrize("sampled", [False, True])
def test_the_target_as_its_own_draft_is_accepted_whole_for_200_rounds(qwen3: Any, sampled: bool) -> None:
    sampling = Sampling(temperature=0.8, top_p=0.9, seed=3) if sampled else Sampling()
    loop = Loop(qwen3, ModelDraft(qwen3, sampled=sampled), request(sampling=sampling))
    for round_ in range(200):
        limit = 1 + round_ % 4
        assert loop.step(limit).accepted == limit
    assert all((proposal.q is not None) is sampled for proposal in loop.proposals)


def test_greedy_drafts_change_no_token(qwen3: Any, other: Any) -> None:
    expected = plain_greedy(qwen3, PROMPT, 60)
    for draft, most in ((other, 0.5), (noisy(qwen3, 5, 0.05), 1.0)):
        loop = Loop(qwen3, ModelDraft(draft), request())
        accepted = [loop.step(4).accepted for _ in range(40)]
        assert loop.new_tokens()[:60] == expected[: len(loop.new_tokens())]
        assert 0 < sum(accepted) / 160 < most or draft is other


def test_the_cache_after_many_rejections_is_that_of_a_fresh_prefill(qwen3: Any) -> None:
    draft = ModelDraft(noisy(qwen3, 2, 0.1))
    loop = Loop(qwen3, draft, request())
    for round_ in range(50):
        loop.step(1 + round_ % 5)
    kept = draft.propose(loop.row, 6)
    draft.clear()
    assert kept is not None and draft.propose(loop.row, 6) == kept
    assert sum(len(proposal.tokens) for proposal in loop.proposals) + 50 > len(loop.new_tokens()) > 50


def test_a_draft_reads_only_what_is_new(qwen3: Any) -> None:
    draft = ModelDraft(qwen3)
    fed: list[int] = []
    forward = draft.executor.forward

    def counting(blocks: Any) -> Any:
        fed.extend(len(block.tokens) for block in blocks)
        return forward(blocks)

    draft.executor.forward = counting  # type: ignore[method-assign]
    loop = Loop(qwen3, draft, request())
    loop.step(4)
    assert fed == [30, 1, 1, 1]
    fed.clear()
    loop.step(4)
    # The last guess was accepted without having been fed, and the bonus token is new.
    assert fed == [2, 1, 1, 1]
    fed.clear()
    draft.propose(loop.row, 4)
    draft.propose(loop.row, 2)
    assert fed == [2, 1, 1, 1, 1, 1]


def test_the_next_turn_of_a_conversation_takes_the_cache_over(qwen3: Any) -> None:
    draft = ModelDraft(qwen3)
    loop = Loop(qwen3, draft, request(owner="a"))
    for _ in range(3):
        loop.step(3)
    draft.forget(loop.row)
    longer = request(prompt=(*loop.row.tokens, 7, 8, 9), owner="a")
    before, held = draft.forwards, draft.nbytes
    turn = Row(longer, number=1)
    proposal = draft.propose(turn, 2)
    assert draft.forwards == before + 2 and draft.nbytes == held
    assert proposal is not None and list(proposal.tokens) == plain_greedy(qwen3, longer.prompt, 2)


def test_a_row_beside_it_copies_the_prefix_and_leaves_the_first_as_it_was(qwen3: Any) -> None:
    draft = ModelDraft(qwen3)
    agent, probe = Row(request(owner="a")), Row(request(prompt=(*PROMPT, 3, 4), owner="a"), number=1)
    first = draft.propose(agent, 3)
    beside = draft.propose(probe, 3)
    assert first == draft.propose(agent, 3)
    assert beside is not None and list(beside.tokens) == plain_greedy(qwen3, probe.tokens, 3)


def test_memory_is_bounded_and_a_dropped_cache_costs_only_time(qwen3: Any) -> None:
    small = ModelDraft(qwen3)
    small.memory_bytes = small.executor.bytes_for(120)
    rows = [Row(request(prompt=tuple((at * 7 + index) % VOCAB for index in range(40))), at) for at in range(5)]
    large = ModelDraft(qwen3)
    for _ in range(2):
        for row in rows:
            assert small.propose(row, 3) == large.propose(row, 3)
            assert small.nbytes <= small.memory_bytes
    too_long = Row(request(prompt=PROMPT * 8), 9)
    assert small.propose(too_long, 3) is None


@pytest.mark.parametrize("name", ["mamba", "lfm2", "qwen3-next"])
def test_models_with_recurrent_state_draft_too(name: str, model_of: Any) -> None:
    model = model_of(name)
    draft = ModelDraft(model)
    row = Row(request())
    for at in range(5):
        expected = plain_greedy(model, row.tokens, 3)
        proposal = draft.propose(row, 3)
        assert proposal is not None and list(proposal.tokens) == expected
        # As if one, two, or no guess had been accepted, with another token after it.
        row.tokens += [*expected[: at % 3], (expected[-1] + 1) % VOCAB]


def test_sampled_drafts_leave_the_law_of_the_target(qwen3: Any) -> None:
    """Chi-square of the first two tokens against enumeration; false-alarm rate 1e-4."""
    sampling = Sampling(temperature=0.9, top_k=4)
    target = choose_executor(qwen3, "auto")

    def law(tokens: list[int]) -> dict[int, float]:
        sampler = Sampler(sampling, vocab_size=VOCAB, device=torch.device("cpu"), prompt=tokens)
        with torch.inference_mode():
            logits = target.forward([Block(target.new_cache(64), tokens, len(tokens) - 1)])
        p = sampler.distribution(logits)[0]
        return {int(token): float(p[token]) for token in p.nonzero()[:, 0]}

    expected = {
        (first, second): p * q for first, p in law(list(PROMPT)).items() for second, q in law([*PROMPT, first]).items()
    }
    draft = ModelDraft(noisy(qwen3, 4, 0.1), sampled=True)
    runs, counts = 2000, Counter[tuple[int, ...]]()
    for seed in range(runs):
        seeded = request(sampling=Sampling(temperature=0.9, top_k=4, seed=seed))
        loop = Loop(target, draft, seeded, number=seed)
        while len(loop.new_tokens()) < 2:
            loop.step(2)
        draft.forget(loop.row)
        counts[tuple(loop.new_tokens()[:2])] += 1
    assert set(counts) <= set(expected)
    large = {cell: p for cell, p in expected.items() if p * runs >= 5}
    rest = 1 - sum(large.values())
    statistic = sum((counts[cell] - p * runs) ** 2 / (p * runs) for cell, p in large.items())
    others = runs - sum(counts[cell] for cell in large)
    degrees = len(large) - 1
    if rest * runs >= 5:
        statistic, degrees = statistic + (others - rest * runs) ** 2 / (rest * runs), degrees + 1
    # The chi-square quantile after Wilson and Hilferty.
    spread = 2 / (9 * degrees)
    assert statistic < degrees * (1 - spread + NormalDist().inv_cdf(1 - 1e-4) * spread**0.5) ** 3


def test_a_seed_drafts_the_same_tokens_whatever_was_drafted_before(other: Any) -> None:
    sampling = Sampling(temperature=1.0, seed=11)
    one, two = ModelDraft(other, sampled=True), ModelDraft(other, sampled=True)
    first = one.propose(Row(request(sampling=sampling)), 5)
    two.propose(Row(request(sampling=sampling), 4), 2)
    second = two.propose(Row(request(sampling=sampling), 8), 5)
    assert first is not None and second is not None and first.tokens == second.tokens
    differ = one.propose(Row(request(sampling=Sampling(temperature=1.0, seed=12)), 1), 5)
    assert differ is not None and differ.tokens != first.tokens


def test_drafts_obey_the_penalty_of_the_row(qwen3: Any) -> None:
    sampling = Sampling(repetition_penalty=1.8)
    loop = Loop(qwen3, ModelDraft(qwen3), request(sampling=sampling))
    for _ in range(25):
        assert loop.step(4).accepted == 4


def test_a_grammar_shapes_the_draft_and_stays_where_it_was(qwen3: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    grammar = compile_grammar(GrammarTokenizer(tokenizer, vocab_size=VOCAB), 'start: "a" ("b" | "c")+ "d"')
    constraint = grammar.start()
    before = constraint.allowed()
    for sampling in (Sampling(), Sampling(temperature=1.0, seed=1)):
        row = Row(request(constraint=constraint, sampling=sampling))
        proposal = ModelDraft(qwen3, sampled=True).propose(row, 6)
        assert proposal is not None
        assert torch.equal(constraint.allowed(), before)
        walked = grammar.start()
        for token in proposal.tokens:
            assert bool(walked.allowed()[token])
            walked.advance(token)


def test_nothing_follows_a_stop_id_and_the_positions_end(qwen3: Any) -> None:
    expected = plain_greedy(qwen3, PROMPT, 4)
    stopped = ModelDraft(qwen3).propose(Row(request(stop_ids=frozenset({expected[1]}))), 4)
    assert stopped is not None and list(stopped.tokens) == expected[:2]
    short = build(LlamaConfig(**{**CONFIGS["llama"]().to_dict(), "max_position_embeddings": 32}))
    limited = ModelDraft(short).propose(Row(request()), 8)
    assert limited is not None and len(limited.tokens) == 2
    assert ModelDraft(short).propose(Row(request(prompt=PROMPT * 2)), 8) is None


@pytest.mark.parametrize(("theirs", "ours"), [(VOCAB, VOCAB + 20), (VOCAB, VOCAB - 20)])
def test_q_has_the_width_of_the_targets_vocabulary(other: Any, theirs: int, ours: int) -> None:
    row = Row(request(sampling=Sampling(temperature=3.0, seed=2), prompt=tuple(token % 200 for token in PROMPT)))
    proposal = ModelDraft(other, sampled=True, vocab_size=ours).propose(row, 5)
    assert proposal is not None and proposal.q is not None
    assert proposal.q.shape == (5, ours) and max(proposal.tokens) < min(theirs, ours)
    assert torch.allclose(proposal.q.sum(-1), torch.ones(5))


# -- quantised ---------------------------------------------------------------------------------------------------


def test_int8_weights_lie_within_half_a_step_of_the_originals() -> None:
    weight = torch.randn(40, 96)
    values, scales = quantise(weight)
    assert values.dtype == torch.int8 and values.shape == weight.shape
    error = (values.float() * scales.float()[:, None] - weight).abs()
    # bf16 scales are coarser than the rounding they serve: the largest value may clip by their error.
    assert bool((error <= scales.float()[:, None] * 0.5 + weight.abs() * 2**-7).all())


@pytest.mark.parametrize(("name", "executor"), [("qwen3", "lean"), ("qwen2", "hf"), ("llama-biased", "lean")])
def test_an_int8_draft_changes_what_is_accepted_and_nothing_else(name: str, executor: Any, model_of: Any) -> None:
    target = model_of(name)
    draft = ModelDraft(copy.deepcopy(target), quantise="int8", executor=executor)
    assert draft.executor.name == executor
    loop = Loop(target, draft, request())
    accepted = [loop.step(3).accepted for _ in range(30)]
    expected = plain_greedy(target, PROMPT, 30)
    assert loop.new_tokens()[:30] == expected
    assert sum(accepted) > 45


def test_four_bits_elsewhere_than_on_cuda_are_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(DraftUnsupported, match=r"CUDA only.*int8"):
        load_draft_model("unused", tokenizer=tokenizer, quantise="4bit")


# -- tokenizers --------------------------------------------------------------------------------------------------


def changed(tokenizer: PreTrainedTokenizerFast, **state: Any) -> PreTrainedTokenizerFast:
    twin = copy.deepcopy(tokenizer)
    if "add" in state:
        twin.add_tokens([state["add"]])
    if "special" in state:
        twin.add_special_tokens({"additional_special_tokens": [state["special"]]})
    return twin


def test_equal_tokenizers_are_the_same_and_others_are_told_apart(tokenizer: PreTrainedTokenizerFast) -> None:
    assert same_tokenizer(tokenizer, copy.deepcopy(tokenizer))
    assert "1 tokens exist only there ('<new>')" in str(difference(tokenizer, changed(tokenizer, add="<new>")))
    assert "1 tokens lack there ('<new>')" in str(difference(changed(tokenizer, add="<new>"), tokenizer))
    assert "special ('<tool_call>')" in str(difference(tokenizer, changed(tokenizer, special="<tool_call>")))


def test_other_ids_and_other_merges_are_told_apart(tokenizer: PreTrainedTokenizerFast) -> None:
    from tokenizers import Tokenizer

    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = backend["model"]["vocab"]
    moved = copy.deepcopy(backend)
    moved["model"]["vocab"] |= {"a": vocabulary["b"], "b": vocabulary["a"]}
    swapped = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(moved)), eos_token="<eos>")
    assert "2 tokens have other ids ('a', 'b')" in str(difference(tokenizer, swapped))
    fewer = copy.deepcopy(backend)
    fewer["model"]["merges"] = fewer["model"]["merges"][:-20]
    split = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(fewer)), eos_token="<eos>")
    assert "text is split differently" in str(difference(tokenizer, split))


def test_a_draft_with_another_tokenizer_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(TokenizersDiffer, match="not the target's"):
        ModelDraft.load(POCKET, tokenizer=tokenizer)


def test_a_folder_that_is_not_there_is_one_clear_line(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(DraftUnsupported, match="can't be read") as caught:
        ModelDraft.load(tmp_path, tokenizer=tokenizer)
    assert "\n" not in str(caught.value)


# -- the draft that ships ----------------------------------------------------------------------------------------


def test_pockets_own_draft_model_loads_beside_it_and_is_often_right() -> None:
    tokenizer = AutoTokenizer.from_pretrained(POCKET)
    draft = ModelDraft.load(POCKET / "draft", tokenizer=tokenizer)
    assert draft.executor.name == "lean" and (POCKET / "draft" / "model.safetensors").stat().st_size < 2_000_000
    assert not (POCKET / "draft" / "tokenizer.json").exists()
    target = AutoModelForCausalLM.from_pretrained(POCKET).eval()
    messages = [
        {"role": "system", "content": "You help the customers of a shop."},
        {"role": "user", "content": "Please cancel order O-1002."},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    prompt = tuple(tokenizer.encode(text, add_special_tokens=False))
    loop = Loop(target, draft, RowRequest(prompt=prompt, max_new_tokens=64))
    accepted = [loop.step(2).accepted for _ in range(12)]
    assert sum(accepted) > 6
    assert loop.new_tokens() == plain_greedy(target, prompt, len(loop.new_tokens()))
