"""Migrations of the trace database (Alembic); they run when a store is opened."""
