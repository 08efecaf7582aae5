"""Cassettes: whole runs that are recorded, and replayed without model and tools."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from agent_runtime.tools import MalformedCall, ToolCall
from agent_runtime.tools.values import CallFinished, GuessEnded, GuessProposed
from agent_runtime.traces.events import GenerationFinished, ProbeFinished, TextDelta, ThinkingDelta
from pydantic import SecretStr

from agent_runtime import (
    Agent,
    EngineFailed,
    Limits,
    Sampling,
    ScriptedEngine,
    Speculation,
    ToolFailure,
    ToolMessage,
    tool,
)
from agent_runtime.engines.cassette import Cassette
from agent_runtime.engines.scripted import Break, Call, Probe, Say, Think, Turn
from agent_runtime.errors import CassetteUnusable, ReplayDiverged

BESIDE = Speculation(placement="beside", reprobe=())
RIGHT, OTHER = ToolCall("lookup", {"key": "a"}), ToolCall("lookup", {"key": "b"})
LONG = Think("one two three four five six seven eight", delay=0.1)


class Shop:
    """Tools that count how often they run."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.stock = 5

    def tools(self) -> list[Any]:
        @tool(effect="read", reads=["keys"])
        async def lookup(key: str, limit: int = 10) -> str:
            """Look a key up."""
            self.ran.append(f"lookup {key}")
            number = len(self.ran)
            await anyio.sleep(0.2)
            return f"value {number} of {key}"

        @tool(effect="read", reads=["stock"])
        async def stock() -> int:
            """Count the stock."""
            self.ran.append("stock")
            await anyio.sleep(0.01)
            return self.stock

        @tool(effect="write", writes=["stock"])
        async def sell(count: int) -> str:
            """Sell some."""
            self.ran.append(f"sell {count}")
            self.stock -= count
            return "sold"

        @tool(effect="read", timeout=0.5)
        async def slow() -> str:
            """Answer too late."""
            self.ran.append("slow")
            await anyio.sleep(60)
            return "too late"

        @tool(effect="read")
        async def fail(how: str) -> str:
            """Fail."""
            self.ran.append(f"fail {how}")
            if how == "on purpose":
                raise ToolFailure("not_found", "there is no such thing", status=429)
            raise ValueError("no luck\nat all")

        @tool(effect="write", secret=["pin"])
        async def login(user: str, pin: str, token: SecretStr | None = None) -> str:
            """Log in."""
            self.ran.append("login")
            return f"{user} may go in with {pin}"

        return [lookup, stock, sell, slow, fail, login]


def make(*turns: Any, shop: Shop, **settings: Any) -> Agent:
    given = {"speculation": BESIDE, "traces": False, "instructions": "Help.", **settings}
    return Agent("scripted", ScriptedEngine(list(turns), name="the recorded one"), tools=shop.tools(), **given)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cassette.jsonl"


@pytest.fixture
def play(virtual, watch, path):
    """Run an agent on a cassette, under a virtual clock; return result, events and what the tools did."""

    def run(*turns: Any, task: str = "go", **settings: Any) -> tuple[Any, list[Any], Shop]:
        shop = Shop()
        agent = make(*turns, shop=shop, **settings)
        with Cassette(path) as cassette:
            result, events = virtual(lambda: watch(cassette.attach(agent), task))
        return result, events, shop

    return run


def predictions(events: list[Any]) -> list[Any]:
    probes = [(e.turn, e.probe, e.completed, e.call, e.confidence) for e in events if isinstance(e, ProbeFinished)]
    return probes + [(e.turn, e.guess, e.call) for e in events if isinstance(e, GuessProposed)]


def assert_replays(play: Any, *turns: Any, **settings: Any) -> tuple[Any, list[Any]]:
    """Record a run and replay it with neither model nor tools; return the recorded result and the replay's events."""
    recorded, seen, shop = play(*turns, **settings)
    assert shop.ran
    replayed, again, idle = play(**settings)
    assert idle.ran == []
    assert (replayed.status, replayed.output, replayed.turns) == (recorded.status, recorded.output, recorded.turns)
    assert replayed.messages == recorded.messages
    assert replayed.usage == recorded.usage
    assert str(replayed.error) == str(recorded.error)
    for kind in (ThinkingDelta, TextDelta):
        assert [e.text for e in again if isinstance(e, kind)] == [e.text for e in seen if isinstance(e, kind)]
    assert predictions(again) == predictions(seen)
    first, second = recorded.ledger, replayed.ledger
    assert (second.predicted, second.hit_at_1, second.all) == (first.predicted, first.hit_at_1, first.all)
    return recorded, again


