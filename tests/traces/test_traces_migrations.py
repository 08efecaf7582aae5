from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from agent_runtime.traces import (
    DatabaseTooNew,
    DatabaseTooOld,
    DatabaseUnavailable,
    TraceStore,
    default_path,
    locate,
    schema,
)
from agent_runtime.traces.database import Database
from agent_runtime.traces.migrate import alembic_config, bring_up_to_date
from sqlalchemy.dialects import postgresql

Sql = Callable[..., list[tuple[object, ...]]]


def test_an_empty_database_gets_the_tables_that_the_code_works_with(where: str) -> None:
    TraceStore.open(where).close()
    engine = sa.create_engine(locate(where))
    found = sa.MetaData()
    found.reflect(engine)
    engine.dispose()
    assert set(found.tables) == {*schema.metadata.tables, "alembic_version"}
    for name, table in schema.metadata.tables.items():
        columns = found.tables[name].columns
        assert [(c.name, c.nullable, c.primary_key) for c in columns] == [
            (c.name, c.nullable, c.primary_key) for c in table.columns
        ]
        assert {i.name for i in found.tables[name].indexes} == {i.name for i in table.indexes}


def test_the_codes_revision_is_the_newest_migration() -> None:
    from alembic.script import ScriptDirectory

    assert ScriptDirectory.from_config(alembic_config()).get_current_head() == schema.REVISION


def test_an_older_database_is_migrated_with_its_runs(where: str, sql: Sql) -> None:
    database = Database(locate(where))
    bring_up_to_date(database, to="0001")
    database.close()
    sql(
        "INSERT INTO runs (id, agent, model, task, status, started_at, heartbeat_at, host, pid, wall_ms) VALUES "
        "('0a', 'shop', 'pocket', 'hi', 'done', '2025-03-01 12:00:00.000000', '2025-03-01 12:00:01.000000', 'h', 1, 9)"
    )
    body = '{"type": "turn_started", "turn": 0, "at": 0.5}'
    sql("INSERT INTO events VALUES ('0a', 0, 0, 0.5, 'turn_started', ?)", body)
    with TraceStore.open(where) as store:
        (run,) = store.runs()
        assert (run.run_id, run.status, run.summary, run.wall_ms) == ("0a", "done", None, 9)
        assert len(list(store.events("0a"))) == 1
        assert store.ledger("0a").boundaries == 0
        assert store.statistics().revision == "0002"


def test_a_failing_migration_leaves_the_database_as_it_was(where: str, sql: Sql) -> None:
    database = Database(locate(where))
    bring_up_to_date(database, to="0001")
    database.close()
    sql("CREATE TABLE turns (something INTEGER)")
    with pytest.raises(DatabaseUnavailable, match="turns"):
        TraceStore.open(where)
    assert sql("SELECT version_num FROM alembic_version") == [("0001",)]
    with pytest.raises(Exception, match="summary"):
        sql("SELECT summary FROM runs")


def test_without_migrating_an_older_database_is_refused(where: str) -> None:
    with pytest.raises(DatabaseTooOld, match="agent db upgrade"):
        TraceStore.open(where, migrate=False)
    TraceStore.open(where).close()
    TraceStore.open(where, migrate=False).close()


def test_a_database_of_a_newer_version_is_refused(where: str, sql: Sql) -> None:
    TraceStore.open(where).close()
    sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(DatabaseTooNew, match=r"9999.*upgrade agent-runtime"):
        TraceStore.open(where)


def test_several_processes_may_open_a_new_database_at_once(where: str) -> None:
    program = (
        "import sys\n"
        "from agent_runtime.traces import TraceStore\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "store = TraceStore.open(sys.argv[1])\n"
        "print(store.statistics().revision, store._redaction_key.hex(), flush=True)\n"
        "store.close()\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:  # all at once
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = {process.communicate(timeout=60)[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0, 0]
    assert len(answers) == 1 and answers.pop().startswith("0002 ")


def test_a_path_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with pytest.raises(DatabaseUnavailable, match=r"can't write .*file.x\.db.*--db"):
        TraceStore.open(tmp_path / "file" / "x.db")
    with pytest.raises(DatabaseUnavailable, match="can't write"):
        TraceStore.open(tmp_path)


def test_a_file_that_is_no_database_is_a_clear_error(path: Path) -> None:
    path.write_text("dear diary, this is no database at all\n" * 40)
    with pytest.raises(DatabaseUnavailable, match=r"not a database.*--db"):
        TraceStore.open(path)


@pytest.mark.parametrize("where", [":memory:", "sqlite://", "sqlite:///:memory:"])
def test_a_database_in_memory_is_refused(where: str) -> None:
    with pytest.raises(DatabaseUnavailable, match="in-memory"):
        TraceStore.open(where)


@pytest.mark.parametrize("where", ["nonsense://host/name", "://", "postgresql+nonsense://host/name"])
def test_a_url_that_means_nothing_is_a_clear_error(where: str) -> None:
    with pytest.raises(DatabaseUnavailable, match="database"):
        TraceStore.open(where)


def test_the_database_is_the_given_one_else_the_environments_else_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AGENT_RUNTIME_DB", raising=False)
    assert locate().database == str(default_path())
    monkeypatch.setenv("AGENT_RUNTIME_DB", str(tmp_path / "env.db"))
    assert locate().database == str(tmp_path / "env.db")
    assert locate(tmp_path / "mine.db").database == str(tmp_path / "mine.db")
    assert locate("postgresql+psycopg://u:p@host/name").host == "host"


def test_the_file_and_its_new_folder_are_for_this_user_only(tmp_path: Path) -> None:
    with TraceStore.open(tmp_path / "new" / "deep" / "traces.db") as store:
        assert store.path is not None
        assert store.path.stat().st_mode & 0o077 == 0


def test_a_password_in_the_url_is_not_shown() -> None:
    with pytest.raises(DatabaseUnavailable) as caught:
        TraceStore.open("postgresql+nonsense://user:hunter2@host/name")
    assert "hunter2" not in str(caught.value)


def test_the_tables_are_ordinary_sql_that_postgresql_takes_too() -> None:
    for table in schema.metadata.sorted_tables:
        assert str(sa.schema.CreateTable(table).compile(dialect=postgresql.dialect()))
