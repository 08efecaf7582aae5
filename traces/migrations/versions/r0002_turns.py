"""The ledger as projections: one row per turn, and a summary per run.

Runs recorded before keep no projection; theirs is computed from their events when it is asked for.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_RUN_ID = sa.String(32).with_variant(sa.String(32, collation="C"), "postgresql")  # sorted as they were made


def upgrade() -> None:
    """Add the projections."""
    op.add_column("runs", sa.Column("summary", sa.JSON))
    op.create_table(
        "turns",
        sa.Column("run_id", _RUN_ID, nullable=False),
        sa.Column("turn", sa.Integer, autoincrement=False, nullable=False),
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
        sa.PrimaryKeyConstraint("run_id", "turn", name="pk_turns"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_turns_run_id", ondelete="CASCADE"),
    )


def downgrade() -> None:
    """Drop the projections; the events they were made from stay."""
    op.drop_table("turns")
    op.drop_column("runs", "summary")