def guessed(call: Any, *, items: Any = (LONG,), delay: float = 0.1, then: Any = None) -> Turn:
    return Turn(items=(*items, Call(then or call)), probes=(Probe(call, 0.9, delay=delay),))


# --- the same run ---------------------------------------------------------------------------------------------------


def test_a_run_is_replayed_without_model_and_tools(play):
    result, events = assert_replays(play, guessed(RIGHT), guessed(OTHER), "Both are there.")
    assert result.output == "Both are there."
    assert result.ledger.hit_at_1 == 1.0
    assert [e.ending for e in events if isinstance(e, GuessEnded)] == ["adopted", "adopted"]


def test_the_replay_bears_the_recorded_models_name_and_takes_no_time(play, virtual):
    play(guessed(RIGHT), "Done.")
    replayed, events, _ = play()
    assert events[0].model == "the recorded one"
    assert replayed.wall_ms == 0.0
    assert all(e.slowdown_ms == 0 for e in events if isinstance(e, GenerationFinished))


def test_a_prediction_that_was_late_is_late_again_and_one_in_time_is_in_time(play):
    late = guessed(RIGHT, delay=0.75, items=(Think("one two three", delay=0.1),))
    early = guessed(OTHER, delay=0.75)
    recorded, _ = assert_replays(play, late, early, "Done.")
    assert recorded.ledger.predicted == 1


def test_probes_at_later_positions_give_the_same_predictions(play):
    turn = Turn(
        items=(LONG, Call(OTHER)),
        probes=(Probe(RIGHT, 0.6, delay=0.1), Probe(None, 0.2, delay=0.1), Probe(OTHER, 0.9, delay=0.1)),
    )
    settings = Speculation(placement="beside", reprobe=(3, 6))
    recorded, events = assert_replays(play, turn, "Done.", speculation=settings)
    assert [e.call for e in events if isinstance(e, ProbeFinished)] == [RIGHT, None, OTHER, None]
    assert recorded.ledger.hit_at_1 == 1.0


def test_a_guess_before_the_message_is_replayed(play):
    settings = Speculation(placement="before", reprobe=())
    recorded, _ = assert_replays(play, guessed(RIGHT), guessed(OTHER, then=RIGHT), "Done.", speculation=settings)
    assert recorded.ledger.hit_at_1 == 0.5


def test_a_wrong_guess_is_made_again_and_discarded_again(play):
    _, events = assert_replays(play, guessed(OTHER, then=RIGHT), "Done.")
    assert [e.ending for e in events if isinstance(e, GuessEnded)] == ["discarded"]


@pytest.mark.parametrize("recorded_with", [True, False])
def test_a_run_with_guessing_replays_without_and_the_other_way_round(play, recorded_with):
    with_or_without = {True: BESIDE, False: False}
    turns = (guessed(OTHER, then=RIGHT), guessed(OTHER), "Done.")
    recorded, _, _ = play(*turns, speculation=with_or_without[recorded_with])
    replayed, events, idle = play(speculation=with_or_without[not recorded_with])
    assert (replayed.status, replayed.messages, idle.ran) == ("done", recorded.messages, [])
    assert not [e for e in events if isinstance(e, GuessProposed)], "what wasn't recorded is no prediction"


def test_results_that_change_during_a_run_are_replayed_in_their_places(play):
    """The same call before and after a write, in one message and over several."""
    stock, sell = ToolCall("stock", {}), ToolCall("sell", {"count": 2})
    turns = (guessed(stock), guessed(stock, then=sell), (stock, sell, stock), stock, "Done.")
    recorded, _ = assert_replays(play, *turns)
    told = [message.content for message in recorded.messages if isinstance(message, ToolMessage)]
    assert told == ["5", "sold", "3", "sold", "1", "1"]


