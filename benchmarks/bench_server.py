"""The shop's agent on a server beside the local engine: transcripts, Hit@1, cache reuse, wall-clock, many at once.

python benchmarks/bench_server.py compare --server openai:pocket@http://127.0.0.1:8000/v1 --tasks 30 --tool-latency 300
python benchmarks/bench_server.py many --server ... --tasks 64 --concurrency 1 4 16 32    # --server local: in process
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import anyio
from agent_runtime.speculator.settings import Speculation

from agent_runtime.bench.records import SERIAL, SPECULATIVE, RunRecord
from agent_runtime.bench.speculate import bench_speculate
from agent_runtime.demo.agent import POCKET
from agent_runtime.engines.local import LocalEngine
from agent_runtime.engines.server import ServerCounters, ServerEngine

LOCAL = "local"


async def compare(server: str, tasks: int, seed: int, latency: float, placement: str) -> dict[str, Any]:
    """Run the same tasks on the server and on the local engine; each with and without guessing, interleaved."""
    speculation = Speculation(placement=placement)  # type: ignore[arg-type]
    found: dict[str, Any] = {"tasks": tasks, "seed": seed, "tool_latency_ms": latency, "placement": placement}
    transcripts: dict[str, dict[str, str]] = {}
    engine = ServerEngine.from_address(server)
    for name, model in (("local", None), ("server", engine)):
        records: list[RunRecord] = []
        before = await engine.counters() if model is not None else None
        began = time.perf_counter()
        report = await bench_speculate(
            "shop",
            tasks=tasks,
            seed=seed,
            tool_latency_ms=latency,
            model=model,
            speculation=speculation,
            on_records=records.extend,
        )
        found[name] = report.to_json() | {"seconds": time.perf_counter() - began, **_guesses(records)}
        transcripts[name] = {record.task_id: record.transcript for record in records if record.mode == SPECULATIVE}
        if model is not None:
            found[name] |= await _of_server(engine, before)
    same = sum(transcripts["server"][task] == text for task, text in transcripts["local"].items())
    found["transcripts_same_as_local"] = f"{same} of {len(transcripts['local'])}"
    await engine.aclose()
    return found


async def many(server: str, tasks: int, seed: int, latency: float, levels: Sequence[int]) -> list[dict[str, Any]]:
    """Run tasks at several concurrencies; with and without guessing alternate, group by group."""
    rows: list[dict[str, Any]] = []
    for level in levels:
        engine = LocalEngine(POCKET) if server == LOCAL else ServerEngine.from_address(server)
        await (await engine.open([])).aclose()  # loading is no part of a run
        clock = _Clock()
        await bench_speculate(
            "shop",
            tasks=tasks,
            seed=seed,
            tool_latency_ms=latency,
            model=engine,
            concurrency=level,
            on_records=clock.measured,
        )
        records, seconds = clock.records, clock.seconds
        row: dict[str, Any] = {"concurrency": level, "tasks": tasks}
        for mode in (SERIAL, SPECULATIVE):
            ran = [record for record in records if record.mode == mode]
            row[mode] = {
                "finished": sum(record.status == "done" for record in ran),
                "failed": sum(record.status != "done" for record in ran),
                "solved": sum(bool(record.success) for record in ran),
                "runs_per_s": len(ran) / seconds[mode] if seconds[mode] else None,
                "median_wall_ms": statistics.median(record.wall_ms for record in ran),
            }
        row |= _guesses([record for record in records if record.mode == SPECULATIVE])
        if isinstance(engine, ServerEngine):
            found = engine.statistics()
            row |= {"probes": found.probes, "probes_declined": found.probes_declined}
            row["loads"] = [asdict(load) for endpoint in found.endpoints for load in endpoint.loads]
        turns = [turn for record in records if record.mode == SPECULATIVE for turn in record.ledger.turns]
        third = max(1, len(turns) // 3)
        row["probed_by_third"] = [
            sum(turn.placement is not None for turn in part) / len(part)
            for part in (turns[:third], turns[third : 2 * third], turns[2 * third :])
            if part
        ]
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
        await engine.aclose()
    return rows


class _Clock:
    """Seconds between groups of runs, by the mode of the group that ended."""

    def __init__(self) -> None:
        self.records: list[RunRecord] = []
        self.seconds = {SERIAL: 0.0, SPECULATIVE: 0.0}
        self._last = time.perf_counter()

    def measured(self, group: list[RunRecord]) -> None:
        """Take the records of a group that has just ended."""
        now = time.perf_counter()
        self.seconds[group[0].mode] += now - self._last
        self._last = now
        self.records += group


def _guesses(records: Sequence[RunRecord]) -> dict[str, Any]:
    turns = [turn for record in records if record.mode == SPECULATIVE for turn in record.ledger.turns]
    boundaries = [turn for turn in turns if turn.boundary is not None]
    served = sum(
        summary["adopted"] + summary["joined"]
        for summary in (record.ledger.summary() for record in records if record.mode == SPECULATIVE)
    )
    walls = {mode: [record.wall_ms for record in records if record.mode == mode] for mode in (SERIAL, SPECULATIVE)}
    return {
        "boundaries": len(boundaries),
        "served_early": served,
        "median_wall_ms": {mode: statistics.median(wall) for mode, wall in walls.items() if wall},
    }


async def _of_server(engine: ServerEngine, before: ServerCounters | None) -> dict[str, Any]:
    """Return what the engine and the server themselves counted."""
    counters = await engine.counters()
    found: dict[str, Any] = {"statistics": asdict(engine.statistics())}
    if counters is not None:
        found["server_counters_before"] = asdict(before or ServerCounters())
        found["server_counters_after"] = asdict(counters)
    return found


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("compare", "many"))
    parser.add_argument("--server", required=True, metavar="openai:NAME@URL", help="or, for `many`, local")
    parser.add_argument("--tasks", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tool-latency", type=float, default=300.0, metavar="MS")
    parser.add_argument("--placement", default="auto", choices=("auto", "beside", "before"))
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    given = parser.parse_args()
    if given.what == "compare":

        async def run() -> Any:
            return await compare(given.server, given.tasks, given.seed, given.tool_latency, given.placement)
    else:

        async def run() -> Any:
            return await many(given.server, given.tasks, given.seed, given.tool_latency, given.concurrency)

    print(json.dumps(anyio.run(run), indent=1))


if __name__ == "__main__":
    main()
