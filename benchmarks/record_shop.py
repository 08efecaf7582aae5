"""Records the shop's agent on fresh tasks, without guessing, as material for `agent replay`.

python benchmarks/record_shop.py shop.jsonl --tasks 100
agent replay shop.jsonl --effects examples/shop-effects.toml --predictor both --model agent_runtime/demo/pocket
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from agent_runtime.decoding.threads import configure_threads

configure_threads()

import anyio  # noqa: E402
from agent_runtime.traces import TraceStore  # noqa: E402
from agent_runtime.traces.formats import RecordedRun, write  # noqa: E402

from agent_runtime.bench.stages import ShopStages, shop_tasks  # noqa: E402
from agent_runtime.demo.agent import support_agent  # noqa: E402
from agent_runtime.demo.shop.backend import ShopBackend  # noqa: E402
from agent_runtime.demo.shop.world import World  # noqa: E402


async def record(store: TraceStore, *, tasks: int, seed: int) -> int:
    """Run the tasks; return how many were solved."""
    solved = 0
    async with ShopBackend() as backend:
        backend.add_world("none", World())
        stages = ShopStages(backend)
        async with (
            backend.client("none") as client,
            support_agent(client, device="cpu", speculation=False, traces=store) as agent,
        ):
            for index, task in enumerate(shop_tasks(tasks, seed=seed, first=0, phrasing="any", kinds=None)):
                async with stages.stage(index, task) as stage:
                    async with agent.replace(tools=stage.tools).stream(task.request) as stream:
                        async for _ in stream:
                            pass
                    solved += bool(stage.evidence(stream.result).success)
    return solved


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--seed", type=int, default=4711)
    options = parser.parse_args()

    async def work(store: TraceStore) -> int:
        return await record(store, tasks=options.tasks, seed=options.seed)

    with TemporaryDirectory() as folder, TraceStore.open(Path(folder) / "runs.db") as store:
        solved = anyio.run(work, store)
        rows = reversed(store.runs(options.tasks))
        write((RecordedRun(row, list(store.events(row.run_id))) for row in rows), options.file, "own")
    print(f"{solved} of {options.tasks} tasks solved; recorded in {options.file}")


if __name__ == "__main__":
    main()
