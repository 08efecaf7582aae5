"""Grammars: forced tokens cost no forward of their own, probabilities stay the raw target's."""

from __future__ import annotations

import json
import random
from typing import Any

import anyio
import pytest
import torch
from agent_runtime.decoding.errors import GrammarError
from agent_runtime.decoding.grammar import Grammar, GrammarTokenizer, compile_grammar
from agent_runtime.decoding.requests import RowRequest, Sampling
from agent_runtime.decoding.worker import ModelWorker

from .conftest import VOCAB, collect

CALL = {
    "type": "object",
    "properties": {
        "name": {"const": "get_order"},
        "arguments": {
            "type": "object",
            "properties": {"order_id": {"type": "string", "pattern": "^A-[0-9]{4}$"}},
            "required": ["order_id"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "arguments"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
LARK = f"start: <tool_call> call </tool_call>\ncall: %json {json.dumps(CALL)}"


@pytest.fixture(scope="module")
def prepared(tokenizer: Any) -> GrammarTokenizer:
    return GrammarTokenizer(tokenizer, vocab_size=VOCAB)


@pytest.fixture(scope="module")
def call(prepared: GrammarTokenizer) -> Grammar:
    return compile_grammar(prepared, LARK)


def test_masks_forced_tokens_and_rollback_move_together(call: Grammar, tokenizer: Any) -> None:
    constraint = call.start()
    text = '<tool_call>{"name":"get_order","arguments":{"order_id":"A-'
    forced = constraint.forced()
    assert text.startswith(tokenizer.decode(forced)) and constraint.allowed().sum() == 1
    taken: list[int] = []
    while forced := constraint.forced():
        for token in forced:
            constraint.advance(token)
            taken.append(token)
    assert tokenizer.decode(taken) == text
    before = constraint.allowed()
    assert before.shape == (VOCAB,) and all(tokenizer.decode([i]).isdigit() for i in before.nonzero()[:, 0].tolist())
    (digit,) = tokenizer.encode("7")
    constraint.advance(digit)
    constraint.rollback(1)
    assert torch.equal(constraint.allowed(), before)
    assert not constraint.finished()
    with pytest.raises(GrammarError, match="forbids"):
        constraint.advance(tokenizer.encode("x")[0])


def test_a_fresh_start_is_not_touched_by_an_earlier_one(call: Grammar) -> None:
    first = call.start()
    for token in first.forced():
        first.advance(token)
    assert call.start().forced() == call.start().forced() != []


@pytest.mark.parametrize("source", ["start: foo", {"type": "objec"}, "start: /[/"])
def test_a_grammar_that_does_not_compile_says_why(prepared: GrammarTokenizer, source: Any) -> None:
    with pytest.raises(GrammarError, match="does not compile"):
        compile_grammar(prepared, source)


@pytest.mark.anyio
@pytest.mark.parametrize("temperature", [0.0, 1.5])
async def test_a_constrained_row_needs_forwards_at_choices_only(
    qwen3: Any, call: Grammar, tokenizer: Any, temperature: float
) -> None:
    prompt = tuple(range(40, 70))
    sampling = Sampling(temperature=temperature, seed=1)
    with ModelWorker(qwen3) as worker:
        request = RowRequest(prompt=prompt, max_new_tokens=80, sampling=sampling, constraint=call.start())
        run = await collect(worker, request)
    text = tokenizer.decode(run.ids)
    assert text.startswith("<tool_call>") and text.endswith("</tool_call>")
    parsed = json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))
    assert parsed["name"] == "get_order" and len(parsed["arguments"]["order_id"]) == 6
    assert run.finished is not None and run.finished.reason == "constraint"
    # Four digits are chosen (fewer steps if one token holds several); everything else is forced.
    assert run.finished.forwards <= 4 < len(run.ids)
    with torch.inference_mode():
        raw = qwen3(input_ids=torch.tensor([[*prompt, *run.ids]])).logits[0].log_softmax(-1)
    wanted = [raw[len(prompt) - 1 + at, token].item() for at, token in enumerate(run.ids)]
    assert run.logprobs == pytest.approx(wanted, abs=1e-3)


@pytest.mark.anyio
async def test_a_constrained_probe_shares_the_agents_steps(qwen3: Any, call: Grammar) -> None:
    prompt = tuple(range(40, 70))
    runs: dict[bool, Any] = {}
    with ModelWorker(qwen3) as worker:

        async def one(background: bool) -> None:
            request = RowRequest(
                prompt=prompt if not background else (*prompt, 8),
                max_new_tokens=40,
                constraint=call.start() if background else None,
                owner="a",
                background=background,
            )
            runs[background] = await collect(worker, request)

        alone = await collect(worker, RowRequest(prompt=prompt, max_new_tokens=40))
        worker.forget("")
        async with anyio.create_task_group() as group:
            group.start_soon(one, False)
            group.start_soon(one, True)
    assert runs[False].ids == alone.ids
    assert runs[True].finished.shared_forwards == runs[True].finished.forwards <= 4


@pytest.mark.anyio
async def test_length_ends_a_constrained_row_inside_forced_tokens(qwen3: Any, call: Grammar) -> None:
    with ModelWorker(qwen3) as worker:
        for limit in (1, 2, 5, 16, 17):
            request = RowRequest(prompt=(1, 2, 3), max_new_tokens=limit, constraint=call.start())
            run = await collect(worker, request)
            assert len(run.ids) == len(run.logprobs) == limit
            assert run.finished is not None and run.finished.reason == "length"


@pytest.mark.anyio
async def test_a_stop_id_under_a_grammar_ends_the_row(qwen3: Any, prepared: GrammarTokenizer, tokenizer: Any) -> None:
    grammar = compile_grammar(prepared, "start: /(ab)*/")
    eos = tokenizer.eos_token_id
    with ModelWorker(qwen3) as worker:
        request = RowRequest(
            prompt=(1, 2, 3),
            max_new_tokens=400,
            sampling=Sampling(temperature=5.0, seed=0),
            stop_ids=frozenset({eos}),
            constraint=grammar.start(),
        )
        run = await collect(worker, request)
    assert run.finished is not None and run.finished.reason == "eos" and run.ids[-1] == eos
    text = tokenizer.decode(run.ids[:-1])
    assert text.replace("ab", "") == ""


@pytest.mark.anyio
async def test_a_failing_constraint_ends_its_own_row_only(qwen3: Any) -> None:
    class Dead:
        def allowed(self) -> torch.Tensor:
            return torch.zeros(VOCAB, dtype=torch.bool)

        def forced(self) -> list[int]:
            return []

        def advance(self, token: int) -> None: ...

        def rollback(self, count: int) -> None: ...

        def finished(self) -> bool:
            return False

    with ModelWorker(qwen3) as worker:
        errors: list[Exception] = []
        runs: list[Any] = []

        async def bad() -> None:
            try:
                await collect(worker, RowRequest(prompt=(1, 2), max_new_tokens=5, constraint=Dead()))
            except GrammarError as error:
                errors.append(error)

        async def good() -> None:
            runs.append(await collect(worker, RowRequest(prompt=(1, 2), max_new_tokens=5)))

        async with anyio.create_task_group() as group:
            group.start_soon(bad)
            group.start_soon(good)
        assert "allows no token" in str(errors[0]) and len(runs[0].ids) == 5


@pytest.mark.parametrize("seed", range(8))
def test_going_back_from_anywhere_also_from_the_end_restores_the_masks(
    prepared: GrammarTokenizer, tokenizer: Any, seed: int
) -> None:
    (end,) = tokenizer.encode("<eos>")
    grammar = compile_grammar(prepared, f"start: call | <[{end}]>\ncall: %json {json.dumps(CALL)}")
    rng = random.Random(seed)
    constraint = grammar.start()
    masks, taken = [constraint.allowed()], list[int]()
    for _ in range(60):
        if constraint.finished() or (taken and rng.random() < 0.3):
            back = rng.randint(1, len(taken))
            constraint.rollback(back)
            del taken[-back:], masks[-back:]
            assert torch.equal(constraint.allowed(), masks[-1]) and not constraint.finished()
        token = rng.choice(masks[-1].nonzero().flatten().tolist())
        constraint.advance(token)
        taken.append(token)
        masks.append(constraint.allowed() if not constraint.finished() else torch.zeros(VOCAB, dtype=torch.bool))
    with pytest.raises(GrammarError, match="can't go back"):
        constraint.rollback(len(taken) + 1)
