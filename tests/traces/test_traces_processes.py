"""Several processes that write into one database at the same time, and what is left when one of them is killed."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from agent_runtime.traces import DatabaseUnavailable, TraceStore
from agent_runtime.traces.events import RunFinished, RunStarted

Sql = Callable[..., list[tuple[Any, ...]]]

WRITER = """
import sys

import anyio
from agent_runtime.traces import TraceStore
from agent_runtime.traces.events import RunFinished, RunStarted, TurnFinished, TurnStarted

where, batches, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


async def main():
    started = RunStarted(at=0.0, agent="shop", model="pocket", task="write")
    with TraceStore.open(where) as store:
        print("ready", flush=True)
        sys.stdin.readline()
        async with store.start_run(started) as writer:
            print(writer.run_id, flush=True)
            turn = 0
            for batch in range(batches):
                for _ in range(size // 2):
                    writer.append(TurnStarted(turn=turn, at=turn / 10))
                    writer.append(TurnFinished(turn=turn, at=turn / 10))
                    turn += 1
                    await writer.drain_if_full()
                await writer.durable()
                print(turn * 2, flush=True)  # acknowledged
            writer.append(RunFinished(at=turn / 10, status="done", output=""))


anyio.run(main)
"""
ENDLESS = 1_000_000


class Writer:
    """A process that writes a run, and says after every commit how many of its events are safe."""

    def __init__(self, where: str, *, batches: int, size: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, where, str(batches), str(size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.line() == "ready"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def rest(self) -> list[str]:
        """Return what the process still says until it ends."""
        assert self.process.stdout is not None
        return self.process.stdout.read().split()


@pytest.fixture
def writers(where: str) -> Iterator[Callable[..., list[Writer]]]:
    with contextlib.ExitStack() as processes:

        def start(*batches: int, size: int) -> list[Writer]:
            TraceStore.open(where).close()
            made = []
            for count in batches:
                made.append(Writer(where, batches=count, size=size))
                processes.enter_context(made[-1].process)
                processes.callback(made[-1].process.kill)
            for writer in made:
                writer.go()
            return made

        yield start


def test_processes_that_write_at_once_lose_nothing_and_wait_for_each_other(
    where: str, writers: Callable[..., list[Writer]]
) -> None:
    told = [writer.rest() for writer in writers(8, 8, 8, 8, size=100)]
    assert [said[1:] for said in told] == [[str(100 * (batch + 1)) for batch in range(8)]] * 4
    with TraceStore.open(where) as store:
        for run_id, *_ in told:
            run = store.run(run_id)
            events = list(store.events(run_id))
            assert (run.status, len(events)) == ("done", 801)
            assert [event.turn for event in events[:-1:2]] == list(range(400))
        assert store.statistics().turns == 1600


@pytest.mark.parametrize("acknowledged", [2, 40, 600])
def test_of_a_killed_process_everything_acknowledged_is_there_and_nothing_is_half(
    where: str, writers: Callable[..., list[Writer]], sql: Sql, acknowledged: int
) -> None:
    killed, other = writers(ENDLESS, 6, size=2 if acknowledged < 100 else 200)
    run_id = killed.line()
    last = 0
    while last < acknowledged:
        last = int(killed.line())
    killed.process.send_signal(signal.SIGKILL)
    last = max([last, *map(int, killed.rest())])  # what it still said before it died
    killed.process.wait()
    assert other.rest()[-1] == str(6 * (2 if acknowledged < 100 else 200))
    numbers = [seq for (seq,) in sql("SELECT seq FROM events WHERE run_id = ? ORDER BY seq", run_id)]
    assert numbers == list(range(len(numbers))), "no gap"
    assert len(numbers) >= last
    with TraceStore.open(where) as store:
        assert store.run(run_id).status == "interrupted"
        assert len(store.ledger(run_id).turns) == (len(numbers) + 1) // 2
        ((projected,),) = sql("SELECT count(*) FROM turns WHERE run_id = ?", run_id)
        assert projected == len(numbers) // 2, "events and their projections are committed together"
        (done,) = (run for run in store.runs() if run.run_id != run_id)
        assert done.status == "done"
        store.remove(run_id)


@pytest.mark.parametrize("backend", ["postgresql"])
@pytest.mark.anyio
async def test_a_connection_that_was_lost_between_two_commits_is_made_anew(
    store: TraceStore, started: RunStarted, sql: Sql
) -> None:
    async with store.start_run(started) as writer:
        writer.append(started)
        await writer.durable()
        assert sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '' AND datname = current_database() AND pid <> pg_backend_pid()")  # fmt: skip # noqa: E501
        writer.append(RunFinished(at=1.0, status="done", output=""))
    assert store.run(writer.run_id).status == "done"
    assert [event.type for event in store.events(writer.run_id)] == ["run_started", "run_finished"]


@pytest.mark.parametrize("backend", ["postgresql"])
def test_a_server_that_is_not_there_is_one_clear_line_without_the_password(where: str) -> None:
    address, _, name = where.rpartition("/")
    account, _, _ = address.rpartition("@")
    with pytest.raises(DatabaseUnavailable, match=r"postgres:\*\*\*@127\.0\.0\.1:1/.*--db") as caught:
        TraceStore.open(f"{account}@127.0.0.1:1/{name}")
    with pytest.raises(DatabaseUnavailable, match="does not exist") as also:
        TraceStore.open(f"{address}/no_such_database")
    for error in (caught, also):
        assert "\n" not in str(error.value)
        assert account.rpartition(":")[2] not in str(error.value)
