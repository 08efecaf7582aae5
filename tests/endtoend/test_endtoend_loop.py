"""A whole run of an agent with a scripted model: limits, hooks, errors, order, cancellation."""

from __future__ import annotations

import anyio
import pytest
from agent_runtime.tools import MalformedCall, ToolCall
from agent_runtime.tools.values import CallDemanded, CallStarted, GuessStarted
from agent_runtime.traces.events import (
    RunFinished,
    TextDelta,
)
from agent_runtime.traces.messages import AssistantMessage, SystemMessage, ToolMessage, UserMessage

from agent_runtime import EngineFailed, Hooks, LimitExceeded, Limits, Sampling, ScriptedEngine, Speculation, tool
from agent_runtime.engines.scripted import Break, Call, Probe, Say, Think, Turn

RIGHT = ToolCall("lookup", {"key": "a"})
OTHER = ToolCall("lookup", {"key": "b"})


def tool_messages(result):
    return [message for message in result.messages if isinstance(message, ToolMessage)]


# --- the conversation ----------------------------------------------------------------------------------------------


def test_a_run_takes_turns_until_the_model_answers_without_a_call(virtual, lookup, scripted, watch):
    tool, asked = lookup(0.0)
    agent = scripted((Think("hm"), RIGHT), OTHER, "Both are there.", tools=[tool])
    result, _ = virtual(lambda: watch(agent, "Compare a and b."))
    agent.engine.assert_complete()
    assert asked == ["a", "b"]
    assert (result.status, result.output, result.turns) == ("done", "Both are there.", 3)
    assert result.messages == (
        SystemMessage("Help."),
        UserMessage("Compare a and b."),
        AssistantMessage(thinking="hm", calls=(RIGHT,)),
        ToolMessage("lookup", "value of a"),
        AssistantMessage(calls=(OTHER,)),
        ToolMessage("lookup", "value of b"),
        AssistantMessage(text="Both are there."),
    )
    assert agent.engine.conversations[-1] == result.messages[:-1]


def test_calls_of_a_turn_run_together_and_their_results_keep_the_order_of_the_calls(virtual, scripted, watch):
    @tool(effect="read")
    async def wait(seconds: float) -> float:
        """Wait."""
        await anyio.sleep(seconds)
        return seconds

    calls = (ToolCall("wait", {"seconds": 3.0}), ToolCall("wait", {"seconds": 1.0}), ToolCall("wait", {"seconds": 2.0}))
    result, _ = virtual(lambda: watch(scripted(calls, "Done.", tools=[wait])))
    assert [(message.content, message.index) for message in tool_messages(result)] == [
        ("3.0", 0),
        ("1.0", 1),
        ("2.0", 2),
    ]
    assert result.wall_ms == pytest.approx(3000)


def test_events_come_in_the_order_of_what_happens_and_once_each(virtual, lookup, scripted, watch):
    slow, _ = lookup(1.0)
    probe = Probe(RIGHT, delay=0.5)
    turn = Turn(items=(Think("let us", delay=1.0), Call(RIGHT, delay=1.0)), probes=(probe,), prefill=0.1)
    agent = scripted(turn, Turn(items=("It is so.",), prefill=0.1), tools=[slow])
    result, seen = virtual(lambda: watch(agent))
    assert tuple(seen) == result.events
    assert [event.type for event in seen] == [
        "run_started",
        "turn_started",
        "probe_started",
        "prefilled",
        "probe_finished",
        "guess_proposed",
        "guess_started",
        "thinking_delta",
        "thinking_delta",
        "call_demanded",
        "guess_ended",
        "call_finished",
        "generation_finished",
        "turn_finished",
        "turn_started",
        "probe_started",
        "probe_finished",
        "prefilled",
        "text_delta",
        "text_delta",
        "text_delta",
        "generation_finished",
        "turn_finished",
        "run_finished",
    ]
    moments = [event.at for event in seen]
    assert moments == sorted(moments)


