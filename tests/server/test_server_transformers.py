"""`transformers serve`, a second server with another idea of the interface: strict fields, whole calls, no guesses."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import anyio
import pytest

from agent_runtime import RunResult
from agent_runtime.demo.agent import POCKET, shop_agent
from agent_runtime.engines.server import ServerEngine
from agent_runtime.engines.server.statistics import ServerStatistics

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("AGENT_RUNTIME_TEST_VLLM"), reason="run by `make test-vllm` only"),
    pytest.mark.skipif(
        not (importlib.util.find_spec("fastapi") and importlib.util.find_spec("openai")),
        reason="`transformers serve` needs fastapi and openai",
    ),
]
TASK = "My email is marta.haas@example.org. Where is my newest order?"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start it on the loopback interface, and stop it with the module."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("transformers") / "log"
    command = [str(Path(sys.executable).with_name("transformers")), "serve", str(POCKET), "--host", "127.0.0.1"]
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*command, "--port", str(port), "--device", "cpu", "--dtype", "float32"],
            stdout=output,
            stderr=output,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        )
    try:
        give_up = time.monotonic() + 120
        while True:
            try:
                urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
                break
            except (URLError, OSError):
                if server.poll() is not None or time.monotonic() > give_up:
                    pytest.fail(f"transformers serve did not start:\n{log.read_text(errors='replace')[-3000:]}")
                time.sleep(0.5)
        yield f"openai:{POCKET}@http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(20)


def test_the_shops_agent_runs_on_it_and_says_why_nothing_is_guessed(address: str) -> None:
    async def run() -> tuple[RunResult, ServerStatistics]:
        engine = ServerEngine.from_address(address)
        async with shop_agent(model=engine, traces=False, latency_ms=0) as agent:
            return await agent.run(TASK), engine.statistics()

    result, found = anyio.run(run)
    assert "Turin" in result.output
    assert result.usage.completion_tokens == result.usage.forwards + result.turns
    assert result.usage.thinking_tokens > 0
    (endpoint,) = found.endpoints
    assert endpoint.kind == "transformers"
    assert found.probes == 0
    assert "no log-probabilities" in (endpoint.no_guesses or "")
