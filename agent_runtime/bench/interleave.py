"""Runs every task in every mode, modes alternating, in one process on one engine.

An engine keeps the caches of the conversations it closed last, so a run right after one of the same task would find its
whole prompt read already. A task's runs are therefore apart by more conversations than are kept, and all of them
find what an agent in service finds: the instructions and tools, and nothing of the task. With two modes and lag 5 the
order is, task by task: ... serial 7, speculative 2, speculative 3, serial 8, serial 9, speculative 4 ...
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import anyio

from agent_runtime.agent import Agent
from agent_runtime.demo.shop.judge import Task
from agent_runtime.engines.local import CACHES_KEPT

from .records import RunRecord, transcript_of, without_deltas, writes_pre_executed
from .stages import Stages

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interleaving:
    """What is run, where, and in which modes.

    `agents` has one agent per mode, all on one engine; each keeps what its guessing learned from task to task, as an
    agent in service does. With `concurrency` above 1, that many tasks run together, always all in the same mode.
    """

    stages: Stages
    agents: Mapping[str, Agent]
    concurrency: int = 1

    async def run(self, tasks: Sequence[Task], *, first: int = 0) -> AsyncIterator[list[RunRecord]]:
        """Yield the records of each group of `concurrency` runs as it is done; `first` is the first task's number."""
        numbered = list(enumerate(tasks, first))
        groups = [numbered[at : at + self.concurrency] for at in range(0, len(numbered), self.concurrency)]
        for mode, position, group in schedule(groups, list(self.agents), lag=self._lag()):
            yield await self._run_group(group, mode, position)

    def _lag(self) -> int:
        """Return how many groups two runs of a task are apart."""
        return 1 + math.ceil(CACHES_KEPT / self.concurrency)

    async def _run_group(self, group: Sequence[tuple[int, Task]], mode: str, position: int) -> list[RunRecord]:
        records: list[RunRecord] = []

        async def run(index: int, task: Task) -> None:
            records.append(await self._run_once(index, task, mode, position))

        async with anyio.create_task_group() as together:
            for index, task in group:
                together.start_soon(run, index, task)
        return sorted(records, key=lambda record: record.index)

    async def _run_once(self, index: int, task: Task, mode: str, position: int) -> RunRecord:
        async with self.stages.stage(index, task) as stage:
            agent = self.agents[mode].replace(tools=stage.tools)
            async with agent.stream(task.request) as stream:
                async for _ in stream:
                    pass
            result = stream.result
            evidence = stage.evidence(result)
        opted_in = agent.gate
        never_early = frozenset(
            tool.name for tool in agent.tools if not tool.contract.is_read and not opted_in.decide(tool).allowed
        )
        return RunRecord(
            index=index,
            task_id=task.task_id,
            kind=task.kind,
            phrasing=task.phrasing,
            mode=mode,
            position=position,
            status=result.status,
            output=result.output,
            error=None if result.error is None else " ".join(str(result.error).split()),
            success=evidence.success,
            reason=evidence.reason,
            wall_ms=result.wall_ms,
            reused_tokens=result.usage.reused_tokens,
            prefilled_tokens=result.usage.prefilled_tokens,
            transcript=transcript_of(result.messages),
            writes=evidence.writes,
            writes_pre_executed=writes_pre_executed(result.events, never_early=never_early, executed=evidence.executed),
            events=without_deltas(result.events),
        )


def schedule(items: Sequence[T], modes: Sequence[str], *, lag: int) -> Iterator[tuple[str, int, T]]:
    """Yield every item in every mode, as (mode, its place among the modes of this round, item).

    A round runs each mode once, the k-th of them on the item `k * lag` rounds behind; the order of the modes rotates
    from round to round, so that none is always the first.
    """
    for number in range(len(items) + lag * (len(modes) - 1)):
        places = [(mode, number - lag * k) for k, mode in enumerate(modes)]
        by = number % len(modes)
        for position, (mode, at) in enumerate(places[by:] + places[:by]):
            if 0 <= at < len(items):
                yield mode, position, items[at]
