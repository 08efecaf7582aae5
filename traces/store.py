"""The trace store: opens the database, starts the recording of runs, and reads and removes what was recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import sqlalchemy as sa

from . import schema
from .database import Database, locate
from .errors import AmbiguousRunId, DatabaseUnavailable, RunNotFound, RunStillRunning
from .events import RunStarted, RunStatus
from .ledger import Ledger, ledger
from .migrate import bring_up_to_date
from .process import is_dead
from .reader import StoredEvents
from .recorder import RunRecorder
from .redaction import Redactor
from .writer import CAPACITY, FLUSH_SECONDS, HEARTBEAT_SECONDS, RunWriter

STALE_SECONDS = 30.0
"""A running run that was not heard of for this long counts as interrupted."""
LAST = "last"
"""Stands for the newest run wherever an id is asked for; no id can be spelled so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run as the store lists it. Times are UTC; `wall_ms` goes as far as the run was heard of.

    A run whose process is gone, or which was not heard of for 30 s, has status `interrupted`.
    """

    run_id: str
    agent: str
    model: str
    task: str
    status: RunStatus
    started_at: datetime
    ended_at: datetime | None
    heartbeat_at: datetime
    host: str
    pid: int
    output: str | None
    error: str | None
    wall_ms: float
    summary: Mapping[str, Any] | None
    """The `speculation` object of the run's JSON; None while it runs and where it was interrupted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatistics:
    """What a store holds. `bytes` is None where the database isn't a file here."""

    database: str
    revision: str
    runs: int
    runs_by_status: Mapping[str, int]
    events: int
    turns: int
    bytes: int | None


