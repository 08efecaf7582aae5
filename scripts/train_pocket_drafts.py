"""Train pocket's drafts, its Medusa heads and its draft model: ``python scripts/train_pocket_drafts.py``.

Every part ends in a checkpoint in --out, and a run that was stopped goes on from there. Prints lines of JSON; the last
ones are the figures on conversations that pocket played with the test's names.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path

# Set before torch starts its threads: a core that waits actively takes time from its neighbours.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import torch
from pocket_training import draft_model, medusa
from pocket_training.distilling import SHARD, Lesson, Teacher, played
from pocket_training.folder import read

POCKET = Path("agent_runtime/demo/pocket")
HELD_OUT_SEED = 47
"""Of the played conversations, which use the test's names and products."""


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, train what was asked for and write it."""
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    network, encoder = read(options.pocket)
    teacher = Teacher(network, encoder, options.out, options.seed)
    publish: Path = options.publish or options.pocket
    shards = -(-options.tasks // SHARD)
    held_out = played(
        teacher, options.out / f"played-{HELD_OUT_SEED}.jsonl", seed=HELD_OUT_SEED, tasks=options.held_out
    )
    if options.part in ("medusa", "all"):
        train_medusa(options, teacher, shards, held_out, publish)
    if options.part in ("model", "all"):
        train_model(options, teacher, shards, held_out, publish)


def train_medusa(
    options: argparse.Namespace, teacher: Teacher, shards: int, held_out: list[Lesson], publish: Path
) -> None:
    """Train the heads and write `medusa/heads.safetensors` with their tree beside them."""
    plan = medusa.HeadPlan(blocks=options.blocks, epochs=options.head_epochs)
    pieces = [piece for number in range(shards) for lesson in teacher.shard(number) for piece in teacher.pieces(lesson)]
    judged_on = [piece for lesson in held_out for piece in teacher.pieces(lesson)]
    heads = medusa.run(plan, teacher.head, pieces, judged_on, options.out)
    # In a folder of its own: other engines read every safetensors file beside a model's weights as part of them.
    path = publish / "medusa" / "heads.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    heads.save(path)
    path.chmod(0o644)
    # What is reported is what ships, rounded as it is stored.
    shipped = medusa.MedusaHeads.load(path, teacher.head)
    print(json.dumps({"medusa": medusa.report(shipped, judged_on)}), flush=True)


def train_model(
    options: argparse.Namespace, teacher: Teacher, shards: int, held_out: list[Lesson], publish: Path
) -> None:
    """Train the draft model and write its folder `draft/`."""
    plan = draft_model.DraftPlan(shards, epochs=options.epochs)
    if options.layers != 1:
        plan = replace(plan, shape=replace(plan.shape, layers=options.layers))
    training = draft_model.Distilling(plan, teacher, options.out)
    for line in training.run():
        print(json.dumps({"model": line}), flush=True)
    draft_model.publish(training.student, publish / "draft", tokenizer="..")
    with torch.no_grad():
        for parameter in training.student.parameters():
            parameter.copy_(parameter.half())
    print(json.dumps({"model": draft_model.report(training.student, teacher, held_out)}), flush=True)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", choices=("medusa", "model", "all"), default="all")
    parser.add_argument("--pocket", type=Path, default=POCKET, help="folder of the target")
    parser.add_argument("--publish", type=Path, help="where the drafts go; default: beside the target's weights")
    parser.add_argument(
        "--out", type=Path, default=Path("build/pocket-drafts"), help="folder of hidden states and checkpoints"
    )
    parser.add_argument("--tasks", type=int, default=6144, help="conversations to learn from")
    parser.add_argument("--held-out", type=int, default=128, help="conversations to judge on")
    parser.add_argument("--seed", type=int, default=31, help="of the conversations to learn from")
    parser.add_argument("--blocks", type=int, default=medusa.HeadPlan.blocks, help="residual blocks per head")
    parser.add_argument("--head-epochs", type=int, default=medusa.HeadPlan.epochs)
    parser.add_argument("--layers", type=int, default=1, help="layers of the draft model")
    parser.add_argument("--epochs", type=int, default=draft_model.DraftPlan.epochs)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
