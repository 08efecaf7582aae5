"""`agent db`: where the traces are, and bringing them up to date."""

from __future__ import annotations

import typer

from . import parameters

app = typer.Typer(help="The database of the traces.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def path(db: parameters.Db = None) -> None:
    """Print where the traces are kept."""
    from agent_runtime.traces.database import locate

    url = locate(db)
    print(url.database if url.get_backend_name() == "sqlite" else url.render_as_string(hide_password=True))


@app.command()
def upgrade(db: parameters.Db = None) -> None:
    """Make the database, or migrate it.

    Every command that opens the database does the same.
    """
    from contextlib import closing

    from agent_runtime.traces.database import Database, locate
    from agent_runtime.traces.migrate import bring_up_to_date, revision_of

    with closing(Database(locate(db))) as database:
        with database.read() as connection:
            before = revision_of(connection)
        bring_up_to_date(database)
        with database.read() as connection:
            after = revision_of(connection)
    if before == after:
        print(f"{database.name}: up to date at revision {after}")
    else:
        print(f"{database.name}: from {before or 'empty'} to revision {after}")
