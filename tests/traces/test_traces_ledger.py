"""The ledger against turns computed by hand. Times are seconds in events, milliseconds in the ledger."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from agent_runtime.tools.values import (
    CallDemanded,
    CallFinished,
    CallStarted,
    Ending,
    GuessEnded,
    GuessProposed,
    GuessStarted,
    Outcome,
    ToolCall,
)
from agent_runtime.traces import Ledger, closed_form, ledger, merge
from agent_runtime.traces.events import (
    Event,
    GenerationFinished,
    ProbeFinished,
    ProbeStarted,
    RunFinished,
    RunStarted,
    TurnFinished,
    TurnStarted,
)

ORDER = ToolCall("order", {"id": 1042})
OTHER = ToolCall("order", {"id": 7})
CUSTOMER = ToolCall("customer", {"id": 3})
REFUND = ToolCall("refund", {"id": 1042})


def begin(turn: int, at: float) -> list[Event]:
    return [TurnStarted(turn=turn, at=at)]


def probe(turn: int, start: float, end: float, call: ToolCall | None, *, placement: Any = "beside") -> list[Event]:
    return [
        ProbeStarted(turn=turn, at=start, probe=turn, position=0, placement=placement),
        ProbeFinished(
            turn=turn,
            at=end,
            probe=turn,
            completed=True,
            call=call,
            confidence=0.9,
            probe_ms=(end - start) * 1000,
            tokens=20,
        ),
    ]


def propose(turn: int, at: float, guess: int, call: ToolCall, *, started: bool = True) -> list[Event]:
    events: list[Event] = [
        GuessProposed(turn=turn, at=at, guess=guess, call=call, confidence=0.9, source="self"),
    ]
    return [*events, GuessStarted(turn=turn, at=at, guess=guess, tool=call.name)] if started else events


def end(turn: int, at: float, guess: int, ending: Ending, **figures: Any) -> list[Event]:
    return [GuessEnded(turn=turn, at=at, guess=guess, ending=ending, tool="order", **figures)]


def demand(turn: int, at: float, call: ToolCall, *, pre_executable: bool = True, index: int = 0) -> list[Event]:
    return [CallDemanded(turn=turn, at=at, index=index, call=call, pre_executable=pre_executable)]


def finish(
    turn: int, start: float, at: float, *, tool: str = "order", index: int = 0, guess: int | None = None
) -> list[Event]:
    outcome = Outcome("ok", "{}", start, at)
    return [CallFinished(turn=turn, at=at, index=index, tool=tool, outcome=outcome, guess=guess)]


def generated(turn: int, at: float, start: float, *, thinking: int = 0, slowdown_ms: float = 0.0) -> list[Event]:
    return [
        GenerationFinished(
            turn=turn,
            at=at,
            thinking="x" * thinking,
            text="",
            calls=(),
            finish_reason="calls",
            prompt_tokens=10,
            completion_tokens=30,
            thinking_tokens=thinking,
            forwards=30,
            generation_ms=(at - start) * 1000,
            slowdown_ms=slowdown_ms,
        )
    ]


def over(turn: int, at: float) -> list[Event]:
    return [TurnFinished(turn=turn, at=at)]


JOINED = [
    # T_gen 1000 (1000 measured, 0 lost to the probe), guess at 0.2 s, demand at 1.0 s: lead 800; tool 1000 until 1.2 s
    *begin(0, 0.0),
    *probe(0, 0.0, 0.2, ORDER),
    *propose(0, 0.2, 0, ORDER),
    *demand(0, 1.0, ORDER),
    *generated(0, 1.0, 0.0, thinking=12),
    *end(0, 1.2, 0, "joined", matched=True, matched_name=True, executed=True, lead_ms=800.0, saved_ms=800.0),
    *finish(0, 0.2, 1.2, guess=0),
    *over(0, 1.2),
]
ADOPTED = [
    # 100 ms of the 1000 to demand are the probe's doing; the tool took 300 and was ready before demand
    *begin(1, 2.0),
    *probe(1, 2.0, 2.2, CUSTOMER),
    *propose(1, 2.2, 1, CUSTOMER),
    *demand(1, 3.0, CUSTOMER),
    *end(1, 3.0, 1, "adopted", matched=True, matched_name=True, executed=True, lead_ms=800.0, saved_ms=300.0),
    *generated(1, 3.1, 2.0, slowdown_ms=100.0),
    *finish(1, 2.2, 2.5, tool="customer", guess=1),
    *over(1, 3.1),
]
MISSED = [
    *begin(2, 4.0),
    *probe(2, 4.0, 4.1, OTHER),
    *propose(2, 4.1, 2, OTHER),
    *demand(2, 4.5, ORDER),
    *end(2, 4.5, 2, "discarded", matched_name=True, executed=True, lead_ms=400.0, wasted_ms=250.0),
    *generated(2, 4.5, 4.0),
    *finish(2, 4.5, 4.9),
    *over(2, 4.9),
]
REFUSED = [
    # the prediction is right, but what it predicts is a write
    *begin(3, 5.0),
    *probe(3, 5.0, 5.2, REFUND),
    *propose(3, 5.2, 3, REFUND, started=False),
    *end(3, 5.2, 3, "refused", reason="effect"),
    *demand(3, 5.6, REFUND, pre_executable=False),
    *generated(3, 5.7, 5.0, thinking=30),
    CallStarted(turn=3, at=5.7, index=0, tool="refund", effect="write"),
    *finish(3, 5.7, 6.7, tool="refund"),
    *over(3, 6.7),
]
LATE = [
    *begin(4, 7.0),
    *demand(4, 7.3, ORDER),
    *probe(4, 7.0, 7.35, ORDER),
    *propose(4, 7.35, 4, ORDER, started=False),
    *end(4, 7.35, 4, "late", matched=True, matched_name=True),
    *generated(4, 7.4, 7.0),
    *finish(4, 7.3, 7.5),
    *over(4, 7.5),
]
ANSWER = [*begin(5, 8.0), *probe(5, 8.0, 8.1, None), *generated(5, 8.6, 8.0, slowdown_ms=50.0), *over(5, 8.6)]

RUN: list[Event] = [
    RunStarted(at=0.0, agent="a", model="m", task="t"),
    *JOINED,
    *ADOPTED,
    *MISSED,
    *REFUSED,
    *LATE,
    *ANSWER,
    RunFinished(at=8.6, status="done", output="it ships today"),
]


def test_a_joined_guess_saves_its_lead() -> None:
    (turn,) = ledger(JOINED).turns
    assert (turn.t_gen_ms, turn.t_probe_ms, turn.t_tool_ms) == pytest.approx((1000, 200, 1000))
    assert (turn.hit, turn.hit_name, turn.ending, turn.source, turn.confidence) == (True, True, "joined", "self", 0.9)
    assert (turn.lead_ms, turn.saved_ms, turn.ceiling_ms) == pytest.approx((800, 800, 1000))
    assert turn.thought and turn.pre_executable and turn.complete and turn.boundary == ORDER
    assert (
        turn.wasted_tokens == 0 and turn.probe_tokens == 20 and turn.standing is not None and turn.standing.at_ms == 200
    )


def test_the_agents_own_time_leaves_out_what_the_probe_cost_it() -> None:
    (turn,) = ledger(ADOPTED).turns
    assert (turn.t_gen_ms, turn.slowdown_ms, turn.t_tool_ms, turn.ceiling_ms) == pytest.approx((900, 100, 300, 300))
    assert not turn.thought


def test_a_probe_that_the_agent_waits_for_counts_as_slowdown() -> None:
    events = [
        *begin(0, 0.0),
        *probe(0, 0.0, 0.25, ORDER, placement="before"),
        *propose(0, 0.25, 0, ORDER),
        *demand(0, 1.25, ORDER),
        *end(0, 1.25, 0, "adopted", matched=True, executed=True, lead_ms=1000.0, saved_ms=500.0),
        *generated(0, 1.25, 0.0),
        *finish(0, 0.25, 0.75, guess=0),
        *over(0, 1.25),
    ]
    book = ledger(events)
    assert (book.turns[0].t_gen_ms, book.slowdown_ms, book.net_saved_ms) == pytest.approx((1000, 250, 250))
    # rho 0.5, sigma 0.25, alpha 1: both forms are the same for such a probe
    form = book.expected.closed_form
    assert (form.rho, form.sigma, form.alpha) == pytest.approx((0.5, 0.25, 1.0))
    assert form.speedup == pytest.approx(1.5 / 1.25)
    assert (book.expected.serial_ms, book.expected.speculative_ms) == pytest.approx((1500, 1250))
    assert book.expected.speedup == pytest.approx(form.speedup)


def test_a_miss_is_counted_by_name_and_as_waste() -> None:
    (turn,) = ledger(MISSED).turns
    assert (turn.hit, turn.hit_name, turn.saved_ms, turn.wasted_ms, turn.wasted_tokens) == (False, True, 0.0, 250.0, 20)


def test_a_refused_prediction_that_is_right_is_a_hit_that_saves_nothing() -> None:
    book = ledger(REFUSED)
    (turn,) = book.turns
    assert (turn.hit, turn.ending, turn.reason, turn.saved_ms, turn.ceiling_ms) == (True, "refused", "effect", 0.0, 0.0)
    assert turn.lead_ms is None
    assert book.hit_at_1 == 1.0 and book.over_pre_executable.hit_at_1 is None and book.hidden_share is None


def test_a_prediction_that_comes_after_demand_is_late_and_no_hit() -> None:
    book = ledger(LATE)
    assert (book.turns[0].hit, book.turns[0].standing, book.turns[0].ending) == (False, None, "late")
    assert (book.predicted, book.hit_at_1, book.coverage, book.endings["late"]) == (0, 0.0, 0.0, 1)


def test_a_turn_without_a_call_is_no_boundary_but_its_slowdown_counts() -> None:
    book = ledger(ANSWER)
    (turn,) = book.turns
    assert (book.boundaries, book.hit_at_1, turn.boundary, turn.predicted_no_call) == (0, None, None, True)
    assert turn.t_gen_ms == pytest.approx(550) and book.net_saved_ms == -50
    assert book.expected.closed_form.speedup is None


def test_a_whole_run_adds_up() -> None:
    book = ledger(RUN)
    assert book.summary() == {
        "boundaries": 5,
        "predicted": 4,
        "hit_at_1": 3 / 5,
        "hit_at_1_name": 4 / 5,
        "adopted": 1,
        "joined": 1,
        "discarded": 1,
        "stale": 0,
        "late": 1,
        "refused": 1,
        "saved_ms": pytest.approx(1100.0),
        "wasted_ms": 250.0,
        "slowdown_ms": 150.0,
        # min(T_tool, T_gen): 1000 + 300 + 400 + 200, the refund left out
        "hidden_share": pytest.approx(1100 / 1900),
    }
    # T_gen + T_tool by turn: 1000+1000, 900+300, 500+400, 600+1000, 300+200, 550
    assert book.expected.serial_ms == pytest.approx(6750)
    assert book.expected.speculative_ms == pytest.approx(6750 + 150 - 800 - 300)
    form = book.expected.closed_form
    assert (form.rho, form.sigma, form.alpha) == pytest.approx((2900 / 3300, 1050 / 3300, 2 / 5))
    assert form.speedup == pytest.approx((1 + 2900 / 3300) / (1 + 2900 / 3300 + 1050 / 3300 - 0.4 * 2900 / 3300))
    assert (book.lead.count, book.lead.p50, book.lead.p10) == (3, 800.0, pytest.approx(480.0))
    assert book.over_pre_executable.hit_at_1 == 2 / 4
    assert {tool: rate.hits for tool, rate in book.by_tool.items()} == {"order": 1, "customer": 1, "refund": 1}
    assert {thought: rate.boundaries for thought, rate in book.by_thinking.items()} == {True: 2, False: 3}
    assert book.wasted_tokens == 20 * 4


def test_the_summary_holds_exactly_the_promised_keys() -> None:
    promised = (
        "boundaries predicted hit_at_1 hit_at_1_name adopted joined discarded stale late refused saved_ms wasted_ms"
    )
    assert [*ledger([]).summary()] == [*promised.split(), "slowdown_ms", "hidden_share"]


def test_merging_gives_the_figures_of_all_turns() -> None:
    merged = merge([ledger(JOINED), ledger(LATE), ledger(ANSWER)])
    assert (merged.runs, merged.boundaries, merged.hit_at_1) == (3, 2, 0.5)
    assert merge([]) == Ledger()


@pytest.mark.parametrize("length", range(len(RUN) + 1))
def test_a_trace_may_break_off_anywhere(length: int) -> None:
    book = ledger(RUN[:length])
    assert 0 <= book.predicted <= book.boundaries <= 5
    assert book.hit_at_1 is None or 0 <= book.hit_at_1 <= 1
    assert book.expected.serial_ms <= 6751 and book.saved_ms <= 1100
    assert all(turn.complete for turn in book.turns[:-1])
    book.summary()


def test_a_call_without_a_result_adds_nothing_to_the_ceiling() -> None:
    book = ledger(JOINED[:6])
    (turn,) = book.turns
    assert (turn.t_tool_ms, turn.ceiling_ms, turn.complete, turn.ending) == (None, 0.0, False, None)
    assert book.hit_at_1 == 1.0


def test_only_the_first_call_of_a_turn_is_the_boundary() -> None:
    events = [
        *begin(0, 0.0),
        *propose(0, 0.1, 0, CUSTOMER),
        *demand(0, 0.5, ORDER),
        *demand(0, 0.7, CUSTOMER, index=1),
        *end(0, 0.7, 0, "discarded", executed=True),
        *generated(0, 0.8, 0.0),
        *finish(0, 0.7, 0.9, tool="customer", index=1),
        *finish(0, 0.5, 1.5),
        *over(0, 1.5),
    ]
    (turn,) = ledger(events).turns
    assert (turn.boundary, turn.calls, turn.hit, turn.t_gen_ms, turn.t_tool_ms) == (ORDER, 2, False, 500.0, 1000.0)


def test_the_newest_guess_that_is_held_stands_and_outranks_later_ones_that_were_refused() -> None:
    events = [
        *begin(0, 0.0),
        *propose(0, 0.1, 0, OTHER),
        *propose(0, 0.2, 1, ORDER),
        *propose(0, 0.3, 2, CUSTOMER, started=False),
        *end(0, 0.3, 2, "refused", reason="low_confidence"),
        *demand(0, 0.5, CUSTOMER),
        *end(0, 0.5, 0, "discarded", executed=True),
        *end(0, 0.5, 1, "discarded", executed=True),
    ]
    (turn,) = ledger(events).turns
    assert turn.standing is not None and turn.standing.guess == 1
    assert not turn.hit


def test_a_guess_that_was_given_up_before_demand_stands_no_more() -> None:
    events = [
        *begin(0, 0.0),
        *propose(0, 0.1, 0, ORDER),
        *end(0, 0.2, 0, "failed", executed=True),
        *propose(0, 0.3, 1, CUSTOMER, started=False),
        *end(0, 0.3, 1, "refused", reason="backing_off"),
        *demand(0, 0.5, ORDER),
    ]
    (turn,) = ledger(events).turns
    assert (turn.standing and turn.standing.guess, turn.hit, turn.reason) == (1, False, "backing_off")


def test_a_refused_prediction_that_the_dispatcher_keeps_in_mind_stands() -> None:
    events = [
        *begin(0, 0.0),
        *propose(0, 0.1, 0, replace(REFUND, arguments={"id": "1042"}), started=False),
        *demand(0, 0.5, REFUND, pre_executable=False),
        *end(0, 0.5, 0, "refused", reason="effect", matched=True, matched_name=True),
    ]
    book = ledger(events)
    assert (book.hit_at_1, book.turns[0].reason, book.turns[0].lead_ms) == (1.0, "effect", None)


@pytest.mark.parametrize("ending", ["stale", "failed", "cancelled"])
def test_a_hit_stays_a_hit_whatever_becomes_of_its_result(ending: Ending) -> None:
    events = [
        *begin(0, 0.0),
        *propose(0, 0.1, 0, replace(ORDER, arguments={"id": "1042"})),  # equal once validated: the dispatcher says so
        *demand(0, 0.5, ORDER),
        *end(0, 0.6, 0, ending, matched=True, matched_name=True, executed=True, wasted_ms=10.0),
    ]
    book = ledger(events)
    assert (book.hit_at_1, book.saved_ms, book.wasted_ms) == (1.0, 0.0, 10.0)


@pytest.mark.parametrize(
    ("rho", "sigma", "alpha", "speedup"), [(1, 0, 1, 2.0), (1, 0, 0, 1.0), (2, 0.5, 1, 1.2), (0.5, 0, 1, 1.5)]
)
def test_the_closed_form_is_the_papers(rho: float, sigma: float, alpha: float, speedup: float) -> None:
    assert closed_form(rho=rho, sigma=sigma, alpha=alpha) == pytest.approx(speedup)


def two_calls(*guesses: int, tools: tuple[float, float] = (1.0, 1.0), write: bool = False) -> list[Event]:
    """Calls demanded after 0.4 and 1.0 s, guesses of the indexes given started at 0.1 s."""
    demands, events = (0.4, 1.0), begin(0, 0.0)
    for index in guesses:
        events += [
            GuessProposed(turn=0, at=0.1, guess=index, call=ORDER, confidence=0.9, source="counter", index=index),
            GuessStarted(turn=0, at=0.1, guess=index, tool="order"),
        ]
    for index, at in enumerate(demands):
        events += demand(0, at, REFUND if write and index else ORDER, index=index, pre_executable=not (write and index))
    events += generated(0, 1.0, 0.0)
    if write:
        events.append(CallStarted(turn=0, at=1.4, index=1, tool="refund", effect="write"))
    for index, at in enumerate(demands):
        start = 0.1 if index in guesses else 1.4 if write and index else at
        if index in guesses:
            events += end(0, 1.0, index, "joined", matched=True, executed=True, lead_ms=(at - 0.1) * 1000)
        events += finish(0, start, start + tools[index], index=index, guess=index if index in guesses else None)
    return [*events, *over(0, 3.0)]


@pytest.mark.parametrize(
    ("guesses", "saved"),
    [
        # the second call ends 1.0 s after the last demand, the first 0.4 s after it
        ((), 0),
        ((0,), 0),  # the other call takes as long as before
        ((1,), 600),  # then the first one ends last
        ((0, 1), 900),  # what is left of both: 0.1 s
    ],
)
def test_a_guess_saves_what_the_whole_turn_no_longer_waits_for(guesses: tuple[int, ...], saved: float) -> None:
    (turn,) = ledger(two_calls(*guesses)).turns
    assert (turn.t_gen_ms, turn.t_more_ms, turn.t_wait_ms) == pytest.approx((400, 600, 1000))
    assert turn.saved_ms == pytest.approx(saved)
    assert turn.ceiling_ms == pytest.approx(1000)  # both could have begun with the turn
    assert turn.all_served == (guesses == (0, 1))
    book = ledger(two_calls(*guesses))
    assert book.expected.serial_ms == pytest.approx(2000)
    assert book.expected.speculative_ms == pytest.approx(2000 - saved)
    assert book.expected.closed_form.rho == pytest.approx(1.0)
    assert book.expected.closed_form.alpha == (guesses == (0, 1))


def test_a_wait_that_the_message_hides_anyway_is_not_saved() -> None:
    (turn,) = ledger(two_calls(0, tools=(0.5, 0.3))).turns
    assert (turn.t_wait_ms, turn.saved_ms) == pytest.approx((300, 0))


def test_a_write_waits_for_the_calls_before_it_and_its_own_time_is_never_saved() -> None:
    (turn,) = ledger(two_calls(0, tools=(1.0, 0.7), write=True)).turns
    # alone: the read 0.4 s beyond the message, then the write; guessed: the read ends 0.1 s beyond it
    assert (turn.t_wait_ms, turn.saved_ms, turn.ceiling_ms) == pytest.approx((400 + 700, 300, 400))
    assert turn.all_served


def test_only_guesses_of_the_first_call_stand_at_the_boundary() -> None:
    (turn,) = ledger(two_calls(1)).turns
    assert (turn.standing, turn.hit, turn.served, turn.lead_ms) == (None, False, None, None)
    assert [(guess.index, guess.served) for guess in turn.guesses] == [(1, True)]


def timeline(*calls: tuple[float, float, float, dict[str, Any]]) -> Any:
    """A turn whose message ends at 2 s, of calls (demand, start, seconds, what is special); return its ledger."""
    events = begin(0, 0.0)
    for index, (at, _, _, special) in enumerate(calls):
        barrier = special.get("effect", "read") != "read" or special.get("sequential", False)
        lead = special.get("lead")
        if lead is not None:
            call = GuessProposed(turn=0, at=0.0, guess=index, call=ORDER, confidence=0.9, source="self", index=index)
            events += [call, GuessStarted(turn=0, at=0.0, guess=index, tool="order")]
        events.append(
            CallDemanded(
                turn=0, at=at, index=index, call=ORDER, pre_executable=not barrier or lead is not None, barrier=barrier
            )
        )
    events += generated(0, 2.0, 0.0)
    for index, (at, start, seconds, special) in enumerate(calls):
        lead = special.get("lead")
        if lead is not None:
            events += end(0, at, index, "joined", matched=True, executed=True, lead_ms=lead * 1000)
        elif "effect" in special:
            events.append(CallStarted(turn=0, at=start, index=index, tool="order", effect=special["effect"]))
        outcome = Outcome(special.get("status", "ok"), "{}", start, start + seconds)
        guess = index if lead is not None else None
        events.append(CallFinished(turn=0, at=start + seconds, index=index, tool="order", outcome=outcome, guess=guess))
    (turn,) = ledger([*events, *over(0, 9.0)]).turns
    return turn


WRITE: dict[str, Any] = {"effect": "write"}


@pytest.mark.parametrize(
    ("calls", "wait", "saved"),
    [
        # a write of 1 s, and a call after it that is malformed: nothing but the write takes time
        ([(0.0, 2.0, 1.0, WRITE), (0.5, 0.5, 0.0, {"status": "invalid_arguments"})], 1000, 0),
        # a read that a person approves once the message is there, beside one that was guessed
        ([(0.0, 2.0, 2.0, {}), (2.0, 1.0, 1.0, {"lead": 1.0})], 2000, 0),
        # the same after a minute's thought of that person: nobody's tool time
        ([(2.0, 62.0, 2.0, {})], 2000, 0),
        # the same where the read comes only with the message's end: the write would have waited for that
        ([(1.0, 0.0, 1.0, {"effect": "idempotent", "lead": 1.0}), (2.0, 2.0, 0.5, {})], 1500, 1000),
        # an idempotent write, opted in and guessed, and a read behind it
        ([(1.0, 0.0, 1.0, {"effect": "idempotent", "lead": 1.0}), (1.0, 1.0, 2.0, {})], 3000, 1000),
        # a read that waits for another's place from 1.0 to 1.5 s: that half second is no tool's time
        ([(0.5, 0.5, 1.0, {}), (1.0, 1.5, 1.0, {})], 1000, 0),
        # a read behind a sequential one runs after it
        ([(1.0, 1.0, 1.0, {"sequential": True}), (1.0, 2.0, 1.0, {})], 2000, 0),
        # two writes, the second approved a minute later
        ([(1.0, 2.0, 1.0, WRITE), (2.0, 63.0, 1.0, WRITE)], 2000, 0),
        # a read that was cancelled before it ran
        ([(1.0, 1.0, 0.0, {"status": "cancelled"}), (2.0, 2.0, 1.0, {})], 1000, 0),
    ],
)
def test_what_a_turn_waits_for_follows_from_what_ran_when(calls: list[Any], wait: float, saved: float) -> None:
    turn = timeline(*calls)
    assert (turn.t_wait_ms, turn.saved_ms) == pytest.approx((wait, saved))
    assert turn.saved_ms <= turn.ceiling_ms + 1e-6 <= turn.t_wait_ms + 2e-6
