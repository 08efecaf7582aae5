"""Tools of MCP servers: contracts, results, changes, questions, and servers that die or hang."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

pytest.importorskip("mcp", reason="needs the extra mcp")

from agent_runtime.tools import (
    Catalogue,
    Dispatcher,
    Gate,
    Prediction,
    SharedLimits,
    ToolCall,
    ToolDefinitionError,
    ToolFailure,
    as_tools,
    describe,
)
from agent_runtime.tools.mcp import MCPServerFailed, MCPTools, MCPToolsError, Question
from agent_runtime.tools.values import GuessEnded, GuessStarted
from mcp import StdioServerParameters

HERE = Path(__file__).parent
pytestmark = pytest.mark.anyio
on_both_loops = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])


@pytest.fixture
def anyio_backend():
    """One loop where nothing depends on it: each test starts a process of its own."""
    return "asyncio"


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "calls.log"
    path.touch()
    return path


def faulty(log: Path, **options) -> MCPTools:
    options.setdefault("trusted", True)
    return MCPTools(_python("mcp_faulty_server.py", log), name="faulty", **options)


def old(log: Path, **options) -> MCPTools:
    options.setdefault("trusted", True)
    return MCPTools(_python("mcp_old_server.py", log), name="old", **options)


def _python(script: str, log: Path) -> StdioServerParameters:
    return StdioServerParameters(command=sys.executable, args=[str(HERE / script)], env={"MCP_LOG": str(log)})


def named(tools, name):
    return next(tool for tool in tools if tool.name == name)


def rows(tools, gate=None):
    return {row["name"]: row for row in describe(tools, gate or Gate())}


async def called(log: Path, line: str) -> None:
    """Wait until the server's log holds the line."""
    with anyio.fail_after(20):
        while line not in log.read_text(encoding="utf-8").splitlines():
            await anyio.sleep(0.01)


async def until(condition) -> None:
    with anyio.fail_after(20):
        while not condition():
            await anyio.sleep(0.01)


@asynccontextmanager
async def turn(tools, **options):
    """Hold a turn of a dispatcher open, with the events it emits."""
    events = []
    options.setdefault("shared", SharedLimits())
    async with Dispatcher(tools, emit=events.append, **options) as dispatcher:
        yield dispatcher.open_turn(0), events


async def guess(calls, events, name, arguments):
    """Guess a call and wait until nothing of it runs any more."""
    calls.propose(Prediction(ToolCall(name, arguments), 0.9, "scripted"))
    standing = calls._standing.get(0)
    assert standing is not None
    if standing.started:
        with anyio.fail_after(20):
            await standing.done.wait()
    return standing


# --- contracts --------------------------------------------------------------------------------------------------


async def test_annotations_of_an_untrusted_server_allow_nothing(log):
    async with faulty(log, trusted=False) as tools:
        found = rows(tools)
    assert {row["effect"] for row in found.values()} == {"write"}
    assert not any(row["pre_executable"] for row in found.values())
    assert {row["source"] for row in found.values()} == {"mcp (untrusted)"}


async def test_annotations_of_a_trusted_server_count(log):
    async with faulty(log) as tools:
        found = rows(tools, Gate(allow_idempotent=True))
    assert found["add"]["pre_executable"]
    assert found["add"]["reason"] == "it only reads (says its trusted server)"
    assert found["search_web"]["reason_code"] == "open_world"
    assert found["put"]["pre_executable"]
    assert found["overwrite"]["reason_code"] == "destructive"  # by the specification's default, and no setting helps
    assert found["die_writing"]["effect"] == "write"


async def test_the_operators_catalogue_overrides_annotations_and_distrust(log):
    catalogue = Catalogue({"add": {"effect": "write"}, "put": {"effect": "read", "open_world": False, "timeout": 2}})
    async with faulty(log, catalogue=catalogue) as trusted, faulty(log, catalogue=catalogue, trusted=False) as other:
        for found in (rows(trusted), rows(other)):
            assert found["add"]["reason_code"] == "effect"
            assert found["put"]["pre_executable"]
            assert found["put"]["source"] == "catalogue"
            assert found["put"]["timeout"] == 2
        assert named(trusted, "big").contract.timeout == 60


