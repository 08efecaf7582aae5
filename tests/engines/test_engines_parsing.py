"""Parsing a model's text: the same result however it is split, and never an error for what the model wrote."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from agent_runtime.tools.values import MalformedCall, ToolCall
from agent_runtime.traces.messages import AssistantMessage
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_runtime.engines.detokenize import Detokenizer
from agent_runtime.engines.formats import HERMES, TAGGED, built_in_prefix, built_in_template
from agent_runtime.engines.parsing import MessageParser, Part, merged

from .conftest import RESPONSE_TEMPLATE

START = "<|im_start|>assistant\n"
KNOWN = frozenset({"get_order", "list_orders"})


def call_text(name: str = "get_order", **arguments: Any) -> str:
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def parse(
    pieces: Sequence[str], *, template: Any = RESPONSE_TEMPLATE, prefix: str = START, whole: bool = True, **options: Any
) -> tuple[list[Part], AssistantMessage]:
    parser = MessageParser(template, prefix=prefix, **options)
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return merged(parts + parser.finish(whole=whole)), parser.message


TEXTS = {
    "plain": "Hello there.\n\nIt is  done. ",
    "thinking and a call": "<think>\nHm <b> 3 < 4.\n</think>\n" + call_text(order_id="A-1"),
    "a closing mark inside a string": call_text(note='say </tool_call> or "</tool_call>" \\ <think>', n=4),
    "two calls with text": "First.\n" + call_text("list_orders") + "\nthen\n" + call_text(order_id="ünï 😀") + "\nlast",
    "broken JSON, then a call": '<tool_call>\n{"name": "get_order", "arguments": {"n": 4}\n</tool_call>\n'
    + call_text(),
    "a string that is never closed": '<tool_call>\n{"name": "get_order, "arguments": {}}\n</tool_call>\n' + call_text(),
    "no end": '<tool_call>\n{"name": "get_order", "arguments": {"n": 42}}',
    "fenced": 'Look:\n```json\n{"name": "get_order", "arguments": {"a": "``` }"}}\n```\nDone.',
    "fenced list": '```\n[{"name": "list_orders", "arguments": {}}, {"name": "get_order", "arguments": {"n": 1}}]\n```',
    "bare": '{"name": "get_order", "arguments": {"n": {"m": ["}"]}}}\n{"name": "list_orders", "parameters": {}}',
    "bare in prose": 'Use {"name": "get_order", "arguments": {}} for that.\n{"name": "get_order", "arguments": {}} so',
    "unknown name": '{"name": "rm", "arguments": {}}',
    "other code": '```python\n{"name": "get_order", "arguments": {}}\n```\n``` json5\n{"a"\n',
    "half a mark": "a <tool_cal b </think> <think",
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("declared", [True, False])
def test_every_split_gives_the_same_result(name: str, declared: bool) -> None:
    text = TEXTS[name]
    options: dict[str, Any] = {"bare": KNOWN}
    if not declared:
        options |= {"template": HERMES, "prefix": built_in_prefix("")}
    expected = parse([text], **options)
    assert parse(list(text), **options) == expected
    for cut in range(1, len(text)):
        assert parse([text[:cut], text[cut:]], **options) == expected
    for kind, whole in (("thinking", expected[1].thinking), ("text", expected[1].text)):
        assert "".join(part[1] for part in expected[0] if isinstance(part, tuple) and part[0] == kind) == whole


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(st.text(max_size=6), json_values | st.just("</tool_call>\n<tool_call>{"), max_size=4)


@settings(max_examples=150, deadline=None)
@given(arguments, st.booleans(), st.data())
def test_any_call_is_read_back_at_any_split(drawn: dict[str, Any], ascii_only: bool, data: st.DataObject) -> None:
    body = json.dumps({"name": "get_order", "arguments": drawn}, ensure_ascii=ascii_only)
    text = f"<think>\nx\n</think>\n<tool_call>\n{body}\n</tool_call>"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parse(pieces)[1] == AssistantMessage(thinking="x", calls=(ToolCall("get_order", drawn),))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                *'<>/{}[]":,\\\n` abn4',
                "<tool_call>",
                "</tool_call>",
                "<think>",
                "</think>",
                '{"name": "get_order"',
                '"arguments": {',
                "```json\n",
            ]
        ),
        max_size=30,
    )
)
def test_whatever_the_model_writes_the_parser_never_raises(pieces: list[str]) -> None:
    for options in ({}, {"bare": KNOWN, "template": HERMES, "prefix": built_in_prefix("<think>\n")}):
        assert parse(pieces, **options)[1] == parse(["".join(pieces)], **options)[1]


def test_a_call_closes_with_its_mark_and_never_before() -> None:
    parser = MessageParser(RESPONSE_TEMPLATE, prefix=START)
    text = '<tool_call>\n{"name": "get_order", "arguments": {"n": 4}}\n</tool_call>'
    for character in text[:-1]:
        assert not any(isinstance(part, ToolCall) for part in parser.feed(character))
    assert parser.feed(text[-1]) == [ToolCall("get_order", {"n": 4})]


def test_a_bare_call_waits_for_the_end_of_its_line() -> None:
    parser = MessageParser(HERMES, prefix=built_in_prefix(""), bare=KNOWN)
    assert parser.feed('{"name": "get_order", "arguments": {"n": 4}}') == []
    assert parser.feed("\n") == [ToolCall("get_order", {"n": 4})]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"name": "get_order", "arguments": {"n": 4}', "not valid JSON"),
        ("[1]", "must be a JSON object"),
        ('{"arguments": {}}', 'no "name"'),
        ('{"name": "get_order", "arguments": [1]}', '"arguments" of get_order must be a JSON object'),
        ('{"name": "get_order", "arguments": "soon"}', "must be a JSON object, not a string"),
        ("", "can't be read"),
        ("[" * 5000, "nested too deeply|not valid|can't be read"),
    ],
)
def test_a_block_that_is_no_call_says_why(body: str, reason: str) -> None:
    (call,) = parse([f"<tool_call>\n{body}\n</tool_call>"])[1].calls
    assert isinstance(call, MalformedCall) and call.text == body
    import re

    assert re.search(reason, call.reason) and "\n" not in call.reason


def test_arguments_may_be_a_string_of_json_or_missing() -> None:
    text = '<tool_call>{"name": "a", "arguments": "{\\"n\\": 1}"}</tool_call><tool_call>{"name": "b"}</tool_call>'
    assert parse([text])[1].calls == (ToolCall("a", {"n": 1}), ToolCall("b", {}))


def test_a_call_that_lacks_its_mark_counts_only_if_the_model_ended_the_message() -> None:
    text = TEXTS["no end"]
    assert parse([text])[1].calls == (ToolCall("get_order", {"n": 42}),)
    (cut,) = parse([text], whole=False)[1].calls
    assert isinstance(cut, MalformedCall) and "cut off" in cut.reason
    bare = '{"name": "get_order", "arguments": {"n": 42}}'
    options: dict[str, Any] = {"bare": KNOWN, "template": HERMES, "prefix": built_in_prefix("")}
    assert parse([bare], **options)[1].calls == (ToolCall("get_order", {"n": 42}),)
    assert parse([bare], whole=False, **options)[1] == AssistantMessage(text=bare)


def test_bare_json_is_text_unless_it_names_a_tool_alone_on_its_line() -> None:
    for name in ("bare in prose", "unknown name", "other code"):
        assert parse([TEXTS[name]], bare=KNOWN)[1].calls == ()
    assert parse([TEXTS["bare"]])[1].calls == ()  # off where a response template is declared
    assert len(parse([TEXTS["bare"]], bare=KNOWN)[1].calls) == 2


def test_thinking_that_the_prompt_opened_is_thinking() -> None:
    options = {"template": HERMES, "prefix": built_in_prefix("<|im_start|>assistant\n<think>\n")}
    assert parse(["so\n</think>\n\nHi"], **options)[1] == AssistantMessage("Hi", "so")
    assert parse(["so\n</think>\n\nHi"], prefix=START + "<think>\n")[1] == AssistantMessage("Hi", "so")


def test_tagged_calls_are_read_with_the_types_of_their_schema() -> None:
    template = built_in_template("... <function=x> ... <parameter=y> ...")
    assert template is TAGGED
    values = "<parameter=n>\n4\n</parameter>\n<parameter=s>\na\nb\n</parameter>"
    text = f"Hi\n<tool_call>\n<function=get_order>\n{values}\n</function>\n</tool_call>"
    tool = {
        "type": "function",
        "function": {
            "name": "get_order",
            "parameters": {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}},
        },
    }
    message = parse([text], template=template, prefix=built_in_prefix(""), tools=[tool])[1]
    assert message == AssistantMessage("Hi", calls=(ToolCall("get_order", {"n": 4, "s": "a\nb"}),))


@given(st.text(max_size=30))
def test_detokenised_pieces_add_up_and_are_never_broken(text: str) -> None:
    detokenizer = Detokenizer(lambda ids: bytes(ids).decode("utf-8", errors="replace"))
    pieces = [detokenizer.push(byte) for byte in text.encode("utf-8", errors="ignore")]
    assert all("\ufffd" not in piece or "\ufffd" in text for piece in pieces)
    assert "".join(pieces) + detokenizer.flush() == text


def test_bytes_that_never_become_a_character_do_not_hold_text_back() -> None:
    detokenizer = Detokenizer(lambda ids: bytes(ids).decode("utf-8", errors="replace"))
    out = "".join(detokenizer.push(byte) for byte in b"\xf0\x9f" * 40 + b"end")
    assert out.endswith("end") and len(out) > 40
