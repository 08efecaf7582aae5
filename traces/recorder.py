"""Turns the events of one run into rows and commits them; synchronous, for one thread at a time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import sqlalchemy as sa

from . import schema
from .database import Database
from .errors import DatabaseUnavailable, WriterFailed
from .events import EVENT_ADAPTER, STREAM_ONLY, Event, RunFinished, RunStarted, TurnFinished
from .ledger import LedgerFold
from .process import this_host
from .redaction import Redactor
from .run_ids import new_run_id

_ATTEMPTS = 20
_TURNS_AT_ONCE = 500
"""Databases bound the parameters of a statement."""


class RunRecorder:
    """Writes one run.

    Args:
        database: Where to.
        redactor: Takes secrets out of everything that is written.
    """

    def __init__(self, database: Database, redactor: Redactor) -> None:
        self.run_id = ""
        self._database = database
        self._redactor = redactor
        self._seq = 0
        self._ledger = LedgerFold()
        self._written_turns: set[int] = set()
        self._open_turns: set[int] = set()
        self._finished = False

    def begin(self, started: RunStarted) -> str:
        """Insert the run's row and return the id made for it.

        Raises:
            DatabaseUnavailable: the row can't be written.
        """
        now = datetime.now(UTC)
        row = {
            "agent": self._text(started.agent),
            "model": self._text(started.model),
            "task": self._text(started.task),
            "status": "running",
            "started_at": now,
            "heartbeat_at": now,
            "host": this_host(),
            "pid": os.getpid(),
        }
        for attempt in range(_ATTEMPTS):
            run_id = new_run_id()
            try:
                with self._database.write() as connection:
                    connection.execute(sa.insert(schema.runs).values(id=run_id, **row))
            except DatabaseUnavailable as error:
                if not isinstance(error.__cause__, sa.exc.IntegrityError) or attempt == _ATTEMPTS - 1:
                    raise
                continue  # another process made the same id in the same instant
            self.run_id = run_id
            return run_id
        raise AssertionError("unreachable")

    def commit(self, events: Sequence[Event]) -> None:
        """Write a batch, and what follows from it for the run's projections, in one transaction; none only beats.

        Raises:
            WriterFailed: nothing of the batch was written.
        """
        seq = self._seq
        rows: list[dict[str, Any]] = []
        ended: set[int] = set()
        changes: dict[str, Any] = {"heartbeat_at": datetime.now(UTC)}
        for event in events:
            if isinstance(event, STREAM_ONLY):
                continue
            self._ledger.add(event)
            rows.append(self._event_row(seq, event))
            seq += 1
            if isinstance(event, RunFinished):
                changes |= self._ending(event)
            elif isinstance(event, TurnFinished):
                ended.add(event.turn)
            elif not isinstance(event, RunStarted):
                self._open_turns.add(event.turn)  # also one that has ended: a guess may end after its turn has
        finished = self._finished or "status" in changes
        if finished and rows:
            changes["summary"] = self._ledger.result().summary()
        turns = sorted(self._open_turns | ended) if finished else sorted(ended)
        try:
            with self._database.write() as connection:
                updated = connection.execute(
                    sa.update(schema.runs).where(schema.runs.c.id == self.run_id).values(**changes)
                )
                if updated.rowcount == 0:
                    raise WriterFailed(
                        f"run {self.run_id} can't be recorded any more: it was removed from the database"
                    )
                self._database.append(connection, schema.events, rows)
                for start in range(0, len(turns), _TURNS_AT_ONCE):
                    self._write_turns(connection, turns[start : start + _TURNS_AT_ONCE])
        except DatabaseUnavailable as error:
            raise WriterFailed(f"run {self.run_id} can't be recorded any more: {error}") from error
        self._seq = seq
        self._open_turns.difference_update(turns)
        self._written_turns.update(turns)
        self._finished = finished

    def close(self) -> None:
        """Mark a run that never said how it ended; does nothing for one that did.

        Raises:
            DatabaseUnavailable: the mark can't be written.
        """
        if self._finished or not self.run_id:
            return
        now = datetime.now(UTC)
        with self._database.write() as connection:
            connection.execute(
                sa.update(schema.runs)
                .where(schema.runs.c.id == self.run_id)
                .values(status="interrupted", ended_at=now, heartbeat_at=now)
            )
        self._finished = True

    def _event_row(self, seq: int, event: Event) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "seq": seq,
            "turn": getattr(event, "turn", None),
            "at": event.at,
            "type": event.type,
            "body": self._redactor.dump(event, partial(EVENT_ADAPTER.dump_python, event)),
        }

    def _ending(self, event: RunFinished) -> dict[str, Any]:
        return {
            "status": event.status,
            "ended_at": datetime.now(UTC),
            "output": self._text(event.output),
            "error": None if event.error is None else self._text(event.error),
            "wall_ms": event.at * 1000,
        }

    def _write_turns(self, connection: sa.Connection, turns: Sequence[int]) -> None:
        """Write the ledger of some turns, anew where it was written before."""
        table = schema.turns
        again = [turn for turn in turns if turn in self._written_turns]
        if again:
            connection.execute(sa.delete(table).where(table.c.run_id == self.run_id, table.c.turn.in_(again)))
        self._database.append(connection, table, [self._turn_row(turn) for turn in turns])

    def _turn_row(self, turn: int) -> dict[str, Any]:
        ledger = self._ledger.turn(turn)
        return {
            "run_id": self.run_id,
            "turn": turn,
            "tool": self._text(ledger.boundary.name) if ledger.boundary else None,
            "pre_executable": ledger.pre_executable if ledger.boundary else None,
            "source": None if ledger.source is None else self._text(ledger.source),
            "confidence": ledger.confidence,
            "ending": ledger.ending,
            "hit": ledger.hit,
            "hit_name": ledger.hit_name,
            "t_gen_ms": ledger.t_gen_ms,
            "t_tool_ms": ledger.t_tool_ms,
            "saved_ms": ledger.saved_ms,
            "ledger": self._redactor.dump(ledger.figures(), ledger.to_json),
        }

    def _text(self, text: str) -> str:
        return self._redactor.text(text).replace("\0", "\N{SYMBOL FOR NULL}")  # PostgreSQL's text has no NUL
