"""Medusa heads propose trees and chains from the target's hidden state, and a tree is chosen by what was accepted."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from agent_runtime.decoding.drafts.base import ROOT
from agent_runtime.decoding.drafts.errors import DraftUnsupported
from agent_runtime.decoding.drafts.medusa import (
    MedusaDraft,
    MedusaHeads,
    best_choices,
    chain_choices,
    check_choices,
)
from agent_runtime.decoding.executor import FINAL, Block, RowCache, choose_executor, depths
from agent_runtime.decoding.requests import RowRequest, Sampling
from agent_runtime.decoding.sampling import Sampler
from agent_runtime.decoding.verify import Verified, verify
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_runtime.demo import pocket

from .conftest import VOCAB, plain_greedy

POCKET = Path(pocket.__file__).parent
HEADS = POCKET / "medusa" / "heads.safetensors"
WIDTH = 64
TREE = ((0,), (1,), (0, 0), (2,), (0, 1), (0, 0, 0), (1, 0))


@dataclass
class Row:
    """A row as a draft sees it."""

    request: RowRequest
    hidden: torch.Tensor | None
    number: int = 0
    cache: RowCache | None = None
    tokens: list[int] = field(default_factory=list)

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt)


def random_heads(heads: int = 3, blocks: int = 1, choices: Any = None) -> MedusaHeads:
    generator = torch.Generator().manual_seed(7)
    weight = torch.randn(heads, blocks, WIDTH, WIDTH, generator=generator) / WIDTH**0.5
    bias = torch.randn(heads, blocks, WIDTH, generator=generator)
    return MedusaHeads(weight, bias, torch.randn(VOCAB, WIDTH, generator=generator), choices=choices)


def row(hidden: torch.Tensor | None = None, **options: Any) -> Row:
    return Row(RowRequest(**{"prompt": (1, 2, 3), "max_new_tokens": 20, **options}), hidden)


HIDDEN = torch.randn(WIDTH, generator=torch.Generator().manual_seed(1))


def test_a_head_is_residual_blocks_and_the_targets_output_matrix() -> None:
    heads = random_heads(heads=2, blocks=2)
    hidden = torch.randn(5, WIDTH)
    logits = heads(hidden)
    assert logits.shape == (2, 5, VOCAB)
    for head in range(2):
        x = hidden
        for block in range(2):
            x = x + torch.nn.functional.silu(x @ heads.weight[head, block].t() + heads.bias[head, block])
        torch.testing.assert_close(logits[head], x @ heads.lm_head.t(), rtol=1e-4, atol=1e-4)


def test_the_tree_takes_each_heads_likeliest_tokens_along_its_choices() -> None:
    draft = MedusaDraft(random_heads(choices=TREE))
    proposal = draft.propose(row(HIDDEN), 20)
    order = random_heads()(HIDDEN[None])[:, 0].argsort(-1, descending=True)
    assert proposal is not None and proposal.kind == "medusa" and proposal.q is None
    assert proposal.parents == (ROOT, ROOT, 0, ROOT, 0, 2, 1)
    assert list(proposal.tokens) == [int(order[len(choice) - 1, choice[-1]]) for choice in TREE]
    assert depths(proposal.parents) == [len(choice) for choice in TREE]


def test_a_limit_takes_the_first_nodes_and_they_are_a_tree() -> None:
    draft = MedusaDraft(random_heads(choices=TREE))
    whole = draft.propose(row(HIDDEN), 20)
    assert whole is not None
    for limit in range(1, len(TREE) + 1):
        proposal = draft.propose(row(HIDDEN), limit)
        assert proposal is not None
        assert (proposal.tokens, proposal.parents) == (whole.tokens[:limit], whole.parents[:limit])
    assert draft.propose(row(HIDDEN), 0) is None


def test_one_choice_per_head_is_a_chain() -> None:
    draft = MedusaDraft(random_heads(choices=TREE), choices=chain_choices(3))
    proposal = draft.propose(row(HIDDEN), 20)
    assert proposal is not None and proposal.is_chain and proposal.parents == ()
    assert list(proposal.tokens) == random_heads()(HIDDEN[None])[:, 0].argmax(-1).tolist()


def test_without_a_hidden_state_there_is_no_proposal() -> None:
    assert MedusaDraft(random_heads()).propose(row(None), 3) is None


def test_nothing_follows_a_token_that_ends_the_row() -> None:
    draft = MedusaDraft(random_heads(choices=TREE))
    whole = draft.propose(row(HIDDEN), 20)
    assert whole is not None
    ended = draft.propose(row(HIDDEN, stop_ids=frozenset({whole.tokens[0]})), 20)
    assert ended is not None
    # What stood below the first node is gone, and the others' parents moved up with them.
    assert ended.tokens == tuple(whole.tokens[at] for at in (0, 1, 3, 6))
    assert ended.parents == (ROOT, ROOT, ROOT, 1)


@pytest.mark.parametrize(
    ("choices", "what"),
    [
        ([(0, 0)], "before its parent"),
        ([(0,), (0,)], "twice"),
        ([(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0)], "not a path"),
        ([()], "not a path"),
        ([], "empty"),
    ],
)
def test_choices_that_are_no_tree_are_refused(choices: Any, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        check_choices(choices, 3)


def test_the_best_tree_accepts_at_least_what_any_other_does() -> None:
    generator = torch.Generator().manual_seed(3)
    # Errors that go together: a hard position is hard for every head.
    hard = torch.rand(4000, 1, generator=generator) < 0.4
    ranks = torch.where(hard, torch.randint(0, 5, (4000, 3), generator=generator), 0)
    best = best_choices(ranks, 7)

    def accepted(choices: Any) -> int:
        nodes = set(choices)
        return sum(tuple(path[:depth]) in nodes for path in ranks.tolist() for depth in (1, 2, 3))

    assert check_choices(best, 3) == best and len(best) == 7
    for other in (TREE, ((0,), (1,), (2,), (3,), (4,), (0, 0), (0, 0, 0))):
        assert accepted(best) >= accepted(other)
    assert [accepted(best[: at + 1]) - accepted(best[:at]) for at in range(7)] == sorted(
        (accepted(best[: at + 1]) - accepted(best[:at]) for at in range(7)), reverse=True
    )


# -- files -------------------------------------------------------------------------------------------------------


def test_heads_come_back_from_their_file_with_their_tree(tmp_path: Path) -> None:
    heads = random_heads(blocks=2, choices=TREE)
    heads.save(tmp_path / "medusa.safetensors", torch.float32)
    assert json.loads((tmp_path / "medusa.json").read_text())["medusa_num_layers"] == 2
    loaded = MedusaHeads.load(tmp_path / "medusa.safetensors", heads.lm_head, "cpu", torch.float32)
    assert loaded.choices == TREE
    assert torch.equal(loaded(HIDDEN[None]), heads(HIDDEN[None]))


def test_heads_with_output_matrices_of_their_own_use_them(tmp_path: Path) -> None:
    heads = random_heads()
    heads.save(tmp_path / "medusa.safetensors", torch.float32)
    own = {f"{head}.1.weight": torch.randn(VOCAB, WIDTH) for head in range(3)}
    save_file(load_file(tmp_path / "medusa.safetensors") | own, tmp_path / "own.safetensors")
    loaded = MedusaHeads.load(tmp_path / "own.safetensors", heads.lm_head)
    assert loaded.choices == chain_choices(3)
    x = HIDDEN + torch.nn.functional.silu(heads.weight[1, 0] @ HIDDEN + heads.bias[1, 0])
    torch.testing.assert_close(loaded(HIDDEN[None])[1, 0], own["1.1.weight"] @ x, rtol=1e-4, atol=1e-4)


def test_files_that_are_not_heads_for_this_target_are_refused_in_one_line(tmp_path: Path) -> None:
    heads = random_heads()
    path = tmp_path / "medusa.safetensors"
    with pytest.raises(DraftUnsupported, match="safetensors file"):
        MedusaHeads.load(path, heads.lm_head)
    heads.save(path)
    with pytest.raises(DraftUnsupported, match="trained on this target"):
        MedusaHeads.load(path, torch.randn(VOCAB, 32))
    tensors = load_file(path)
    save_file({name: tensor for name, tensor in tensors.items() if name != "1.0.linear.bias"}, path)
    with pytest.raises(DraftUnsupported, match=r"lacks the tensor '1\.0\.linear\.bias'"):
        MedusaHeads.load(path, heads.lm_head)
    save_file(tensors | {"model.norm.weight": torch.ones(3)}, path)
    with pytest.raises(DraftUnsupported, match="unexpected tensors"):
        MedusaHeads.load(path, heads.lm_head)
    save_file({"model.norm.weight": torch.ones(3)}, path)
    with pytest.raises(DraftUnsupported, match="unexpected tensors"):
        MedusaHeads.load(path, heads.lm_head)


# -- the heads that ship -----------------------------------------------------------------------------------------


@torch.inference_mode()
def decode(
    model: Any, prompt: list[int], count: int, draft: MedusaDraft | None, sampling: Sampling
) -> tuple[list[int], list[Verified]]:
    """Decode with verification of trees on the target: the bare loop of a worker."""
    executor = choose_executor(model, "auto")
    cache = executor.new_cache(len(prompt) + count)
    sampler = Sampler(sampling, vocab_size=executor.vocab_size, device=torch.device("cpu"), prompt=prompt)
    here = Row(RowRequest(prompt=tuple(prompt), max_new_tokens=count, sampling=sampling), None, tokens=list(prompt))
    steps = []
    while len(here.tokens) < len(prompt) + count:
        proposal = None if draft is None else draft.propose(here, 12)
        guesses, parents = (proposal.tokens, proposal.parents) if proposal is not None else ((), ())
        if guesses and not parents:
            parents = tuple(range(-1, len(guesses) - 1))
        known = here.tokens[cache.length :]
        block = Block(cache, [*known, *guesses], len(known) - 1, parents)
        logits, (hidden,) = executor.forward_tapped([block], [FINAL])
        verified = verify(logits, proposal, sampler)
        base = len(here.tokens)
        executor.keep(cache, base, [base + at for at in verified.path])
        here.hidden = hidden[1 + verified.path[-1] if verified.path else 0]
        here.tokens += verified.tokens
        for token in verified.tokens:
            sampler.observe(token)
        steps.append(verified)
    return here.tokens[len(prompt) :][:count], steps


@pytest.fixture(scope="module")
def target() -> Any:
    return AutoModelForCausalLM.from_pretrained(POCKET).eval()


def shop_prompt(text: str) -> list[int]:
    tokenizer = AutoTokenizer.from_pretrained(POCKET)
    messages = [
        {"role": "system", "content": "You help the customers of a shop."},
        {"role": "user", "content": text},
    ]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer.encode(rendered, add_special_tokens=False)
    return ids


@pytest.mark.parametrize("shape", ["tree", "chain"])
def test_pockets_heads_save_forwards_and_change_no_token(target: Any, shape: str) -> None:
    heads = MedusaHeads.load(HEADS, target.get_output_embeddings().weight)
    assert heads.heads == 3 and (HEADS).stat().st_size < 1_000_000
    draft = MedusaDraft(heads, choices=None if shape == "tree" else chain_choices(3))
    prompt = shop_prompt("Please cancel order O-1002.")
    ids, steps = decode(target, prompt, 40, draft, Sampling())
    assert ids == plain_greedy(target, prompt, 40)
    assert len(steps) < 30
    assert sum(step.accepted for step in steps) > 12


def test_pockets_heads_leave_a_seeds_sampled_tokens_as_they_are(target: Any) -> None:
    heads = MedusaHeads.load(HEADS, target.get_output_embeddings().weight)
    prompt = shop_prompt("Where is my order O-1004?")
    sampling = Sampling(temperature=1.2, top_p=0.95, seed=4)
    plain, _ = decode(target, prompt, 30, None, sampling)
    drafted, _ = decode(target, prompt, 30, MedusaDraft(heads), sampling)
    assert drafted == plain
