"""Hit@1 of the counter predictor on recordings, fit leaving one task out, with its reliability and time per guess.

    python benchmarks/bench_counter.py FILE --effects TOML        # any format that `agent replay` reads

`agent replay` gives the same figures through the whole runtime; this takes the predictor alone.
"""

from __future__ import annotations

import argparse
import statistics
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_runtime.speculator.counter import CounterPredictor
from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.formats import read
from agent_runtime.traces.proportion import Proportion

WITHOUT_FACTS = ("think", "calculate")
"""Tools whose argument is a text that the model makes up: reported apart, since no count foresees it."""


@dataclass(frozen=True)
class Boundary:
    """A recorded call, and what was guessed before it."""

    call: ToolCall
    guess: ToolCall | None
    confidence: float

    @property
    def right_tool(self) -> bool:
        return self.guess is not None and self.guess.name == self.call.name

    @property
    def right(self) -> bool:
        return self.guess is not None and self.guess.canonical() == self.call.canonical()


def guesses(path: Path) -> tuple[list[Boundary], list[float]]:
    """Return every boundary, and the milliseconds of every guess, each task left out of its own fit."""
    trajectories = list(read(path))
    boundaries: list[Boundary] = []
    took: list[float] = []
    for group in sorted({trajectory.group or trajectory.id for trajectory in trajectories}):
        predictor = CounterPredictor(threshold=0.0)
        own = [trajectory for trajectory in trajectories if (trajectory.group or trajectory.id) == group]
        for trajectory in trajectories:
            if trajectory not in own:
                predictor.learn(trajectory)
        for trajectory in own:
            for number, turn in enumerate(trajectory.turns):
                messages = trajectory.messages_before(number)
                began = time.perf_counter()
                guess = predictor.guess(messages)
                took.append((time.perf_counter() - began) * 1000)
                if turn.message.calls and isinstance(call := turn.message.calls[0], ToolCall):
                    boundaries.append(Boundary(call, guess.call, guess.confidence))
    return boundaries, took


def share(boundaries: Sequence[Boundary], right: Callable[[Boundary], bool]) -> str:
    proportion = Proportion(sum(map(right, boundaries)), len(boundaries))
    low, high = proportion.interval or (0.0, 0.0)
    return f"{proportion.share or 0:.3f} ({low:.3f} to {high:.3f}) of {len(boundaries)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--effects", type=Path, help="operator catalogue: which tools are reads")
    options = parser.parse_args()
    effects = tomllib.loads(options.effects.read_text())["tools"] if options.effects else {}
    boundaries, took = guesses(options.file)
    reads = [found for found in boundaries if effects.get(found.call.name, {}).get("effect") == "read"]
    print("all, exact   ", share(boundaries, lambda found: found.right))
    print("all, by name ", share(boundaries, lambda found: found.right_tool))
    print("reads, exact ", share(reads, lambda found: found.right))
    facts = [found for found in reads if found.call.name not in WITHOUT_FACTS]
    print(f"reads but {' and '.join(WITHOUT_FACTS)}, exact", share(facts, lambda found: found.right))
    by_tool: dict[str, list[Boundary]] = defaultdict(list)
    for found in boundaries:
        by_tool[found.call.name].append(found)
    for name, of_tool in sorted(by_tool.items()):
        print(f"  {name:32} {share(of_tool, lambda found: found.right)}")
    error = 0.0
    for low in range(10):
        bin_ = [found for found in boundaries if min(9, int(found.confidence * 10)) == low]
        if bin_:
            said = statistics.mean(found.confidence for found in bin_)
            was = statistics.mean(found.right for found in bin_)
            error += abs(said - was) * len(bin_) / len(boundaries)
            print(f"  confidence {said:.2f}: right {was:.2f} of {len(bin_)}")
    print(f"expected calibration error {error:.3f}; a guess takes {statistics.median(took):.2f} ms (median)")


if __name__ == "__main__":
    main()