def test_a_guess_made_stale_by_a_write_does_not_leak_into_a_replay_without_guessing(play):
    stock, sell = ToolCall("stock", {}), ToolCall("sell", {"count": 2})
    recorded, _, _ = play(Turn(items=(LONG, sell, stock), probes=(Probe(stock, 0.9),)), "Done.")
    replayed, _, _ = play(speculation=False)
    assert replayed.messages == recorded.messages


def test_failures_timeouts_and_impossible_calls_read_the_same(play):
    turns = (
        guessed(ToolCall("fail", {"how": "on purpose"})),
        ToolCall("fail", {"how": "badly"}),
        ToolCall("slow", {}),
        ToolCall("no_such_tool", {}),
        ToolCall("lookup", {"key": 7, "limit": "many"}),
        MalformedCall('{"name": "lookup"', "the JSON is cut off"),
        "Done.",
    )
    recorded, _ = assert_replays(play, *turns)
    told = [message.content for message in recorded.messages if isinstance(message, ToolMessage)]
    assert '"timeout"' in told[2]


def test_spelling_of_arguments_does_not_matter(play):
    assert_replays(play, ToolCall("lookup", {"limit": 10.0, "key": "a"}), ToolCall("lookup", {"key": "a"}), "Done.")


def test_the_same_call_twice_in_a_message_gives_both_results(play):
    recorded, _ = assert_replays(play, (RIGHT, RIGHT), "Done.", speculation=False)
    assert recorded.messages[3].content != recorded.messages[4].content


def test_a_run_that_met_a_limit_meets_it_again(play):
    recorded, _ = assert_replays(play, RIGHT, OTHER, RIGHT, limits=Limits(turns=2))
    assert recorded.status == "limit"
    with pytest.raises(ReplayDiverged):
        raise play(limits=Limits(turns=5))[0].error


def test_a_limit_in_the_middle_of_a_message_is_met_again(play):
    recorded, _ = assert_replays(play, RIGHT, (OTHER, RIGHT, Say("no more")), limits=Limits(calls=2))
    assert recorded.status == "limit"


def test_an_engine_that_broke_breaks_again(play):
    recorded, _ = assert_replays(play, RIGHT, (Say("and"), Break(EngineFailed("out of memory: buy some"))))
    assert "out of memory" in str(recorded.error)


@pytest.mark.anyio
async def test_runs_share_a_cassette_at_the_same_time_and_repeat_their_tasks_in_order(path: Path) -> None:
    async def all_of(agent: Agent, tasks: list[str]) -> list[str]:
        outputs = [""] * len(tasks)

        async def one(index: int) -> None:
            outputs[index] = (await agent.run(tasks[index])).output

        async with anyio.create_task_group() as group:
            for index in range(len(tasks)):
                group.start_soon(one, index)
        return outputs

    shop = Shop()
    with Cassette(path) as cassette:
        agent = cassette.attach(make(*(f"answer {number}" for number in range(9)), shop=shop))
        tasks = [f"task {number}" for number in range(6)]
        answers = await all_of(agent, tasks)
        repeated = [(await agent.run("again")).output for _ in range(3)]
    with Cassette(path) as cassette:
        agent = cassette.attach(make(shop=shop))
        assert await all_of(agent, tasks[::-1]) == answers[::-1]
        assert [(await agent.run("again")).output for _ in range(3)] == repeated
        with pytest.raises(ReplayDiverged, match="less often"):
            await agent.run("again")


@pytest.mark.anyio
async def test_synchronous_tools_are_recorded_in_their_threads_and_replayed_without(path: Path) -> None:
    import threading

    threads: list[str] = []

    @tool(effect="read")
    def find(name: str) -> dict[str, str]:
        """Find."""
        threads.append(threading.current_thread().name)
        if name == "c":
            raise KeyError(name)
        return {"name": name}

    def agent(*turns: Any) -> Agent:
        return Agent("sync", ScriptedEngine(list(turns)), tools=[find], traces=False, speculation=BESIDE)

    turns = [guessed(ToolCall("find", {"name": name}), items=()) for name in "abc"]
    with Cassette(path) as cassette:
        recorded = await cassette.attach(agent(*turns, "Done.")).run("go")
    assert len(threads) >= 3 and threading.current_thread().name not in threads
    threads.clear()
    with Cassette(path) as cassette:
        replayed = await cassette.attach(agent()).run("go")
    assert (replayed.messages, threads) == (recorded.messages, [])


