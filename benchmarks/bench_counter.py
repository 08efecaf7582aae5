"""Hit@1 of the counter predictor on recordings, fit leaving one task out, with its reliability and time per guess.

    python benchmarks/bench_counter.py FILE --effects TOML        # any format that `agent replay` reads
    python benchmarks/bench_counter.py --shop 200                 # tasks of the demo's generator, played by its oracle

Within a trajectory the predictor also learns from the turns that have passed, unless --offline; it forgets them at its
end. `agent replay` gives the same figures through the whole runtime; this takes the predictor alone. It is asked at
every turn, also where none of the recorded calls follows, since nobody can know that at the turn's start.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_runtime.speculator.counter import CounterPredictor
from agent_runtime.speculator.counter_calibration import ReliabilityTable
from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.formats import read
from agent_runtime.traces.messages import AssistantMessage, UserMessage
from agent_runtime.traces.proportion import Proportion
from agent_runtime.traces.trajectory import RecordedResult, RecordedTurn, Trajectory

from agent_runtime.demo.shop.client import EFFECTS
from agent_runtime.demo.shop.generate import generate

WITHOUT_FACTS = ("think", "calculate")
"""Tools whose argument is a text that the model makes up: reported apart, since no count foresees it."""
THRESHOLDS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


@dataclass(frozen=True)
class Turn:
    """What was guessed at a turn's start, and what followed."""

    task: str
    call: ToolCall | None
    """None where no call followed: no boundary."""
    guess: ToolCall | None
    confidence: float
    chance_of_call: float
    milliseconds: float
    """Of wall-clock time, for the guess with all that is new in the messages."""

    @property
    def right_tool(self) -> bool:
        return self.guess is not None and self.call is not None and self.guess.name == self.call.name

    @property
    def right(self) -> bool:
        return self.guess is not None and self.call is not None and self.guess.canonical() == self.call.canonical()

    @property
    def given_a_call(self) -> float:
        """The guess's chance, once it is known that the turn makes a call."""
        return min(1.0, self.confidence / self.chance_of_call) if self.chance_of_call else 0.0


def guessed(trajectories: Sequence[Trajectory], *, folds: int | None, online: bool) -> Iterator[Turn]:
    """Yield every turn, its task left out of the fit (with `folds`, together with other tasks)."""
    tasks = list(dict.fromkeys(task_of(trajectory) for trajectory in trajectories))
    count = min(folds or len(tasks), len(tasks))
    for fold in range(count):
        left_out = set(tasks[fold::count])
        fitted = CounterPredictor(threshold=0.0)
        for trajectory in trajectories:
            if task_of(trajectory) not in left_out:
                fitted.learn(trajectory)
        for trajectory in trajectories:
            if task_of(trajectory) in left_out:
                yield from led_through(copy.deepcopy(fitted) if online else fitted, trajectory, online=online)


def led_through(predictor: CounterPredictor, trajectory: Trajectory, *, online: bool) -> Iterator[Turn]:
    for number, turn in enumerate(trajectory.turns):
        messages = trajectory.messages_before(number)
        began = time.perf_counter()
        guess = predictor.guess(messages)
        milliseconds = (time.perf_counter() - began) * 1000
        call = turn.message.calls[0] if turn.message.calls else None
        yield Turn(
            task_of(trajectory),
            call if isinstance(call, ToolCall) else None,
            guess.call,
            guess.confidence,
            predictor.chance_of_call(messages),
            milliseconds,
        )
        if online:
            predictor.observe(messages, turn.message)


def task_of(trajectory: Trajectory) -> str:
    return trajectory.group or trajectory.id


def shop(count: int, seed: int) -> Iterator[Trajectory]:
    """Yield generated tasks with the calls of the oracle."""
    for task in generate(seed, "test", count):
        turns: list[RecordedTurn] = []
        before: list[UserMessage] = []
        results: list[RecordedResult] = []
        message: AssistantMessage | None = None
        for said in [*task["messages"], {"role": "end"}]:
            if said["role"] == "tool":
                results.append(RecordedResult(content=said["content"]))
                continue
            if message is not None:
                turns.append(RecordedTurn(before=tuple(before), message=message, results=tuple(results)))
                before, results, message = [], [], None
            if said["role"] == "user":
                before.append(UserMessage(said["content"]))
            elif said["role"] == "assistant":
                calls = [called["function"] for called in said.get("tool_calls") or ()]
                message = AssistantMessage(
                    text=said["content"], calls=tuple(ToolCall(call["name"], call["arguments"]) for call in calls)
                )
        yield Trajectory(id=task["task_id"], format="shop", turns=tuple(turns))


def proportion(turns: Sequence[Turn], right: Callable[[Turn], bool]) -> Proportion:
    return Proportion(sum(map(right, turns)), len(turns))


