"""A real vLLM serving pocket in float32: the same words as the local engine, and the server's own counters as proof.

Run by `make test-vllm`, which installs vLLM first.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from agent_runtime.speculator.settings import Speculation
from agent_runtime.traces.messages import SystemMessage, UserMessage

from agent_runtime.bench.records import SPECULATIVE, RunRecord
from agent_runtime.bench.speculate import bench_speculate
from agent_runtime.demo.agent import shop_agent
from agent_runtime.demo.shop.instructions import INSTRUCTIONS
from agent_runtime.demo.shop.schemas import tools_schema
from agent_runtime.engines.base import Delta, PromptReady, ToolSchema
from agent_runtime.engines.server import ServerEngine

from .conftest import Vllm

pytestmark = [pytest.mark.slow]
StartVllm = Callable[..., Vllm]
BLOCK = 128
"""Tokens in a block of the CPU build's prefix cache, which caches whole blocks only."""
TOOLS = [
    ToolSchema(
        name=each["function"]["name"],
        description=each["function"]["description"],
        parameters=each["function"]["parameters"],
    )
    for each in tools_schema()
]
TASK = "My email is marta.haas@example.org. Where is my newest order?"


@pytest.fixture(scope="module")
def vllm(start_vllm: StartVllm) -> Vllm:
    """A vLLM with guided decoding by llguidance, priorities, and its own parser of calls."""
    return start_vllm(
        *("--structured-outputs-config.backend", "guidance", "--scheduling-policy", "priority"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    )


async def records_of(model: ServerEngine | None, tasks: int, **settings: Any) -> list[RunRecord]:
    records: list[RunRecord] = []
    await bench_speculate(
        "shop",
        tasks=tasks,
        seed=5,
        tool_latency_ms=0.0,
        model=model,
        speculation=Speculation(placement="before", reprobe=()),
        on_records=records.extend,
        **settings,
    )
    return records


def hits(records: list[RunRecord]) -> list[bool]:
    return [
        any(ended.matched for ended in record.events if ended.type == "guess_ended" and ended.turn == turn.turn)
        for record in records
        if record.mode == SPECULATIVE
        for turn in record.ledger.turns
        if turn.boundary is not None
    ]


def test_pocket_says_and_guesses_on_vllm_what_it_does_on_the_local_engine(vllm: Vllm) -> None:
    async def both() -> tuple[list[RunRecord], list[RunRecord], ServerEngine]:
        engine = ServerEngine.from_address(vllm.address)
        return await records_of(None, 6), await records_of(engine, 6), engine

    local, served, engine = anyio.run(both)
    transcripts = [{(each.task_id, each.mode): each.transcript for each in records} for records in (local, served)]
    assert transcripts[0] == transcripts[1]
    assert abs(sum(hits(local)) - sum(hits(served))) <= 1
    found = engine.statistics()
    assert found.prefixes_compared == found.prefixes_identical > 0
    assert found.endpoints[0].no_guesses is None


@pytest.mark.anyio
async def test_the_prefix_cache_serves_the_probe_as_the_servers_own_counters_show(vllm: Vllm) -> None:
    engine = ServerEngine.from_address(vllm.address)
    session = await engine.open(TOOLS)
    messages = [SystemMessage(INSTRUCTIONS), UserMessage("How much is the Kestrel backpack? " * 20)]
    async with session.generate(messages, max_tokens=64) as stream:
        async for event in stream:
            if isinstance(event, PromptReady):
                prompt, before = event.prompt_tokens, await engine.counters()
                result = await session.probe(messages, max_tokens=96)
                after = await engine.counters()
                break
    assert result.completed
    assert before is not None and after is not None
    since = after.since(before)
    # The probe's prompt is the agent's and one token: all its whole blocks are in the cache.
    assert prompt > 2 * BLOCK
    assert since.prefix_queries == prompt + 1
    assert since.prefix_hits == prompt // BLOCK * BLOCK == engine.statistics().probe_cached_tokens
    await session.aclose()


@pytest.mark.anyio
async def test_leaving_a_generation_frees_the_server(vllm: Vllm) -> None:
    engine = ServerEngine.from_address(vllm.address)
    session = await engine.open(TOOLS)
    async with session.generate([UserMessage("Tell me a long story.")], max_tokens=1500) as stream:
        async for event in stream:
            if isinstance(event, Delta):
                break
    with anyio.fail_after(30):
        while any(line.split()[-1] != "0.0" for line in await anyio.to_thread.run_sync(vllm.running_requests)):
            pass
    await session.aclose()


@pytest.mark.parametrize("calls", ["server", "client"])
def test_calls_are_the_same_whoever_takes_them_out_of_the_text(vllm: Vllm, calls: str) -> None:
    async def run(engine: ServerEngine) -> list[Any]:
        async with shop_agent(model=engine, traces=False, speculation=False, latency_ms=0) as agent:
            return list((await agent.run(TASK)).messages)

    usual = anyio.run(run, ServerEngine.from_address(vllm.address))
    assert anyio.run(run, ServerEngine.from_address(f"{vllm.address}?calls={calls}")) == usual


def test_the_command_line_runs_an_agent_on_a_server(vllm: Vllm, tmp_path: Path) -> None:
    start = "import sys; from agent_runtime.cli import main; sys.exit(main())"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            start,
            "run",
            "shop",
            TASK,
            "--model",
            vllm.address,
            "--json",
            "--db",
            str(tmp_path / "db"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["status"] == "done" and found["usage"]["reused_tokens"] > 0
    assert "Turin" in found["output"]


def test_many_runs_end_in_success_or_one_clear_error_when_the_server_dies_in_their_middle(vllm: Vllm) -> None:
    """The server is killed while every run is under way, and started again at the same address."""

    async def all_runs() -> list[Any]:
        engine = ServerEngine.from_address(f"{vllm.address}?retry_for=240")
        results: list[Any] = []
        begun = anyio.Event()
        async with shop_agent(model=engine, traces=False, latency_ms=50) as agent, anyio.create_task_group() as group:

            async def run() -> None:
                async with agent.stream(TASK) as stream:
                    async for event in stream:
                        if event.type == "call_finished":
                            begun.set()
                results.append(stream.result)

            for _ in range(20):
                group.start_soon(run)
            await begun.wait()
            await anyio.to_thread.run_sync(lambda: (vllm.stop(signal.SIGKILL), vllm.start()))
        return results

    results = anyio.run(all_runs)
    assert len(results) == 20
    print(f"{sum(result.status == 'done' for result in results)} of 20 runs ended well")
    for result in results:
        assert result.status in ("done", "failed")
        if result.status == "failed":
            assert "lost in the middle of a message" in str(result.error)
        else:
            assert "Turin" in result.output


@pytest.fixture(scope="module")
def drafting_vllm(vllm: Vllm, start_vllm: StartVllm) -> Vllm:
    """A vLLM that drafts by n-grams, chooses its guiding itself, and has no parser of calls; the other has ended."""
    vllm.stop()
    return start_vllm(
        *("--speculative-config", json.dumps({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4})),
    )


def test_token_level_speculation_of_the_server_shows_in_the_words_of_the_local_engine(drafting_vllm: Vllm) -> None:
    async def run() -> tuple[Any, Any]:
        engine = ServerEngine.from_address(drafting_vllm.address)
        async with shop_agent(model=engine, traces=False, latency_ms=0) as agent:
            return await agent.run(TASK), engine.statistics()

    result, found = anyio.run(run)
    decoding = result.to_json()["decoding"]
    server = decoding["draft"]["server"]
    assert "Turin" in result.output
    assert server["drafts"] > 0 and 1 < server["mean_accepted_length"] <= 5
    assert len(decoding["acceptance_by_position"]) == 4
    assert decoding["acceptance_by_position"] == sorted(decoding["acceptance_by_position"], reverse=True)
    assert found.drafting is not None and found.endpoints[0].no_guesses is None
    assert found.probes > 0


@pytest.mark.anyio
async def test_probes_are_guided_where_the_server_chooses_the_guiding_itself(drafting_vllm: Vllm) -> None:
    engine = ServerEngine.from_address(drafting_vllm.address)
    session = await engine.open(TOOLS)
    result = await session.probe([SystemMessage(INSTRUCTIONS), UserMessage(TASK)], max_tokens=96)
    assert result.call is not None and result.call.name == "find_customer"
    assert result.call.arguments == {"email": "marta.haas@example.org"}
    assert 0.5 < result.confidence <= 1
    await session.aclose()
