"""The grammar of a probe's answer accepts one valid call in the model's form, or "no call", and nothing else."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from agent_runtime.speculator.errors import GrammarUnsupported
from agent_runtime.speculator.grammar import CallFormat, call_grammar
from agent_runtime.tools.values import ToolCall
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

MARKS = ("<|im_end|>", "<tool_call>", "</tool_call>")
ORDER = {
    "type": "object",
    "properties": {
        "order_id": {"type": "string", "maxLength": 6},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "part": {"enum": ["items", "status"]},
        "where": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 3}}, "required": ["city"]},
    },
    "required": ["order_id", "count"],
}
TOOLS = [("get_order", ORDER), ("list", {"type": "object", "properties": {}})]


def make_tokenizer() -> PreTrainedTokenizerFast:
    raw = Tokenizer(models.BPE({letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(MARKS[0], special=True, normalized=False)])
    raw.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKS[1:]])
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=MARKS[0])


TOKENIZER = make_tokenizer()
INNER = from_tokenizer(TOKENIZER)
END = TOKENIZER.convert_tokens_to_ids(MARKS[0])


def matcher(tools: Any = TOOLS, **options: Any) -> LLMatcher:
    source = call_grammar(tools, marks=TOKENIZER.get_added_vocab(), no_call=END, **options)
    found = LLMatcher(INNER, source, log_level=0)
    assert not found.is_error(), found.get_error()
    return found


def accepts(text: str, **options: Any) -> bool:
    found = matcher(**options)
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    return all(found.consume_token(token) for token in ids) and found.is_accepting()


def block(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


GOOD = '{"name": "get_order", "arguments": {"order_id": "A-1", "count": 4}}'


def test_a_call_in_the_models_form_is_accepted_and_so_is_no_call() -> None:
    assert accepts(block(GOOD)) and accepts(MARKS[0])
    assert accepts(block('{"name": "list", "arguments": {}}'))
    assert accepts(block(GOOD.replace("}}", ', "part": "items", "where": {"city": "X"}}}')))


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        block(GOOD) + "\n",
        block(GOOD.replace(": ", ":")),
        block(GOOD.replace("get_order", "drop_table")),
        block(GOOD.replace("4", '"4"')),
        block(GOOD.replace("4", "100")),
        block(GOOD.replace('"A-1"', '"too long id"')),
        block(GOOD.replace("}}", ', "extra": 1}}')),
        block(GOOD.replace("}}", ', "where": {"city": "X", "extra": 1}}}')),
        block('{"name": "get_order", "arguments": {"count": 4, "order_id": "A-1"}}'),
        block('{"name": "get_order", "arguments": {"order_id": "A-1"}}'),
        block('{"name": "list", "arguments": {"a": 1}}'),
        "",
        "Hello",
        "<tool_call>" + MARKS[0],
    ],
)
def test_anything_else_is_not(text: str) -> None:
    assert not accepts(text)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_any_walk_through_the_grammar_ends_in_a_valid_call_or_no_call(seed: int, opened: bool) -> None:
    rng, found, form = random.Random(seed), matcher(opened=opened), CallFormat()
    ids: list[int] = []
    while not found.is_stopped():
        mask = int.from_bytes(found.compute_bitmask(), "little")
        allowed = [token for token in range(len(TOKENIZER)) if mask >> token & 1]
        token = rng.choice([token for token in allowed if token < 128 or token >= 256] or allowed)
        assert found.consume_token(token)
        ids.append(token)
    if ids[-1] == END:
        ids.pop()
    if not ids:
        return
    call = form.read(TOKENIZER.decode(ids))
    assert call is not None and call.name in ("get_order", "list")
    assert set(call.arguments) <= set(ORDER["properties"]) if call.name == "get_order" else not call.arguments  # type: ignore[arg-type]


def test_whatever_is_fixed_is_forced() -> None:
    found = matcher()
    assert found.consume_tokens(TOKENIZER.encode('<tool_call>\n{"name": "g', add_special_tokens=False))
    assert TOKENIZER.decode(found.compute_ff_tokens()).startswith('et_order", "arguments": {"order_id": "')
    alone = matcher(TOOLS[1:])
    assert alone.consume_tokens(TOKENIZER.encode("<tool_call>", add_special_tokens=False))
    assert TOKENIZER.decode(alone.compute_ff_tokens()) == '\n{"name": "list", "arguments": {}}\n</tool_call>'


def test_after_an_opened_call_the_rest_or_the_end_follows() -> None:
    assert accepts(GOOD + "\n</tool_call>", opened=True) and accepts(MARKS[0], opened=True)
    assert not accepts(block(GOOD), opened=True)


def test_without_tools_only_no_call_is_left() -> None:
    assert accepts(MARKS[0], tools=[]) and not accepts("a", tools=[])


def test_another_form_has_its_own_separators() -> None:
    form = CallFormat(
        lead_in="", before_name='{"name":', between=',"parameters":', closing="}", item_separator=",", key_separator=":"
    )
    call = ToolCall("get_order", {"order_id": "A", "count": 1})
    assert form.write(call) == '{"name":"get_order","parameters":{"order_id":"A","count":1}}'
    assert accepts(form.write(call), form=form) and form.read(form.write(call)) == call


def test_references_and_choices_in_schemas_work() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
        "required": ["a", "b"],
        "$defs": {"A": {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}},
    }
    tools = [("t", schema)]
    assert accepts(block('{"name": "t", "arguments": {"a": {"x": true}, "b": null}}'), tools=tools)
    assert not accepts(block('{"name": "t", "arguments": {"a": {"x": 1}, "b": null}}'), tools=tools)


def test_a_keyword_that_no_grammar_can_express_is_left_out() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True, "maxItems": 2}}}
    assert accepts(block('{"name": "t", "arguments": {"a": [1, 1]}}'), tools=[("t", schema)])


def test_a_schema_that_is_none_is_read_as_any_object() -> None:
    wild: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "nonsense"}}}
    assert accepts(block('{"name": "t", "arguments": {"b": 1}}'), tools=[("t", wild)])


def test_refusal_names_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    from agent_runtime.speculator import grammar

    class Refusing:
        grammar_from_json_schema = staticmethod(lambda text: text)
        validate_grammar = staticmethod(lambda text: "too big")

    monkeypatch.setattr(grammar, "LLMatcher", Refusing)
    with pytest.raises(GrammarUnsupported, match="tool 't' can't be turned into a grammar: too big"):
        call_grammar([("t", {"type": "object"})], marks={}, no_call=0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        GOOD,
        block(GOOD) + " ",
        block(GOOD)[:-1],
        block("[1]"),
        block(GOOD.replace("{", "[")),
        block('{"name": 1, "arguments": {}}'),
        block('{"name": "a", "arguments": []}'),
        block('{"name": "a" , "arguments": {}}'),
    ],
)
def test_only_one_whole_call_is_read(text: str) -> None:
    if text == GOOD:
        assert CallFormat().read(text + "\n</tool_call>") is not None
    assert CallFormat().read(text) is None


@given(st.text(), st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text(), max_size=4))
def test_what_is_written_is_read_back(name: str, arguments: dict[str, Any]) -> None:
    call = ToolCall(name, arguments)
    assert CallFormat().read(CallFormat().write(call)) == call
    assert json.loads(CallFormat().write(call)[12:-13])["name"] == name
