"""Text from models and tools can't drive the terminal."""

from __future__ import annotations

import pytest
from agent_runtime.tools.values import CallDemanded, MalformedCall, ToolCall
from agent_runtime.traces.events import RunStarted, TurnStarted
from hypothesis import given
from hypothesis import strategies as st

from agent_runtime.cli.lanes import Lanes
from agent_runtime.cli.summary import turn_rows
from agent_runtime.cli.text import call_text, duration, one_line, percent, safe, secret_arguments, tail

ESCAPES = {
    "colour": ("a\x1b[31mb\x1b[0m", "ab"),
    "cursor": ("a\x1b[2J\x1b[1;1Hb", "ab"),
    "window title ended by BEL": ("a\x1b]0;title\x07b", "ab"),
    "hyperlink ended by ST": ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
    "device control string": ("a\x1bPq#0\x1b\\b", "ab"),
    "application program command": ("a\x1b_Gf=1\x1b\\b", "ab"),
    "eight-bit CSI": ("a\x9b31mb", "ab"),
    "eight-bit OSC": ("a\x9d0;title\x9cb", "ab"),
    "reset": ("a\x1bcb", "ab"),
    "character set": ("a\x1b(0b", "ab"),
    "broken sequence": ("a\x1b[31", "a31"),
    "unterminated title": ("a\x1b]0;title", "a0;title"),
    "bell, backspace, delete": ("a\x07\x08\x7fb", "ab"),
    "carriage return hides what came before": ("harmless\rrm -rf", "harmlessrm -rf"),
    "text direction": ("a\u202eb\u2066c", "abc"),
    "lone surrogate": ("a\ud800b", "a?b"),
    "newlines and tabs stay": ("a\r\n\tb\nc", "a\n\tb\nc"),
    "other scripts stay": ("Zürich 東京 🙂", "Zürich 東京 🙂"),
}


@pytest.mark.parametrize(("text", "expected"), ESCAPES.values(), ids=ESCAPES.keys())
def test_terminal_escapes_are_stripped(text: str, expected: str) -> None:
    assert safe(text) == expected


@given(st.text(alphabet=st.one_of(st.characters(), st.sampled_from("\x1b[]\x9b\x9d\x07;m0\\"))))
def test_no_text_keeps_a_control_character(text: str) -> None:
    assert not [c for c in safe(text) if (ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) <= 0x9F]


@given(st.text(), st.integers(2, 30))
def test_one_line_and_tail_keep_to_their_limit(text: str, limit: int) -> None:
    for short in (one_line(text, limit), tail(text, limit)):
        assert len(short) <= limit
        assert "\n" not in short


def test_tail_shows_the_end_of_a_long_text() -> None:
    assert tail("one two three four", 10) == "…hree four"
    assert tail("short", 10) == "short"


def test_calls_read_like_calls() -> None:
    assert call_text(ToolCall("find", {"id": 7, "open": True, "name": "Ana"})) == 'find(id=7, open=true, name="Ana")'
    assert call_text(ToolCall("find", {"text": "\x1b[31mred"})) == 'find(text="\\u001b[31mred")'
    assert call_text(MalformedCall("{oops", "no JSON")) == "malformed call: {oops"


@pytest.mark.parametrize(
    ("ms", "text"), [(0, "0 ms"), (0.42, "0.4 ms"), (812.4, "812 ms"), (3210, "3.2 s"), (72_000, "72 s")]
)
def test_durations_read_well(ms: float, text: str) -> None:
    assert duration(ms) == text


def test_percentages_read_well() -> None:
    assert (percent(0.754), percent(None)) == ("75 %", "-")


def test_arguments_that_a_tool_declares_secret_are_not_shown() -> None:
    call = ToolCall("pay", {"amount": 5, "pin": "4711"})
    started = RunStarted(at=0, agent="a", model="m", task="t", settings={"tools": [{"name": "pay", "secret": ["pin"]}]})
    assert call_text(call, secrets=secret_arguments(started)) == "pay(amount=5, pin=***)"
    demanded = CallDemanded(turn=0, at=0, index=0, call=call, pre_executable=False)
    lanes = Lanes()
    for event in (started, TurnStarted(turn=0, at=0), demanded):
        lanes.feed(event)
    (row,) = turn_rows([started, TurnStarted(turn=0, at=0), demanded])
    assert "4711" not in lanes.model.text + row.call and "pin=***" in row.call
