"""The parts of the counter predictor: shapes of texts, places in JSON, choices, back-off counts, calibration."""

from __future__ import annotations

import json
import math
import random

import pytest
from agent_runtime.speculator import counter_choice
from agent_runtime.speculator.counter_calibration import Calibrator, ReliabilityTable
from agent_runtime.speculator.counter_choice import HINT, Chooser, Weights
from agent_runtime.speculator.counter_conversation import (
    EARLIER_USER,
    IN_AGENT,
    IN_USER,
    MOST_RECORDS,
    MOST_VALUES,
    Conversation,
)
from agent_runtime.speculator.counter_json import fields, key_of, leaves, lists, objects, parse, projected
from agent_runtime.speculator.counter_records import Records
from agent_runtime.speculator.counter_text import aliases, shape, spans, words, years
from agent_runtime.speculator.counter_tools import Readiness, ToolCounts, Tools
from agent_runtime.tools.values import ToolCall, canonical_json
from agent_runtime.traces.messages import AssistantMessage, SystemMessage, ToolMessage, UserMessage
from hypothesis import given
from hypothesis import strategies as st

# --- texts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "blurred"),
    [
        ("ann_li_36", "a_a_9"),
        ("bo_ray_77812", "a_a_9"),
        ("2024-05-20", "9-9-9"),
        ("JG7FMM", "X6"),
        ("QWERTY", "X6"),
        ("O-4163", "A-9"),
        ("ann.li@example.com", "a.a@a.a"),
        ("Aunt", "Aa"),
        ("20th", "9a"),
        ("²", "²"),
    ],
)
def test_words_of_one_kind_have_one_shape(word: str, blurred: str) -> None:
    assert shape(word) == blurred


@given(st.text(max_size=200))
def test_every_text_has_spans_that_stand_in_it(text: str) -> None:
    for span in spans(text):
        if span.shape not in ("day", "date"):
            assert span.value in text


def test_ids_mail_addresses_names_quotations_and_days_are_found_with_the_word_before_them() -> None:
    text = (
        "My id is bo_ray_7, mail bo@example.org. "
        'I fly from OSL to New York on May 3rd, back 12 June 2031; call it "trip".'
    )
    assert {
        ("a_a_9", "bo_ray_7", "is"),
        ("a@a.a", "bo@example.org", "mail"),
        ("a@", "bo", "mail"),
        ("X3", "OSL", "from"),
        ("name", "New York", "to"),
        ("quoted", "trip", ""),
        ("day", "05-03", "on"),
        ("date", "2031-06-12", "back"),
    } <= {(span.shape, span.value, span.lead) for span in spans(text)}


def test_a_capital_at_a_sentences_start_makes_no_name() -> None:
    assert [span.value for span in spans("Thanks. Please do. **Note:** Well") if span.shape == "name"] == []


def test_codes_introduced_beside_a_name_and_years_of_dates_are_found() -> None:
    assert list(aliases("From Oslo (OSL) to New York (JFK), (no) Bergen (see below)")) == [
        ("From Oslo", "OSL"),
        ("Oslo", "OSL"),
        ("New York", "JFK"),
    ]
    assert years("Between 2031-02-03 and 2032-12-31, not 2033 or 12031-02-03") == ["2031", "2032"]


def test_words_are_lower_case_and_hold_no_digits() -> None:
    assert words("Don't cancel O-12, please cancel X9 now") == {"don't", "cancel", "please", "now"}


# --- JSON ----------------------------------------------------------------------------------------------------------

LEGS = [{"from": "A", "to": "B"}, {"from": "B", "to": "C"}]
DOCUMENT = {
    "id": "R1",
    "legs": LEGS,
    "cards": {"card_7": {"last": 7447}, "card_8": {"last": 1}},
    "note": "",
    "more": None,
}


def test_positions_and_keys_that_are_data_are_blurred_in_paths() -> None:
    assert list(leaves(DOCUMENT)) == [
        (".id", "R1"),
        (".legs[].from", "A"),
        (".legs[].to", "B"),
        (".legs[].from", "B"),
        (".legs[].to", "C"),
        (".cards.*", "card_7"),
        (".cards.*.last", 7447),
        (".cards.*", "card_8"),
        (".cards.*.last", 1),
    ]
    assert [path for path, _ in objects(DOCUMENT)] == ["", ".legs[]", ".legs[]", ".cards", ".cards.*", ".cards.*"]


def test_an_object_knows_the_first_value_of_each_path_and_its_lists_of_objects() -> None:
    assert fields(DOCUMENT)[".legs[].from"] == '"A"'
    assert lists(DOCUMENT) == {".legs": LEGS}
    assert projected(LEGS, ("to",)) == '[{"to":"B"},{"to":"C"}]'
    assert projected(LEGS, ("to", "seat")) is None


@pytest.mark.parametrize("content", ["", "text", "{", "[1,", "7", '"x"', "[" * 3000 + "]" * 3000, "NaN"])
def test_what_is_no_object_or_array_is_not_parsed(content: str) -> None:
    assert parse(content) is None


