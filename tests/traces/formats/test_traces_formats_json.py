"""JSON that nobody vouches for: single texts, and documents walked without holding them."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from agent_runtime.traces.formats.errors import Broken
from agent_runtime.traces.formats.json_stream import BrokenOff, JsonStream
from agent_runtime.traces.formats.json_text import MAX_DEPTH, loads
from hypothesis import given
from hypothesis import strategies as st

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


class Trickle(io.RawIOBase):
    """Gives its bytes a few at a time, so that every value is cut somewhere."""

    def __init__(self, content: bytes, step: int) -> None:
        self._file = io.BytesIO(content)
        self._step = step

    def read(self, size: int = -1) -> bytes:
        return self._file.read(self._step)


@given(json_values, st.integers(1, 7), st.sampled_from([None, 2]))
def test_a_walk_finds_every_item_wherever_the_chunks_are_cut(value: Any, step: int, indent: int | None) -> None:
    content = json.dumps([value, value], indent=indent, ensure_ascii=False).encode(errors="surrogatepass")
    stream = JsonStream(Trickle(content, step))  # type: ignore[arg-type]
    taken = [json.loads(stream.take()) for _ in stream.items()]
    assert taken == [value, value]
    assert stream.peek() == b""


@given(json_values, st.integers(1, 7))
def test_members_are_taken_or_skipped_one_by_one(value: Any, step: int) -> None:
    content = json.dumps({'a "quoted" key': value, "b": [value], "c": 7}).encode()
    stream = JsonStream(Trickle(content, step))  # type: ignore[arg-type]
    taken = {}
    for key in stream.members():
        if key == "b":
            stream.skip()
        else:
            taken[key] = json.loads(stream.take())
    assert taken == {'a "quoted" key': value, "c": 7}


@given(st.binary(max_size=60))
def test_a_walk_through_anything_ends_or_says_that_it_is_broken(content: bytes) -> None:
    stream = JsonStream(io.BytesIO(content))
    try:
        for _ in stream.items():
            stream.take()
    except Broken:
        pass


def test_a_document_that_ends_in_the_middle_is_cut_off() -> None:
    stream = JsonStream(io.BytesIO(b'[{"a": 1}, {"b": "x'))
    taken = []
    with pytest.raises(BrokenOff, match="cut off"):
        for _ in stream.items():
            taken.append(stream.take())  # noqa: PERF401 - the list must keep what came before the error
    assert taken == [b'{"a": 1}']


def test_a_value_longer_than_the_limit_is_skipped_and_the_next_one_is_taken() -> None:
    long = b'{"a": "' + b"x" * 100 + b'"}'
    stream = JsonStream(Trickle(b"[" + long + b', {"b": 1}]', 10), max_value=50)  # type: ignore[arg-type]
    taken = []
    for _ in stream.items():
        try:
            taken.append(stream.take())
        except BrokenOff:
            raise
        except Broken as broken:
            assert "longer than" in str(broken)
    assert taken == [b'{"b": 1}']


def test_a_string_that_never_ends_does_not_fill_memory() -> None:
    stream = JsonStream(Trickle(b'["' + b"x" * 5000, 100), max_value=50)  # type: ignore[arg-type]
    with pytest.raises(BrokenOff, match="a string longer than"):
        for _ in stream.items():
            stream.skip()


def test_a_hundred_thousand_brackets_are_walked_and_refused() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    stream = JsonStream(io.BytesIO(b"[" + deep + b", 1]"))
    taken = [stream.take() for _ in stream.items()]
    assert taken == [deep, b"1"]
    with pytest.raises(Broken, match="deep"):
        loads(deep)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"NaN", "NaN is no number"),
        (b"[-Infinity]", "-Infinity is no number"),
        (b"1e999", "a number too large"),
        (b"9" * 5000, "no JSON"),
        (b'"\xff"', "no UTF-8 at byte 1"),
        (b"{", "no JSON"),
        (b"", "no JSON"),
        (b"1 2", "no JSON"),
        (b"[" * 5000 + b"]" * 5000, "levels deep"),
        (b"[" * (MAX_DEPTH + 2) + b"]" * (MAX_DEPTH + 2), "levels deep"),
    ],
)
def test_what_is_no_json_that_we_take_is_broken(text: bytes, reason: str) -> None:
    with pytest.raises(Broken, match=reason):
        loads(text)


def test_nesting_up_to_the_limit_is_taken() -> None:
    assert loads("[" * MAX_DEPTH + "]" * MAX_DEPTH)


def test_halves_of_surrogate_pairs_are_replaced_and_whole_pairs_are_kept() -> None:
    assert loads(r'{"\ud800": ["\uDC00x", "\ud83d\ude00"]}') == {"\ufffd": ["\ufffdx", "\N{GRINNING FACE}"]}


@given(json_values)
def test_every_plain_value_comes_back(value: Any) -> None:
    assert loads(json.dumps(value)) == value


@pytest.mark.parametrize("strings", [999, 1000, 1001, 5000])
def test_an_object_of_many_strings_is_taken_whole(strings: int) -> None:
    value = {f'{number}\\"': "]" for number in range(strings)}
    text = json.dumps([value, 1]).encode()
    stream = JsonStream(io.BytesIO(text))
    assert [json.loads(stream.take() or b"") for _ in stream.items()] == [value, 1]
