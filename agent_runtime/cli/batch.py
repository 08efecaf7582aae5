"""`agent run --tasks`: many tasks with one agent, each reported as it ends."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from agent_runtime.errors import AgentRuntimeError

from .batch_progress import BatchProgress
from .batch_results import ResultsFile
from .batch_tasks import Task, read_tasks
from .errors import ExitCode
from .output import note, print_json
from .run import failure, note_divergence, result_code
from .text import duration, one_line
from .watch import unless_interrupted

if TYPE_CHECKING:
    from agent_runtime import Agent, RunResult

    from .target import Options, Target

__all__ = ["read_tasks", "run_batch"]

_CODES = {"done": ExitCode.DONE, "limit": ExitCode.LIMIT}


async def run_batch(
    target: Target,
    tasks: Sequence[Task],
    options: Options,
    *,
    concurrency: int,
    as_json: bool,
    out: Path | None = None,
    retry_failed: bool = False,
) -> int:
    """Run every task, `concurrency` at a time; return the exit code of the worst.

    Each result is appended to `out`; tasks whose results it holds already are not run again, unless `retry_failed` says
    so and they did not end as `done`.
    """
    with ResultsFile.open(out) if out is not None else nullcontext() as results:
        before = results.statuses(tasks) if results is not None else {}
        if retry_failed:
            before = {id: status for id, status in before.items() if status == "done"}
        left = [task for task in tasks if task.id not in before]
        if before:
            note(f"{len(before)} of {len(tasks)} tasks are finished in {out}; {len(left)} to run")
        earlier = [_CODES.get(status, ExitCode.FAILED) for status in before.values()]
        batch = _Batch(target, options, results, concurrency=concurrency, as_json=as_json)
        with BatchProgress(len(tasks), finished=len(before)) as progress:
            interrupted = await unless_interrupted(lambda: batch.run(left, progress)) if left else False
    if interrupted:
        again = "; the same command runs the rest" if out is not None else ""
        note(f"error: interrupted after {len(earlier) + len(batch.codes)} of {len(tasks)} tasks{again}")
        return ExitCode.INTERRUPTED
    return _worst([*earlier, *batch.codes])


def _worst(codes: Sequence[ExitCode]) -> ExitCode:
    bad = sum(code != ExitCode.DONE for code in codes)
    if bad:
        note(f"error: {bad} of {len(codes)} tasks did not end well; 'agent runs list' names them")
    if ExitCode.DIVERGED in codes:
        return ExitCode.DIVERGED
    return ExitCode.FAILED if ExitCode.FAILED in codes else max(codes)


class _Batch:
    """Runs tasks together and reports each as it ends; one that fails doesn't stop the others."""

    def __init__(
        self, target: Target, options: Options, results: ResultsFile | None, *, concurrency: int, as_json: bool
    ) -> None:
        self.codes: list[ExitCode] = []
        self._target = target
        self._options = options
        self._results = results
        self._slots = anyio.Semaphore(concurrency)
        self._as_json = as_json

    async def run(self, tasks: Sequence[Task], progress: BatchProgress) -> None:
        async with self._target.open(self._options) as agent, anyio.create_task_group() as group:
            for task in tasks:
                await self._slots.acquire()  # no more tasks wait in memory than run
                group.start_soon(self._one, agent, task, progress)

    async def _one(self, agent: Agent, task: Task, progress: BatchProgress) -> None:
        try:
            result = await _result_of(agent, task)
        finally:
            self._slots.release()
        self.codes.append(result_code(result))
        self._report(task, result)
        progress.show(self.codes)

    def _report(self, task: Task, result: RunResult) -> None:
        note_divergence(result)
        line = {"index": task.index, "id": task.id, "task": task.text, **result.to_json()}
        if self._results is not None:
            self._results.add(line)
        if self._as_json:
            print_json(line, lines=True)
            return
        answer = one_line(result.output if result.status == "done" else f"error: {failure(result)}")
        label = one_line(task.id)
        print(
            f"{label}. {result.status} in {duration(result.wall_ms)}: {one_line(task.text, 60)} -> {answer}", flush=True
        )


async def _result_of(agent: Agent, task: Task) -> RunResult:
    """Run one task. A run that can't even begin is a result too, unless the fault lies in how all are started."""
    begun = anyio.current_time()
    try:
        async with agent.stream(task.text) as stream:
            async for _ in stream:
                pass
        return stream.result
    except AgentRuntimeError as error:
        if error.exit_code == ExitCode.USAGE:  # e.g. there is no such model: every task would say the same
            raise
        return _not_begun(error, (anyio.current_time() - begun) * 1000)


def _not_begun(error: AgentRuntimeError, wall_ms: float) -> RunResult:
    from agent_runtime import RunResult, Usage
    from agent_runtime.traces.ledger import ledger

    empty: dict[str, Any] = {"run_id": "", "output": "", "turns": 0, "messages": (), "events": ()}
    return RunResult(status="failed", usage=Usage(), ledger=ledger([]), wall_ms=wall_ms, error=error, **empty)
