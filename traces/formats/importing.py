"""Puts runs that were recorded elsewhere into a trace store, with their times and, where it is free, their id."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import sqlalchemy as sa

from .. import schema
from ..errors import DatabaseUnavailable, RunNotFound
from ..events import RunStarted
from ..recorder import RunRecorder
from ..redaction import Redactor
from ..store import RunRow, TraceStore
from .runs import RecordedRun

_ID = re.compile(r"[0-9a-hjkmnp-tv-z]{11}")
_BATCH = 512


def import_run(store: TraceStore, run: RecordedRun) -> tuple[str, bool]:
    """Store a run; return its id there, and whether it is new there.

    Secrets are taken out as they are from every run. A run that the store has already is left as it is; another run of
    the same id gets a new one.

    Raises:
        DatabaseUnavailable: the database can't be written.
        WriterFailed: the events can't be written.
    """
    info = run.info
    if _ID.fullmatch(info.run_id):
        try:
            there = store.run(info.run_id)
        except RunNotFound:
            there = None
        if there is not None and (there.agent, there.started_at) == (info.agent, info.started_at):
            return there.run_id, False
    started = next((event for event in run.events if isinstance(event, RunStarted)), None)
    if started is None:
        started = RunStarted(at=0.0, agent=info.agent, model=info.model, task=info.task)
    recorder = _Importer(store._database, Redactor(store._redaction_key))
    recorder.begin_as(info, started)
    for start in range(0, len(run.events), _BATCH):
        recorder.commit(run.events[start : start + _BATCH])
    recorder.close()
    recorder.set_times(info)
    return recorder.run_id, True


class _Importer(RunRecorder):
    """Records a run that is over."""

    def begin_as(self, info: RunRow, started: RunStarted) -> None:
        """Insert the row of a run under its own id, or under a new one where that is taken or no id of ours."""
        if not _ID.fullmatch(info.run_id):
            self.begin(started)
            return
        now = datetime.now(UTC)
        row = {
            "id": info.run_id,
            "agent": self._text(started.agent),
            "model": self._text(started.model),
            "task": self._text(started.task),
            "status": "running",
            "started_at": now,
            "heartbeat_at": now,
            "host": "",
            "pid": 0,
        }
        try:
            with self._database.write() as connection:
                connection.execute(sa.insert(schema.runs).values(**row))
        except DatabaseUnavailable as error:
            if not isinstance(error.__cause__, sa.exc.IntegrityError):
                raise
            self.begin(started)
            return
        self.run_id = info.run_id

    def set_times(self, info: RunRow) -> None:
        """Give the run the times and the place that it had."""
        values = {
            "started_at": info.started_at,
            "ended_at": info.ended_at,
            "heartbeat_at": info.heartbeat_at,
            "wall_ms": info.wall_ms if info.ended_at is not None else None,
            "host": self._text(info.host),
            "pid": info.pid,
        }
        with self._database.write() as connection:
            connection.execute(sa.update(schema.runs).where(schema.runs.c.id == self.run_id).values(**values))
