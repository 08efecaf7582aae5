"""The shop's wall-clock without speculation, with tool speculation, with token speculation, and with both.

    python benchmarks/endtoend.py run --latency generation --out DIR   # also 100, 300, 1000; --modes off,both
    python benchmarks/endtoend.py table --out DIR                      # what DIR holds, as Markdown

`off` and `tool` share one engine, whose own tokens are drafted from the guessed call only; `token` and `both` share
another with every draft that needs nothing but the text. `counter` is `tool` with a predictor that counts what the
agent did in earlier runs (nothing before the first) instead of asking the model. `shared` is `both`, and `all` asks the
model only where that counter isn't sure, each on an engine of its own whose drafts also know what the agent wrote in
earlier runs (`share_drafts`). All modes run interleaved in one process, each task once per mode, tools at an injected
latency; `generation` is one median T_gen of `off`, found on tasks of another seed. Runs are appended to DIR as they
end, and a measurement that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
from agent_runtime.speculator.settings import Speculation
from results import SEED, Measurement, _lines, environment  # first: it sets torch's threads

from agent_runtime.bench.interleave import Interleaving
from agent_runtime.bench.records import SERIAL, SPECULATIVE, RunRecord
from agent_runtime.bench.report import report
from agent_runtime.bench.speculate import _greedy, _shop_agent, _warm_up, median_generation_ms
from agent_runtime.bench.stages import ShopStages, shop_tasks
from agent_runtime.demo.agent import POCKET
from agent_runtime.demo.shop.backend import ShopBackend
from agent_runtime.engines.local import LocalEngine

ENGINE_OF = {
    "off": "called",
    "tool": "called",
    "counter": "called",
    "token": "drafted",
    "both": "drafted",
    "shared": "shared",
    "all": "all",
}
MODES = tuple(ENGINE_OF)
PAIRS = (*(("off", mode) for mode in MODES[1:]), ("token", "both"))
PREDICTORS = {"tool": "self", "counter": "counter", "both": "self", "shared": "self", "all": "both"}


async def measure(measurement: Measurement, modes: Sequence[str], *, tasks: int, latency_ms: float) -> None:
    done = measurement.done(len(modes))
    if done >= tasks:
        return
    engines = {
        "called": LocalEngine(POCKET, drafts=("call",)),
        "drafted": LocalEngine(POCKET),
        "shared": LocalEngine(POCKET, share_drafts=True),
        "all": LocalEngine(POCKET, share_drafts=True),
    }
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(ShopBackend(latency_ms=latency_ms))
        agents = {}
        for name in dict.fromkeys(ENGINE_OF[mode] for mode in modes):
            stack.push_async_callback(engines[name].aclose)
            agent = (await stack.enter_async_context(_shop_agent(engines[name], "cpu"))).replace(traces=False)
            await _warm_up(agent)
            for mode in modes:
                if ENGINE_OF[mode] == name:
                    guessing = Speculation(predictor=PREDICTORS[mode]) if mode in PREDICTORS else False
                    agents[mode] = agent.replace(sampling=_greedy(agent.sampling), speculation=guessing)
        todo = shop_tasks(tasks - done, seed=SEED, first=done, phrasing="any", kinds=None)
        runs = Interleaving(stages=ShopStages(backend), agents=agents).run(todo, first=done)
        async for group in runs:
            measurement.add(group)


async def run(arguments: argparse.Namespace) -> None:
    modes = [mode for mode in MODES if mode in arguments.modes.split(",")]
    name = f"endtoend-{arguments.latency}"
    words = f"python benchmarks/endtoend.py run --latency {arguments.latency} --tasks {arguments.tasks}"
    if len(modes) < len(MODES):
        words += f" --modes {','.join(modes)}"
    measurement = Measurement(arguments.out, name, environment(arguments) | {"modes": modes, "command": words})
    latency = measurement.settings.get("latency_ms")
    if latency is None:
        if arguments.latency == "generation":
            engine = LocalEngine(POCKET, drafts="none")
            latency = await median_generation_ms(model=engine, seed=SEED)
            await engine.aclose()
        else:
            latency = float(arguments.latency)
    measurement.save(latency_ms=latency, tasks=arguments.tasks)
    await measure(measurement, modes, tasks=arguments.tasks, latency_ms=latency)


def records(path: Path) -> list[RunRecord]:
    return [RunRecord.from_json(data) for _, data in _lines(path)]


def compare(runs: Iterable[RunRecord], without: str, with_: str, latency_ms: float) -> dict[str, Any] | None:
    names = {without: SERIAL, with_: SPECULATIVE}
    pair = [replace(record, mode=names[record.mode]) for record in runs if record.mode in names]
    tasks = [{record.index for record in pair if record.mode == mode} for mode in (SERIAL, SPECULATIVE)]
    both = tasks[0] & tasks[1]
    if not both:
        return None
    told = report([record for record in pair if record.index in both], tool_latency_ms=latency_ms).to_json()
    return told | {"pair": f"{with_} / {without}"}


def table(folder: Path) -> str:
    lines = [
        "| tools, injected | with / without | tasks | speed-up: sums | median of tasks | paired form | first form | "
        "closed form | Hit@1 | hidden share | lead p50 / p90 | same transcripts |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for latency in ("generation", "100", "300", "1000"):
        path = folder / f"endtoend-{latency}.jsonl"
        if not path.exists():
            continue
        settings = Measurement(folder, f"endtoend-{latency}", {}).settings
        runs = records(path)
        for without, with_ in PAIRS:
            told = compare(runs, without, with_, settings["latency_ms"])
            if told is None:
                continue
            guessed = with_ in PREDICTORS
            forms, lead = told["forms"], told["lead_ms"]
            where = f"{settings['latency_ms']:.0f} ms" + (" (one median T_gen)" if latency == "generation" else "")
            cells = [
                where,
                told["pair"],
                str(told["tasks"]),
                f"{told['speedup']:.2f}",
                f"{told['speedup_median']:.2f}",
                _two(forms["paired"]["speedup"]),
                _two(forms["first"]["speedup"]) if guessed else "",
                _two(forms["closed"]["speedup"]) if guessed else "",
                f"{100 * told['hit_at_1']:.1f} %" if guessed else "",
                _two(told["hidden_share"]) if guessed else "",
                f"{lead['p50']:.0f} / {lead['p90']:.0f} ms" if guessed and lead.get("count") else "",
                "yes" if told["identical_transcripts"] else "NO",
            ]
            lines.append("| " + " | ".join(cells) + " |")
        walls = {
            mode: statistics.median(record.wall_ms for record in runs if record.mode == mode)
            for mode in settings["modes"]
        }
        solved = sum(bool(record.success) for record in runs) / len(runs)
        lines.append(f"<!-- {latency}: median task {walls}, solved {solved:.3f}; {settings['command']} -->")
    return "\n".join(lines)


def _two(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--latency", choices=("generation", "100", "300", "1000"), default="generation")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.model, arguments.device = None, "cpu"
    if arguments.what == "run":
        anyio.run(run, arguments)
    print(table(arguments.out))


if __name__ == "__main__":
    main()
