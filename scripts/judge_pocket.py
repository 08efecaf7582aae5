"""Judge a model folder on unseen tasks: ``python scripts/judge_pocket.py agent_runtime/demo/pocket``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from pocket.judging import report


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=0, help="print this many failed tasks first")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(report(options.folder, seed=options.seed, n=options.tasks, show=options.show), indent=2))


if __name__ == "__main__":
    main()
