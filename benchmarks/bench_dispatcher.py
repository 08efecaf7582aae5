"""What one guess costs beside its tool: propose, demand and adopt an instant tool, minus the same call without a guess.

    python benchmarks/bench_dispatcher.py [--rounds N] [--backend asyncio|trio] [--json]

Both kinds of turn alternate in one process; the figures are medians of wall-clock times in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import anyio
from agent_runtime.tools import Dispatcher, Prediction, SharedLimits, ToolCall, tool
from anyio.lowlevel import checkpoint


@tool(effect="read", reads=["items"])
async def find(name: str, limit: int = 10) -> str:
    """Find an item."""
    return name


async def measure(rounds: int) -> dict[str, float]:
    """Time `rounds` turns with a guess that hits and as many without; return medians in milliseconds."""
    plain: list[float] = []
    guessed: list[float] = []
    call = ToolCall("find", {"name": "lamp"})
    events: list[object] = []
    async with Dispatcher([find], emit=events.append, shared=SharedLimits()) as dispatcher:
        for number in range(2 * rounds):
            with_guess = number % 2 == 1
            began = time.perf_counter()
            turn = dispatcher.open_turn(number)
            if with_guess:
                turn.propose(Prediction(call, 0.9, "scripted"))
                await checkpoint()  # the guess runs while the agent would decode
            turn.demand(call)
            await turn.commit()
            (guessed if with_guess else plain).append((time.perf_counter() - began) * 1000)
            events.clear()
        endings = dispatcher.statistics().endings
    without, with_a_guess = statistics.median(plain), statistics.median(guessed)
    return {
        "rounds": rounds,
        "adopted": endings.get("adopted", 0),
        "joined": endings.get("joined", 0),
        "call_ms": round(without, 4),
        "guess_and_call_ms": round(with_a_guess, 4),
        "per_guess_ms": round(with_a_guess - without, 4),
    }


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--backend", default="asyncio", choices=["asyncio", "trio"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = anyio.run(measure, options.rounds, backend=options.backend)
    if options.json:
        print(json.dumps(figures))
        return
    print(f"a call without a guess   {figures['call_ms']:8.3f} ms")
    print(f"the same, guessed first  {figures['guess_and_call_ms']:8.3f} ms")
    print(f"cost per guess           {figures['per_guess_ms']:8.3f} ms   (target: at most 0.5 ms)")


if __name__ == "__main__":
    main()
