"""A file of tasks: one per line, or JSONL with ids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_runtime.errors import UsageError

JSONL = (".jsonl", ".ndjson")


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a file."""

    index: int
    """Its place in the file, from 0."""
    id: str
    """The id that the file gives it, else its number, from 1."""
    text: str


def read_tasks(path: Path) -> list[Task]:
    """Return the tasks of a file. Blank lines are left out.

    A `.jsonl` file holds an object per line, with `task` and, if wanted, `id`; any other file is text.

    Raises:
        UsageError: the file can't be read, is not text, holds no task, or a line is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"can't read tasks from {path}: {error}") from None
    is_jsonl = path.suffix.lower() in JSONL
    # Not splitlines(): JSON strings may hold the other characters that it takes for ends of lines.
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    tasks = (
        list(_objects(path, lines)) if is_jsonl else [Task(i, str(i + 1), line) for i, (_, line) in enumerate(lines)]
    )
    if not tasks:
        raise UsageError(f"{path} holds no task; write one per line")
    return tasks


def _objects(path: Path, lines: list[tuple[int, str]]) -> Iterator[Task]:
    seen: dict[str, int] = {}
    for index, (number, line) in enumerate(lines):
        task = _object(path, number, line, index)
        if task.id in seen:
            raise UsageError(f"{path}, line {number}: the id {task.id!r} is taken by line {seen[task.id]}")
        seen[task.id] = number
        yield task


def _object(path: Path, number: int, line: str, index: int) -> Task:
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}, line {number}: not JSON: {error}") from None
    if not isinstance(value, dict) or not isinstance(value.get("task"), str) or not value["task"].strip():
        raise UsageError(f'{path}, line {number}: write {{"id": "...", "task": "..."}}')
    given = value.get("id", index + 1)
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise UsageError(f"{path}, line {number}: the id must be a string or a whole number, not {given!r}")
    return Task(index, str(given), value["task"])
