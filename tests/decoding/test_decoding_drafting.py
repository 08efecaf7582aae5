"""Drafts through the worker: what a row says never depends on them, whatever they propose and however the row ends."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest
import torch
from agent_runtime.decoding.drafts.base import DraftedRow, Proposal
from agent_runtime.decoding.executor import Block
from agent_runtime.decoding.grammar import GrammarTokenizer, compile_grammar
from agent_runtime.decoding.lean import LeanExecutor
from agent_runtime.decoding.requests import RowRequest, Sampling
from agent_runtime.decoding.worker import ModelWorker

from .conftest import VOCAB, Gate, collect, generate_greedy, plain_greedy

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """One event loop: what is tested here happens on the model thread."""
    return "asyncio"


class Oracle:
    """Knows what rows will say, and is wrong as often as it is told to be; proposes chains or trees."""

    kind: Any = "lookup"
    needs_hidden = False

    def __init__(
        self, *texts: Sequence[int], wrong: float = 0.0, length: int | None = None, tree: bool = False
    ) -> None:
        self.texts = [list(text) for text in texts]
        self.wrong = wrong
        self.length = length
        self.tree = tree
        self.rng = random.Random(1)
        self.rounds = 0

    def propose(self, row: DraftedRow, limit: int) -> Proposal | None:
        at = len(row.tokens)
        text = next((text for text in self.texts if text[:at] == row.tokens), None)
        if text is None:
            return None
        self.rounds += 1
        length = min(limit, self.length if self.length is not None else self.rng.randint(1, 6))
        right = text[at : at + length]
        if not self.tree:
            return Proposal("lookup", tuple(self._maybe(token) for token in right))
        tokens: list[int] = []
        parents: list[int] = []
        before = -1
        for token in right:  # beside every right token a wrong one, before or after it
            siblings = [token, (token + 1) % VOCAB]
            self.rng.shuffle(siblings)
            places = [len(tokens), len(tokens) + 1]
            tokens += siblings
            parents += [before, before]
            before = places[siblings.index(token)]
        return Proposal("lookup", tuple(self._maybe(token) for token in tokens[:limit]), tuple(parents[:limit]))

    def _maybe(self, token: int) -> int:
        return (token + 1) % VOCAB if self.rng.random() < self.wrong else token

    def forget(self, row: DraftedRow) -> None:
        pass


def text_of(model: Any, prompt: list[int], count: int) -> list[int]:
    return prompt + plain_greedy(model, prompt, count)


def prompt_of(seed: int, length: int = 20) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(length)]


ARCHITECTURES = [
    "llama",
    "qwen3",
    "gemma3",
    "gpt2",
    "mistral-sliding",
    "lfm2",
    "mamba",
    "qwen3-next",
    "falcon-h1",
]


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("name", ARCHITECTURES)
async def test_every_kind_of_cache_is_taken_back_to_what_stands(
    name: str, tree: bool, model_of: Callable[[str], Any]
) -> None:
    model, prompt = model_of(name), prompt_of(3)
    text = text_of(model, prompt, 60)
    draft = Oracle(text, wrong=0.3, tree=tree)
    with ModelWorker(model, drafts=[draft], draft_tokens=6) as worker:
        run = await collect(worker, RowRequest(prompt=tuple(prompt), max_new_tokens=60))
        again = await collect(worker, RowRequest(prompt=tuple(prompt), max_new_tokens=60))
    assert run.ids == again.ids == text[len(prompt) :]
    assert run.finished is not None and run.finished.forwards < 60
    (counts,) = run.finished.drafting
    assert 0 < counts.accepted_tokens < counts.draft_tokens


async def test_a_draft_that_is_always_right_is_accepted_for_two_hundred_rounds(qwen3: Any) -> None:
    prompt = prompt_of(1)
    text = text_of(qwen3, prompt, 600)
    draft = Oracle(text, length=2)
    with ModelWorker(qwen3, drafts=[draft], draft_tokens=2) as worker:
        run = await collect(worker, RowRequest(prompt=tuple(prompt), max_new_tokens=600))
    assert run.ids == text[len(prompt) :] and run.finished is not None
    (counts,) = run.finished.drafting
    assert counts.drafts >= 199
    assert counts.accepted_tokens == counts.draft_tokens
    assert counts.mean_accepted_length == pytest.approx(3.0, abs=0.02)
    assert run.finished.forwards <= 200


async def test_a_draft_that_is_always_wrong_costs_no_forward_and_changes_nothing(qwen3: Any) -> None:
    prompt = prompt_of(2)
    text = text_of(qwen3, prompt, 80)
    draft = Oracle(text, wrong=1.0)
    with ModelWorker(qwen3, drafts=[draft], draft_tokens=4) as worker:
        run = await collect(worker, RowRequest(prompt=tuple(prompt), max_new_tokens=80))
    assert run.ids == text[len(prompt) :] and run.finished is not None
    assert run.finished.forwards == 79 and run.finished.drafting[0].accepted_tokens == 0


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
async def test_keys_and_values_equal_a_fresh_prefill_after_fifty_rounds_of_rejections(qwen3: Any, tree: bool) -> None:
    prompt = prompt_of(4)
    text = text_of(qwen3, prompt, 120)
    draft = Oracle(text, wrong=0.5, tree=tree)
    with ModelWorker(qwen3, drafts=[draft], draft_tokens=5) as worker:
        run = await collect(worker, RowRequest(prompt=tuple(prompt), max_new_tokens=120, owner="a"))
        assert draft.rounds >= 50 and run.ids == text[len(prompt) :]
        (entry,) = worker._store._entries
    assert entry.tokens == text[: len(entry.tokens)] and entry.cache.length == len(entry.tokens)
    with torch.inference_mode():
        executor = LeanExecutor(qwen3)
        fresh: Any = executor.new_cache(len(text))
        executor.forward([Block(fresh, entry.tokens, len(entry.tokens))])
    held: Any = entry.cache
    torch.testing.assert_close(
        held.buffer[:, :, :, : held.length], fresh.buffer[:, :, :, : held.length], rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("offset", range(7))
async def test_an_end_of_sequence_token_inside_a_block_ends_the_row_there(qwen3: Any, offset: int) -> None:
    prompt = prompt_of(5)
    text = text_of(qwen3, prompt, 30)
    new = text[len(prompt) :]
    at = next(at for at in range(12 + offset, 30) if new[at] not in new[:at])
    draft = Oracle(text, length=6)
    with ModelWorker(qwen3, drafts=[draft], draft_tokens=6) as worker:
        request = RowRequest(prompt=tuple(prompt), max_new_tokens=30, stop_ids=frozenset({new[at]}))
        run = await collect(worker, request)
        assert worker.statistics().new_tokens == at + 1
    assert run.ids == new[: at + 1] and run.finished is not None
    assert (run.finished.reason, run.finished.new_tokens) == ("eos", at + 1)


@pytest.mark.parametrize("limit", range(9, 17))
async def test_a_token_limit_inside_a_block_ends_the_row_at_the_right_token(qwen3: Any, limit: int) -> None:
    prompt = prompt_of(6)
    text = text_of(qwen3, prompt, 40)
    with ModelWorker(qwen3, drafts=[Oracle(text, length=6)], draft_tokens=6) as worker:
        run = await collect(worker, RowRequest(prompt=tuple(prompt), max_new_tokens=limit))
    assert run.ids == text[len(prompt) :][:limit] and run.finished is not None
    assert (run.finished.reason, run.finished.new_tokens) == ("length", limit)


def letters(ids: Sequence[int]) -> str:
    """A text of one character per token, so that a stop string can be cut anywhere."""
    return "".join(chr(0x4E00 + token) for token in ids)


@pytest.mark.parametrize("length", range(1, 7))
@pytest.mark.parametrize("size", [1, 2, 5])
async def test_a_stop_string_ends_the_text_however_blocks_cut_it(qwen3: Any, length: int, size: int) -> None:
    prompt = prompt_of(7)
    text = text_of(qwen3, prompt, 30)
    new = text[len(prompt) :]
    stop = letters(new[11 : 11 + size])
    expected = letters(new).index(stop)
    with ModelWorker(qwen3, detokenize=letters, drafts=[Oracle(text, length=length)], draft_tokens=6) as worker:
        request = RowRequest(prompt=tuple(prompt), max_new_tokens=30, sampling=Sampling(stop=(stop,)))
        run = await collect(worker, request)
    assert run.ids == new[:expected] and run.finished is not None
    assert (run.finished.reason, run.finished.new_tokens) == ("stop_string", expected)


async def test_log_probabilities_are_the_targets_of_plain_decoding(qwen3: Any) -> None:
    prompt = prompt_of(8)
    text = text_of(qwen3, prompt, 50)
    request = RowRequest(prompt=tuple(prompt), max_new_tokens=50)
    with ModelWorker(qwen3) as worker:
        plain = await collect(worker, request)
    for tree in (False, True):
        with ModelWorker(qwen3, drafts=[Oracle(text, wrong=0.3, tree=tree)], draft_tokens=6) as worker:
            drafted = await collect(worker, request)
        assert drafted.ids == plain.ids
        assert drafted.logprobs == pytest.approx(plain.logprobs, abs=1e-3)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(repetition_penalty=1.4),
        Sampling(temperature=0.8, seed=5),
        Sampling(temperature=1.0, top_p=0.7, seed=6, repetition_penalty=1.2),
        Sampling(temperature=0.7, top_k=5, min_p=0.05, seed=7),
    ],
    ids=["penalty", "temperature", "top-p and penalty", "top-k and min-p"],
)
@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
async def test_a_seed_gives_the_same_tokens_with_drafts_and_without(qwen3: Any, sampling: Sampling, tree: bool) -> None:
    prompt = prompt_of(9)
    request = RowRequest(prompt=tuple(prompt), max_new_tokens=80, sampling=sampling)
    with ModelWorker(qwen3) as worker:
        plain = await collect(worker, request)
    draft = Oracle([*prompt, *plain.ids], wrong=0.3, tree=tree)
    with ModelWorker(qwen3, drafts=[draft], draft_tokens=6) as worker:
        drafted = await collect(worker, request)
    assert drafted.ids == plain.ids and drafted.finished is not None
    assert drafted.finished.forwards < 80


async def test_greedy_and_sampled_rows_share_a_batch_with_their_drafts(qwen3: Any) -> None:
    prompts = [prompt_of(seed, 12) for seed in (10, 11, 12)]
    samplings = [Sampling(), Sampling(temperature=1.0, seed=1), Sampling(temperature=0.5, top_k=8, seed=2)]
    requests = [
        RowRequest(prompt=tuple(prompt), max_new_tokens=60, sampling=sampling, owner=str(index))
        for index, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True))
    ]
    with ModelWorker(qwen3) as worker:
        alone = [await collect(worker, request) for request in requests]
    texts = [[*prompt, *run.ids] for prompt, run in zip(prompts, alone, strict=True)]
    together: dict[int, Any] = {}

    async def decode(index: int, worker: ModelWorker) -> None:
        together[index] = await collect(worker, requests[index])

    with ModelWorker(qwen3, drafts=[Oracle(*texts, wrong=0.3)], draft_tokens=5) as worker:
        async with anyio.create_task_group() as group:
            for index in range(3):
                group.start_soon(decode, index, worker)
    assert [together[index].ids for index in range(3)] == [run.ids for run in alone]
    assert any(together[index].finished.shared_forwards for index in range(3))


class EveryToken:
    """Proposes random tokens, right or wrong."""

    kind: Any = "lookup"
    needs_hidden = False

    def __init__(self, answer: Sequence[int]) -> None:
        self.answer = list(answer)
        self.rng = random.Random(2)

    def propose(self, row: DraftedRow, limit: int) -> Proposal | None:
        new = row.tokens[row.prompt_tokens :]
        if self.answer[: len(new)] != new:
            return None
        rest = self.answer[len(new) : len(new) + self.rng.randint(1, limit)]
        tokens = [token if self.rng.random() < 0.8 else self.rng.randrange(VOCAB) for token in rest]
        return Proposal("lookup", tuple(tokens)) if tokens else None

    def forget(self, row: DraftedRow) -> None:
        pass


@pytest.mark.parametrize("score_end", [True, False])
async def test_a_grammar_allows_and_scores_the_same_with_drafts(qwen3: Any, tokenizer: Any, score_end: bool) -> None:
    prepared = GrammarTokenizer(tokenizer, vocab_size=VOCAB)
    grammar = compile_grammar(
        prepared,
        {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Parma", "Rome"]}, "n": {"type": "integer", "maximum": 999}},
            "required": ["city", "n"],
            "additionalProperties": False,
        },
    )

    def request(prompt: list[int]) -> RowRequest:
        return RowRequest(prompt=tuple(prompt), max_new_tokens=60, constraint=grammar.start(), score_end=score_end)

    for seed in range(6):
        prompt = prompt_of(20 + seed)
        with ModelWorker(qwen3) as worker:
            plain = await collect(worker, request(prompt))
        assert plain.finished is not None and plain.finished.reason == "constraint"
        with ModelWorker(qwen3, drafts=[EveryToken(plain.ids)], draft_tokens=6) as worker:
            drafted = await collect(worker, request(prompt))
        assert drafted.ids == plain.ids and drafted.finished is not None
        assert drafted.logprobs == pytest.approx(plain.logprobs, abs=1e-3)
        assert drafted.finished.forwards <= plain.finished.forwards


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_logits_of_a_tree_equal_those_of_each_path_alone(name: str, model_of: Callable[[str], Any]) -> None:
    from agent_runtime.decoding.executor import choose_executor

    with torch.inference_mode():
        executor = choose_executor(model_of(name), "auto")
        assert executor.trees
        prompt = prompt_of(13, 15)
        tree = (-1, -1, 0, 0, 1, 2)
        tokens = [5, 6, 7, 8, 9, 10]
        paths = [(0, 2, 5), (0, 3), (1, 4)]
        cache = executor.new_cache(40)
        executor.forward([Block(cache, prompt[:-1], len(prompt) - 1)])
        logits = executor.forward([Block(cache, [prompt[-1], *tokens], 0, tree)])
        for path in paths:
            alone = executor.new_cache(40)
            chain = executor.forward([Block(alone, [*prompt, *(tokens[at] for at in path)], len(prompt) - 1)])
            torch.testing.assert_close(logits[[0, *(1 + at for at in path)]], chain, rtol=1e-3, atol=1e-3)
        # The accepted path is moved together, and the row goes on from there.
        executor.keep(cache, len(prompt), [len(prompt) + at for at in (0, 3)])
        further = executor.forward([Block(cache, [11], 0)])
        plain = executor.new_cache(40)
        expected = executor.forward([Block(plain, [*prompt, 5, 8, 11], len(prompt) + 2)])
        torch.testing.assert_close(further, expected, rtol=1e-3, atol=1e-3)


async def test_a_draft_that_breaks_is_left_out_and_the_row_goes_on(
    qwen3: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        kind: Any = "suffix"
        needs_hidden = False

        def propose(self, row: DraftedRow, limit: int) -> Proposal | None:
            raise KeyError("gone")

        def forget(self, row: DraftedRow) -> None:
            pass

    prompt = prompt_of(14)
    with ModelWorker(qwen3, drafts=[Broken()]) as worker, caplog.at_level(logging.WARNING):
        run = await collect(worker, RowRequest(prompt=tuple(prompt), max_new_tokens=20))
    assert run.ids == plain_greedy(qwen3, prompt, 20)
    assert caplog.text.count("suffix draft failed") == 1


async def test_a_row_takes_only_the_drafts_it_names(qwen3: Any) -> None:
    prompt = prompt_of(15)
    text = text_of(qwen3, prompt, 30)
    draft = Oracle(text)
    with ModelWorker(qwen3, drafts=[draft]) as worker:
        for drafts in (frozenset[Any](), frozenset({"suffix"})):
            run = await collect(worker, RowRequest(prompt=tuple(prompt), max_new_tokens=30, drafts=drafts))
            assert run.ids == text[len(prompt) :] and run.finished is not None
            assert run.finished.forwards == 29 and not run.finished.drafting
    assert draft.rounds == 0


async def test_deterministic_rows_decode_in_blocks_of_one_size_whatever_is_drafted(qwen3: Any) -> None:
    prompt = prompt_of(16, 40)
    text = text_of(qwen3, prompt, 50)
    request = RowRequest(prompt=tuple(prompt), max_new_tokens=50)
    runs = []
    for drafts in (frozenset[Any](), None):
        with ModelWorker(qwen3, drafts=[Oracle(text, wrong=0.3)], draft_tokens=5, deterministic=True) as worker:
            gate = Gate(worker)
            runs.append(await collect(worker, RowRequest(prompt=request.prompt, max_new_tokens=50, drafts=drafts)))
            sizes = {tokens for forward in gate.forwards for before, tokens in forward if before >= len(prompt)}
            assert sizes == {6}
    assert runs[0].ids == runs[1].ids == text[len(prompt) :]
    assert runs[0].logprobs == pytest.approx(runs[1].logprobs, abs=1e-4)


async def test_a_cancelled_row_ends_between_blocks_and_its_cache_serves_on(qwen3: Any) -> None:
    prompt = prompt_of(17)
    text = text_of(qwen3, prompt, 200)
    with ModelWorker(qwen3, drafts=[Oracle(text, wrong=0.4)], draft_tokens=6) as worker:
        row = worker.submit(RowRequest(prompt=tuple(prompt), max_new_tokens=200, owner="a"))
        got: list[int] = []
        async for event in row:
            got += getattr(event, "ids", ())
            if len(got) > 20:
                row.cancel()
        assert got == text[len(prompt) :][: len(got)]
        run = await collect(worker, RowRequest(prompt=tuple(prompt), max_new_tokens=200, owner="a"))
    assert run.ids == text[len(prompt) :] and run.ready is not None and run.ready.reused_tokens > 0


async def test_a_long_text_equals_the_librarys_generate_under_random_drafts_and_probes(qwen3: Any) -> None:
    rng = random.Random(3)
    for seed in range(3):
        prompt = prompt_of(30 + seed, rng.choice([1, 30, 150]))
        expected = generate_greedy(qwen3, prompt, 300)
        draft = Oracle([*prompt, *expected], wrong=0.4, tree=seed == 2)
        with ModelWorker(qwen3, drafts=[draft], prefill_chunk=32, draft_tokens=None if seed else 6) as worker:
            row = worker.submit(RowRequest(prompt=tuple(prompt), max_new_tokens=300, owner="agent"))
            got: list[int] = []
            async with anyio.create_task_group() as group:
                async for event in row:
                    got += getattr(event, "ids", ())
                    if rng.random() < 0.2:
                        probe = RowRequest(
                            prompt=(*prompt, *got, rng.randrange(VOCAB)),
                            max_new_tokens=rng.randrange(1, 20),
                            owner="agent",
                            background=True,
                        )
                        group.start_soon(collect, worker, probe)
            assert got == expected


async def test_int8_weights_say_the_same_with_drafts_and_without(model_of: Callable[[str], Any]) -> None:
    import copy

    prompt = prompt_of(40)
    request = RowRequest(prompt=tuple(prompt), max_new_tokens=40)
    with ModelWorker(copy.deepcopy(model_of("qwen3")), quantise="int8") as worker:
        plain = await collect(worker, request)
    draft = Oracle([*prompt, *plain.ids], wrong=0.2)
    with ModelWorker(copy.deepcopy(model_of("qwen3")), quantise="int8", drafts=[draft], draft_tokens=4) as worker:
        drafted = await collect(worker, request)
    assert len(plain.ids) == 40 and drafted.finished is not None and drafted.finished.forwards < 40
    # In bf16 a block and single tokens may part at a tie: until then they are one text.
    same = next((i for i, (a, b) in enumerate(zip(plain.ids, drafted.ids, strict=True)) if a != b), 40)
    assert same >= 4


def test_int8_weights_need_the_lean_executor(model_of: Callable[[str], Any]) -> None:
    import copy

    from agent_runtime.decoding.errors import ModelUnsupported

    with pytest.raises(ModelUnsupported, match="lean executor only"):
        ModelWorker(copy.deepcopy(model_of("gpt2")), quantise="int8")