async def test_tools_can_be_chosen_renamed_and_given_fixed_arguments(log):
    async with faulty(log, only=["add", "big"], prefix="math_", fixed={"b": 40}) as tools:
        assert [tool.name for tool in tools] == ["math_add", "math_big"]
        assert "b" not in tools[0].parameters["properties"]
        assert tools[0].parameters["required"] == ["a"]
        assert await tools[0]({"a": 2}) == "42"
    with pytest.raises(MCPServerFailed, match=r"can't connect to MCP server faulty: it has no tool 'ad' \(only=...\)"):
        async with faulty(log, only=["ad"]):
            pass


async def test_a_bare_name_is_no_list_of_names(log):
    with pytest.raises(ToolDefinitionError, match=r"without='add': give a list of names, \['add'\]"):
        faulty(log, without="add")


async def test_an_agents_own_catalogue_keeps_a_tool_revocable(log):
    async with faulty(log) as tools:
        (add,) = as_tools([named(tools, "add")], catalogue=Catalogue({"add": {"fresh_for": 5}}))
        assert add.contract.fresh_for == 5
        await named(tools, "change")({"what": "schema"})
        await until(lambda: tools.statistics().revoked)
        assert Gate().decide(add).reason == "revoked"


async def test_tools_are_known_inside_the_context_only(log):
    tools = faulty(log)
    with pytest.raises(MCPToolsError, match="write `async with"):
        list(tools)
    async with tools:
        add = named(tools, "add")
        assert await add({"a": 1, "b": 2}) == "3"
    with pytest.raises(ToolFailure, match="is closed: use its tools inside `async with`"):
        await add({"a": 1, "b": 2})
    async with tools:
        assert await named(tools, "add")({"a": 1, "b": 2}) == "3"


@on_both_loops
async def test_what_the_block_raises_comes_out_as_it_is(log):
    with pytest.raises(KeyError, match="mine"):
        async with faulty(log):
            raise KeyError("mine")


@on_both_loops
async def test_no_process_outlives_the_context(log):
    async with faulty(log) as tools:
        (pid,) = _children()
    assert not tools.statistics().connected
    assert pid not in _children()
    with anyio.move_on_after(0) as cancelled:
        async with faulty(log):
            await anyio.sleep_forever()
    assert cancelled.cancelled_caught
    assert not _children()


# --- results ----------------------------------------------------------------------------------------------------


async def test_results_become_text(log):
    async with faulty(log) as tools:
        assert await named(tools, "add")({"a": 1, "b": 2}) == "3"
        assert "".join((await named(tools, "point")({})).split()) == '{"x":1,"y":2}'
        assert await named(tools, "mixed")({}) == 'first\n[image: image/png, 6 bytes]\na memo\n{"more":[1,2]}'


async def test_a_long_result_is_cut_and_says_so(log):
    async with faulty(log, max_characters=10) as tools:
        text = await named(tools, "big")({"characters": 1_000_000})
    assert text == "xxxxxxxxxx\n[cut: 1000000 characters, the first 10 are shown]"


async def test_a_view_says_what_of_a_result_is_read(log):
    async with faulty(log, view=lambda result: result.content[0].text.upper()) as tools:
        assert await named(tools, "mixed")({}) == "FIRST"


async def test_an_error_is_read_by_the_model(log):
    async with faulty(log) as tools, turn(tools) as (calls, _):
        calls.demand(ToolCall("fail", {"reason": "no such order"}))
        (outcome,) = await calls.commit()
    assert outcome.status == "error"
    assert outcome.error == "tool_error"
    assert "no such order" in outcome.content


async def test_wrong_arguments_are_told_before_anything_is_sent(log):
    async with faulty(log) as tools, turn(tools) as (calls, _):
        calls.demand(ToolCall("add", {"a": 1}))
        (outcome,) = await calls.commit()
    assert outcome.status == "invalid_arguments"
    assert not log.read_text()


# --- guesses ----------------------------------------------------------------------------------------------------


