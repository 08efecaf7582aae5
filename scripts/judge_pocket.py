"""Judge a model folder on unseen tasks: ``python scripts/judge_pocket.py agent_runtime/demo/pocket``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from pocket_training.folder import read
from pocket_training.forced import forced
from pocket_training.judging import report
from pocket_training.prompts import system_text


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=0, help="print this many failures first")
    parser.add_argument("--no-probe", action="store_true", help="leave the speculator out")
    parser.add_argument("--forced", action="store_true", help="score turns on the oracle's history instead of playing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    network, encoder = read(options.folder)
    if options.forced:
        scored = forced(network, encoder, encoder.encode(system_text()), seed=options.seed, n=options.tasks)
        for miss in scored.misses[: options.show]:
            print(miss)
        print(json.dumps(scored.shares, indent=2))
        return
    probe = not options.no_probe
    result = report(network, encoder, seed=options.seed, n=options.tasks, show=options.show, probe=probe)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
