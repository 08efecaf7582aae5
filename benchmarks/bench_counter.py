"""Hit@1 of the counter predictor on recordings, fit leaving one task out, with its reliability and time per guess.

python benchmarks/bench_counter.py tau FILE --effects TOML
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_runtime.speculator.counter import CounterPredictor
from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.messages import AssistantMessage, SystemMessage, UserMessage
from agent_runtime.traces.trajectory import RecordedResult, RecordedTurn, Trajectory


def from_chat(messages: Sequence[dict[str, Any]], *, name: str, group: str) -> Trajectory:
    turns: list[RecordedTurn] = []
    before: list[SystemMessage | UserMessage] = []
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        if message["role"] in ("system", "user"):
            before.append((SystemMessage if message["role"] == "system" else UserMessage)(message["content"] or ""))
        elif message["role"] == "assistant":
            calls = []
            for call in message.get("tool_calls") or ():
                arguments = call["function"]["arguments"]
                calls.append(
                    ToolCall(
                        call["function"]["name"], json.loads(arguments) if isinstance(arguments, str) else arguments
                    )
                )
            results: list[RecordedResult | None] = []
            while at < len(messages) and messages[at]["role"] == "tool":
                results.append(RecordedResult(content=messages[at]["content"] or ""))
                at += 1
            results = (results + [None] * len(calls))[: len(calls)]
            text = message.get("content") or ""
            turns.append(
                RecordedTurn(
                    before=tuple(before), message=AssistantMessage(text, calls=tuple(calls)), results=tuple(results)
                )
            )
            before = []
    return Trajectory(id=name, format="chat", group=group, turns=tuple(turns))


def tau_bench(path: Path) -> list[Trajectory]:
    return [
        from_chat(record["traj"], name=f"{record['task_id']}/{record['trial']}", group=str(record["task_id"]))
        for record in json.loads(path.read_text())
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--effects", type=Path)
    parser.add_argument("--misses", action="store_true")
    options = parser.parse_args()
    trajectories = tau_bench(options.file)
    effects = tomllib.loads(options.effects.read_text())["tools"] if options.effects else {}
    groups = sorted({t.group for t in trajectories}, key=str)
    rows = []
    times = []
    for group in groups:
        predictor = CounterPredictor(threshold=0.0)
        for t in trajectories:
            if t.group != group:
                predictor.learn(t)
        for t in trajectories:
            if t.group == group:
                for n, turn in enumerate(t.turns):
                    messages = t.messages_before(n)
                    began = time.perf_counter()
                    guess = predictor.guess(messages)
                    times.append((time.perf_counter() - began) * 1000)
                    call = turn.message.calls[0] if turn.message.calls else None
                    rows.append((group, t.id, n, call, guess))
    b = [r for r in rows if r[3] is not None]
    name = [r[4].call is not None and r[4].call.name == r[3].name for r in b]
    exact = [r[4].call is not None and r[4].call.canonical() == r[3].canonical() for r in b]
    read = [effects.get(r[3].name, {}).get("effect") == "read" for r in b]
    freetext = [r[3].name in ("think", "calculate") for r in b]
    er = [e for e, x in zip(exact, read) if x]
    er2 = [e for e, x, f in zip(exact, read, freetext) if x and not f]
    print("boundaries", len(b), "exact", sum(exact) / len(b), "name", sum(name) / len(b))
    print("reads", len(er), sum(er) / len(er), "without think/calculate", len(er2), sum(er2) / len(er2))
    per = defaultdict(lambda: [0, 0, 0])
    for r, n_, e in zip(b, name, exact):
        per[r[3].name][0] += 1
        per[r[3].name][1] += n_
        per[r[3].name][2] += e
    for k, v in sorted(per.items()):
        print(f"  {k:32s} n={v[0]:4d} name={v[1]:4d} exact={v[2]:4d}")
    print("guess ms median", statistics.median(times), "max", max(times), "p99", sorted(times)[int(len(times) * 0.99)])
    if options.misses:
        for r, n_, e in zip(b, name, exact):
            if not e:
                print(
                    r[1],
                    r[2],
                    "TRUE",
                    r[3].canonical()[:200],
                    "GUESS",
                    r[4].call and r[4].call.canonical()[:200],
                    round(r[4].confidence, 2),
                )


if __name__ == "__main__":
    main()