@on_both_loops
async def test_a_right_guess_is_handed_over_and_the_server_called_once(log):
    async with faulty(log) as tools, turn(tools) as (calls, events):
        await guess(calls, events, "add", {"a": 1, "b": 2})
        calls.demand(ToolCall("add", {"b": 2, "a": 1.0}))
        (outcome,) = await calls.commit()
    assert outcome.content == "3"
    assert [event.ending for event in events if isinstance(event, GuessEnded)] == ["adopted"]
    assert log.read_text().split() == ["add"]


async def test_a_guess_of_an_untrusted_tool_sends_nothing(log):
    async with faulty(log, trusted=False) as tools, turn(tools) as (calls, events):
        await guess(calls, events, "add", {"a": 1, "b": 2})
        calls.abandon()
    assert not [event for event in events if isinstance(event, GuessStarted)]
    assert not log.read_text()


@on_both_loops
async def test_a_guess_that_is_not_needed_is_cancelled_at_the_server(log):
    async with faulty(log) as tools, turn(tools) as (calls, _):
        calls.propose(Prediction(ToolCall("hang", {"mark": "1"}), 0.9, "scripted"))
        await called(log, "hang 1")
        calls.demand(ToolCall("add", {"a": 1, "b": 2}))
        await called(log, "cancelled 1")
        (outcome,) = await calls.commit()
        assert outcome.content == "3"


# --- time and cancellation --------------------------------------------------------------------------------------


@on_both_loops
async def test_a_timeout_reaches_the_server(log):
    async with faulty(log, timeout=0.3) as tools, turn(tools) as (calls, _):
        calls.demand(ToolCall("hang", {"mark": "2"}))
        (outcome,) = await calls.commit()
        assert outcome.status == "timeout"
        await called(log, "cancelled 2")


@on_both_loops
async def test_cancellation_reaches_the_server(log):
    async with faulty(log) as tools:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(named(tools, "hang").function, {"mark": "3"})
                await called(log, "hang 3")
                scope.cancel()
        await called(log, "cancelled 3")
        assert await named(tools, "add")({"a": 1, "b": 2}) == "3"


async def test_a_server_that_does_not_answer_is_given_up(log):
    silent = StdioServerParameters(command=sys.executable, args=["-c", "import sys; sys.stdin.read()"])
    with pytest.raises(MCPServerFailed, match=r"silent: it did not answer within 0\.5 s"):
        async with MCPTools(silent, name="silent", connect_timeout=0.5):
            pass


@on_both_loops
async def test_a_server_that_cannot_start_says_why():
    broken = StdioServerParameters(command=sys.executable, args=["-c", "import no_such_module"])
    with pytest.raises(MCPServerFailed, match="it last said: ModuleNotFoundError: No module named 'no_such_module'"):
        async with MCPTools(broken):
            pass
    with pytest.raises(MCPServerFailed, match="there is no command 'no-such-server'"):
        async with MCPTools(StdioServerParameters(command="no-such-server")):
            pass


async def test_an_address_is_named_without_its_secrets(unused_port):
    with pytest.raises(MCPServerFailed) as caught:
        async with MCPTools(f"http://user:secret@127.0.0.1:{unused_port}/mcp?token=secret"):
            pass
    assert f"127.0.0.1:{unused_port}/mcp" in str(caught.value)
    assert "secret" not in str(caught.value)


# --- servers that change ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["schema", "annotations", "gone"])
@on_both_loops
async def test_a_tool_that_changes_is_not_started_early_any_more(log, what):
    async with faulty(log) as tools:
        assert Gate().decide(named(tools, "add")).allowed
        await named(tools, "change")({"what": what})
        await until(lambda: tools.statistics().revoked)
        assert list(tools.statistics().revoked) == ["add"]
        assert Gate().decide(named(tools, "add")).reason == "revoked"
        await until(lambda: Gate().decide(named(tools, "big")).allowed)
        async with turn(tools) as (calls, events):
            standing = await guess(calls, events, "add", {"a": 1, "b": 2})
            assert standing.refusal == "revoked"
            calls.demand(ToolCall("add", {"a": 1, "b": 2}))
            (outcome,) = await calls.commit()
            assert (outcome.content == "3") == (what != "gone")


