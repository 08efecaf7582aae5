"""Alembic's entry: migrates over the connection that the store hands in, inside the store's own transaction."""

from __future__ import annotations

from alembic import context

# One transaction for all steps, on SQLite too: a database is at one revision or the other, never between.
context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
context.run_migrations()
