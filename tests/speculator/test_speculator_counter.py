"""What the counter predictor learns from recordings of agents that exist nowhere else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from agent_runtime.speculator import counter, counter_conversation
from agent_runtime.speculator.counter import CounterPredictor
from agent_runtime.speculator.counter_conversation import Conversation
from agent_runtime.speculator.errors import CounterInvalid
from agent_runtime.tools.values import MalformedCall, ToolCall
from agent_runtime.traces.messages import AssistantMessage, Message, ToolMessage, UserMessage
from agent_runtime.traces.trajectory import RecordedResult, RecordedTurn, Trajectory
from hypothesis import given, settings
from hypothesis import strategies as st

Step = tuple[ToolCall, Any]
"""A call and its result."""


def recorded(name: str, request: str, steps: Iterable[Step], *, group: str | None = None) -> Trajectory:
    """A user asks, the agent makes its calls one after another and says that it is done."""
    turns = [
        RecordedTurn(
            before=() if number else (UserMessage(request),),
            message=AssistantMessage(calls=(call,)),
            results=(RecordedResult(content=result if isinstance(result, str) else json.dumps(result)),),
        )
        for number, (call, result) in enumerate(steps)
    ]
    before = () if turns else (UserMessage(request),)
    turns.append(RecordedTurn(before=before, message=AssistantMessage("All is done.")))
    return Trajectory(id=name, format="test", group=group, turns=tuple(turns))


def conversation(request: str, *steps: Step) -> list[Message]:
    """The messages after some calls."""
    messages: list[Message] = [UserMessage(request)]
    for call, result in steps:
        content = result if isinstance(result, str) else json.dumps(result)
        messages += [AssistantMessage(calls=(call,)), ToolMessage(call.name, content)]
    return messages


def orders_of(customer: str, orders: Sequence[str]) -> list[Step]:
    """Look a customer up, then each order."""
    steps: list[Step] = [(ToolCall("find_customer", {"customer": customer}), {"orders": orders, "since": 2019})]
    return steps + [(ToolCall("get_order", {"order": order}), {"status": "sent"}) for order in orders]


def teach(predictor: CounterPredictor) -> CounterPredictor:
    for number in range(1, 13):
        orders = [f"O-{number}{place}7" for place in range(2 + number % 2)]
        request = f"I am c_{number}, where are my orders?"
        predictor.learn(recorded(str(number), request, orders_of(f"c_{number}", orders)))
    return predictor


@pytest.fixture
def learned() -> CounterPredictor:
    return teach(CounterPredictor(threshold=0.0))


def test_an_id_in_the_users_text_is_recognised_by_its_shape(learned: CounterPredictor) -> None:
    guess = learned.guess(conversation("Hello, c_98 here, where are my orders?"))
    assert guess.call == ToolCall("find_customer", {"customer": "c_98"})
    assert guess.confidence > 0.5


def test_a_list_is_walked_through_its_unused_values_in_order(learned: CounterPredictor) -> None:
    steps = orders_of("c_98", ["O-5", "O-3", "O-4"])
    for done in range(1, 4):
        assert learned.guess(conversation("I am c_98, where are my orders?", *steps[:done])).call == steps[done][0]


def test_after_the_whole_list_a_further_call_is_unlikely(learned: CounterPredictor) -> None:
    steps = orders_of("c_98", ["O-5", "O-3"])
    inside = learned.guess(conversation("I am c_98, where are my orders?", *steps[:2]))
    behind = learned.guess(conversation("I am c_98, where are my orders?", *steps))
    assert behind.confidence < inside.confidence / 2


def test_it_is_a_predictor(learned: CounterPredictor) -> None:
    messages = conversation("I am c_98, where are my orders?")
    assert learned.source == "counter"
    assert anyio.run(lambda: learned.predict(messages, position=16)) == learned.guess(messages)


def test_without_knowledge_it_names_no_call_and_is_sure_of_nothing() -> None:
    guess = CounterPredictor(threshold=0.0).guess(conversation("Hello"))
    assert (guess.call, guess.confidence) == (None, 0.0)


def test_below_the_threshold_it_abstains_and_tells_how_likely_no_call_is() -> None:
    messages = conversation("Hm?")
    bold, careful = (teach(CounterPredictor(threshold=threshold)) for threshold in (0.0, 0.9))
    named = bold.guess(messages)
    assert named.call is not None and named.confidence < 0.9
    abstained = careful.guess(messages)
    assert abstained.call is None
    assert abstained.confidence == pytest.approx(1 - careful.chance_of_call(messages))


def test_the_default_threshold_starts_what_is_more_likely_right_than_wrong() -> None:
    assert teach(CounterPredictor()).guess(conversation("I am c_98, where are my orders?")).call is not None


@pytest.mark.parametrize("threshold", [-0.1, 1.1])
def test_a_threshold_is_a_probability(threshold: float) -> None:
    with pytest.raises(CounterInvalid, match=r"threshold=.*: give a number from 0 to 1"):
        CounterPredictor(threshold=threshold)


# --- where arguments come from ------------------------------------------------------------------------------------


def legs(*pairs: str) -> list[dict[str, Any]]:
    return [{"from": pair[:3], "to": pair[3:], "seats": 3} for pair in pairs]


def test_arguments_that_come_together_are_taken_from_one_item_of_a_list() -> None:
    predictor = CounterPredictor(threshold=0.0)
    trips = [
        ("ABCDEF", "DEFGHI"),
        ("KLMNOP", "NOPQRS"),
        ("TUVWXY", "WXYABC"),
        ("EFGHIJ", "HIJKLM"),
        ("MNOABD", "ABDXYZ"),
    ]
    for number, trip in enumerate(trips):
        steps: list[Step] = [(ToolCall("plan", {"trip": f"T{number}9"}), {"legs": legs(*trip)})]
        steps += [(ToolCall("seats", {"start": pair[:3], "end": pair[3:]}), "[]") for pair in trip]
        predictor.learn(recorded(str(number), f"Seats on T{number}9?", steps))
    planned = (ToolCall("plan", {"trip": "T59"}), {"legs": legs("QQQRRR", "RRRSSS")})
    first = ToolCall("seats", {"start": "QQQ", "end": "RRR"})
    assert predictor.guess(conversation("Seats on T59?", planned)).call == first
    second = ToolCall("seats", {"start": "RRR", "end": "SSS"})
    assert predictor.guess(conversation("Seats on T59?", planned, (first, "[]"))).call == second


def test_all_arguments_of_an_earlier_call_are_taken_over() -> None:
    predictor = CounterPredictor(threshold=0.0)
    for number in range(6):
        place = {"city": f"C{number}-77", "street": f"S{number}-88"}
        steps = [(ToolCall("by_road", place), "[]"), (ToolCall("by_rail", place), "[]")]
        predictor.learn(recorded(str(number), f"How far to C{number}-77, S{number}-88?", steps))
    place = {"city": "C9-12", "street": "S9-34"}
    messages = conversation("How far to C9-12, S9-34?", (ToolCall("by_road", place), "[]"))
    assert predictor.guess(messages).call == ToolCall("by_rail", place)


def test_a_list_of_objects_is_taken_over_with_the_members_that_the_tool_wants() -> None:
    predictor = CounterPredictor(threshold=0.0)

    def cart(number: int) -> dict[str, Any]:
        return {"cart": f"K{number}-1", "items": [{"sku": f"A{number}", "count": 2, "price": 5 + number}] * 2}

    def checkout(number: int) -> ToolCall:
        return ToolCall("reserve", {"cart": f"K{number}-1", "items": [{"sku": f"A{number}", "count": 2}] * 2})

    for number in range(6):
        steps = [(ToolCall("get_cart", {"cart": f"K{number}-1"}), cart(number)), (checkout(number), "ok")]
        predictor.learn(recorded(str(number), f"Reserve what is in K{number}-1", steps))
    messages = conversation("Reserve what is in K8-1", (ToolCall("get_cart", {"cart": "K8-1"}), cart(8)))
    assert predictor.guess(messages).call == checkout(8)


def test_a_constant_of_many_tasks_is_known_and_one_of_a_single_task_is_not_preferred() -> None:
    predictor = CounterPredictor(threshold=0.0)
    for number in range(6):
        call = ToolCall("weather", {"unit": "celsius", "station": f"W{number}1"})
        predictor.learn(recorded(str(number), f"Weather at W{number}1", [(call, "8 degrees")] * 2))
    assert predictor.guess(conversation("Weather at W91")).call == ToolCall(
        "weather", {"unit": "celsius", "station": "W91"}
    )


def test_a_day_is_completed_with_the_year_that_the_conversation_names() -> None:
    predictor = CounterPredictor(threshold=0.0)
    days = ["May 3rd", "12 June", "July 24", "Mar 1", "August 30th"]
    dates = ["2031-05-03", "2031-06-12", "2031-07-24", "2031-03-01", "2031-08-30"]
    for day, date in zip(days, dates, strict=True):
        steps = [(ToolCall("slots", {"date": date}), "[]")]
        predictor.learn(recorded(day, f"Today is 2031-01-02. What is free on {day}?", steps))
    guess = predictor.guess(conversation("Today is 2031-01-02. What is free on October 9th?"))
    assert guess.call == ToolCall("slots", {"date": "2031-10-09"})


# --- which tool comes -----------------------------------------------------------------------------------------------


def test_words_of_the_user_decide_between_tools() -> None:
    predictor = CounterPredictor(threshold=0.0)
    for number in range(8):
        for wish, tool in (("cancel", "cancel_order"), ("refund", "refund_order")):
            call = ToolCall(tool, {"order": f"O-{number}"})
            predictor.learn(recorded(f"{number} {wish}", f"Please {wish} O-{number} for me", [(call, "ok")]))
    assert predictor.guess(conversation("Please refund O-77 for me")).call == ToolCall(
        "refund_order", {"order": "O-77"}
    )
    assert predictor.guess(conversation("Please cancel O-77 for me")).call == ToolCall(
        "cancel_order", {"order": "O-77"}
    )


def test_what_is_at_hand_decides_between_tools() -> None:
    predictor = CounterPredictor(threshold=0.0)
    for number in range(8):
        by_order = ToolCall("get_order", {"order": f"O-{number}"})
        by_customer = ToolCall("get_customer", {"customer": f"c_{number}"})
        predictor.learn(recorded(f"o{number}", f"It is about O-{number}", [(by_order, "ok")]))
        predictor.learn(recorded(f"c{number}", f"It is about c_{number}", [(by_customer, "ok")]))
    assert predictor.guess(conversation("It is about O-55")).call == ToolCall("get_order", {"order": "O-55"})
    assert predictor.guess(conversation("It is about c_55")).call == ToolCall("get_customer", {"customer": "c_55"})


def test_turns_without_a_call_lower_the_confidence_and_not_the_choice(learned: CounterPredictor) -> None:
    messages = conversation("I am c_98, where are my orders?")
    before = learned.guess(messages)
    for number in range(20, 40):
        learned.learn(recorded(str(number), f"I am c_{number}, where are my orders?", []))
    after = learned.guess(messages)
    assert after.call == before.call
    assert after.confidence < before.confidence
    assert learned.chance_of_call(messages) < 0.6


def test_agents_that_make_one_call_a_turn_are_not_asked_for_more(learned: CounterPredictor) -> None:
    call = ToolCall("find_customer", {"customer": "c_98"})
    guess = learned.guess(conversation("I am c_98, where are my orders?"), [call])
    assert (guess.call, guess.confidence) == (None, pytest.approx(1.0))


def test_words_of_the_user_stand_for_constants_that_they_do_not_name() -> None:
    predictor = CounterPredictor(threshold=0.0)
    for number in range(24):
        request, topic = (("Call it off", "cancel"), ("Pay me back", "refund"))[number % 2]
        predictor.learn(recorded(str(number), f"{request}!", [(ToolCall("get_policy", {"topic": topic}), "{}")]))
    assert predictor.guess([UserMessage("Oh, call it off!")]).call == ToolCall("get_policy", {"topic": "cancel"})
    assert predictor.guess([UserMessage("Oh, pay me back!")]).call == ToolCall("get_policy", {"topic": "refund"})


def test_names_play_no_part() -> None:
    names = {
        "find_customer": "zz1",
        "get_order": "aa2",
        "customer": "mm3",
        "order": "bb4",
        "orders": "kk5",
        "status": "x",
    }

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {names.get(name, name): renamed(item) for name, item in value.items()}
        return value

    plain, other = CounterPredictor(threshold=0.0), CounterPredictor(threshold=0.0)
    for number in range(1, 10):
        orders = [f"O-{number}{place}7" for place in range(2 + number % 2)]
        steps = orders_of(f"c_{number}", orders)
        request = f"I am c_{number}, what about my things?"
        plain.learn(recorded(str(number), request, steps))
        changed = [(ToolCall(names[call.name], renamed(dict(call.arguments))), renamed(found)) for call, found in steps]
        other.learn(recorded(str(number), request, changed))
    steps = orders_of("c_98", ["O-5", "O-3"])
    changed = [(ToolCall(names[call.name], renamed(dict(call.arguments))), renamed(found)) for call, found in steps]
    for done in range(2):
        one = plain.guess(conversation("I am c_98, what about my things?", *steps[:done]))
        two = other.guess(conversation("I am c_98, what about my things?", *changed[:done]))
        assert one.call == steps[done][0] and two.call == changed[done][0]
        assert one.confidence == pytest.approx(two.confidence, rel=1e-3)  # sums in another order


# --- learning as it goes -------------------------------------------------------------------------------------------


def test_it_learns_from_a_turn_that_is_observed() -> None:
    predictor = CounterPredictor(threshold=0.0)
    messages = conversation("Ping")
    predictor.observe(messages, AssistantMessage(calls=(ToolCall("ping"),)))
    assert predictor.guess(conversation("Ping")).call == ToolCall("ping")


def test_online_it_learns_from_the_turns_it_was_asked_about_once_the_conversation_goes_on() -> None:
    online, told = CounterPredictor(threshold=0.0, online=True), CounterPredictor(threshold=0.0)
    steps = orders_of("c_1", ["O-1", "O-2"])
    for done in range(3):
        messages = conversation("I am c_1, where are my orders?", *steps[:done])
        assert online.guess(messages) == told.guess(messages)
        told.observe(messages, AssistantMessage(calls=(steps[done][0],)))
    online.guess(conversation("I am c_1, where are my orders?", *steps))
    assert online.to_json() == told.to_json()


def test_a_conversation_is_read_once_however_often_it_is_asked_about(
    learned: CounterPredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def spans(text: str) -> list[Any]:
        read.append(text)
        return []

    monkeypatch.setattr(counter_conversation, "spans", spans)
    messages: list[Message] = []
    for number in range(50):
        messages.append(UserMessage(f"Question {number}"))
        learned.guess(messages)
        learned.guess(list(messages))
        messages.append(AssistantMessage(f"Answer {number}"))
    learned.guess(messages)
    assert len(read) == 100


def test_conversations_that_begin_alike_are_kept_apart(learned: CounterPredictor) -> None:
    steps = {name: orders_of("c_98", [f"O-{name}1", f"O-{name}2"]) for name in "XY"}
    for done in (0, 1, 2):
        for name in "XY":
            messages = conversation("I am c_98, where are my orders?", *steps[name][:done])
            assert learned.guess(messages).call == steps[name][done][0]


def test_only_the_last_conversations_are_kept(learned: CounterPredictor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counter, "MOST_CONVERSATIONS", 2)
    for number in range(5):
        learned.guess(conversation(f"I am c_{number}, where are my orders?"))
    assert len(learned._conversations) == 2


def test_a_malformed_call_teaches_nothing(learned: CounterPredictor) -> None:
    before = learned.to_json()
    learned.observe(conversation("I am c_98"), AssistantMessage(calls=(MalformedCall("{", "cut off"),)))
    assert learned.to_json() == before


def test_reliability_counts_every_turn_before_it_was_learned_from(learned: CounterPredictor) -> None:
    table = learned.reliability()
    assert table.guesses == 12 * 3 + 6 + 12 - 1  # all turns but the first of all, when nothing was known
    assert table.ece is not None and 0 <= table.ece < 0.5
    assert sum(row.hits for row in table.bins) > table.guesses / 3


# --- keeping -------------------------------------------------------------------------------------------------------


def test_what_was_learned_can_be_saved_and_goes_on_alike(learned: CounterPredictor, tmp_path: Path) -> None:
    path = tmp_path / "counter.json"
    learned.save(path)
    loaded = CounterPredictor.load(path, threshold=0.0)
    assert json.loads(json.dumps(loaded.to_json())) == json.loads(json.dumps(learned.to_json()))
    for predictor in (learned, loaded):
        predictor.learn(recorded("20", "I am c_20, where are my orders?", orders_of("c_20", ["O-207", "O-217"])))
    steps = orders_of("c_98", ["O-5", "O-3"])
    for done in range(3):
        messages = conversation("I am c_98, where are my orders?", *steps[:done])
        assert loaded.guess(messages) == learned.guess(messages)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is no saved counter predictor"),
        ("[]", "is no saved counter predictor"),
        ('{"format": 2}', "is no saved counter predictor"),
        ('{"format": 2, "tools": 3}', "is no saved counter predictor"),
        ('{"format": 0}', "was saved by another version"),
    ],
)
def test_a_file_that_was_not_saved_by_it_is_refused_in_one_line(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(CounterInvalid, match=why) as raised:
        CounterPredictor.load(path)
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)


# --- whatever comes ------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
calls = st.builds(
    ToolCall, st.sampled_from(["a", "b", ""]), st.dictionaries(st.text(max_size=4), json_values, max_size=3)
)
contents = st.text() | json_values.map(json.dumps)
messages_strategy = st.lists(
    st.builds(UserMessage, st.text())
    | st.builds(AssistantMessage, st.text(), st.text(), st.lists(calls, max_size=3).map(tuple))
    | st.builds(ToolMessage, st.sampled_from(["a", "b"]), contents),
    max_size=8,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(messages_strategy, min_size=1, max_size=4))
def test_no_conversation_breaks_it_and_confidences_are_probabilities(conversations: list[list[Message]]) -> None:
    predictor = CounterPredictor(threshold=0.0, online=True)
    for messages in conversations:
        for end in range(len(messages) + 1):
            guess = predictor.guess(messages[:end])
            assert 0.0 <= guess.confidence <= 1.0
            if guess.call is not None:
                assert 0.0 <= predictor.guess(messages[:end], [guess.call]).confidence <= 1.0
    json.dumps(predictor.to_json())


@settings(max_examples=150, deadline=None)
@given(messages_strategy, st.lists(calls, max_size=3))
def test_showing_a_turns_calls_changes_nothing_for_good(messages: list[Message], made: list[ToolCall]) -> None:
    shown, spared = Conversation(), Conversation()
    for seen in (shown, spared):
        seen.extend(messages)
    with shown.calling(made):
        assert shown.steps == [*spared.steps, *(call.name for call in made)]
    assert shown == spared
    assert list(shown.values) == list(spared.values)
    assert all(list(shown.values[source]) == list(spared.values[source]) for source in spared.values)


def test_a_call_that_can_not_be_taken_leaves_nothing_of_those_before_it() -> None:
    shown, spared = Conversation(), Conversation()
    for seen in (shown, spared):
        seen.extend([UserMessage("Where is O-777?")])
    endless: list[Any] = []
    endless.append(endless)
    made = [ToolCall("a", {"k": 1}), ToolCall("b", {"x": endless})]
    with pytest.raises((RecursionError, ValueError)), shown.calling(made):
        raise AssertionError("unreachable")
    assert shown == spared


def test_results_nested_without_end_are_passed_over(learned: CounterPredictor) -> None:
    deep = "[" * 5000 + "]" * 5000
    messages = conversation("I am c_98, where are my orders?", (ToolCall("find_customer", {"customer": "c_98"}), deep))
    assert 0.0 <= learned.guess(messages).confidence <= 1.0