@given(st.text())
def test_keys_of_texts_are_their_canonical_json(text: str) -> None:
    assert key_of(text) == canonical_json(text)
    assert json.loads(key_of(text)) == text


def test_equal_numbers_have_equal_keys_and_texts_are_no_numbers() -> None:
    assert key_of(10.0) == key_of(10) != key_of("10")
    assert key_of({"b": 1, "a": 2}) == key_of({"a": 2, "b": 1})
    assert key_of(True) != key_of(1)


# --- conversations -------------------------------------------------------------------------------------------------


def test_a_conversation_knows_who_mentioned_a_value() -> None:
    state = Conversation()
    state.extend([UserMessage("It is O-1 or O-2"), AssistantMessage("You mean O-2?"), UserMessage("No, O-1")])
    assert state.mention(key_of("O-1")) == IN_USER
    assert state.mention(key_of("O-2")) == EARLIER_USER + IN_AGENT
    assert state.mention(key_of("O-3")) == 0


@pytest.mark.parametrize(
    ("content", "kind", "step"),
    [
        ("[]", "empty", "look"),
        ("", "empty", "look"),
        ("[1]", "list", "look"),
        ('{"a": 1}', "object", "look"),
        ("fine", "text", "look"),
        ("Error: no such thing", "error", "look!"),
        ('{"error": "not_found"}', "error", "look!"),
    ],
)
def test_results_are_told_apart_by_kind(content: str, kind: str, step: str) -> None:
    state = Conversation()
    state.extend([UserMessage("?"), AssistantMessage(calls=(ToolCall("look"),)), ToolMessage("look", content)])
    assert (state.result, state.steps) == (kind, ["user", step])


def test_of_long_lists_the_beginning_is_remembered_and_of_many_the_newest() -> None:
    state = Conversation()
    for number in range(5):
        items = [{"id": f"i-{number}-{place}"} for place in range(300)]
        state.extend([AssistantMessage(calls=(ToolCall("find"),)), ToolMessage("find", json.dumps(items))])
    values = state.values["result", "find", "[].id"]
    assert len(values) == MOST_VALUES
    assert key_of("i-4-0") in values and key_of("i-3-0") not in values
    assert len(state.records["result", "find", "[]"]) == MOST_RECORDS


def test_a_day_takes_the_year_of_the_instructions() -> None:
    state = Conversation()
    state.extend([SystemMessage("Today is 2031-05-01."), UserMessage("On June 2nd")])
    assert list(state.values["user", "dated"]) == [key_of("2031-06-02")]


# --- choices -------------------------------------------------------------------------------------------------------


def test_a_chooser_learns_which_feature_is_right_and_leaves_room_for_none() -> None:
    chooser: Chooser[str] = Chooser(lambda candidate: [(candidate,)])
    assert chooser.probabilities(["a", "b"]) == pytest.approx([1 / 3, 1 / 3])
    for _ in range(200):
        chooser.learn(["a", "b"], [0])
    right, wrong = chooser.probabilities(["a", "b"])
    assert right > 0.9 and right + wrong < 1.0
    for _ in range(400):
        chooser.learn(["a", "b"], [])
    assert sum(chooser.probabilities(["a", "b"])) < 0.2