# --- another run ----------------------------------------------------------------------------------------------------


def diverged(play: Any, **settings: Any) -> ReplayDiverged:
    result, _, idle = play(**settings)
    assert (result.status, idle.ran) == ("failed", [])
    assert isinstance(result.error, ReplayDiverged)
    assert result.error.exit_code == 4
    assert "\n" not in str(result.error)
    return result.error


def test_another_task_is_shown_as_a_diff(play):
    play(RIGHT, "Done.", task="Where is order 7?")
    error = diverged(play, task="Where is order 8?")
    assert "message 1 of the request differs (user)" in str(error)
    assert "-Where is order 7?\n+Where is order 8?" in error.diff


def test_other_instructions_other_tools_and_other_sampling_are_shown(play, path, virtual, watch):
    play(RIGHT, "Done.", sampling=Sampling(temperature=0.5))
    assert "+Be rude." in diverged(play, sampling=Sampling(temperature=0.5), instructions="Be rude.").diff
    error = diverged(play)
    assert "the sampling differs" in str(error) and "+sampling: defaults of the model" in error.diff
    agent = make(shop=Shop(), sampling=Sampling(temperature=0.5))
    with Cassette(path) as cassette:
        result, _ = virtual(lambda: watch(cassette.attach(agent.replace(tools=agent.tools[1:])), "go"))
    assert "the agent's tools differ" in str(result.error)
    assert '-tool: {"description":"Look a key up."' in result.error.diff


def test_the_closest_recorded_request_is_compared(play):
    play(RIGHT, "Done.", task="Tell me of a.")
    for text in ("Tell me of b.", "Tell me of a!"):
        assert "-Tell me of a." in diverged(play, task=text).diff


def test_a_run_that_goes_on_where_the_recording_ended_diverges(play, path):
    play(RIGHT, OTHER, "Done.", limits=Limits(turns=1))
    error = diverged(play)
    assert "the recording ends here" in str(error) and error.diff == ""


def test_a_long_diff_is_cut(play):
    play(RIGHT, "Done.", task="\n".join(f"line {number}" for number in range(500)))
    error = diverged(play, task="\n".join(f"row {number}" for number in range(500)))
    assert len(error.diff.splitlines()) == 61 and error.diff.endswith("more lines")


# --- secrets --------------------------------------------------------------------------------------------------------


def test_secrets_are_not_on_the_cassette_and_the_run_replays_all_the_same(play, path):
    key = "sk-proj-abcdefghij0123456789"
    login = ToolCall("login", {"user": "ada", "pin": "hunter22-mine", "token": "tok-very-secret-1"})
    turns = (
        Turn(items=(Think("I say hunter22-mine and so on"), Call(login)), probes=(Probe(login, 0.9),)),
        Turn(items=(*map(Say, ("The key is sk-pro", "j-abcdefghij", "0123456789", " I think")), Call(RIGHT))),
        "Done with hunter22-mine.",
    )
    _, _, shop = play(*turns, task=f"Log in with {key}.")
    assert shop.ran[0] == "login"
    text = path.read_text()
    for secret in (key, key[-10:], "hunter22-mine", "tok-very-secret-1"):
        assert secret not in text
    replayed, events, idle = play(task=f"Log in with {key}.")
    assert (replayed.status, idle.ran) == ("done", [])
    assert replayed.output.startswith("Done with redacted:hmac:")
    said = "".join(e.text for e in events if isinstance(e, TextDelta) and e.turn == 1)
    assert said == replayed.messages[4].text and "redacted:hmac:" in said
    assert path.stat().st_mode & 0o077 == 0


# --- files ----------------------------------------------------------------------------------------------------------


def test_an_empty_file_is_recorded_and_nothing_is_made_where_nothing_happened(play, path):
    path.touch()
    result, _, _ = play()
    assert isinstance(result.error, EngineFailed)
    assert path.read_bytes() == b""
    play(RIGHT, "Done.")
    assert play()[0].output == "Done."


