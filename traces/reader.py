"""Reads the events of a recorded run, a page at a time."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from pydantic import ValidationError

from . import schema
from .database import Database
from .events import EVENT_ADAPTER, Event

PAGE = 500


class StoredEvents(Iterator[Event]):
    """The events of one run in their order; iterate once.

    Between pages no transaction is open, so a slow reader holds no writer up. Events that this version can't
    understand, since a newer one wrote them, are left out and counted in `skipped`.
    """

    def __init__(self, database: Database, run_id: str) -> None:
        self.run_id = run_id
        self.skipped = 0
        self._database = database
        self._events = self._read()

    def __next__(self) -> Event:
        return next(self._events)

    def _read(self) -> Iterator[Event]:
        table = schema.events
        last = -1
        while True:
            statement = (
                sa.select(table.c.seq, table.c.body)
                .where(table.c.run_id == self.run_id, table.c.seq > last)
                .order_by(table.c.seq)
                .limit(PAGE)
            )
            with self._database.read() as connection:
                rows = connection.execute(statement).all()
            for row in rows:
                try:
                    yield EVENT_ADAPTER.validate_python(row.body)
                except ValidationError:
                    self.skipped += 1
            if len(rows) < PAGE:
                return
            last = rows[-1].seq