def test_a_malformed_call_is_an_error_the_model_reads_and_the_run_goes_on(virtual, lookup, scripted, watch):
    slow, asked = lookup(0.0)
    broken = MalformedCall('{"name": "lookup", "arguments": {', "the JSON breaks off")
    agent = scripted(broken, RIGHT, "Found.", tools=[slow])
    result, _ = virtual(lambda: watch(agent))
    assert (result.status, result.output, asked) == ("done", "Found.", ["a"])
    first, second = tool_messages(result)
    assert "malformed_call" in first.content and "the JSON breaks off" in first.content
    assert second.content == "value of a"


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (ToolCall("no_such_tool"), "unknown_tool"),
        (ToolCall("lookup", {"key": 3.5, "colour": "red"}), "invalid_arguments"),
        (ToolCall("breaks"), "no luck"),
    ],
)
def test_a_call_that_fails_is_an_error_the_model_reads(virtual, lookup, scripted, watch, call, told):
    @tool(effect="read")
    async def breaks() -> str:
        """Raise."""
        raise ValueError("no luck")

    slow, _ = lookup(0.0)
    result, _ = virtual(lambda: watch(scripted(call, "I see.", tools=[slow, breaks])))
    assert (result.status, result.output) == ("done", "I see.")
    (message,) = tool_messages(result)
    assert message.content.startswith('{"error":') and told in message.content


def test_the_final_message_waits_for_a_call_made_beside_its_text(virtual, lookup, scripted, watch):
    slow, asked = lookup(2.0)
    agent = scripted((Say("One moment."), RIGHT), "Here it is.", tools=[slow])
    result, _ = virtual(lambda: watch(agent))
    assert asked == ["a"] and result.output == "Here it is."
    assert result.messages[2] == AssistantMessage(text="One moment.", calls=(RIGHT,))


# --- limits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "named", "turns"),
    [
        (Limits(turns=1), "turns", 1),
        (Limits(calls=1), "calls", 2),
        (Limits(tokens=8), "tokens", 1),
    ],
)
def test_a_run_that_uses_up_a_limit_ends_there_and_says_which(virtual, lookup, scripted, watch, limits, named, turns):
    slow, asked = lookup(0.0)
    result, seen = virtual(lambda: watch(scripted(RIGHT, OTHER, "Done.", tools=[slow], limits=limits)))
    assert (result.status, result.turns, asked) == ("limit", turns, ["a"])
    assert isinstance(result.error, LimitExceeded) and result.error.limit == named
    assert isinstance(seen[-1], RunFinished) and seen[-1].status == "limit" and "Limits(" in seen[-1].error


def test_an_answer_that_is_cut_off_is_no_answer(virtual, scripted, watch):
    agent = scripted("one two three four", limits=Limits(turn_tokens=2))
    result, _ = virtual(lambda: watch(agent))
    assert result.status == "limit" and isinstance(result.error, LimitExceeded)


def test_guesses_count_against_no_limit(virtual, lookup, scripted, watch):
    slow, asked = lookup(0.0)
    turn = Turn(items=(Think("hm", delay=1.0), RIGHT), probes=(Probe(OTHER),))
    result, _ = virtual(lambda: watch(scripted(turn, "Done.", tools=[slow], limits=Limits(calls=1))))
    assert result.status == "done" and asked == ["b", "a"]


def test_run_raises_what_ended_it_and_the_error_carries_the_result(virtual, lookup, scripted):
    slow, _ = lookup(0.0)
    agent = scripted(RIGHT, OTHER, tools=[slow], limits=Limits(turns=1))

    async def main():
        with pytest.raises(LimitExceeded) as caught:
            await agent.run("go")
        return caught.value

    error = virtual(main)
    assert error.result is not None and error.result.status == "limit" and error.result.turns == 1


def test_a_stream_that_breaks_fails_the_run_and_has_written_nothing(virtual, scripted, watch):
    written: list[str] = []

    @tool
    async def write(text: str) -> str:
        """Write."""
        written.append(text)
        return "ok"

    agent = scripted((ToolCall("write", {"text": "x"}), Break(EngineFailed("the model broke"), 1.0)), tools=[write])
    result, _ = virtual(lambda: watch(agent))
    assert (result.status, written) == ("failed", [])
    assert isinstance(result.error, EngineFailed) and str(result.error) == "the model broke"


def test_a_failing_predictor_only_ends_its_guess(virtual, lookup, scripted, watch):
    slow, asked = lookup(0.0)
    turn = Turn(items=(Think("hm", delay=1.0), RIGHT), probes=(Probe(error=RuntimeError("no probe")),))
    result, _ = virtual(lambda: watch(scripted(turn, "Done.", tools=[slow])))
    assert result.status == "done" and asked == ["a"]


