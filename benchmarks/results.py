"""Measures the figures of docs/results.md down to its mark and writes that part of the page.

    python benchmarks/results.py unseen --out DIR              # success, Hit@1, identity, slowdown: 300 unseen tasks
    python benchmarks/results.py handwritten --out DIR         # the same on the thirty requests written by hand
    python benchmarks/results.py dispatcher --out DIR          # what a guess costs the event loop
    python benchmarks/results.py decode --out DIR              # decode speed against the library's own loop
    python benchmarks/results.py render --out DIR              # docs/results.md, from what DIR holds
    python benchmarks/results.py all --out DIR                 # everything, in this order

Runs are appended to DIR as they end, so that a measurement that was stopped goes on where it was, and one with more
--tasks adds to one with fewer. Weights, versions or settings that changed since are refused: take another DIR.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agent_runtime.decoding.threads import configure_threads

THREADS = configure_threads()

import anyio  # noqa: E402
from agent_runtime.speculator.predictors import WrongPredictor  # noqa: E402
from agent_runtime.speculator.settings import Speculation  # noqa: E402
from agent_runtime.tools import ToolCall  # noqa: E402

from agent_runtime.bench import RunRecord, bench_speculate  # noqa: E402
from agent_runtime.demo.agent import POCKET  # noqa: E402
from agent_runtime.demo.shop.handwritten import handwritten_tasks  # noqa: E402

HERE = Path(__file__).parent
MARK = "<!-- Below: measured by the commands that are named there, not rendered. -->"
SEED = 2026
"""Of the measured tasks. Training uses another split of names and products, whatever the seed."""
NEVER_MADE = ToolCall("get_order", {"order_id": "O-0000"})
BESIDE = Speculation(placement="beside", min_confidence=0.0)
ALSO = {
    "before": Speculation(placement="before", min_confidence=0.0, reprobe=()),
    "wrong": Speculation(placement="beside", min_confidence=0.0, predictor=WrongPredictor(NEVER_MADE)),
}


class Measurement:
    """One measurement in a folder: its settings in NAME.json, its runs in NAME.jsonl."""

    def __init__(self, folder: Path, name: str, settings: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._settings = folder / f"{name}.json"
        self._runs = folder / f"{name}.jsonl"
        self.name = name
        if self._settings.exists():
            found = json.loads(self._settings.read_text())
            self.settings = found | settings
            changed = [key for key in settings if key not in ("command", "tasks") and found.get(key) != settings[key]]
            if changed:
                raise SystemExit(
                    f"{self._settings} was measured with another {', '.join(changed)}: give another --out, or remove it"
                )
        else:
            self.settings = settings

    def save(self, **more: Any) -> None:
        """Write the settings down, with what became known."""
        self.settings |= more
        self._settings.write_text(json.dumps(self.settings, indent=1))

    def add(self, records: Iterable[RunRecord]) -> None:
        """Append runs."""
        with self._runs.open("a") as file:
            for record in records:
                file.write(json.dumps(record.to_json(), ensure_ascii=False, separators=(",", ":")) + "\n")

    def done(self, modes: int) -> int:
        """Return how many tasks, from the first, have all their runs; drop the runs of the others."""
        if not self._runs.exists():
            return 0
        runs = {(run["index"], run["mode"]): line for line, run in _lines(self._runs)}
        whole = 0
        while sum(index == whole for index, _ in runs) == modes:
            whole += 1
        self._runs.write_text("".join(line for (index, _), line in runs.items() if index < whole))
        return whole


def _lines(path: Path) -> Iterable[tuple[str, dict[str, Any]]]:
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):  # the last one may have been cut off
            yield line, json.loads(line)


def environment(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what a measurement's figures depend on beside its own settings."""
    import torch
    import transformers

    weights = POCKET / "model.safetensors" if arguments.model is None else Path(arguments.model) / "model.safetensors"
    on_gpu = arguments.device.startswith("cuda") or (arguments.device == "auto" and torch.cuda.is_available())
    return {
        "machine": f"{os.cpu_count()} cores, "
        + (torch.cuda.get_device_name() if on_gpu else f"CPU, fp32, {THREADS} thread{'s' if THREADS > 1 else ''}"),
        "torch": torch.__version__.partition("+")[0],
        "transformers": transformers.__version__,
        "weights": hashlib.sha256(weights.read_bytes()).hexdigest()[:12] if weights.exists() else None,
    }


