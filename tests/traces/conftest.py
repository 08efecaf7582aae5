from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_runtime.traces import TraceStore
from agent_runtime.traces.events import RunStarted


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "traces.db"


@pytest.fixture
def store(path: Path) -> Iterator[TraceStore]:
    with TraceStore.open(path) as store:
        yield store


@pytest.fixture
def started() -> RunStarted:
    return RunStarted(at=0.0, agent="shop", model="pocket", task="Where is order 1042?")


@pytest.fixture
def sql(path: Path) -> Callable[..., list[tuple[object, ...]]]:
    """Run SQL on the database file from outside."""
    import contextlib
    import sqlite3

    def run(statement: str, *parameters: object) -> list[tuple[object, ...]]:
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            return connection.execute(statement, parameters).fetchall()

    return run
