"""The training of the demo's model: samples, network, optimizer and resuming."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from agent_runtime.demo import pocket
from agent_runtime.demo.shop.generate import generate

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from pocket_training.attention import attend
from pocket_training.decoding import Decoder
from pocket_training.network import Network, Shape
from pocket_training.optimizer import orthogonalize
from pocket_training.prompts import system_text
from pocket_training.samples import Encoder, collate, width
from pocket_training.stream import Position, Stream, corpus
from pocket_training.tokens import train_tokenizer
from pocket_training.training import Plan, Trainer, checkpoint

TINY = Shape(hidden_size=32, layers=2, heads=2, kv_heads=2, head_dim=16, intermediate_size=64)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(Tokenizer.from_file(str(Path(pocket.__file__).with_name("tokenizer.json"))))


def trainer(encoder: Encoder, out: Path, steps: int) -> Trainer:
    plan = Plan(out, steps=steps, batches=1, budget=1536, shape=TINY, warmup=1, copying_steps=2, copying_ramp=2)
    stream = Stream(encoder, encoder.encode(system_text())[-40:], 3, budget=plan.budget)
    return Trainer(plan, stream, Network(TINY, 1))


def test_loss_falls_within_a_few_steps(encoder: Encoder, tmp_path: Path) -> None:
    training = trainer(encoder, tmp_path, 16)
    losses = [training.advance()["loss"] for _ in range(8)]
    assert losses[-1] < losses[0] - 0.5


def test_resumed_training_ends_with_the_same_bits(encoder: Encoder, tmp_path: Path) -> None:
    whole = trainer(encoder, tmp_path, 6)
    for _ in range(6):
        whole.advance()
    first = trainer(encoder, tmp_path, 6)
    for _ in range(3):
        first.advance()
    first.save()
    second = trainer(encoder, tmp_path, 6)
    second.load(torch.load(checkpoint(tmp_path, 0)))
    assert (second.step, second.stream.position) == (first.step, first.stream.position)
    second.run()
    assert second.stream.position == whole.stream.position
    for name, weight in whole.network.state_dict().items():
        assert torch.equal(weight, second.network.state_dict()[name]), name


def test_a_stream_repeats_itself_from_any_position_and_differs_between_workers(encoder: Encoder) -> None:
    stream = Stream(encoder, [1, 2], 5, budget=2048)
    for _ in range(3):
        stream.next(0.5)
    position = stream.position
    expected = stream.next(0.5).ids
    again = Stream(encoder, [1, 2], 5, budget=2048, position=Position(position.chunk, position.given, position.copying))
    assert torch.equal(again.next(0.5).ids, expected)
    other = Stream(encoder, [1, 2], 5, rank=1, budget=2048, position=position)
    assert not torch.equal(other.next(0.5).ids, expected)


def test_a_packed_branch_sees_its_prefix_and_itself_only(encoder: Encoder) -> None:
    prefix = encoder.encode(system_text())[:20]
    tasks = generate(11, "train", 40)
    samples = [encoder.sample(task["messages"], None) for task in tasks]
    samples = sorted((s for s in samples if any(b.reasoned for b in s.branches)), key=width)[:2]
    network = Network(TINY, 2)
    batch = collate(prefix, samples, encoder.pad)
    packed = network.hidden(batch, torch.float32).view(*batch.ids.shape, -1)
    for row, sample in enumerate(samples):
        alone = Decoder(network, 1)
        expected = alone.feed([[*prefix, *sample.ids]])
        got = F.linear(packed[row, len(sample.ids) - 1], network.model.embed_tokens.weight)
        torch.testing.assert_close(got, expected[0], rtol=1e-4, atol=1e-5)
        at = len(sample.ids)
        for branch in sample.branches:
            decoder = Decoder(network, 1)
            expected = decoder.feed([[*prefix, *sample.ids[: branch.at], *branch.ids]])
            at += len(branch.ids)
            got = F.linear(packed[row, at - 1], network.model.embed_tokens.weight)
            torch.testing.assert_close(got, expected[0], rtol=1e-4, atol=1e-5)


def test_blocked_attention_has_the_values_and_gradients_of_the_library() -> None:
    torch.manual_seed(0)
    rows, heads, length, prefix, size = 2, 2, 150, 10, 16
    mask = torch.ones(rows, length, prefix + length, dtype=torch.bool).tril(prefix)
    mask[0, 140:, 40:140] = False
    bias = torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))[:, None]
    leaves = [torch.randn(rows, heads, n, size, requires_grad=True) for n in (length, prefix + length, prefix + length)]
    results = []
    for function in (
        lambda q, k, v: attend(q, k, v, bias, prefix),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=bias),
    ):
        out = function(*leaves)
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_orthogonalized_matrices_have_singular_values_near_one() -> None:
    matrices = torch.randn(3, 48, 20, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalize(matrices))
    assert values.min() > 0.5 and values.max() < 1.4


def test_a_word_has_the_same_tokens_in_prose_and_in_json() -> None:
    tokenizer = train_tokenizer(corpus(0, 200), vocabulary=600)
    encoder = Encoder(tokenizer)
    name = encoder.encode("Kleequoum")
    for text in (" Kleequoum ", '"name":"Kleequoum"', "(Kleequoum)", "O-4821 Kleequoum."):
        ids = encoder.encode(text)
        assert any(ids[i : i + len(name)] == name for i in range(len(ids))), text
    assert len(encoder.encode("4821")) == 4


def test_probe_points_lie_at_turn_starts_and_inside_thinking(encoder: Encoder) -> None:
    for task in generate(13, "train", 30):
        sample = encoder.sample(task["messages"], random.Random(0), branches=100)
        starts = {start for start, _ in sample.turns}
        for branch in sample.branches:
            assert branch.ids[0] == encoder.speculate
            start, stop = sample.turns[branch.turn]
            if branch.reasoned:
                assert start < branch.at < start + sample.ids[start:stop].index(encoder.think_end) + 1
            else:
                assert branch.at in starts
