"""Brings a database to the revision of this package, under a lock, however many processes open it at once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from .database import ENVIRONMENT, Database
from .errors import DatabaseTooNew, DatabaseTooOld
from .schema import REVISION

if TYPE_CHECKING:
    from alembic.config import Config

FOLDER = Path(__file__).parent / "migrations"

_one_at_a_time = threading.Lock()  # Alembic keeps its context in a global of the process


def revision_of(connection: sa.Connection) -> str | None:
    """Return the revision a database is at, or None where it has no tables of ours yet."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
    return revision


def bring_up_to_date(database: Database, *, migrate: bool = True, to: str = REVISION) -> None:
    """Migrate `database` to revision `to`; a database that is there already is only read.

    Raises:
        DatabaseTooNew: a newer version of this package made the database.
        DatabaseTooOld: the database needs migrating and `migrate` is False.
        DatabaseUnavailable: it can't be read or written.
    """
    with database.read() as connection:
        found = revision_of(connection)
    if found == to:
        return
    with _one_at_a_time:
        # Imported here since most processes find the database up to date.
        from alembic import command
        from alembic.script import ScriptDirectory

        config = alembic_config()
        known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
        if found is not None and found not in known:
            raise DatabaseTooNew(
                f"the trace database {database.name} is at revision {found}, which this version doesn't know (it is at "
                f"{REVISION}): upgrade agent-runtime, or use another database with --db or {ENVIRONMENT}"
            )
        if not migrate:
            raise DatabaseTooOld(
                f"the trace database {database.name} is at revision {found or 'none'}, older than {to}: "
                "run `agent db upgrade`"
            )
        with database.alone() as connection:
            if revision_of(connection) == to:  # another process was first
                return
            config.attributes["connection"] = connection
            command.upgrade(config, to)


def alembic_config() -> Config:
    """Return Alembic's configuration, without any file of settings."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
