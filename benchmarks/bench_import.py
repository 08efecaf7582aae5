"""How fast recordings are read, and how much memory that takes: a generated file of chat JSONL, of any size.

python benchmarks/bench_import.py --mb 1000 [--format chat|tau-bench|tau2] [--into DB] [--json]
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WORDS = "order lamp kettle refund Lisbon Turin invoice delivered \N{EURO SIGN} \N{GREEK SMALL LETTER PI}".split()
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Return the {name} of an order.",
            "parameters": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
        },
    }
    for name in ("status", "items", "address", "invoice")
]


def conversation(number: int, random: random.Random) -> dict[str, Any]:
    """Return a conversation of about 10 KB: a system message, and four calls of tools with results of some size."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Help the customer. " * 20},
        {"role": "user", "content": f"What about {sentence(random, 12)}?"},
    ]
    for turn in range(4):
        id = f"call_{number}_{turn}"
        function = {"name": random.choice(TOOLS)["function"]["name"], "arguments": json.dumps({"id": f"O-{number}"})}
        messages += [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": id, "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": id, "content": result(random), "latency_s": round(random.random(), 6)},
        ]
    messages.append({"role": "assistant", "content": sentence(random, 60)})
    return {"id": f"run-{number}", "task_id": number // 4, "messages": messages, "tools": TOOLS, "reward": 1.0}


def sentence(random: random.Random, words: int) -> str:
    """Return some words."""
    return " ".join(random.choices(WORDS, k=words))


def result(random: random.Random) -> str:
    """Return a tool's result: JSON inside of a JSON string, as most are."""
    rows = [{"item": sentence(random, 3), "price": random.randrange(9999) / 100, "in_stock": True} for _ in range(24)]
    return json.dumps({"rows": rows, "note": sentence(random, 20)}, ensure_ascii=False)


def generate(path: Path, format: str, size: int, seed: int) -> None:
    """Write a file of at least `size` bytes."""
    source = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        opening, between, closing = {
            "chat": ("", "\n", "\n"),
            "tau-bench": ("[", ", ", "]"),
            "tau2": ('{"info": {}, "tasks": [], "simulations": [', ", ", "]}"),
        }[format]
        file.write(opening)
        number = 0
        while file.tell() < size:
            record = conversation(number, source)
            if format != "chat":
                record["traj" if format == "tau-bench" else "messages"] = record.pop("messages")
            file.write((between if number else "") + json.dumps(record, ensure_ascii=False))
            number += 1
        file.write(closing)


def measure(path: Path, into: str | None) -> dict[str, Any]:
    """Read a file in this process, and tell how long it took and how much memory the process had at most."""
    from agent_runtime.traces import TraceStore
    from agent_runtime.traces.formats import import_run, read

    before = peak_mb()
    start, cpu = time.perf_counter(), time.process_time()
    reading = read(path)
    turns = calls = 0
    if into is None:
        for trajectory in reading:
            turns += len(trajectory.turns)
            calls += sum(len(turn.message.calls) for turn in trajectory.turns)
    else:
        with TraceStore.open(into) as store:
            for run in reading.runs():
                import_run(store, run)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    mb = path.stat().st_size / 1e6
    return {
        "format": reading.format,
        "mb": round(mb, 1),
        "trajectories": reading.count,
        "turns": turns,
        "calls": calls,
        "faults": reading.fault_count,
        "seconds": round(seconds, 2),
        "mb_per_s": round(mb / seconds, 1),
        "mb_per_cpu_s": round(mb / cpu_seconds, 1),
        "peak_rss_mb": round(peak_mb(), 1),
        "rss_mb_before": round(before, 1),
    }


def peak_mb() -> float:
    """Return the most memory that this process has had resident so far, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def lines_only(path: Path) -> Iterator[None]:
    """Read the lines with `json.loads` and keep nothing: what there is to be gained."""
    with path.open("rb") as file:
        for line in file:
            json.loads(line)
            yield


def main() -> None:
    """Generate the file, read it in a process of its own, and print what that took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mb", type=int, default=1000, help="size of the file")
    parser.add_argument("--format", default="chat", choices=["chat", "tau-bench", "tau2"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--into", metavar="DB", help="import into this database instead of only reading")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(Path(options.measure), options.into)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recording"
        generate(path, options.format, options.mb * 1_000_000, options.seed)
        floor = None
        if options.format == "chat":
            start = time.process_time()
            for _ in lines_only(path):
                pass
            floor = path.stat().st_size / 1e6 / (time.process_time() - start)
        words = [sys.executable, __file__, "--measure", str(path), *(["--into", options.into] if options.into else [])]
        measured = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    measured["json_loads_mb_per_cpu_s"] = floor and round(floor, 1)
    if options.json:
        print(json.dumps(measured, indent=2))
        return
    print(f"{measured['mb']:,.0f} MB of {measured['format']}: {measured['trajectories']:,} trajectories")
    print(f"{measured['seconds']} s, {measured['mb_per_s']} MB/s")
    print(f"per second of CPU {measured['mb_per_cpu_s']} MB (json.loads alone: {measured['json_loads_mb_per_cpu_s']})")
    print(f"at most {measured['peak_rss_mb']} MB resident, {measured['rss_mb_before']} MB of it before reading")


if __name__ == "__main__":
    main()
