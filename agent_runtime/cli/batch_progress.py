"""How far a file of tasks is: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from .errors import ExitCode
from .output import stderr_console

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class BatchProgress:
    """A bar on stderr while tasks run, with how many went wrong and how long the rest may take."""

    def __init__(self, total: int, *, finished: int) -> None:
        self._total = total
        self._finished = finished
        self._progress: Progress | None = None
        self._bar: TaskID | None = None

    def __enter__(self) -> Self:
        console = stderr_console()
        if console.is_terminal:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
            from rich.progress import TimeRemainingColumn as Remaining

            self._progress = Progress(
                TextColumn("tasks"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[bad]}"),
                TimeElapsedColumn(),
                TextColumn("left:"),
                Remaining(),
                console=console,
                # Where results go to the same terminal, they are printed above the bar; a pipe gets them untouched.
                redirect_stdout=sys.stdout.isatty(),
                transient=True,
            )
            self._progress.start()
            self._bar = self._progress.add_task("tasks", total=self._total, completed=self._finished, bad="")
        return self

    def show(self, codes: Sequence[ExitCode]) -> None:
        """Draw the bar after one more task has ended; `codes` are those of the tasks that ran now."""
        if self._progress is not None and self._bar is not None:
            bad = sum(code != ExitCode.DONE for code in codes)
            text = f"{bad} not done" if bad else ""
            self._progress.update(self._bar, completed=self._finished + len(codes), bad=text)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