# --- hooks ---------------------------------------------------------------------------------------------------------


def test_hooks_see_demanded_calls_only(virtual, lookup, scripted, watch):
    slow, asked = lookup(0.0)
    before: list[ToolCall] = []
    after: list[tuple[ToolCall, str]] = []

    async def before_call(call, tool):
        before.append(call)

    async def after_call(call, outcome):
        after.append((call, outcome.content))

    turn = Turn(items=(Think("hm", delay=1.0), RIGHT), probes=(Probe(OTHER),))
    hooks = Hooks(before_call=before_call, after_call=after_call)
    virtual(lambda: watch(scripted(turn, "Done.", tools=[slow], hooks=hooks)))
    assert asked == ["b", "a"]
    assert before == [RIGHT] and after == [(RIGHT, "value of a")]


def test_hooks_fire_once_for_an_adopted_guess(virtual, lookup, scripted, watch):
    slow, asked = lookup(0.0)
    before: list[ToolCall] = []

    async def before_call(call, tool):
        before.append(call)

    turn = Turn(items=(Think("hm", delay=1.0), RIGHT), probes=(Probe(RIGHT),))
    result, _ = virtual(lambda: watch(scripted(turn, "Done.", tools=[slow], hooks=Hooks(before_call=before_call))))
    assert result.ledger.endings["adopted"] == 1
    assert asked == ["a"] and before == [RIGHT]


def test_what_needs_approval_is_never_guessed_and_a_refusal_is_read_by_the_model(virtual, scripted, watch):
    asked: list[str] = []

    @tool(effect="read", requires_approval=True)
    async def peek(key: str) -> str:
        """Peek."""
        asked.append(key)
        return "seen"

    async def approve(call, tool):
        return "not today"

    call = ToolCall("peek", {"key": "a"})
    turn = Turn(items=(Think("hm", delay=1.0), call), probes=(Probe(call),))
    result, seen = virtual(lambda: watch(scripted(turn, "Well.", tools=[peek], hooks=Hooks(approve=approve))))
    assert asked == [] and not any(isinstance(event, GuessStarted) for event in seen)
    assert "not today" in tool_messages(result)[0].content


def test_an_error_in_a_hook_fails_the_run(virtual, lookup, scripted, watch):
    slow, _ = lookup(0.0)

    async def before_call(call, tool):
        raise RuntimeError("hook broke")

    result, _ = virtual(lambda: watch(scripted(RIGHT, "Done.", tools=[slow], hooks=Hooks(before_call=before_call))))
    assert result.status == "failed" and str(result.error) == "hook broke"


def test_the_event_hook_sees_every_event_in_order(virtual, lookup, scripted, watch):
    slow, _ = lookup(0.0)
    seen_by_hook: list[object] = []
    agent = scripted(RIGHT, "Done.", tools=[slow], hooks=Hooks(on_event=seen_by_hook.append))
    result, seen = virtual(lambda: watch(agent))
    assert seen_by_hook == seen == list(result.events)


# --- writes --------------------------------------------------------------------------------------------------------


def test_a_write_is_never_started_early_even_when_it_was_guessed_right(virtual, scripted, watch):
    @tool
    async def write(text: str) -> str:
        """Write."""
        return "ok"

    call = ToolCall("write", {"text": "x"})
    turn = Turn(items=(Think("hm", delay=1.0), Call(call), Say("so", delay=2.0)), probes=(Probe(call),))
    result, seen = virtual(lambda: watch(scripted(turn, "Done.", tools=[write])))
    assert not any(isinstance(event, GuessStarted) for event in seen)
    (demanded,) = [event for event in seen if isinstance(event, CallDemanded)]
    (started,) = [event for event in seen if isinstance(event, CallStarted)]
    assert (demanded.at, started.at) == (pytest.approx(1.0), pytest.approx(3.0))  # only once the message is whole
    assert result.ledger.turns[0].reason == "effect" and result.ledger.hit_at_1 == 1.0


# --- leaving early, and both event loops ----------------------------------------------------------------------------


