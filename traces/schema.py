"""Tables of the trace database: append-only `events`, and projections of them that are quick to list and to query.

The tables are made by the migrations, never from this module; a test holds the two together.
"""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa

REVISION = "0002"
"""The migration that this version of the package works with."""


class UtcDateTime(sa.types.TypeDecorator[datetime]):
    """A moment with its time zone, kept as UTC also by databases that know no zones."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Return the moment in UTC."""
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Return the moment with its zone, which is UTC where the database kept none."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

settings = sa.Table(
    "settings",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
"""What belongs to the database itself, such as the key of its redactions."""

RUN_ID = sa.String(32).with_variant(sa.String(32, collation="C"), "postgresql")
"""Ids sort in the order of their making, which in some languages' orders they would not ("aa" after "z")."""

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("id", RUN_ID, primary_key=True),
    sa.Column("agent", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("task", sa.Text, nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("started_at", UtcDateTime, nullable=False, index=True),
    sa.Column("ended_at", UtcDateTime),
    sa.Column("heartbeat_at", UtcDateTime, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("output", sa.Text),
    sa.Column("error", sa.Text),
    sa.Column("wall_ms", sa.Float),
    sa.Column("summary", sa.JSON(none_as_null=True)),
)
"""One row per run. `summary` is a projection of its events: the speculation figures of `agent run --json`."""

events = sa.Table(
    "events",
    metadata,
    sa.Column("run_id", sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("turn", sa.Integer),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("type", sa.String(32), nullable=False),
    sa.Column("body", sa.JSON, nullable=False),
)
"""Everything that happened, in order; rows are added and never changed. `at` is seconds since the run's start."""

turns = sa.Table(
    "turns",
    metadata,
    sa.Column("run_id", sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("turn", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("tool", sa.Text),
    sa.Column("pre_executable", sa.Boolean),
    sa.Column("source", sa.Text),
    sa.Column("confidence", sa.Float),
    sa.Column("ending", sa.String(16)),
    sa.Column("hit", sa.Boolean, nullable=False),
    sa.Column("hit_name", sa.Boolean, nullable=False),
    sa.Column("t_gen_ms", sa.Float, nullable=False),
    sa.Column("t_tool_ms", sa.Float),
    sa.Column("saved_ms", sa.Float, nullable=False),
    sa.Column("ledger", sa.JSON, nullable=False),
)
"""The ledger, one row per turn: what is asked for most as columns, all of it in `ledger`. A projection of `events`."""
