"""Train the demo's model from a seed: ``python scripts/train_pocket.py --publish agent_runtime/demo/pocket``.

The schedule follows the clock (``--minutes``), so that a slower machine still ends with a finished schedule;
with ``--steps`` the run is the same on every repetition.
"""

from __future__ import annotations

import argparse
import os
import socket
from dataclasses import replace
from pathlib import Path

# Set before torch starts its threads: a core that waits actively takes time from its neighbours.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from pocket_training.folder import publish
from pocket_training.network import Network
from pocket_training.prompts import system_text
from pocket_training.samples import Encoder
from pocket_training.stream import Stream, corpus
from pocket_training.tokens import train_tokenizer
from pocket_training.training import Plan, Trainer, checkpoint
from tokenizers import Tokenizer


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, train and write the folder."""
    plan, options = parse(arguments)
    resume, warm = options.resume, options.warm
    plan.out.mkdir(parents=True, exist_ok=True)
    path = plan.out / "tokenizer.json"
    if not path.exists():
        train_tokenizer(corpus(plan.seed, 8000)).save(str(path))
    if not plan.steps and not plan.minutes:
        pass
    elif plan.workers == 1:
        work(0, plan, resume, warm, 0)
    else:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        mp.start_processes(work, (plan, resume, warm, port), nprocs=plan.workers, start_method="spawn")
    publish(plan.out, options.publish or plan.out / "model", plan.shape)


def work(rank: int, plan: Plan, resume: bool, warm: Path | None, port: int) -> None:
    """Run one worker."""
    torch.set_num_threads(1 if plan.device == "cpu" else 4)
    if plan.workers > 1:
        address = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=plan.workers)
    encoder = Encoder(Tokenizer.from_file(str(plan.out / "tokenizer.json")))
    prefix = encoder.encode(system_text())
    stream = Stream(encoder, prefix, plan.seed, rank=rank, budget=plan.budget)
    trainer = Trainer(plan, stream, Network(plan.shape, plan.seed), rank)
    if warm is not None:
        trainer.load(torch.load(warm), weights_only=True)
    path = checkpoint(plan.out, rank)
    if resume and path.exists():
        trainer.load(torch.load(path))
    trainer.run(plan.out / "log.jsonl")
    if plan.workers > 1:
        dist.destroy_process_group()


def parse(arguments: list[str] | None = None) -> tuple[Plan, argparse.Namespace]:
    """Return the plan and the options beside it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/pocket"), help="folder of checkpoints, log and model")
    parser.add_argument("--steps", type=int, default=0, help="stop after this many steps")
    parser.add_argument("--publish", type=Path, help="where the model folder goes; default: model/ in --out")
    parser.add_argument(
        "--minutes",
        type=float,
        default=90.0,
        help="stop after this much training time (without --steps); 0: only publish",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0, help="data-parallel processes; default: one per CPU core")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    parser.add_argument("--from", dest="warm", type=Path, help="a checkpoint whose weights to start from")
    parser.add_argument("--batches", type=int, default=2, help="batches per worker and step")
    parser.add_argument("--budget", type=int, default=0, help="tokens per batch; default: 4096, on a GPU 32768")
    parser.add_argument("--muon-lr", type=float, default=Plan.muon_lr)
    parser.add_argument("--adam-lr", type=float, default=Plan.adam_lr)
    parser.add_argument("--copying-steps", type=int, default=Plan.copying_steps)
    parser.add_argument("--copying-ramp", type=int, default=Plan.copying_ramp)
    parser.add_argument("--copying-tail", type=float, default=Plan.copying_tail)
    parser.add_argument("--decay-from", type=float, default=Plan.decay_from)
    options = parser.parse_args(arguments)
    gpu = options.device != "cpu"
    plan = Plan(
        out=options.out,
        seed=options.seed,
        steps=options.steps,
        minutes=options.minutes,
        workers=options.workers or (1 if gpu else os.cpu_count() or 1),
        device=options.device,
        batches=options.batches,
        budget=options.budget or (32_768 if gpu else 4096),
        muon_lr=options.muon_lr,
        adam_lr=options.adam_lr,
        copying_steps=options.copying_steps,
        copying_ramp=options.copying_ramp,
        copying_tail=options.copying_tail,
        decay_from=options.decay_from,
    )
    return replace(plan, batches=1) if gpu else plan, options


if __name__ == "__main__":
    main()
