"""`agent bench decode`: how fast tokens come, with each draft and without, beside the library's own loops."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent_runtime.errors import UsageError

from . import parameters
from .output import note, print_json, stderr_console, stdout_console

if TYPE_CHECKING:
    from .target import Target

BUILT_IN = "shop"
SERVER = "openai:"


def decode(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET|MODEL",
            show_default=False,
            help="module:variable, file.py:variable, or shop; or a hub id, folder or GGUF file.",
        ),
    ],
    tasks: Annotated[
        str,
        typer.Option(
            metavar="N|FILE", help="How many tasks (of shop) or prompts (of a model); or a file of tasks, one per line."
        ),
    ] = "20",
    seed: Annotated[int, typer.Option(metavar="SEED", help="Seed of the tasks.")] = 0,
    max_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Tokens per message, if not the agent's own limit (a model: 96)."),
    ] = None,
    model: parameters.Model = None,
    draft_model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="A smaller model with the same tokenizer, if not in the model's folder."),
    ] = None,
    device: parameters.Device = "auto",
    as_json: parameters.Json = False,
) -> None:
    """Measure decoding with each draft, and with transformers' generate.

    The same prompts are decoded in every mode, interleaved in one process.
    """
    from functools import partial

    import anyio

    from .setup import before_torch

    before_torch()
    found = _found(target)
    if model is not None and model.startswith(SERVER):
        raise UsageError(f"{model} is a server, which decodes by itself: give a model of this machine or of the hub")

    from agent_runtime.bench.decode import bench_decode

    measure = partial(
        bench_decode,
        found,
        tasks=_tasks(tasks),
        seed=seed,
        max_tokens=max_tokens,
        model=model,
        draft_model=draft_model,
        device=device,
        on_progress=_Progress().show,
    )
    report = anyio.run(measure).to_json()
    if as_json:
        print_json(report)
    else:
        _show(report)


def _found(text: str) -> str | Target:
    """Return the agent that the text names, or the text where it names a model."""
    from .target import load_target

    if text.startswith(SERVER):
        raise UsageError(f"{text} is a server, which decodes by itself: give a model of this machine or of the hub")
    names_agent = text == BUILT_IN or (":" in text and not Path(text).expanduser().exists())
    return load_target(text) if names_agent else text


def _tasks(text: str) -> int | list[str]:
    if not text.isdigit():
        from .batch_tasks import read_tasks

        return [task.text for task in read_tasks(Path(text))]
    if int(text) < 1:
        raise UsageError(f"--tasks {text}: give a number of at least 1, or a file of tasks")
    return int(text)


class _Progress:
    """How many conversations are done, on a terminal's stderr only."""

    def __init__(self) -> None:
        self._console = stderr_console()

    def show(self, what: str, done: int, of: int) -> None:
        if self._console.is_terminal:
            self._console.print(f"{done} of {of} conversations {what}", style="dim", end="\r")


def _show(report: Mapping[str, Any]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    table.add_column("mode")
    for title in ("tokens/s", "of generate", "forwards/token", "accepted"):
        table.add_column(title, justify="right")
    for mode, rate in report["tokens_per_s"].items():
        if rate is not None:
            figures = (
                f"{rate:.0f}" if rate >= 10 else f"{rate:.2f}",
                _number(report["over_hf_generate"][mode], "x"),
                _number(report["forwards_per_token"][mode]),
                _number(report["mean_accepted_length"][mode]),
            )
            table.add_row(mode, *figures)
    console = stdout_console()
    console.print(table)
    call = report["call"]
    lines = [
        f"{report['prompts']} prompts of {report['model']}, {report['new_tokens']:.0f} tokens each after "
        f"{report['prompt_tokens']:.0f}; {report['executor']} executor, {report['dtype']}, {report['device']}",
        f"matrix products alone: {_number(report['matmul_floor_tokens_per_s'])} tokens/s, "
        f"a plain step takes {_number(report['floor_over_none'], 'x')} their time",
        f"guessed calls: {call['hits']} of {call['boundaries']} right, "
        f"{_number(report['call_forwards_per_token_on_hits'])} forwards per token of theirs with call",
        f"same ids in every mode: {_word(report['identical_fp32'])}",
    ]
    lines += [f"no {mode}: {reason}" for mode, reason in report["absent"].items()]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
    if report["identical_fp32"] is False:
        differing = ", ".join(f"{mode} ({count})" for mode, count in report["different_prompts"].items() if count)
        note(f"some prompts were continued differently: {differing}; unless two logits tie, that is a defect")


def _number(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.2f}{unit}"


def _word(value: bool | None) -> str:
    return "not compared (not fp32)" if value is None else "yes" if value else "NO"
