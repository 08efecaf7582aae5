"""Runs, their events, and the database's own settings."""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_RUN_ID = sa.String(32).with_variant(sa.String(32, collation="C"), "postgresql")  # sorted as they were made


def upgrade() -> None:
    """Make the tables of an empty database."""
    settings = op.create_table(
        "settings",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_settings"),
    )
    op.bulk_insert(settings, [{"name": "redaction_key", "value": secrets.token_hex(32)}])
    op.create_table(
        "runs",
        sa.Column("id", _RUN_ID, nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("task", sa.Text, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("output", sa.Text),
        sa.Column("error", sa.Text),
        sa.Column("wall_ms", sa.Float),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
    )
    op.create_index("ix_runs_started_at", "runs", ["started_at"])
    op.create_table(
        "events",
        sa.Column("run_id", _RUN_ID, nullable=False),
        sa.Column("seq", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("turn", sa.Integer),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("type", sa.String(32), nullable=False),
        sa.Column("body", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "seq", name="pk_events"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_events_run_id", ondelete="CASCADE"),
    )


def downgrade() -> None:
    """Drop everything."""
    op.drop_table("events")
    op.drop_index("ix_runs_started_at", table_name="runs")
    op.drop_table("runs")
    op.drop_table("settings")
