"""`agent run`: one task with live lanes, or a file of tasks."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent_runtime.errors import ReplayDiverged, UsageError

from . import parameters
from .errors import ExitCode, describe, exit_code
from .output import note, print_json, stderr_console
from .text import safe

if TYPE_CHECKING:
    from agent_runtime import RunResult
    from agent_runtime.engines.cassette import Cassette

    from .target import Options, Target


def run(
    target: parameters.Target,
    task: Annotated[str | None, typer.Argument(metavar="TASK", help="What the agent is asked to do.")] = None,
    tasks: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="One task per line, or .jsonl with 'task' and 'id', instead of TASK."),
    ] = None,
    concurrency: Annotated[int, typer.Option(metavar="N", min=1, help="Tasks of FILE that run together.")] = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Append each task's JSON line here; tasks that FILE holds already are not run again."
        ),
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run again what --out holds as not done.")
    ] = False,
    model: parameters.Model = None,
    device: parameters.Device = "auto",
    speculate: Annotated[
        bool | None, typer.Option("--speculate/--no-speculate", help="Guess the next call and start it early.")
    ] = None,
    cassette: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Record model and tools here; if FILE is there, replay it without them."),
    ] = None,
    db: parameters.Db = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with --tasks, a line per task.")] = False,
) -> int:
    """Run an agent on a task and watch it.

    Exit codes: 0 done, 1 the run failed, 2 usage, 3 a limit was reached, 4 the replay of a cassette diverged,
    130 interrupted.
    """
    import anyio

    from .setup import before_torch
    from .target import Options, load_target

    if (task is None) == (tasks is None):
        raise UsageError("give a TASK, or a file of them with --tasks")
    if tasks is None and out is not None:
        raise UsageError("--out goes with --tasks")
    if out is None and retry_failed:
        raise UsageError("--retry-failed goes with --out")
    if task is not None and not task.strip():
        raise UsageError("the TASK is empty; say what the agent should do")
    if device not in ("auto", "cpu", "cuda") and not device.startswith("cuda:"):
        raise UsageError(f"unknown device '{device}'; use auto, cuda or cpu")
    before_torch()
    with _open_cassette(cassette) as tape:
        options = Options(
            model=model, device=None if device == "auto" else device, speculation=speculate, traces=db, cassette=tape
        )
        found = load_target(target)
        if tasks is not None:
            from .batch import read_tasks, run_batch

            lines = read_tasks(tasks)
            run_all = partial(run_batch, found, lines, options, concurrency=concurrency, as_json=as_json)
            return anyio.run(partial(run_all, out=out, retry_failed=retry_failed))
        return anyio.run(partial(_run_one, found, task or "", options, as_json=as_json))


def _open_cassette(path: Path | None) -> AbstractContextManager[Cassette | None]:
    if path is None:
        return nullcontext()
    from agent_runtime.engines.cassette import Cassette

    return Cassette(path)


async def _run_one(target: Target, task: str, options: Options, *, as_json: bool) -> int:
    from .watch import Watcher, unless_interrupted

    console = stderr_console()
    watcher = Watcher(console if console.is_terminal and not as_json else None)

    async def work() -> None:
        async with target.open(options) as agent:
            await watcher.watch(agent.stream(task))

    interrupted = await unless_interrupted(work)
    if watcher.stream is None:
        note("error: interrupted before the run began")
        return ExitCode.INTERRUPTED
    return report(watcher.stream.result, as_json=as_json, interrupted=interrupted)


def report(result: RunResult, *, as_json: bool, interrupted: bool = False) -> int:
    """Show a result: the answer to stdout, everything else to stderr; return the exit code."""
    if as_json:
        print_json(result.to_json())
    else:
        _show(result)
    code = ExitCode.INTERRUPTED if interrupted else result_code(result)
    if code != ExitCode.DONE:
        note_divergence(result)
        note(f"error: {failure(result, interrupted=interrupted)}")
    return code


def _show(result: RunResult) -> None:
    from .summary import print_speculation

    if result.output:
        print(safe(result.output).strip(), flush=True)
    if not result.output and not result.ledger.boundaries:
        return  # nothing happened: the error says all there is
    console = stderr_console()
    console.print()
    print_speculation(console, result.events, result.ledger.summary(), wall_ms=result.wall_ms)
    console.print(f"run {result.run_id}: see it again with 'agent runs show {result.run_id}'", style="dim")


def result_code(result: RunResult) -> ExitCode:
    """Return the exit code that a result stands for."""
    match result.status:
        case "done":
            return ExitCode.DONE
        case "limit":
            return ExitCode.LIMIT
        case "cancelled":
            return ExitCode.INTERRUPTED
        case _:
            return exit_code(result.error) if result.error is not None else ExitCode.FAILED


def note_divergence(result: RunResult) -> None:
    """Show how a replayed run differs from its recording, if that is what ended it."""
    if isinstance(result.error, ReplayDiverged) and result.error.diff:
        note(result.error.diff)


def failure(result: RunResult, *, interrupted: bool = False) -> str:
    """Return one line on why a result is no success."""
    if interrupted or result.status == "cancelled":
        return f"interrupted; 'agent runs show {result.run_id}' shows what was done until then"
    return describe(result.error) if result.error is not None else f"the run ended as {result.status}"
