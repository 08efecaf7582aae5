"""A process that is killed in the middle of the built-in agent's run, and what its record says afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from agent_runtime.cli.app import run

PROGRAM = """
import sys

import anyio
from agent_runtime.demo.agent import shop_agent
from agent_runtime.tools.values import CallStarted, GuessStarted


async def main():
    async with shop_agent(device="cpu", latency_ms=60_000, traces=sys.argv[1]) as agent:
        async with agent.stream("Hi! Could you please tell me where O-7802 is at?") as stream:
            async for event in stream:
                if isinstance(event, CallStarted | GuessStarted):
                    print("calling", flush=True)


anyio.run(main)
"""


def test_a_run_killed_while_its_tool_works_is_shown_as_interrupted(pocket: Path, tmp_path: Path, capsys) -> None:
    db = tmp_path / "traces.db"
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(db)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = process.stdout.readline()
        process.kill()
        process.wait(timeout=60)
    assert told == "calling\n"
    assert run(["runs", "show", "last", "--db", str(db), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["status"], shown["agent"]) == ("interrupted", "shop")
    assert shown["events"][0]["type"] == "run_started"
