"""Runs every task in every mode, modes alternating, in one process on one engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

import anyio

from agent_runtime.agent import Agent
from agent_runtime.demo.shop.judge import Task

from .records import RunRecord, transcript_of, without_deltas, writes_pre_executed
from .stages import Stages


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
        """Yield the records of each group of `concurrency` tasks as it is done; `first` is the first task's number."""
        for start in range(0, len(tasks), self.concurrency):
            group = tasks[start : start + self.concurrency]
            yield await self._run_group(group, first + start)

    async def _run_group(self, group: Sequence[Task], first: int) -> list[RunRecord]:
        records: list[RunRecord] = []
        for position, mode in enumerate(_rotated(list(self.agents), first // self.concurrency)):

            async def run(index: int, task: Task, mode: str = mode, position: int = position) -> None:
                records.append(await self._run_once(index, task, mode, position))

            async with anyio.create_task_group() as together:
                for index, task in enumerate(group, first):
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


def _rotated(modes: list[str], by: int) -> list[str]:
    """Return the modes in another order for each group, so that none is always the first."""
    by %= len(modes)
    return modes[by:] + modes[:by]
