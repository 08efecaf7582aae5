"""The file of results of many tasks: appended to as each ends, and read when the same command is given again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from agent_runtime.errors import UsageError

from .batch_tasks import Task


class ResultsFile:
    """JSON lines, one per finished task. A line that was torn by a crash is cut off before the first is added."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path = path
        self._file = file
        self.lines: list[dict[str, Any]] = []

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[ResultsFile]:
        """Hold the file open for this process alone.

        Raises:
            UsageError: it can't be read or written, another process writes it, or it holds something else.
        """
        try:
            file = path.open("a+b")
        except OSError as error:
            raise UsageError(f"can't write results to {path}: {error.strerror or error}") from None
        with file:
            _lock(path, file)
            results = cls(path, file)
            results._read()
            yield results

    def statuses(self, tasks: Sequence[Task]) -> dict[str, str]:
        """Return how each task of `tasks` ended that the file holds, by id; its last line counts.

        Raises:
            UsageError: an id stands for another task in the file than in `tasks`.
        """
        texts = {task.id: task.text for task in tasks}
        found = {}
        for line in self.lines:
            if line["id"] not in texts:
                continue  # the tasks were made fewer
            if line["task"] != texts[line["id"]]:
                raise UsageError(
                    f"{self._path} holds the result of another task {line['id']!r}: name another file with --out"
                )
            found[line["id"]] = line["status"]
        return found

    def add(self, line: Mapping[str, Any]) -> None:
        """Append a line; it is on the disk when this returns."""
        self._file.write(json.dumps(line, ensure_ascii=True).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self) -> None:
        self._file.seek(0)
        end = 0
        for number, line in enumerate(self._file, start=1):
            whole = line.endswith(b"\n")
            value = _result(line)
            if value is None and whole and line.strip():
                raise UsageError(
                    f"{self._path}, line {number}, is no result of 'agent run': name another file with --out"
                )
            if value is None and not whole:
                break  # a crash tore the last line: that task runs again
            if value is not None:
                self.lines.append(value)
            end += len(line)
            if not whole:
                self._file.write(b"\n")
                end += 1
        self._file.truncate(end)


def _result(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not all(isinstance(value.get(key), str) for key in ("id", "task", "status")):
        return None
    return value


def _lock(path: Path, file: IO[bytes]) -> None:
    try:
        import fcntl
    except ImportError:  # no such locks on Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise UsageError(f"another process writes results to {path}: wait for it, or name another file") from None