def test_hints_can_not_crowd_out_what_is_met_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words are without end, the features of tools and arguments are not."""
    monkeypatch.setattr(counter_choice, "MOST_HINTS", 3)
    weights = Weights()
    for number in range(10):
        weights.descend((HINT, "tool", number), -1.0)
    weights.descend(("tool", "new"), -1.0)
    loaded = Weights()
    loaded.load(weights.to_json())
    loaded.descend((HINT, "tool", 11), -1.0)
    for known in (weights.known, loaded.known):
        assert set(known) == {(HINT, "tool", 0), (HINT, "tool", 1), (HINT, "tool", 2), ("tool", "new")}


def test_several_candidates_may_be_right_alike() -> None:
    chooser: Chooser[str] = Chooser(lambda candidate: [(candidate,)])
    for _ in range(200):
        chooser.learn(["a", "b", "c"], [0, 1])
    a, b, c = chooser.probabilities(["a", "b", "c"])
    assert a == pytest.approx(b) and a + b > 0.9 and c < 0.05


def test_no_candidates_have_no_probabilities_and_teach_nothing() -> None:
    chooser: Chooser[str] = Chooser(lambda candidate: [(candidate,)])
    chooser.learn([], [])
    assert chooser.probabilities([]) == []
    assert chooser.weights.to_json() == []


def test_weights_survive_json_with_their_features() -> None:
    chooser: Chooser[tuple[str, int]] = Chooser(lambda candidate: [candidate, ("both", candidate)])
    chooser.learn([("a", 1), ("b", 2)], [1])
    other: Chooser[tuple[str, int]] = Chooser(lambda candidate: [candidate, ("both", candidate)])
    other.load(json.loads(json.dumps(chooser.weights.to_json())))
    assert other.probabilities([("a", 1), ("b", 2)]) == chooser.probabilities([("a", 1), ("b", 2)])


def test_back_off_counts_follow_witten_and_bell() -> None:
    counts = ToolCounts()
    for tool in ("a", "a", "a", "b"):
        counts.add([(), ("x",)], tool)
    counts.add([(), ("y",)], "b")
    # without context: a 3/5, b 2/5; after x: 4 seen, 2 kinds, so its own counts weigh 4/6
    seen = counts.probabilities([(), ("x",), ("never", "x")])
    assert seen == pytest.approx({"a": 1 / 3 * 3 / 5 + 2 / 3 * 3 / 4, "b": 1 / 3 * 2 / 5 + 2 / 3 * 1 / 4})
    assert sum(counts.probabilities([(), ("y",)]).values()) == pytest.approx(1.0)
    assert ToolCounts().probabilities([()]) == {}


# --- calibration ---------------------------------------------------------------------------------------------------


def test_the_calibration_error_is_the_mean_gap_between_confidence_and_hit_rate() -> None:
    table = ReliabilityTable()
    for hit in (True, True, False, False):
        table.add(0.9, hit)
    table.add(0.25, False)
    table.add(1.0, True)  # falls into the last bin: 4.6 said there, 3 right
    found = table.reliability()
    assert found.guesses == 6
    assert found.ece == pytest.approx((abs(4 * 0.9 + 1.0 - 3) + 0.25) / 6)
    assert found.bins[9].hit_rate == pytest.approx(3 / 5)
    assert found.bins[0].hit_rate is None
    assert json.loads(json.dumps(found.to_json()))["bins"][2]["hits"] == 0
    assert ReliabilityTable().reliability().ece is None


def test_a_calibrator_corrects_scores_that_are_too_high_and_trusts_them_before() -> None:
    calibrator = Calibrator()
    assert calibrator.probability(0.7) == pytest.approx(0.7)
    chance = random.Random(3)
    for _ in range(5000):
        score = chance.random()
        calibrator.add(score, chance.random() < score / 2)
    for score in (0.15, 0.35, 0.55, 0.75):
        # 500 draws a bin: a standard error of at most 0.022, so 0.1 is more than four of them
        assert math.isclose(calibrator.probability(score), score / 2, abs_tol=0.1)
    assert 0.0 <= calibrator.probability(0.0) <= calibrator.probability(1.0) <= 1.0


# --- lists walked in order, and tools called for the first time -----------------------------------------------------


def legs(*later: str) -> Conversation:
    """A trip of three legs of which the second was looked up, and what was called since."""
    trip = [{"place": place, "day": day} for place, day in (("Bergen", 3), ("Oslo", 5), ("Tromso", 8))]
    conversation = Conversation()
    calls = [ToolCall("get_trip", {}), ToolCall("find_room", trip[1]), *(ToolCall(name, {}) for name in later)]
    conversation.extend([UserMessage("Where can I stay?")])
    for call in calls:
        content = json.dumps({"legs": trip}) if call.name == "get_trip" else "[]"
        conversation.extend([AssistantMessage(calls=(call,)), ToolMessage(call.name, content)])
    return conversation


def test_the_item_after_the_one_used_last_is_next_only_where_nothing_was_called_in_between() -> None:
    records = Records()
    for _ in range(2):
        records.learn(legs(), "find_room", {"place": "Tromso", "day": 8})
    at_once, later = records.choose(legs(), "find_room"), records.choose(legs("get_weather"), "find_room")
    assert at_once is not None and later is not None
    assert dict(at_once.arguments)["place"] == key_of("Tromso")
    assert dict(later.arguments)["place"] == key_of("Bergen")


def test_a_tool_that_is_called_once_is_less_likely_after_it_was_called() -> None:
    tools, conversation = Tools(), Conversation()
    conversation.extend([UserMessage("Hello")])

    def ready(*, first: bool) -> dict[str, Readiness]:
        once = Readiness(sure=4, repeats=False, mention=0, fresh=False, again=False, first=first)
        other = Readiness(sure=4, repeats=False, mention=0, fresh=False, again=False, first=False)
        return {"get_user": once, "get_order": other}

    tools.learn(conversation, tools.outlook(conversation), {}, "get_user")
    tools.learn(conversation, tools.outlook(conversation), {}, "get_order")
    for _ in range(20):
        tools.learn(conversation, tools.outlook(conversation), ready(first=True), "get_user")
        tools.learn(conversation, tools.outlook(conversation), ready(first=False), "get_order")
    outlook = tools.outlook(conversation)
    before, after = (tools.probabilities(outlook, ready(first=first))["get_user"] for first in (True, False))
    assert before > 0.5 > after


def test_a_source_gives_its_values_newest_message_first_and_keeps_up_with_new_ones() -> None:
    conversation = Conversation()
    source = ("result", "list_ids", "[]")
    for ids in (["a", "b"], ["c", "d"]):
        conversation.extend([ToolMessage("list_ids", json.dumps(ids))])
        newest = [json.loads(key) for key, _ in conversation.newest_values(source)]
        assert newest[:2] == ids
    assert newest == ["c", "d", "a", "b"]