async def test_a_change_is_heard_of_under_the_protocol_of_2025(log):
    async with old(log) as tools:
        assert Gate().decide(named(tools, "plain")).allowed
        await named(tools, "change")({"key": "k"})
        await until(lambda: tools.statistics().revoked)
        assert list(tools.statistics().revoked) == ["plain"]
        await until(lambda: Gate().decide(named(tools, "lookup")).allowed)


async def test_a_list_that_changed_in_nothing_revokes_nothing(log):
    async with faulty(log) as tools:
        add = named(tools, "add")
        await named(tools, "change")({"what": "nothing"})
        await until(lambda: Gate().decide(add).allowed)
        assert not tools.statistics().revoked


async def test_a_guess_that_was_ready_before_a_change_is_not_handed_over(log):
    async with faulty(log) as tools, turn(tools) as (calls, events):
        standing = await guess(calls, events, "add", {"a": 1, "b": 2})
        assert standing.state == "ready"
        await named(tools, "change")({"what": "schema"})
        await until(lambda: tools.statistics().revoked)
        calls.demand(ToolCall("add", {"a": 1, "b": 2}))
        (outcome,) = await calls.commit()
    assert outcome.content == "3"
    assert [event.ending for event in events if isinstance(event, GuessEnded)] == ["stale"]
    assert log.read_text().split().count("add") == 2


# --- questions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", [faulty, old])
@on_both_loops
async def test_a_demanded_calls_question_is_answered_by_the_hook(log, server):
    asked = []

    async def elicit(question: Question):
        asked.append(question)
        return {"name": "Ada"} if server is faulty else {"pin": "1234"}

    async with server(log, elicit=elicit) as tools, turn(tools) as (calls, _):
        call = ToolCall("greet", {"greeting": "Hello"}) if server is faulty else ToolCall("lookup", {"key": "safe"})
        calls.demand(call)
        (outcome,) = await calls.commit()
    assert outcome.content == ("Hello, Ada" if server is faulty else "safe with 1234")
    assert len(asked) == 1
    assert asked[0].message == ("What is your name?" if server is faulty else "PIN for safe?")
    assert asked[0].server == server.__name__
    assert asked[0].schema["properties"]


@pytest.mark.parametrize("server", [faulty, old])
@on_both_loops
async def test_a_guess_that_asks_is_a_miss_that_nobody_sees(log, server):
    asked = []

    async def elicit(question: Question):
        asked.append(question.message)
        return {"name": "Ada", "pin": "1234"}

    async with server(log, elicit=elicit) as tools:
        name, arguments = ("greet", {"greeting": "Hello"}) if server is faulty else ("lookup", {"key": "safe"})
        async with turn(tools) as (calls, events):
            standing = await guess(calls, events, name, arguments)
            assert standing.state == "failed"
            assert not asked
            calls.demand(ToolCall(name, arguments))
            (outcome,) = await calls.commit()
        assert outcome.status == "ok"
        assert len(asked) == 1  # the demanded call's own question
        assert [event.ending for event in events if isinstance(event, GuessEnded)] == ["failed"]
        assert Gate().decide(named(tools, name)).reason == "revoked"  # it would ask each time
    if server is old:
        assert "answered safe decline" in log.read_text() or "cancelled" in log.read_text()


@pytest.mark.parametrize("server", [faulty, old])
async def test_a_question_is_declined_if_the_hook_gives_none_or_raises(log, server, caplog):
    answers = iter([None, ValueError("broken hook")])

    async def elicit(question: Question):
        answer = next(answers)
        if answer is not None:
            raise answer
        return None

    async with server(log, elicit=elicit) as tools:
        for _ in range(2):
            if server is faulty:
                with pytest.raises(ToolFailure):
                    await named(tools, "greet")({"greeting": "Hello"})
            else:
                assert await named(tools, "lookup")({"key": "safe"}) == "safe with nothing"
    assert "broken hook" in caplog.text
    assert "greet" not in log.read_text().split()


async def test_without_a_hook_the_server_is_told_that_nobody_can_be_asked(log):
    async with old(log) as tools:
        await called(log, "nobody to ask")
        assert await named(tools, "lookup")({"key": "safe"}) == "safe with nothing"