def figures(turns: Sequence[Turn], effects: dict[str, Any]) -> dict[str, Any]:
    """Return the figures as plain JSON."""
    boundaries = [turn for turn in turns if turn.call is not None]
    reads = [turn for turn in boundaries if effects.get(turn.call.name) == "read"]
    facts = [turn for turn in reads if turn.call.name not in WITHOUT_FACTS]
    by_tool: dict[str, list[Turn]] = defaultdict(list)
    by_task: dict[str, list[Turn]] = defaultdict(list)
    for turn in boundaries:
        by_tool[turn.call.name].append(turn)
        by_task[turn.task].append(turn)
    over_turns, over_boundaries = ReliabilityTable(), ReliabilityTable()
    for turn in turns:
        over_turns.add(turn.confidence, turn.right)
        if turn.call is not None:
            over_boundaries.add(turn.given_a_call, turn.right)
    took = sorted(turn.milliseconds for turn in turns)
    spread = sorted(statistics.mean(turn.right for turn in of_task) for of_task in by_task.values())
    return {
        "turns": len(turns),
        "exact": proportion(boundaries, lambda turn: turn.right).to_json(),
        "name": proportion(boundaries, lambda turn: turn.right_tool).to_json(),
        "exact_over_reads": proportion(reads, lambda turn: turn.right).to_json(),
        "exact_over_reads_of_facts": proportion(facts, lambda turn: turn.right).to_json(),
        "by_tool": {
            name: proportion(found, lambda turn: turn.right).to_json() for name, found in sorted(by_tool.items())
        },
        "exact_by_task": {
            "tasks": len(spread),
            "lowest": spread[0],
            "quartiles": statistics.quantiles(spread, n=4) if len(spread) > 1 else spread * 3,
            "highest": spread[-1],
        },
        "curve": [at_threshold(turns, boundaries, threshold) for threshold in THRESHOLDS],
        "reliability": {
            "turns": over_turns.reliability().to_json(),
            "boundaries": over_boundaries.reliability().to_json(),
        },
        "guess_ms": {"median": statistics.median(took), "p99": took[int(0.99 * len(took))]},
    }


def at_threshold(turns: Sequence[Turn], boundaries: Sequence[Turn], threshold: float) -> dict[str, float | None]:
    started = [turn for turn in turns if turn.confidence >= threshold and turn.guess is not None]
    covered = [turn for turn in started if turn.call is not None]
    hits = sum(turn.right for turn in covered)
    return {
        "threshold": threshold,
        "coverage": len(covered) / len(boundaries),
        "hit_at_1": hits / len(boundaries),
        "precision_at_boundaries": hits / len(covered) if covered else None,
        "precision_over_turns": hits / len(started) if started else None,
    }


def show(found: dict[str, Any]) -> None:
    for name, label in (
        ("exact", "all boundaries, exact"),
        ("name", "all boundaries, by name"),
        ("exact_over_reads", "reads, exact"),
        ("exact_over_reads_of_facts", f"reads but {' and '.join(WITHOUT_FACTS)}, exact"),
    ):
        print(f"{label:40} {_share(found[name])}")
    for name, share in found["by_tool"].items():
        print(f"  {name:38} {_share(share)}")
    tasks = found["exact_by_task"]
    low, middle, high = tasks["quartiles"]
    print(
        f"exact by left-out task, {tasks['tasks']} of them: lowest {tasks['lowest']:.2f}, quartiles {low:.2f}, "
        f"{middle:.2f} and {high:.2f}, highest {tasks['highest']:.2f}"
    )
    print("threshold  coverage  Hit@1  precision at boundaries, over all turns")
    for row in found["curve"]:
        print(
            f"{row['threshold']:9.1f} {row['coverage']:9.3f} {row['hit_at_1']:6.3f} "
            f"{row['precision_at_boundaries'] or 0:10.3f} {row['precision_over_turns'] or 0:18.3f}"
        )
    for over, table in found["reliability"].items():
        print(f"reliability over all {over}: expected calibration error {table['ece']:.3f}")
        for row in table["bins"]:
            if row["guesses"]:
                print(f"  said {row['mean_confidence']:.2f}: right {row['hit_rate']:.2f} of {row['guesses']}")
    print(f"a guess takes {found['guess_ms']['median']:.2f} ms (median), {found['guess_ms']['p99']:.2f} ms (99 %)")


def _share(share: dict[str, Any]) -> str:
    if not share["of"]:
        return "none"
    return f"{share['share']:.3f} ({share['low']:.3f} to {share['high']:.3f}) of {share['of']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--effects", type=Path, help="operator catalogue: which tools are reads")
    parser.add_argument("--shop", type=int, metavar="N", help="N generated tasks of the demo instead of a file")
    parser.add_argument("--seed", type=int, default=1, help="of --shop")
    parser.add_argument("--folds", type=int, help="leave out this many parts of the tasks, not one task after another")
    parser.add_argument("--offline", action="store_true", help="don't learn within the trajectory that is guessed")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if (options.file is None) == (options.shop is None):
        parser.error("give a FILE, or --shop N")
    if options.shop is not None:
        trajectories = list(shop(options.shop, options.seed))
        effects: dict[str, Any] = {name: contract["effect"] for name, contract in EFFECTS.items()}
    else:
        trajectories = list(read(options.file))
        catalogue = tomllib.loads(options.effects.read_text())["tools"] if options.effects else {}
        effects = {name: tool.get("effect") for name, tool in catalogue.items()}
    turns = list(guessed(trajectories, folds=options.folds, online=not options.offline))
    found = figures(turns, effects)
    print(json.dumps(found)) if options.json else show(found)


if __name__ == "__main__":
    main()
