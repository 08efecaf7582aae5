"""How fast recordings are played in virtual time: turns of the real loop per second of processor time.

python benchmarks/bench_replay.py [--turns 1000] [FILE --effects TOML]
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from pathlib import Path

from agent_runtime.speculator.predictors import Guess
from agent_runtime.tools import Catalogue, load_catalogue
from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.formats import read
from agent_runtime.traces.messages import AssistantMessage, UserMessage
from agent_runtime.traces.trajectory import RecordedResult, RecordedTurn, Trajectory

from agent_runtime.replay import Answer, Timing, sweep
from agent_runtime.replay.toolset import toolsets
from agent_runtime.replay.whatif import what_if

TURNS_EACH = 10
HIT_SHARE = 0.5


def generated(turns: int) -> Iterator[Trajectory]:
    """Yield trajectories of reads, a write now and then, and an answer at the end."""
    for number in range(-(-turns // TURNS_EACH)):
        made = []
        for turn in range(TURNS_EACH):
            name = "buy" if turn == 5 else "find"
            calls = () if turn == TURNS_EACH - 1 else (ToolCall(name, {"query": f"thing {number} {turn}"}),)
            made.append(
                RecordedTurn(
                    before=(UserMessage(f"Task {number}."),) if turn == 0 else (),
                    message=AssistantMessage(text="" if calls else "Done.", thinking="so", calls=calls),
                    results=tuple(RecordedResult(content="yes", latency_s=0.4) for _ in calls),
                    generation_s=1.0,
                )
            )
        yield Trajectory(id=str(number), format="generated", turns=tuple(made))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path, nargs="?", help="recordings; generated ones by default")
    parser.add_argument("--effects", type=Path)
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    catalogue = Catalogue({"find": {"effect": "read"}})
    if options.effects is not None:
        catalogue = load_catalogue(options.effects)
    trajectories: list[Trajectory] = []
    turns = 0
    for trajectory in read(options.file) if options.file is not None else generated(options.turns):
        trajectories.append(trajectory)
        turns += len(trajectory.turns)
        if turns >= options.turns:
            break
    chance = random.Random(0)
    answers = [
        {
            number: (Answer(guess=Guess(call=call, confidence=0.9)),)
            for number, turn in enumerate(trajectory.turns)
            for call in turn.message.calls[:1]
            if isinstance(call, ToolCall) and chance.random() < HIT_SHARE
        }
        for trajectory in trajectories
    ]
    settings = sweep(
        ["known"],
        [Timing(tool_latency_ms=500)],
        min_confidence=[0.5],
        in_flight=[4],
        wasted_calls=[32],
        positions={},
        probe_ms={},
        slowdown={},
    )
    tools = toolsets(trajectories, catalogue=catalogue)
    for _ in range(options.repeats):
        wall, processor = time.perf_counter(), time.process_time()
        (outcome,) = what_if(trajectories, tools, {"known": answers}, settings)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        took = f"{wall:.2f} s of wall clock, {processor:.2f} s of processor"
        print(f"{turns} turns without guesses and {turns} with: {took}; speed-up in virtual time {outcome.speedup:.3f}")


if __name__ == "__main__":
    main()
