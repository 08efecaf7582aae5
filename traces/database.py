"""Where traces are kept, and how they are reached: SQLite in the user's data folder, or any database by URL.

What differs between databases stays in this module: the rest speaks SQLAlchemy's common language.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import platformdirs
import sqlalchemy as sa

from .errors import DatabaseUnavailable
from .redaction import JsonText, compact_json

ENVIRONMENT = "AGENT_RUNTIME_DB"
"""Names the database where the program doesn't."""

BUSY_SECONDS = 30.0
"""How long a statement waits for another process to finish writing."""

CONNECT_SECONDS = 10
"""How long opening waits for a server that doesn't answer, unless its URL says otherwise (`connect_timeout`)."""

_MIGRATION_LOCK = 0x6167656E7472756E
"""Key of the advisory lock under which PostgreSQL databases are migrated."""


def default_path() -> Path:
    """Return the trace database of this user."""
    return platformdirs.user_data_path("agent-runtime", appauthor=False) / "traces.db"


def locate(where: str | Path | None = None) -> sa.URL:
    """Return the URL of a database given as a path or a URL; None takes `AGENT_RUNTIME_DB`, else the user's own.

    Raises:
        DatabaseUnavailable: the URL can't be understood, or names a database that only one thread can see.
    """
    if where is None:
        where = os.environ.get(ENVIRONMENT) or default_path()
    if isinstance(where, Path) or "://" not in where:
        if str(where) == ":memory:":
            raise _in_memory()
        return sa.URL.create("sqlite", database=str(Path(where).expanduser().absolute()))
    try:
        url = sa.make_url(where)
    except (sa.exc.ArgumentError, ValueError) as error:
        raise DatabaseUnavailable(
            f"{where!r} is no database URL ({error}); give a path, or a URL such as postgresql+psycopg://host/name"
        ) from None
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise _in_memory()
    return url


def _in_memory() -> DatabaseUnavailable:
    return DatabaseUnavailable(
        "an in-memory database can't be shared between threads; `traces=False` records in memory"
    )