@on_both_loops
async def test_where_questions_name_no_call_a_demanded_call_stands_alone(log):
    entered, leave = anyio.Event(), anyio.Event()

    async def elicit(question: Question):
        entered.set()
        await leave.wait()
        return {"pin": "1"}

    async with old(log, elicit=elicit) as tools, anyio.create_task_group() as group:
        group.start_soon(named(tools, "lookup").function, {"key": "safe"})
        await entered.wait()
        async with turn(tools) as (calls, events):  # another run of the same tools
            standing = await guess(calls, events, "plain", {"key": "k"})
            assert standing.outcome is not None and standing.outcome.error == "not_alone"
            calls.abandon()
        leave.set()
    assert "plain k" not in log.read_text()


# --- servers that die -------------------------------------------------------------------------------------------


@on_both_loops
async def test_a_server_that_dies_is_restarted_for_a_demanded_call(log, tmp_path, caplog):
    async with faulty(log) as tools, turn(tools) as (calls, _):
        calls.demand(ToolCall("die", {"once": str(tmp_path / "died")}))  # a read: it may be made again
        (outcome,) = await calls.commit()
        assert outcome.content == "alive"
        assert tools.statistics().restarts == 1
    assert log.read_text().split() == ["die", "die"]
    assert "the connection to MCP server faulty is gone" in caplog.text


@on_both_loops
async def test_a_write_in_which_the_server_died_is_not_repeated(log):
    async with faulty(log) as tools:
        async with turn(tools) as (calls, _):
            calls.demand(ToolCall("die_writing", {}))
            (outcome,) = await calls.commit()
        assert outcome.error == "server_lost"
        assert "whether it was carried out is not known" in outcome.content
        assert log.read_text().split() == ["die_writing"]
        assert await named(tools, "add")({"a": 1, "b": 2}) == "3"


@on_both_loops
async def test_guesses_to_a_server_that_is_down_stop_and_do_not_restart_it(log):
    async with faulty(log) as tools:
        async with turn(tools) as (calls, events):
            standing = await guess(calls, events, "die", {})
            assert standing.state == "failed"
            await until(lambda: not tools.statistics().connected)
            second = await guess(calls, events, "add", {"a": 1, "b": 2})
            assert second.refusal == "revoked"
            calls.abandon()
        assert tools.statistics().restarts == 0
        assert await named(tools, "add")({"a": 1, "b": 2}) == "3"  # a demanded call brings it back
        assert Gate().decide(named(tools, "add")).allowed


@on_both_loops
async def test_a_write_to_a_server_that_is_known_to_be_down_runs_once_on_the_new_one(log):
    async with faulty(log) as tools:
        with pytest.raises(ToolFailure):
            await named(tools, "die_writing")({})
        await until(lambda: not tools.statistics().connected)
        assert await named(tools, "change")({"what": "nothing"}) == "changed"
    assert log.read_text().splitlines() == ["die_writing", "change nothing"]


async def test_a_server_that_dies_again_and_again_is_never_guessed_at_again(log):
    async with faulty(log) as tools:
        for _ in range(3):
            with pytest.raises(ToolFailure):
                await named(tools, "die_writing")({})
            await until(lambda: not tools.statistics().connected)
        assert await named(tools, "add")({"a": 1, "b": 2}) == "3"
        assert Gate().decide(named(tools, "add")).reason == "revoked"


async def test_a_server_that_comes_back_changed_is_not_guessed_at(log, tmp_path):
    script = tmp_path / "server.py"
    script.write_text((HERE / "mcp_faulty_server.py").read_text())
    parameters = StdioServerParameters(command=sys.executable, args=[str(script)], env={"MCP_LOG": str(log)})
    async with MCPTools(parameters, trusted=True) as tools:
        with pytest.raises(ToolFailure):
            await named(tools, "die_writing")({})
        script.write_text(script.read_text().replace("def add(a: int, b: int)", "def add(a: int, b: int, c: int = 0)"))
        assert await named(tools, "add")({"a": 1, "b": 2}) == "3"
        assert list(tools.statistics().revoked) == ["add"]


