"""`agent replay`: how often recorded calls would have been guessed, and what that would have saved."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from agent_runtime.errors import UsageError

from . import parameters
from .output import note, print_json, stderr_console

if TYPE_CHECKING:
    from agent_runtime.replay.counter import Fit
    from agent_runtime.replay.forced import ForcedPredictor
    from agent_runtime.replay.replaying import Replay
    from agent_runtime.replay.whatif import Setting
    from agent_runtime.tools import Catalogue
    from agent_runtime.traces.trajectory import Trajectory

T = TypeVar("T")

Who = Literal["self", "counter", "both"]
Time = Literal["recorded", "virtual"]

FAULTS_SHOWN = 5


def replay(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", show_default=False, help="Files of recordings.")],
    format: Annotated[str, typer.Option(metavar="FORMAT", help="Their format; auto tells it from each file.")] = "auto",
    predictor: Annotated[Who, typer.Option(help="Who guesses.")] = "counter",
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Who 'self' is, as for agent run; the demo's model by default."),
    ] = None,
    device: parameters.Device = "auto",
    fit: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="What the counter learns from, instead of PATH less the task at hand."),
    ] = None,
    effects: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What the tools do to the world (TOML); without it all count as writes."),
    ] = None,
    time: Annotated[
        Time, typer.Option(help="Add up the recorded times, or play all turns through the runtime on a virtual clock.")
    ] = "recorded",
    tool_latency: Annotated[
        str | None, typer.Option(metavar="MS[,MS...]", help="What each call takes, instead of what is recorded.")
    ] = None,
    generation_ms: Annotated[
        float | None, typer.Option(metavar="MS", help="What a message takes where it isn't recorded (1000).")
    ] = None,
    min_confidence: Annotated[
        str, typer.Option(metavar="P[,P...]", help="Virtual: guesses below this aren't started.")
    ] = "0.5",
    in_flight: Annotated[str, typer.Option(metavar="N[,N...]", help="Virtual: guessed calls at the same time.")] = "4",
    wasted_calls: Annotated[
        str, typer.Option(metavar="N[,N...]", help="Virtual: wrong guesses a run may execute.")
    ] = "32",
    probe_ms: Annotated[
        float | None, typer.Option(metavar="MS", help="Virtual: what a guess takes, if not what it took here.")
    ] = None,
    probe_slowdown: Annotated[
        float,
        typer.Option(
            metavar="SHARE", min=0.0, help="Virtual: share of a probe's time that the agent loses to 'self' beside it."
        ),
    ] = 1.0,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Take the first N trajectories only.")] = None,
    as_json: parameters.Json = False,
) -> None:
    """Tell how often the next call of recorded agents would have been guessed.

    At every recorded turn a predictor is asked for the first call, then shown what the agent did.
    """
    from agent_runtime.replay.timing import GENERATION_MS, Timing
    from agent_runtime.tools import load_catalogue

    catalogue = load_catalogue(effects) if effects is not None else None
    latencies = _numbers("--tool-latency", tool_latency, float) if tool_latency is not None else [None]
    if len(latencies) > 1 and time != "virtual":
        raise UsageError("several --tool-latency make a sweep: add --time virtual")
    generation = GENERATION_MS if generation_ms is None else generation_ms
    timings = [Timing(tool_latency_ms=latency, generation_ms=generation) for latency in latencies]
    confidences = _numbers("--min-confidence", min_confidence, float)
    flying, wasted = _counts("--in-flight", in_flight), _counts("--wasted-calls", wasted_calls)

    def settings(done: Replay) -> list[Setting]:
        from agent_runtime.replay.self_probe import POSITIONS
        from agent_runtime.replay.whatif import sweep

        model_backed = {"self", "both"}
        return sweep(
            list(done.scores)[::-1],
            timings,
            min_confidence=confidences,
            in_flight=flying,
            wasted_calls=wasted,
            positions={source: POSITIONS for source in model_backed},
            probe_ms={source: probe_ms for source in done.scores},
            slowdown={source: probe_slowdown for source in model_backed},
        )

    trajectories = list(itertools.islice(_read(paths, format), limit))
    done, fitted, name = _ask(trajectories, predictor, model=model, device=device, fit=fit, catalogue=catalogue)
    outcomes = done.what_if(settings(done)) if time == "virtual" else []
    report = done.to_json(timing=timings[0], fit=fitted, outcomes=outcomes, model=name)
    if catalogue is None:
        note("no effects are known, so every call counts as a write that can't start early: give --effects FILE")
    if as_json:
        print_json(report)
    else:
        from .replay_view import show

        show(report)


def _ask(
    trajectories: Sequence[Trajectory],
    predictor: Who,
    *,
    model: str | None,
    device: str,
    fit: Sequence[Path] | None,
    catalogue: Catalogue | None,
) -> tuple[Replay, Fit | None, str | None]:
    """Lead the predictors through the recordings; return also how the counter was fitted, and the model's name."""
    import anyio

    from agent_runtime.replay.counter import ForcedCounter
    from agent_runtime.replay.replaying import replay as ask

    predictors: list[ForcedPredictor] = []
    fitted, name = None, None
    if predictor != "counter":
        from agent_runtime.demo.agent import POCKET
        from agent_runtime.replay.self_probe import ForcedSelf

        from .setup import before_torch

        before_torch()
        prober = ForcedSelf(model if model is not None else POCKET, device=device)
        predictors.append(prober)
        name = prober.name
    elif model is not None:
        raise UsageError("--model is for 'self': add --predictor self or both")
    if predictor != "self":
        counter = ForcedCounter(trajectories, fit=_read(fit, "auto") if fit else None)
        predictors.append(counter)
        fitted = counter.fit

    console = stderr_console()

    def progress(count: int) -> None:
        if console.is_terminal:
            console.print(f"{count} of {len(trajectories)} trajectories", style="dim", end="\r")

    async def work() -> Replay:
        try:
            return await ask(
                trajectories, predictors, catalogue=catalogue, combine=predictor == "both", on_progress=progress
            )
        finally:
            with anyio.CancelScope(shield=True):
                for one in predictors:
                    await one.aclose()

    return anyio.run(work), fitted, name


def _read(paths: Sequence[Path], format: str) -> Iterator[Trajectory]:
    """Yield the trajectories of files; what couldn't be read is said on stderr.

    Raises:
        UnreadableFile: nothing of any file could be read.
    """
    from agent_runtime.traces.formats import UnreadableFile, read

    unread: UnreadableFile | None = None
    count = 0
    for path in paths:
        try:
            reading = read(path, format)
            for trajectory in reading:
                count += 1
                yield trajectory
        except UnreadableFile as error:
            if unread is not None:
                note(f"warning: {unread}")
            unread = error
            continue
        for fault in reading.faults[:FAULTS_SHOWN]:
            note(f"warning: {fault}")
        if reading.fault_count > FAULTS_SHOWN:
            note(f"warning: {path}: {reading.fault_count - FAULTS_SHOWN} more faults")
    if unread is not None:
        if not count:
            raise unread
        note(f"warning: {unread}")


def _numbers(option: str, text: str, kind: Callable[[str], T]) -> list[T]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} {text}: give numbers, separated by commas") from None


def _counts(option: str, text: str) -> list[int]:
    counts = _numbers(option, text, int)
    if min(counts) < 0:
        raise UsageError(f"{option} {text}: give numbers of at least 0")
    return counts