@pytest.mark.anyio
async def test_leaving_the_stream_cancels_the_run_and_its_tools(scripted):
    running, stopped = anyio.Event(), anyio.Event()

    @tool(effect="read")
    async def hang() -> str:
        """Never answer."""
        running.set()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    agent = scripted(ToolCall("hang"), "Done.", tools=[hang])
    with anyio.fail_after(10):
        async with agent.stream("go") as stream:
            async for event in stream:
                if isinstance(event, CallStarted):
                    await running.wait()
                    break
    assert stopped.is_set()
    result = stream.result
    assert result.status == "cancelled" and isinstance(result.events[-1], RunFinished)
    assert result.events[-1].status == "cancelled"


@pytest.mark.anyio
async def test_cancelling_the_caller_of_run_leaves_nothing_behind(scripted):
    stopped = anyio.Event()

    @tool(effect="read")
    async def hang() -> str:
        """Never answer."""
        try:
            scope.cancel()
            await anyio.sleep_forever()
        finally:
            stopped.set()

    agent = scripted(ToolCall("hang"), "Done.", tools=[hang])
    with anyio.fail_after(10), anyio.CancelScope() as scope:
        await agent.run("go")
    assert scope.cancelled_caught and stopped.is_set()


@pytest.mark.anyio
async def test_a_run_without_anybody_watching_ends_by_itself(scripted):
    text = "word " * 2000
    with anyio.fail_after(20):
        result = await scripted(text, limits=Limits(turn_tokens=5000)).run("go")
    assert result.output == text


@pytest.mark.anyio
async def test_a_slow_watcher_pauses_the_run_and_loses_no_event(scripted):
    agent = scripted("word " * 1000, limits=Limits(turn_tokens=5000))
    texts: list[str] = []
    with anyio.fail_after(20):
        async with agent.stream("go") as stream:
            async for event in stream:
                await anyio.lowlevel.checkpoint()
                if isinstance(event, TextDelta):
                    texts.append(event.text)
    assert "".join(texts) == stream.result.output


@pytest.mark.anyio
async def test_runs_of_one_agent_at_the_same_time_keep_apart(lookup):
    slow, asked = lookup(0.0)
    from agent_runtime import Agent

    class Engines:
        name = "two"

        async def open(self, tools):
            return await ScriptedEngine([RIGHT, "Done."]).open(tools)

        async def aclose(self):
            pass

    agent = Agent("pair", Engines(), tools=[slow], traces=False)
    results = []
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(lambda: _collect(agent, results))
    assert [result.output for result in results] == ["Done."] * 5 and asked == ["a"] * 5
    assert len({result.run_id for result in results}) == 5


async def _collect(agent, results):
    results.append(await agent.run("go"))


def test_run_sync_runs_an_agent_from_ordinary_code(lookup, scripted):
    slow, _ = lookup(0.0)
    assert scripted(RIGHT, "Done.", tools=[slow]).run_sync("go").output == "Done."


async def _run_sync_inside(agent):
    with pytest.raises(RuntimeError):
        agent.run_sync("go")


@pytest.mark.anyio
async def test_run_sync_refuses_to_run_inside_an_event_loop(scripted):
    await _run_sync_inside(scripted("Done."))


def test_replace_shares_the_engine_and_changes_only_what_is_named(lookup, scripted):
    slow, _ = lookup(0.0)
    agent = scripted("Done.", tools=[slow])
    other = agent.replace(speculation=Speculation(allow_idempotent=True), sampling=Sampling(seed=1), tools=[])
    assert other.engine is agent.engine and other.instructions == agent.instructions
    assert (len(other.tools), len(agent.tools)) == (0, 1)
    assert other.gate.allow_idempotent is True and agent.gate.allow_idempotent is False
    assert agent.sampling is None and other.sampling == Sampling(seed=1)


def test_the_result_has_the_usage_of_all_turns(virtual, lookup, scripted, watch):
    slow, _ = lookup(0.0)
    agent = scripted((Think("one two"), RIGHT), "Done it.", tools=[slow])
    result, _ = virtual(lambda: watch(agent))
    usage = result.usage
    assert usage.prompt_tokens == usage.reused_tokens + usage.prefilled_tokens
    assert (usage.thinking_tokens, usage.completion_tokens) == (2, 2 + 8 + 2)