class TraceStore:
    """The traces of many runs in one database; make it with `TraceStore.open`.

    Reading and opening are synchronous: in an event loop call them in a worker thread.
    """

    def __init__(self, database: Database, redaction_key: bytes) -> None:
        self._database = database
        self._redaction_key = redaction_key

    @classmethod
    def open(cls, where: str | Path | None = None, *, migrate: bool = True) -> Self:
        """Open a database, and bring it to this version's revision first.

        Several processes may do so at once. None takes the database that `AGENT_RUNTIME_DB` names, else the user's own.

        Args:
            where: A path of an SQLite file, or an SQLAlchemy URL.
            migrate: False refuses a database that needs migrating.

        Raises:
            DatabaseUnavailable: it can't be opened or written, or its driver is missing.
            DatabaseTooNew: a newer version of this package made it.
            DatabaseTooOld: it needs migrating and `migrate` is False.
        """
        database = Database(locate(where))
        try:
            bring_up_to_date(database, migrate=migrate)
            with database.read() as connection:
                key = connection.scalar(
                    sa.select(schema.settings.c.value).where(schema.settings.c.name == "redaction_key")
                )
            if key is None:
                raise DatabaseUnavailable(
                    f"the trace database {database.name} has lost its redaction key; start a new database with --db"
                )
        except BaseException:
            database.close()
            raise
        return cls(database, bytes.fromhex(key))

    @property
    def name(self) -> str:
        """The database's path, or its URL without the password."""
        return self._database.name

    @property
    def path(self) -> Path | None:
        """The database's file; None where it isn't one."""
        return self._database.path

    def start_run(
        self,
        started: RunStarted,
        *,
        secrets: Mapping[str, Iterable[str]] | None = None,
        inline: bool | None = None,
        capacity: int = CAPACITY,
        heartbeat: float = HEARTBEAT_SECONDS,
        flush_seconds: float = FLUSH_SECONDS,
    ) -> RunWriter:
        """Return the writer of a new run; the run gets its row and its id when the writer's context is entered.

        `started` tells what the row says; append it like every other event.

        Args:
            started: How the run begins.
            secrets: Names of the arguments that must not be written, by tool.
            inline: True writes where `append` is called, without a worker thread; None does so under a virtual clock.
            capacity: Events that may be pending before `drain_if_full` waits.
            heartbeat: Seconds between signs of life of a run that has nothing to write.
            flush_seconds: How long leaving the writer may take.
        """
        return RunWriter(
            RunRecorder(self._database, Redactor(self._redaction_key, secrets)),
            started,
            inline=inline,
            capacity=capacity,
            heartbeat=heartbeat,
            flush_seconds=flush_seconds,
        )

    def runs(self, limit: int | None = 20, *, agent: str | None = None) -> list[RunRow]:
        """Return runs, the newest first.

        Raises:
            DatabaseUnavailable: the database can't be read.
        """
        statement = sa.select(schema.runs).order_by(schema.runs.c.id.desc()).limit(limit)
        if agent is not None:
            statement = statement.where(schema.runs.c.agent == agent)
        with self._database.read() as connection:
            return [_run_row(row) for row in connection.execute(statement)]

    def run(self, run_id: str) -> RunRow:
        """Return the run with this id, with the one id that begins so, or the newest run for `last`.

        Raises:
            RunNotFound: there is none.
            AmbiguousRunId: several ids begin so.
        """
        statement = sa.select(schema.runs).order_by(schema.runs.c.id.desc()).limit(2)
        if run_id == LAST:
            statement = statement.limit(1)
        else:
            statement = statement.where(schema.runs.c.id.startswith(run_id, autoescape=True))
        with self._database.read() as connection:
            rows = connection.execute(statement).all() if run_id else []
        exact = [row for row in rows if row.id == run_id]
        if not rows:
            raise RunNotFound(f"no run {run_id!r} in {self.name}: `agent runs list` shows those there are")
        if len(rows) > 1 and not exact:
            raise AmbiguousRunId(f"several runs have an id that begins with {run_id!r}: give more of it")
        return _run_row((exact or rows)[0])

    def events(self, run_id: str) -> StoredEvents:
        """Iterate over a run's events without loading them all; `.skipped` counts those of a newer version.

        Raises:
            RunNotFound: there is no such run.
        """
        return StoredEvents(self._database, self.run(run_id).run_id)

    def ledger(self, run_id: str) -> Ledger:
        """Return the ledger of a run, whole or broken off.

        Raises:
            RunNotFound: there is no such run.
        """
        return ledger(self.events(run_id))

    def remove(self, run_id: str) -> str:
        """Remove a run with everything recorded of it; return its id.

        Raises:
            RunNotFound: there is no such run.
            RunStillRunning: it is going on.
        """
        row = self.run(run_id)
        if row.status == "running":
            raise RunStillRunning(f"run {row.run_id} is running (process {row.pid}): stop it before removing it")
        with self._database.write() as connection:
            for table in (schema.turns, schema.events):
                connection.execute(sa.delete(table).where(table.c.run_id == row.run_id))
            connection.execute(sa.delete(schema.runs).where(schema.runs.c.id == row.run_id))
        return row.run_id

    def statistics(self) -> StoreStatistics:
        """Return what the store holds.

        Raises:
            DatabaseUnavailable: the database can't be read.
        """
        states = sa.select(
            schema.runs.c.id, schema.runs.c.status, schema.runs.c.host, schema.runs.c.pid, schema.runs.c.heartbeat_at
        )
        by_status: dict[str, int] = {}
        with self._database.read() as connection:
            for row in connection.execute(states):
                status = _status(row)
                by_status[status] = by_status.get(status, 0) + 1
            events, turns = (
                connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0
                for table in (schema.events, schema.turns)
            )
        return StoreStatistics(
            database=self.name,
            revision=schema.REVISION,
            runs=sum(by_status.values()),
            runs_by_status=by_status,
            events=events,
            turns=turns,
            bytes=self._database.size(),
        )

    def close(self) -> None:
        """Close the store's connections; writers that are open must be left first."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _status(row: Any) -> RunStatus:
    """Return a run's status, `interrupted` where it claims to run and can't."""
    status: RunStatus = row.status
    if status != "running":
        return status
    silent = datetime.now(UTC) - row.heartbeat_at > timedelta(seconds=STALE_SECONDS)
    return "interrupted" if silent or is_dead(row.host, row.pid) else "running"


def _run_row(row: sa.Row[Any]) -> RunRow:
    wall_ms = row.wall_ms
    if wall_ms is None:
        wall_ms = (row.heartbeat_at - row.started_at).total_seconds() * 1000
    return RunRow(
        run_id=row.id,
        agent=row.agent,
        model=row.model,
        task=row.task,
        status=_status(row),
        started_at=row.started_at,
        ended_at=row.ended_at,
        heartbeat_at=row.heartbeat_at,
        host=row.host,
        pid=row.pid,
        output=row.output,
        error=row.error,
        wall_ms=wall_ms,
        summary=row.summary,
    )