def test_a_cassette_may_be_edited_by_hand(play, path):
    play(guessed(RIGHT), "It is value 1 of a.")
    path.write_text(path.read_text().replace("value 1 of a", "nothing"))
    result, _, _ = play()
    assert result.output == "It is nothing."
    assert result.messages[3] == ToolMessage("lookup", "nothing")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"dear diary\n", "no cassette"),
        (b"dear diary", "no cassette"),
        (b"\xff\xfe\x00\n", "no cassette"),
        (b'{"role": "user"}\n', "no cassette"),
        (b"[]\n", "no cassette"),
        (b'{"cassette": 2, "key": "00", "model": "m"}\n', "format 2.*upgrade"),
        (b'{"cassette": 1, "key": "00", "model": "m"}\n{"type": "mess\n', "line 2 of the cassette"),
        (b'{"cassette": 1, "key": "00", "model": "m"}\n\n', "line 2 of the cassette"),
        (b'{"cassette": 1, "key": "00", "model": "m"}\n{"type": "dance"}\n', "line 2 of the cassette.*dance"),
        (
            b'{"cassette": 1, "key": "00", "model": "m"}\n{"type": "message", "conversation": "a", "extends": "b", '
            b'"tools": "c", "messages": [], "sampling": null, "events": []}\n',
            "lacks a part",
        ),
    ],
)
def test_a_foreign_or_damaged_file_is_one_clear_line(path, content, said):
    path.write_bytes(content)
    with pytest.raises(CassetteUnusable, match=said) as caught:
        Cassette(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert path.read_bytes() == content


def test_places_where_no_file_can_be_are_one_clear_line(tmp_path):
    for path, said in ((tmp_path / "no" / "c.jsonl", "no folder"), (tmp_path, "directory")):
        with pytest.raises(CassetteUnusable, match=said):
            Cassette(path)


def test_damage_anywhere_never_shows_as_a_traceback(play, path):
    play(guessed(RIGHT), guessed(OTHER, then=RIGHT), "Done.")
    lines = path.read_text().splitlines()
    values = [json.loads(line) for line in lines]
    for number, value in enumerate(values):
        for field in value:
            for wrong in (None, 7, [], "x", {}):
                broken = [*values]
                broken[number] = {**value, field: wrong}
                path.write_text("".join(json.dumps(item) + "\n" for item in broken))
                try:
                    result, _, _ = play()
                except CassetteUnusable:
                    continue
                assert result.error is None or isinstance(result.error, ReplayDiverged | EngineFailed), broken[number]


def test_a_line_cut_off_at_the_end_is_left_out(play, path):
    play(RIGHT, OTHER, "Done.", speculation=False)  # no probe ends after the last message
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for cut in (last, last + 1, len(whole) - 1):
        path.write_bytes(whole[:cut])
        error = diverged(play)
        assert "asked for message 3 of the model: the recording ends here" in str(error)


PROGRAM = """
import sys

import anyio
from agent_runtime import Agent, ScriptedEngine, tool
from agent_runtime.engines.cassette import Cassette
from agent_runtime.tools import ToolCall


@tool(effect="read")
async def lookup(key: str) -> str:
    "Look a key up."
    if key == "b":
        print("calling", flush=True)
        await anyio.sleep_forever()
    return "there"


async def main():
    engine = ScriptedEngine([ToolCall("lookup", {"key": "a"}), ToolCall("lookup", {"key": "b"}), "Done."])
    with Cassette(sys.argv[1]) as cassette:
        await cassette.attach(Agent("killed", engine, tools=[lookup], traces=False)).run("go")


anyio.run(main)
"""


def test_what_a_killed_process_recorded_can_be_replayed_up_to_there(path, virtual, watch):
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "calling\n"
        process.kill()

    @tool(effect="read")
    async def lookup(key: str) -> str:
        """Look a key up."""
        raise AssertionError("played, not run")

    agent = Agent("killed", ScriptedEngine([]), tools=[lookup], traces=False)
    with Cassette(path) as cassette:
        result, events = virtual(lambda: watch(cassette.attach(agent), "go"))
    assert result.turns == 3, "both messages were there"
    assert isinstance(result.error, ReplayDiverged)
    first, second = (e.outcome for e in events if isinstance(e, CallFinished))
    assert first.content == "there"
    assert second.error == "not_recorded"
    assert replace(second, content="") != first
