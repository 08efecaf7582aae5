"""What a reader of a report would not see is shown, and long texts are cut where it is said."""

from __future__ import annotations

import pytest
from agent_runtime.tools.values import MalformedCall, ToolCall
from hypothesis import given
from hypothesis import strategies as st

from agent_runtime.report.visible import call_text, clipped, duration, one_line, percent, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x00b", "a⟨U+0000⟩b"),
        ("\x1b[31mred", "⟨U+001B⟩[31mred"),
        ("\x7f\x9b", "⟨U+007F⟩⟨U+009B⟩"),
        ("safe\u202etxt.exe", "safe⟨U+202E⟩txt.exe"),
        ("\u2066x\u2069", "⟨U+2066⟩x⟨U+2069⟩"),
        ("\ud800", "⟨U+D800⟩"),
        ("zero\u200bwidth", "zero⟨U+200B⟩width"),
        ("\U000e0041", "⟨U+E0041⟩"),
        ("tab\tline\r\nend\n", "tab\tline\nend\n"),
        ("ж 你 👩‍💻 é", "ж 你 👩‍💻 é"),
        ("redacted:hmac:" + "0123456789abcdef" * 2, "(redacted 012345)"),
    ],
)
def test_what_hides_or_reorders_text_is_shown_as_itself(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text(st.characters(codec=None)))
def test_whatever_the_text_it_can_be_written_as_utf8_and_holds_no_control(text: str) -> None:
    shown = visible(text)
    shown.encode("utf-8")
    assert not any(ord(letter) < 0x20 and letter not in "\n\t" for letter in shown)
    assert "\u202e" not in shown


def test_a_long_text_keeps_its_beginning_and_its_end_and_says_what_is_gone() -> None:
    begin, left_out, end = clipped("a" * 1_000_000 + "the end", limit=100, tail=10)
    assert (begin, left_out, end) == ("a" * 100, 999_897, "aaathe end")
    assert clipped("short") == ("short", 0, "")


def test_a_line_is_cut_with_an_ellipsis() -> None:
    assert one_line("a\nb   c", 10) == "a b c"
    assert one_line("x" * 50, 10) == "x" * 9 + "…"
    assert one_line(" " * 1000 + "x", 10) == "…"


def test_a_call_is_written_as_people_write_it() -> None:
    assert call_text(ToolCall("find_order", {"id": 7, "open": True})) == "find_order(id=7, open=true)"
    assert call_text(MalformedCall("{oops", "no JSON")) == "malformed call: {oops"
    assert call_text(ToolCall("", {"malformed": "{oops"})) == "malformed call: {oops"


def test_durations_and_shares_are_short() -> None:
    shown = [duration(ms) for ms in (None, 0, 0.42, 12, 812.3, 3210, 32_100, 725_000)]
    assert [text.replace("\N{NO-BREAK SPACE}", " ") for text in shown] == [
        "–",
        "0 ms",
        "0.4 ms",
        "12 ms",
        "812 ms",
        "3.2 s",
        "32 s",
        "12 min 5 s",
    ]
    assert (percent(None), percent(0.5)) == ("–", "50\N{NO-BREAK SPACE}%")
