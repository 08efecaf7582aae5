"""How fast runs are recorded, and what a killed process leaves behind: SQLite, and PostgreSQL where a server is named.

    python scripts/with_postgres.py python benchmarks/bench_store.py [--events N] [--processes P] [--kills K] [--json]

`one`: one process writes runs of 10,000 events, one after the other. `many`: several processes share the same number
of events. `killed`: a process writes and says after every commit how many events are safe; it is killed (SIGKILL) at
some moment, and the database must hold all of those, without a gap. The events are those of turns as the built-in agent
makes them, about 300 bytes of JSON each. Every event goes through `RunWriter`: ledger, redaction and projections
included; so is the start of the processes. Without AGENT_RUNTIME_POSTGRES only SQLite is measured. Commits are durable
on both (fsync), on whatever disk TMPDIR is.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import sqlalchemy as sa
from agent_runtime.tools.values import (
    CallDemanded,
    CallFinished,
    GuessEnded,
    GuessProposed,
    GuessStarted,
    Outcome,
    ToolCall,
)
from agent_runtime.traces import TraceStore, schema
from agent_runtime.traces.events import (
    Event,
    GenerationFinished,
    Prefilled,
    ProbeFinished,
    ProbeStarted,
    RunFinished,
    RunStarted,
    TurnFinished,
    TurnStarted,
)

STARTED = RunStarted(at=0.0, agent="bench", model="none", task="Where is my newest order?")
PER_RUN = 10_000
PER_TURN = 11
ACKNOWLEDGED_EVERY = 500
THINKING = (
    "The customer asks where the newest order is. The address is known, so the customer's number comes first, then the "
    "list of orders, sorted by date; the first of them is the one that is meant, and its carrier tells the rest. "
)
RESULT = json.dumps(
    {
        "status": "shipped",
        "items": [{"sku": "K-1182", "name": "Kettle, 1.7 l", "quantity": 1, "price": "39.90"}],
        "carrier": "Nordpost",
        "tracking": "NP118820773",
        "eta": "2026-03-14",
    }
)


def turn(number: int) -> Iterator[Event]:
    """Return the events of one turn whose call was guessed and adopted."""
    at = number * 0.3
    call = ToolCall("get_order", {"order_id": f"O-{number % 9000:04d}", "fields": ["status", "items"]})
    outcome = Outcome("ok", RESULT, at + 0.05, at + 0.15)
    yield TurnStarted(turn=number, at=at)
    yield Prefilled(turn=number, at=at, prompt_tokens=900, reused_tokens=850, prefilled_tokens=50)
    yield ProbeStarted(turn=number, at=at, probe=0, position=0, placement="beside")
    yield ProbeFinished(turn=number, at=at + 0.05, probe=0, completed=True, call=call, confidence=0.9, tokens=21)
    yield GuessProposed(turn=number, at=at + 0.05, guess=number, call=call, confidence=0.9, source="self")
    yield GuessStarted(turn=number, at=at + 0.05, guess=number, tool=call.name)
    yield CallDemanded(turn=number, at=at + 0.2, index=0, call=call, pre_executable=True)
    yield GuessEnded(turn=number, at=at + 0.2, guess=number, ending="adopted", tool=call.name, matched=True)
    yield CallFinished(turn=number, at=at + 0.2, index=0, tool=call.name, outcome=outcome, guess=number)
    yield GenerationFinished(
        turn=number,
        at=at + 0.25,
        thinking=THINKING,
        text="",
        calls=(call,),
        finish_reason="calls",
        prompt_tokens=900,
        completion_tokens=90,
        thinking_tokens=60,
        forwards=80,
        generation_ms=240.0,
        slowdown_ms=5.0,
    )
    yield TurnFinished(turn=number, at=at + 0.25)


async def write_runs(where: str, count: int) -> None:
    """Write `count` events as runs that follow one another."""
    with TraceStore.open(where) as store:
        left = count
        while left:
            size = min(left, PER_RUN)
            async with store.start_run(STARTED) as writer:
                events = (event for number in range(size // PER_TURN + 1) for event in turn(number))
                for _ in range(size - 2):
                    writer.append(next(events))
                    await writer.drain_if_full()
                writer.append(STARTED)
                writer.append(RunFinished(at=1.0, status="done", output="It ships today."))
            left -= size


async def write_until_killed(where: str) -> None:
    """Write one run without end; say what is committed."""
    with TraceStore.open(where) as store:
        async with store.start_run(STARTED) as writer:
            print(writer.run_id, flush=True)
            appended = 0
            for number in range(sys.maxsize):
                for event in turn(number):
                    writer.append(event)
                    appended += 1
                    await writer.drain_if_full()
                    if appended % ACKNOWLEDGED_EVERY == 0:
                        await writer.durable()
                        print(appended, flush=True)


def child(*words: object) -> subprocess.Popen[str]:
    """Start this program as a writer."""
    return subprocess.Popen(
        [sys.executable, __file__, "--child", *map(str, words)], stdout=subprocess.PIPE, text=True, bufsize=1
    )


def measure_writing(where: str, events: int, processes: int) -> dict[str, Any]:
    """Time `processes` writers that share `events` events; check that each event is there."""
    before = counted(where)
    began = time.perf_counter()
    share = events // processes
    writers = [child("write", where, share) for _ in range(processes)]
    for writer in writers:
        if writer.wait():
            raise SystemExit("a writer failed")
    seconds = time.perf_counter() - began
    found = counted(where) - before
    return {
        "events": share * processes,
        "found": found,
        "lost": share * processes - found,
        "seconds": round(seconds, 2),
        "events_per_s": round(share * processes / seconds),
    }


def measure_killing(where: str, kills: int) -> dict[str, Any]:
    """Kill a writer at random moments; count what was acknowledged, and what of that the database lacks."""
    moments = random.Random(2026)
    acknowledged = found = lost = gaps = 0
    for _ in range(kills):
        writer = child("forever", where)
        assert writer.stdout is not None
        run_id = writer.stdout.readline().strip()
        for _ in range(moments.randrange(1, 12)):
            last = int(writer.stdout.readline())
        time.sleep(moments.uniform(0.0, 0.05))  # anywhere between two acknowledgements
        writer.send_signal(signal.SIGKILL)
        last = max([last, *(int(line) for line in writer.stdout.read().split())])
        writer.wait()
        with TraceStore.open(where) as store, store._database.read() as connection:
            numbers = connection.scalars(
                sa.select(schema.events.c.seq).where(schema.events.c.run_id == run_id).order_by(schema.events.c.seq)
            ).all()
        acknowledged += last
        found += len(numbers)
        lost += max(0, last - len(numbers))
        gaps += list(numbers) != list(range(len(numbers)))
    return {"kills": kills, "acknowledged": acknowledged, "found": found, "lost": lost, "runs_with_gaps": gaps}


def counted(where: str) -> int:
    """Return how many events a database holds."""
    with TraceStore.open(where) as store:
        return store.statistics().events


def measure(where: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Take every measurement on one database."""
    with TraceStore.open(where) as store:
        name = "postgresql" if "postgresql" in store.name else "sqlite"
    figures: dict[str, Any] = {"database": name, "processes": arguments.processes}
    for title, processes in (("one", 1), ("many", arguments.processes)):
        figures[title] = measure_writing(where, arguments.events, processes)
        print(f"{name} {title}: {figures[title]}", file=sys.stderr, flush=True)
    figures["killed"] = measure_killing(where, arguments.kills)
    print(f"{name} killed: {figures['killed']}", file=sys.stderr, flush=True)
    with TraceStore.open(where) as store:
        size, held = store.statistics().bytes, store.statistics().events
    figures["bytes_per_event"] = None if size is None else round(size / held)
    return figures


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    match arguments.child:
        case ["write", where, count]:
            return anyio.run(write_runs, where, int(count))
        case ["forever", where]:
            return anyio.run(write_until_killed, where)
    with tempfile.TemporaryDirectory() as folder:
        databases = [str(Path(folder) / "traces.db")]
        if os.environ.get("AGENT_RUNTIME_POSTGRES"):
            databases.append(os.environ["AGENT_RUNTIME_POSTGRES"])
        figures = [measure(where, arguments) for where in databases]
    if arguments.json:
        print(json.dumps(figures, indent=2))
        return None
    print("| database | one process, events/s | several, events/s | lost | kills | acknowledged | found | lost |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for row in figures:
        killed, lost = row["killed"], row["one"]["lost"] + row["many"]["lost"]
        print(
            f"| {row['database']} | {row['one']['events_per_s']:,} | {row['many']['events_per_s']:,} | {lost} "
            f"| {killed['kills']} | {killed['acknowledged']:,} | {killed['found']:,} | {killed['lost']} |"
        )
    return None


if __name__ == "__main__":
    main()