def command(arguments: argparse.Namespace, *words: str) -> str:
    """Return the command that makes a measurement, as a reader would give it."""
    given = [*words]
    if arguments.tasks is not None and words[0] == "unseen":
        given += ["--tasks", str(arguments.tasks)]
    return " ".join(["python benchmarks/results.py", *given, "--out DIR"])


async def measure(measurement: Measurement, arguments: argparse.Namespace, *, tasks: Any, **options: Any) -> None:
    """Run what is left of a measurement, appending each run."""
    also = options.get("also") or {}
    count = tasks if isinstance(tasks, int) else len(tasks)
    first = measurement.done(2 + len(also))
    began = time.monotonic()
    ended = 0

    def keep(records: list[RunRecord]) -> None:
        nonlocal ended
        measurement.add(records)
        ended += len(records)
        if not sys.stderr.isatty():
            return
        minutes = (time.monotonic() - began) / 60
        print(
            f"\r{measurement.name}: {ended} of {(count - first) * (2 + len(also))} runs, {minutes:.1f} min",
            end="",
            file=sys.stderr,
            flush=True,
        )

    measurement.save()
    if first < count:
        await bench_speculate(
            tasks=count - first if isinstance(tasks, int) else tasks[first:],
            first=first,
            model=arguments.model,
            device=arguments.device,
            on_records=keep,
            **options,
        )
        print(f"\n{measurement.name}: done in {(time.monotonic() - began) / 60:.1f} min", file=sys.stderr)


def unseen(arguments: argparse.Namespace) -> None:
    settings = {
        **environment(arguments),
        "tasks": arguments.tasks or 300,
        "seed": SEED,
        "latency_ms": 0.0,
        "command": command(arguments, "unseen"),
    }
    measurement = Measurement(arguments.out, "unseen", settings)
    tasks = settings["tasks"]
    anyio.run(
        lambda: measure(
            measurement, arguments, tasks=tasks, seed=SEED, tool_latency_ms=0.0, speculation=BESIDE, also=ALSO
        )
    )


def handwritten(arguments: argparse.Namespace) -> None:
    tasks = handwritten_tasks()
    settings = {
        **environment(arguments),
        "tasks": len(tasks),
        "latency_ms": 0.0,
        "command": command(arguments, "handwritten"),
    }
    measurement = Measurement(arguments.out, "handwritten", settings)
    anyio.run(lambda: measure(measurement, arguments, tasks=tasks, tool_latency_ms=0.0, speculation=BESIDE, also=ALSO))


def dispatcher(arguments: argparse.Namespace) -> None:
    _script(arguments, "dispatcher", ["bench_dispatcher.py", "--json"])


def decode(arguments: argparse.Namespace) -> None:
    model = str(arguments.model or POCKET)
    shown = "agent_runtime/demo/pocket" if arguments.model is None else model
    _script(arguments, "decode", ["bench_decode.py", "--model", model, "--json"], shown={model: shown})


def _script(arguments: argparse.Namespace, name: str, words: list[str], *, shown: dict[str, str] | None = None) -> None:
    """Run another benchmark and keep what it prints."""
    done = subprocess.run(
        [sys.executable, str(HERE / words[0]), *words[1:]], check=True, capture_output=True, text=True
    )
    text = "python benchmarks/" + " ".join((shown or {}).get(word, word) for word in words)
    arguments.out.mkdir(parents=True, exist_ok=True)
    kept = {**environment(arguments), "command": text, "figures": json.loads(done.stdout)}
    (arguments.out / f"{name}.json").write_text(json.dumps(kept, indent=1))


def render(arguments: argparse.Namespace) -> None:
    from results_page import page

    # What follows the mark was measured by other commands, named there.
    old = arguments.page.read_text() if arguments.page.exists() else ""
    rest = old[old.index(MARK) :] if MARK in old else ""
    arguments.page.write_text(page(arguments.out, ended=_whole_runs) + rest)
    print(f"wrote {arguments.page}", file=sys.stderr)


def _whole_runs(path: Path) -> list[RunRecord]:
    return [RunRecord.from_json(run) for _, run in _lines(path)] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["unseen", "handwritten", "dispatcher", "decode", "render", "all"]
    parser.add_argument("what", choices=names)
    parser.add_argument("--out", type=Path, required=True, help="folder of the measurements")
    parser.add_argument("--tasks", type=int, help="generated tasks instead of 300; the page says so")
    parser.add_argument("--model", help="folder of another model than the package's own")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--page", type=Path, default=HERE.parent / "docs" / "results.md")
    arguments = parser.parse_args()
    steps = names[:-1] if arguments.what == "all" else [arguments.what]
    for step in steps:
        globals()[step](arguments)


if __name__ == "__main__":
    main()