class Database:
    """One database: connections to read and to write over, with errors in this package's own words.

    Raises:
        DatabaseUnavailable: the database's driver isn't installed, or its file can't be made.
    """

    def __init__(self, url: sa.URL) -> None:
        self.url = url
        self.name = url.render_as_string(hide_password=True)
        self.path: Path | None = None
        if url.get_backend_name() == "sqlite":
            assert url.database is not None
            self.path = Path(url.database)
            self.name = url.database
            self._engine = sa.create_engine(url, connect_args={"timeout": BUSY_SECONDS}, json_serializer=_as_json)
            sa.event.listen(self._engine, "connect", _configure_sqlite)
            sa.event.listen(self._engine, "begin", _begin_sqlite)
            # Threads of one process take turns here: SQLite's own waiting polls, and is not fair.
            self._turn: contextlib.AbstractContextManager[Any] = threading.RLock()
            self._make_file(self.path)
        else:
            try:
                self._engine = sa.create_engine(
                    url, pool_pre_ping=True, json_serializer=_as_json, connect_args=_patience(url)
                )
                sa.event.listen(self._engine, "handle_error", _give_up_on_a_failed_ping)
            except (ImportError, sa.exc.ArgumentError) as error:
                hint = "pip install 'agent-runtime[postgres]'" if "psycopg" in str(error) else "install its driver"
                raise DatabaseUnavailable(
                    f"can't use the trace database {self.name}: {error}; {hint}, or give a path for SQLite"
                ) from None
            self._turn = contextlib.nullcontext()
        dbapi = self._engine.dialect.loaded_dbapi
        self._errors: tuple[type[BaseException], ...] = (sa.exc.SQLAlchemyError, dbapi.Error)
        self._writing = self._engine.execution_options(agent_runtime_writes=True)

    @contextlib.contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Open a transaction that only reads.

        Raises:
            DatabaseUnavailable: a statement failed.
        """
        with self._own_words("read"), self._engine.connect() as connection, connection.begin():
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """Open a transaction that writes; it is committed, and on disk, when the block ends.

        Raises:
            DatabaseUnavailable: a statement failed; nothing of the block was written.
        """
        with self._own_words("write"), self._turn, self._writing.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def alone(self) -> Iterator[sa.Connection]:
        """Open a writing transaction that excludes every other process that asks for the same."""
        if self.path is not None:
            self._turn_on_write_ahead_log()
        with self.write() as connection:  # on SQLite the only writer there is
            if connection.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
            yield connection

    def append(self, connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert many rows, all with the same columns, in the way that is fastest with this database.

        The values are plain ones: numbers, text, and `JsonText` where the column is JSON.
        """
        if not rows:
            return
        if connection.dialect.driver != "psycopg":
            connection.execute(sa.insert(table), rows)
            return
        quote = connection.dialect.identifier_preparer
        columns = ", ".join(quote.format_column(table.c[name]) for name in rows[0])
        driver: Any = connection.connection.driver_connection
        with driver.cursor() as cursor:  # SQLAlchemy knows no COPY, which takes a third of the time
            with cursor.copy(f"COPY {quote.format_table(table)} ({columns}) FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(tuple(row.values()))

    def size(self) -> int | None:
        """Return the database's size in bytes, or None where it isn't a file here."""
        if self.path is None:
            return None
        files = (self.path, self.path.with_name(self.path.name + "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _make_file(self, path: Path) -> None:
        """Make the file and its folder, readable by this user only: traces hold what users said."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise DatabaseUnavailable(
                f"can't write the trace database {path}: {error.strerror or error}; "
                f"give another path with --db or {ENVIRONMENT}"
            ) from None

    def _turn_on_write_ahead_log(self) -> None:
        """Let readers and one writer work at the same time; a property of the file, so once is enough."""
        patience = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                with self._own_words("open"), contextlib.closing(self._engine.raw_connection()) as connection:
                    connection.cursor().execute("PRAGMA journal_mode = WAL")
                return
            except DatabaseUnavailable as error:
                # SQLite answers at once, without its usual patience, while another process does the same.
                if "locked" not in str(error) or time.monotonic() > patience:
                    raise
                time.sleep(0.01)

    @contextlib.contextmanager
    def _own_words(self, action: str) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            cause = (str(getattr(error, "orig", None) or error).strip() or type(error).__name__).splitlines()[0]
            raise DatabaseUnavailable(
                f"can't {action} the trace database {self.name}: {cause}; {_remedy(cause)}"
            ) from error


def _remedy(cause: str) -> str:
    """Return what to do about an error of the database."""
    if "full" in cause:
        return "free some space, or remove old runs with `agent runs rm`"
    if "not a database" in cause or "malformed" in cause:
        return f"it is no SQLite database or a damaged one: give another path with --db or {ENVIRONMENT}"
    if "locked" in cause:
        return "another process has been writing for long; try again when it is done"
    return f"check it, or give another with --db or {ENVIRONMENT}"


def _patience(url: sa.URL) -> dict[str, Any]:
    """Return how long to wait for a server that doesn't answer, where the URL leaves it to the network's minutes."""
    if not url.get_driver_name().startswith("psycopg") or "connect_timeout" in url.query:
        return {}
    return {"connect_timeout": CONNECT_SECONDS}


def _as_json(value: Any) -> str:
    return value if isinstance(value, JsonText) else compact_json(value)


def _give_up_on_a_failed_ping(context: sa.engine.ExceptionContext) -> None:
    """Make a new connection whatever is wrong with an idle one: psycopg reports some lost ones as misused."""
    if context.is_pre_ping:
        context.is_disconnect = True


def _configure_sqlite(connection: sqlite3.Connection, record: object) -> None:
    connection.isolation_level = None  # transactions begin where SQLAlchemy says so, not where sqlite3 guesses
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")  # a committed write's start survives a power cut


def _begin_sqlite(connection: sa.Connection) -> None:
    # A transaction that starts by reading and writes later can fail at once instead of waiting for its turn.
    writes = connection.get_execution_options().get("agent_runtime_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
