"""An agent in its user's hands: what a stream's block raises, virtual clocks, one store for all, pytest's fixtures."""

from __future__ import annotations

import anyio
import pytest
import pytest_asyncio
from agent_runtime.tools import ToolCall
from agent_runtime.tools.errors import ToolDefinitionError
from agent_runtime.traces import TraceStore

from agent_runtime import Agent, RunFailed, ScriptedEngine, tool
from agent_runtime.engines.scripted import Say


@pytest.mark.anyio
@pytest.mark.parametrize("at_the_end", [False, True])
async def test_an_error_of_the_streams_block_comes_out_unwrapped_and_ends_the_run(scripted, at_the_end):
    with pytest.raises(ZeroDivisionError, match="my own"):
        async with scripted("one" if at_the_end else Say("one", delay=600)).stream("go") as stream:
            async for _ in stream:
                if not at_the_end:
                    break
            raise ZeroDivisionError("my own")
    assert stream.result.status == ("done" if at_the_end else "cancelled")


@pytest.mark.anyio
async def test_a_cancelled_run_says_so_in_words_that_do_not_depend_on_the_event_loop(scripted):
    async with scripted(Say("one", delay=600)).stream("go") as stream:
        async for _ in stream:
            break
    result = stream.result
    assert result.events[-1].error == str(result.error) == "the run was cancelled before it ended"
    assert isinstance(result.error, RunFailed) and result.to_json()["error"] == str(result.error)


@pytest.mark.anyio
async def test_a_group_of_errors_that_the_block_raises_stays_as_it_is(scripted):
    group = ExceptionGroup("mine", [ValueError(1), KeyError(2)])
    with pytest.raises(ExceptionGroup) as caught:
        async with scripted("one two").stream("go"):
            raise group
    assert caught.value is group


def test_under_a_virtual_clock_a_synchronous_tool_is_refused(virtual, scripted, watch):
    @tool(effect="read")
    def blocking() -> str:
        """Block."""
        return "done"

    with pytest.raises(ToolDefinitionError, match="async def"):
        virtual(lambda: watch(scripted(ToolCall("blocking"), "Done.", tools=[blocking])))


def test_under_a_virtual_clock_recording_takes_no_time_of_it(virtual, lookup, tmp_path):
    slow, _ = lookup(3.0)

    async def main():
        engine = ScriptedEngine([ToolCall("lookup", {"key": "a"}), "Done."])
        async with Agent("timed", engine, tools=[slow], traces=tmp_path / "traces.db") as agent:
            with anyio.fail_after(4):
                return await agent.run("go")

    result = virtual(main)
    assert result.status == "done" and result.wall_ms == pytest.approx(3000)
    with TraceStore.open(tmp_path / "traces.db") as store:
        assert store.run(result.run_id).status == "done"


@pytest.mark.anyio
async def test_runs_that_begin_together_share_one_store(monkeypatch, tmp_path):
    opened: list[TraceStore] = []
    really_open = TraceStore.open

    def counted(*args, **kwargs):
        opened.append(really_open(*args, **kwargs))
        return opened[-1]

    monkeypatch.setattr(TraceStore, "open", counted)
    engine = ScriptedEngine(["a", "b", "c", "d"])
    async with Agent("busy", engine, traces=tmp_path / "traces.db") as agent:
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(agent.run, "go")
    assert len(opened) == 1


@pytest_asyncio.fixture
async def fixture_agent(tmp_path):
    """Open in a fixture, which pytest-asyncio may leave in another task: an agent holds no task group between runs."""
    engine = ScriptedEngine([ToolCall("lookup", {"key": "a"}), "Done."])

    @tool(effect="read")
    async def lookup(key: str) -> str:
        """Look up."""
        return key

    async with Agent("fixture", engine, tools=[lookup], traces=tmp_path / "traces.db") as agent:
        yield agent


@pytest.mark.asyncio
async def test_an_agent_that_a_fixture_holds_open_runs_in_the_test(fixture_agent):
    assert (await fixture_agent.run("go")).output == "Done."
