"""How pocket's drafts are trained and judged: what they learn from, and what counts as accepted."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from agent_runtime.decoding.drafts.medusa import chain_choices

from agent_runtime.demo import pocket

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from pocket_training import medusa
from pocket_training.accepting import walk
from pocket_training.distilling import Lesson, Piece, Teacher
from pocket_training.draft_model import Distilling, DraftPlan, loss, new_student, publish
from pocket_training.folder import read
from pocket_training.network import Shape
from transformers import AutoModelForCausalLM

from agent_runtime.demo.shop.generate import generate

FOLDER = Path(pocket.__file__).parent


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Teacher:
    network, encoder = read(FOLDER)
    return Teacher(network, encoder, tmp_path_factory.mktemp("hidden"), seed=3)


@pytest.fixture(scope="module")
def lesson(teacher: Teacher) -> Lesson:
    samples = [teacher.encoder.sample(task["messages"], random.Random(1)) for task in generate(5, "test", 3)]
    return Lesson(samples, teacher.hidden(samples))


def test_a_text_is_walked_in_steps_of_what_was_accepted_and_one_more() -> None:
    # Right guesses made for position 1: two; for 4: none; for 5: three, of which the text has only two left.
    right = {1: 2, 4: 0, 5: 3}
    found = walk([7], lambda text, at: right[at], 3)
    assert (found.tokens, found.steps, found.accepted) == (6, 3, (2, 2, 0))
    assert found.mean_accepted_length == 2.0
    assert walk([5, 5], lambda text, at: 0, 2).mean_accepted_length == 1.0


def test_pieces_are_turns_and_calls_that_pocket_says_itself(teacher: Teacher, lesson: Lesson) -> None:
    pieces = list(teacher.pieces(lesson))
    turns = sum(len(sample.turns) for sample in lesson.samples)
    assert 0 < len(pieces) <= turns + sum(len(sample.branches) for sample in lesson.samples)
    for piece in pieces:
        assert torch.equal(F.linear(piece.hidden.float(), teacher.head).argmax(-1), piece.tokens)
    ends = [int(piece.tokens[-1]) for piece in pieces]
    assert teacher.encoder.end in ends and teacher.encoder.call_end in ends


def test_a_head_speaks_of_the_token_after_the_one_that_its_state_chose() -> None:
    piece = Piece(torch.zeros(4, 2), torch.tensor([10, 11, 12, 13]))
    data = medusa.positions([piece, piece], 2)
    none = medusa.NONE
    assert data.targets.tolist() == [[11, 12], [12, 13], [13, none], [none, none]] * 2


def test_heads_learn_and_a_stopped_training_goes_on_where_it_was(
    teacher: Teacher, lesson: Lesson, tmp_path: Path
) -> None:
    plan = medusa.HeadPlan(epochs=4, batch=64, lr=5e-3)
    data = medusa.positions(teacher.pieces(lesson), plan.heads)
    whole = medusa.new_heads(plan, teacher.head)
    (tmp_path / "whole").mkdir()
    losses = [line["loss"] for line in medusa.train(plan, whole, data, tmp_path / "whole")]
    assert losses[-1] < 0.5 * losses[0]
    parted = medusa.new_heads(plan, teacher.head)
    training = iter(medusa.train(plan, parted, data, tmp_path))
    next(training)
    next(training)
    again = medusa.new_heads(plan, teacher.head)
    assert [line["epoch"] for line in medusa.train(plan, again, data, tmp_path)] == [3, 4]
    assert torch.equal(again.weight, whole.weight)


def test_what_a_tree_accepts_is_counted_along_its_paths() -> None:
    # One text of five tokens; the states of the first three chose tokens 0, 1, 2.
    ranks = torch.tensor([[0, 1], [0, 0], [2, 0], [0, 9], [9, 9]])
    chain = medusa.acceptance(ranks, [5], chain_choices(2))
    # Position 1: one right. 3: rank 2 is not in the chain. 4: right, and the text's last.
    assert (chain.tokens, chain.steps, chain.accepted) == (4, 3, (2, 0))
    tree = medusa.acceptance(ranks, [5], ((0,), (0, 1), (2,)))
    assert (tree.tokens, tree.steps, tree.accepted) == (4, 2, (2, 1))


def test_the_draft_model_learns_pockets_distribution_and_resumes(
    teacher: Teacher, lesson: Lesson, tmp_path: Path
) -> None:
    plan = DraftPlan(shards=1, shape=Shape(layers=1, intermediate_size=64))
    training = Distilling(plan, teacher, tmp_path)
    first = float(loss(training.student, teacher, lesson)[0].detach())
    for _ in range(8):
        training._advance(lesson, 0.2)
    assert float(loss(training.student, teacher, lesson)[0].detach()) < first - 0.5
    training._save()
    resumed = Distilling(plan, teacher, tmp_path)
    assert resumed.step == 8
    assert torch.equal(resumed.student.model.norm.weight, training.student.model.norm.weight)


def test_the_published_folder_is_half_precision_and_names_its_tokenizer(teacher: Teacher, tmp_path: Path) -> None:
    student = new_student(DraftPlan(shards=1), teacher.network)
    publish(student, tmp_path, tokenizer="..")
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["tokenizer"], config["dtype"], config["num_hidden_layers"]) == ("..", "float16", 1)
    assert (tmp_path / "model.safetensors").stat().st_size < 2_000_000
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    expected = student.model.layers[0].mlp.up_proj.weight.half().float()
    assert torch.equal(loaded.model.layers[0].mlp.up_proj.weight, expected)
