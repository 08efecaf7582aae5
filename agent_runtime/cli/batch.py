"""`agent run --tasks`: many tasks with one agent, each reported as it ends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from agent_runtime.errors import UsageError

from .errors import ExitCode
from .output import note, print_json, stderr_console
from .run import failure, note_divergence, result_code
from .text import duration, one_line
from .watch import unless_interrupted

if TYPE_CHECKING:
    from agent_runtime import Agent, RunResult

    from .target import Options, Target


def read_tasks(path: Path) -> list[str]:
    """Return the tasks of a file, one per line; blank lines are left out.

    Raises:
        UsageError: the file can't be read, is not text, or holds no task.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"can't read tasks from {path}: {error}") from None
    tasks = [line for line in lines if line]
    if not tasks:
        raise UsageError(f"{path} holds no task; write one per line")
    return tasks


async def run_batch(target: Target, tasks: Sequence[str], options: Options, *, concurrency: int, as_json: bool) -> int:
    """Run every task, `concurrency` at a time; return the exit code of the worst."""
    codes: list[ExitCode] = []
    slots = anyio.Semaphore(concurrency)
    progress = _Progress(len(tasks))

    async def one(agent: Agent, index: int, task: str) -> None:
        try:
            async with agent.stream(task) as stream:
                async for _ in stream:
                    pass
            result = stream.result
        finally:
            slots.release()
        codes.append(result_code(result))
        _report(index, task, result, as_json=as_json)
        progress.show(codes)

    async def work() -> None:
        async with target.open(options) as agent, anyio.create_task_group() as group:
            for index, task in enumerate(tasks):
                await slots.acquire()  # no more tasks wait in memory than run
                group.start_soon(one, agent, index, task)

    if await unless_interrupted(work):
        note(f"error: interrupted after {len(codes)} of {len(tasks)} tasks")
        return ExitCode.INTERRUPTED
    bad = sum(code != ExitCode.DONE for code in codes)
    if bad:
        note(f"error: {bad} of {len(tasks)} tasks did not end well; 'agent runs list' names them")
    if ExitCode.DIVERGED in codes:
        return ExitCode.DIVERGED
    return ExitCode.FAILED if ExitCode.FAILED in codes else max(codes)


def _report(index: int, task: str, result: RunResult, *, as_json: bool) -> None:
    note_divergence(result)
    if as_json:
        print_json({"index": index, "task": task, **result.to_json()}, lines=True)
        return
    answer = one_line(result.output if result.status == "done" else f"error: {failure(result)}")
    print(f"{index + 1}. {result.status} in {duration(result.wall_ms)}: {one_line(task, 60)} -> {answer}", flush=True)


class _Progress:
    """How far the file is, on a terminal's stderr only."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._console = stderr_console()

    def show(self, codes: Sequence[ExitCode]) -> None:
        if self._console.is_terminal:
            done = sum(code == ExitCode.DONE for code in codes)
            self._console.print(f"{len(codes)} of {self._total} tasks, {done} done well", style="dim")