@on_both_loops
async def test_a_server_that_cannot_be_restarted_gives_the_model_one_clear_error(log, tmp_path):
    script = tmp_path / "server.py"
    script.write_text((HERE / "mcp_faulty_server.py").read_text())
    parameters = StdioServerParameters(command=sys.executable, args=[str(script)], env={"MCP_LOG": str(log)})
    async with MCPTools(parameters, name="gone") as tools, turn(tools) as (calls, _):
        with pytest.raises(ToolFailure):
            await named(tools, "die_writing")({})
        script.unlink()
        calls.demand(ToolCall("add", {"a": 1, "b": 2}))
        (outcome,) = await calls.commit()
        assert outcome.error == "server_down"
        assert "can't connect to MCP server gone" in outcome.content


@on_both_loops
async def test_a_killed_server_is_noticed_without_a_call(log):
    async with faulty(log) as tools:
        await named(tools, "add")({"a": 1, "b": 2})
        process = _children()
        for pid in process:
            os.kill(pid, signal.SIGKILL)
        await until(lambda: not tools.statistics().connected)
        assert await named(tools, "add")({"a": 1, "b": 2}) == "3"


def _children() -> list[int]:
    """Return the processes of the faulty server that this one started."""
    lists = list(Path("/proc/self/task").glob("*/children"))
    if not lists:
        pytest.skip("needs /proc to find the server's process")
    pids = [int(pid) for found in lists for pid in found.read_text().split()]
    return [pid for pid in pids if b"mcp_faulty_server" in Path(f"/proc/{pid}/cmdline").read_bytes()]


# --- over HTTP --------------------------------------------------------------------------------------------------


@pytest.fixture
def served(log, unused_port):
    """The same server as a process that speaks streamable HTTP, and a function that kills and restarts it."""
    environment = {**os.environ, "MCP_LOG": str(log), "MCP_PORT": str(unused_port)}
    processes = []

    def start():
        for process in processes:
            process.kill()
            process.wait(timeout=10)
        command = [sys.executable, str(HERE / "mcp_faulty_server.py")]
        processes.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )
        for _ in range(1200):
            try:
                socket.create_connection(("127.0.0.1", unused_port), timeout=1).close()
                return f"http://127.0.0.1:{unused_port}/mcp"
            except OSError:
                time.sleep(0.05)
        raise AssertionError("the server did not start")

    yield start
    for process in processes:
        process.kill()
        process.wait(timeout=10)


@on_both_loops
async def test_over_http_changes_questions_timeouts_and_headers_work_as_over_pipes(log, served):
    async def elicit(question: Question):
        return {"name": "Ada"}

    server = MCPTools(served(), trusted=True, timeout=5, elicit=elicit, headers={"X-Key": "s3cr3t"})
    async with server as tools:
        assert await named(tools, "header")({"name": "x-key"}) == "s3cr3t"
        assert "s3cr3t" not in repr((tools, list(tools)))
        assert await named(tools, "greet")({"greeting": "Hello"}) == "Hello, Ada"
        hang = named(tools, "hang")
        async with turn([hang.with_contract(replace(hang.contract, timeout=0.3))]) as (calls, _):
            calls.demand(ToolCall("hang", {"mark": "4"}))
            (outcome,) = await calls.commit()
        assert outcome.status == "timeout"
        await called(log, "cancelled 4")
        await named(tools, "change")({"what": "annotations"})
        await until(lambda: tools.statistics().revoked)
        assert Gate().decide(named(tools, "add")).reason == "revoked"


async def test_a_server_over_http_that_was_restarted_goes_on(log, served):
    async with MCPTools(served(), trusted=True) as tools:
        assert await named(tools, "add")({"a": 1, "b": 2}) == "3"
        served()
        assert await named(tools, "add")({"a": 1, "b": 2}) == "3"
        await until(lambda: Gate().decide(named(tools, "add")).allowed)


def test_the_sdk_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MCPToolsError, match=r"pip install 'agent-runtime\[mcp\]'") as caught:
        MCPTools("http://127.0.0.1:1/mcp")
    assert caught.value.exit_code == 2


@pytest.fixture(autouse=True)
def quiet_sdk(monkeypatch):
    """The SDK logs what servers do wrong; here they do it on purpose."""
    monkeypatch.setattr(logging.getLogger("mcp"), "disabled", True)


@pytest.fixture
def unused_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
