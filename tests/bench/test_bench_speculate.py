"""`bench_speculate`: what it runs, how it compares, and what it refuses; with scripted models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import anyio
import pytest
from agent_runtime.tools import ToolCall
from agent_runtime.tools.values import (
    CallDemanded,
    CallFinished,
    CallStarted,
    GuessEnded,
    GuessProposed,
    GuessStarted,
    Outcome,
)
from agent_runtime.traces.events import GenerationFinished, TurnFinished, TurnStarted
from agent_runtime.traces.messages import AssistantMessage, UserMessage

from agent_runtime import Agent, EngineFailed, ScriptedEngine, Speculation, tool
from agent_runtime.bench import RunRecord, bench_speculate, report
from agent_runtime.bench.interleave import schedule
from agent_runtime.bench.records import transcript_of, writes_pre_executed
from agent_runtime.demo.shop.handwritten import handwritten_tasks
from agent_runtime.engines.base import ToolSchema
from agent_runtime.engines.scripted import Break, Call, Probe, ScriptedSession, Think, Turn
from agent_runtime.errors import UsageError

KEYS = {
    "tasks",
    "success",
    "hit_at_1",
    "hidden_share",
    "serial_ms",
    "speculative_ms",
    "speedup",
    "closed_form",
    "slowdown_pct",
    "identical_transcripts",
    "writes_pre_executed",
    "tool_latency_ms",
}
BESIDE = Speculation(placement="beside", reprobe=())
GET = ToolCall("get_order", {"order_id": "O-7802"})
ANSWER = "Order O-7802 is in transit in Turin, due 09-27."


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


class EachRun:
    """A model that plays the same script in every session; in the first, which only warms up, it says hello."""

    name = "each"

    def __init__(self, *turns: Any, other: Sequence[Any] | None = None) -> None:
        self._turns = turns
        self._other = other
        self.sessions = 0

    async def open(self, tools: Sequence[ToolSchema]) -> ScriptedSession:
        self.sessions += 1
        turns = self._other if self._other is not None and self.sessions % 2 else self._turns
        if self.sessions == 1:
            turns = ["Hello."]
        return await ScriptedEngine(list(turns)).open(tools)

    async def aclose(self) -> None:
        pass


def shop_script() -> list[Any]:
    """Think, look the order up, and say where it is; the probe is right and quicker than the thinking."""
    return [Turn(items=(Think("hm", delay=0.02), Call(GET)), probes=(Probe(GET),)), ANSWER]


def own_agent(*turns: Any, **settings: Any) -> tuple[Agent, list[str]]:
    asked: list[str] = []

    @tool(effect="read")
    async def lookup(key: str) -> str:
        """Look a key up."""
        asked.append(key)
        return key

    return Agent("own", EachRun(*turns), tools=[lookup], traces=False, speculation=BESIDE, **settings), asked


# --- the shop ------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_the_shop_is_measured_judged_and_compared():
    tasks = [task for task in handwritten_tasks() if "O-7802" in task.request]
    with anyio.fail_after(60):
        measured = await bench_speculate(
            tasks=tasks, tool_latency_ms=5, model=EachRun(*shop_script()), speculation=BESIDE
        )
    found = measured.to_json()
    assert found.keys() >= KEYS
    assert (found["tasks"], found["success"], found["success_serial"]) == (len(tasks), 1.0, 1.0)
    assert (found["hit_at_1"], found["tool_latency_ms"]) == (1.0, 5)
    assert found["identical_transcripts"] and found["identical_writes"] and found["writes_pre_executed"] == 0
    assert found["endings"]["adopted"] + found["endings"]["joined"] == len(tasks)
    assert found["hits"]["by_tool"]["get_order"]["boundaries"] == len(tasks)
    assert (found["reasoned_share"], found["hits"]["without_reasoning"]) == (1.0, None)
    assert found["success_by_phrasing"] == {"handwritten": {"tasks": len(tasks), "success": 1.0}}
    assert found["speedup"] == pytest.approx(found["serial_ms"] / found["speculative_ms"])
    assert set(found["forms"]["closed"]) == {"rho", "sigma", "alpha", "speedup", "measured_over_form"}


@pytest.mark.anyio
async def test_a_run_that_fails_counts_as_not_solved_and_the_next_goes_on():
    engine = EachRun(Break(EngineFailed("broke")))
    with anyio.fail_after(60):
        measured = await bench_speculate(tasks=3, tool_latency_ms=0, model=engine)
    assert (measured.tasks, measured.success, measured.statuses) == (3, 0.0, {"failed": 3})
    assert {failure["reason"] for failure in measured.failures} == {"the run ended as failed"}
    assert measured.hit_at_1 is None and measured.closed_form is None


@pytest.mark.anyio
async def test_requests_of_ones_own_meet_the_demo_world_and_are_not_judged():
    with anyio.fail_after(60):
        measured = await bench_speculate(tasks=["Where is O-7802?"], tool_latency_ms=0, model=EachRun(*shop_script()))
    assert (measured.tasks, measured.success, measured.failures) == (1, None, ())


@pytest.mark.anyio
async def test_transcripts_that_differ_are_told():
    engine = EachRun(*shop_script(), other=["I do not know."])
    records: list[RunRecord] = []
    with anyio.fail_after(60):
        measured = await bench_speculate(tasks=1, tool_latency_ms=0, model=engine, on_records=records.extend)
    assert not measured.identical_transcripts and measured.different_tasks == (records[0].task_id,)
    assert {record.mode for record in records} == {"serial", "speculative"}


@pytest.mark.anyio
async def test_a_measurement_can_go_on_where_another_ended():
    whole: list[RunRecord] = []
    rest: list[RunRecord] = []
    with anyio.fail_after(60):
        for tasks, first, kept in ((3, 0, whole), (1, 2, rest)):
            model = EachRun(*shop_script())
            await bench_speculate(
                tasks=tasks, first=first, seed=4, tool_latency_ms=0, model=model, on_records=kept.extend
            )
    assert {(record.index, record.task_id) for record in rest} == {(2, "test-4-2")}
    assert {record.task_id for record in whole} >= {"test-4-2"}


@pytest.mark.anyio
async def test_a_record_survives_json():
    records: list[RunRecord] = []
    with anyio.fail_after(60):
        measured = await bench_speculate(
            tasks=2, tool_latency_ms=0, model=EachRun(*shop_script()), on_records=records.extend
        )
    read = [RunRecord.from_json(record.to_json()) for record in records]
    assert [record.to_json() for record in read] == [record.to_json() for record in records]
    assert report(read, tool_latency_ms=0).to_json() == measured.to_json()


# --- agents of one's own ---------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_an_agent_of_ones_own_runs_its_tasks_in_both_modes_unjudged():
    call = ToolCall("lookup", {"key": "a"})
    agent, asked = own_agent(Turn(items=(Think("hm", delay=0.02), Call(call)), probes=(Probe(call),)), "Done.")
    with anyio.fail_after(60):
        measured = await bench_speculate(agent, tasks=["one", "two"], tool_latency_ms=10)
    assert asked == ["a"] * 4
    assert (measured.tasks, measured.success, measured.identical_writes) == (2, None, None)
    assert measured.identical_transcripts and measured.hit_at_1 == 1.0
    assert measured.tool_latency_ms == 10


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tasks": 3}, "file of them"),
        ({"tasks": []}, "no task"),
        ({"tasks": ["x"], "concurrency": 0}, "concurrency"),
        ({"tasks": ["x"], "tool_latency_ms": -1}, "tool_latency_ms"),
        ({"tasks": ["x"], "tool_latency_ms": "generation"}, "shop only"),
    ],
)
async def test_what_cannot_be_measured_is_one_clear_error(options, told):
    agent, _ = own_agent("Done.")
    with pytest.raises(UsageError, match=told):
        await bench_speculate(agent, **options)


@pytest.mark.anyio
async def test_a_name_that_is_no_target_is_a_clear_error():
    with pytest.raises(UsageError, match="no agent"):
        await bench_speculate("shoe")


# --- its parts -------------------------------------------------------------------------------------------------------


def test_every_task_runs_in_every_mode_once_and_its_runs_are_apart():
    planned = [(mode, item) for mode, _, item in schedule(range(20), ["a", "b", "c"], lag=5)]
    assert Counter(planned) == Counter({(mode, item): 1 for mode in "abc" for item in range(20)})
    for item in range(20):
        places = [place for place, (_, at) in enumerate(planned) if at == item]
        assert all(later - earlier > 4 for earlier, later in pairwise(places))


def test_no_mode_is_always_the_first_of_its_round():
    first = Counter(mode for mode, position, _ in schedule(range(40), ["a", "b"], lag=5) if position == 0)
    assert abs(first["a"] - first["b"]) <= 2


def test_a_write_that_no_demand_accounts_for_is_counted():
    announced = CallStarted(turn=0, at=1.0, index=0, tool="pay", effect="write")
    never = frozenset({"pay"})
    assert writes_pre_executed([announced], never_early=never, executed={"pay": 1, "look": 9}) == 0
    assert writes_pre_executed([announced], never_early=never, executed={"pay": 2}) == 1
    assert writes_pre_executed([announced], never_early=never, executed=None) == 0
    guessed = GuessStarted(turn=0, at=0.5, guess=0, tool="pay")
    assert writes_pre_executed([guessed, announced], never_early=never, executed=None) == 1


def test_a_transcript_tells_numbers_orders_and_spaces_apart():
    def said(**arguments: Any) -> str:
        return transcript_of([UserMessage("go"), AssistantMessage(calls=(ToolCall("f", arguments),))])

    assert said(a=1) == said(a=1)
    assert len({said(a=1), said(a=1.0), said(a=True), said(a="1"), said(a=1, b=2), said(b=2, a=1)}) == 6


def test_tasks_without_both_runs_are_left_out_of_a_report():
    assert report([]).tasks == 0 and report([]).speedup is None


def test_the_paired_form_takes_slowdown_from_the_same_turn_without_guessing():
    """A drafted message is 20 ms shorter, its tool of 30 ms runs 5 ms ahead: (50 + 30) / (30 + 30 - 5)."""

    def run(mode: str, message_ms: float, lead_ms: float | None) -> RunRecord:
        demand = message_ms / 1000
        started = demand - (lead_ms or 0.0) / 1000
        events: list[Any] = [TurnStarted(turn=0, at=0.0)]
        if lead_ms is not None:
            events += [
                GuessProposed(turn=0, at=started, guess=0, call=GET, confidence=1.0, source="self"),
                GuessStarted(turn=0, at=started, guess=0, tool=GET.name),
            ]
        events += [
            CallDemanded(turn=0, at=demand, index=0, call=GET, pre_executable=True),
            GenerationFinished(
                turn=0, at=demand, thinking="", text="", calls=(GET,), finish_reason="stop", prompt_tokens=1,
                completion_tokens=1, thinking_tokens=0, forwards=1, generation_ms=message_ms, slowdown_ms=0.0,
            ),
        ]  # fmt: skip
        if lead_ms is not None:
            saved = {"matched": True, "executed": True, "lead_ms": lead_ms, "saved_ms": lead_ms}
            events.append(GuessEnded(turn=0, at=demand, guess=0, ending="joined", tool=GET.name, **saved))
        outcome = Outcome(status="ok", content="{}", started_at=started, ended_at=started + 0.03)
        guess = None if lead_ms is None else 0
        events += [
            CallFinished(turn=0, at=started + 0.03, index=0, tool=GET.name, outcome=outcome, guess=guess),
            TurnFinished(turn=0, at=started + 0.03),
        ]
        return RunRecord(
            index=0, task_id="a", kind="k", phrasing="p", mode=mode, position=0, status="done", output="", error=None,
            success=None, reason="", wall_ms=(started + 0.03) * 1000, reused_tokens=0, prefilled_tokens=0,
            transcript="same", writes=None, writes_pre_executed=0, events=tuple(events),
        )  # fmt: skip

    found = report([run("serial", 50.0, None), run("speculative", 30.0, 5.0)]).forms
    assert found["paired"]["speedup"] == pytest.approx(80 / 55)
    assert found["paired"]["measured_over_form"] == pytest.approx(1.0)
    assert found["first"]["speedup"] == pytest.approx(60 / 55)
