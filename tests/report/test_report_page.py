"""The page of a run is one file that holds everything, and nothing hostile in a run can act in it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
from agent_runtime.tools.values import MalformedCall, ToolCall
from agent_runtime.traces.events import Event, GenerationFinished, RunStarted, TurnStarted
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_runtime.report.page import html_page

Build = Callable[..., list[Event]]
CALL, OTHER = ToolCall("find_order", {"id": 7}), ToolCall("find_order", {"id": 8})

EVIL = (
    "</script><script>fetch('http://x')</script>",
    "<img src=x onerror=alert(1)>",
    "\"' onmouseover='alert(1)",
    "<!--<script>",
    "]]>{{ 7*7 }}{% raw %}",
    "</textarea></style><svg onload=alert(1)>",
    "\x00\u202e\u2028\ud800&lt;b&gt;",
)


class Read(HTMLParser):
    """What a parser finds in a page."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.scripts: list[tuple[str | None, str]] = []
        self.styles: list[str] = []
        self.policy = ""
        self._within = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._within = tag
        if tag == "script":
            self.scripts.append((dict(attrs).get("type"), ""))
        if tag == "meta" and dict(attrs).get("http-equiv") == "Content-Security-Policy":
            self.policy = dict(attrs)["content"] or ""

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within == "script":
            kind, text = self.scripts[-1]
            self.scripts[-1] = (kind, text + data)
        elif self._within == "style":
            self.styles.append(data)
        else:
            self.text.append(data)


def told(page: str) -> str:
    return " ".join("".join(Read(page).text).replace("\N{NO-BREAK SPACE}", " ").split())


def test_the_page_tells_task_answer_figures_and_conversation(build: Build, step: Any) -> None:
    turns = [
        step(call=CALL, guess=CALL, thinking="An order."),
        step(call=CALL, guess=OTHER, ending="discarded"),
        step(text="It left."),
    ]
    text = told(html_page(build(turns)))
    for part in (
        "Where is order 7?",
        "It left.",
        "1 of 2 calls guessed exactly; 1 result came early and hid 400 ms of waiting.",
        "find_order(id=7)",
        "find_order(id=8) 90 % sure, by self",
        "adopted, saved 400 ms",
        "An order.",
        '{"status":"shipped"}',
        "it only reads",
        "9–91 %",
    ):
        assert part in text


def test_only_the_pages_own_script_and_style_may_run_and_nothing_loads(build: Build, step: Any) -> None:
    page = html_page(build([step(call=CALL, guess=CALL)]))
    read = Read(page)
    (data_type, data), (script_type, script) = read.scripts
    assert (data_type, script_type) == ("application/json", None)
    assert json.loads(data)["seconds"] > 0

    def source(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    policy = dict(part.split(" ", 1) for part in read.policy.split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == source(script)
    assert policy["style-src"] == source("".join(read.styles))
    assert {"link", "img", "iframe", "object", "form", "base"}.isdisjoint(read.tags)
    assert not [name for name, _ in read.attributes if name.startswith("on") or name in ("src", "style", "srcset")]
    assert all(value is None or value.startswith("#") for name, value in read.attributes if name == "href")
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)


def hostile(build: Build, step: Any, text: str) -> list[Event]:
    call = ToolCall(text, {text: [text, {"x": text}]})
    events = build(
        [
            step(call=call, guess=call, thinking=text, text=text, result=text),
            step(call=CALL, guess=call, ending="refused", reason=text, result=text, status="error"),
        ],
        task=text,
        output=text,
        agent=text,
        model=text,
        settings={"speculation": {"predictor": text}, "tools": [{"name": text, "reason": text, "reads": [text]}]},
    )
    events.insert(
        -1,
        GenerationFinished(
            turn=2,
            at=3.0,
            thinking="",
            text="",
            calls=(MalformedCall(text, text),),
            finish_reason="calls",
            prompt_tokens=1,
            completion_tokens=1,
            thinking_tokens=0,
            forwards=1,
            generation_ms=1.0,
            slowdown_ms=0.0,
        ),
    )
    return events


@pytest.mark.parametrize("text", EVIL)
def test_hostile_text_stays_text_wherever_it_stands(build: Build, step: Any, text: str) -> None:
    padding = "x" * 100  # so that both calls are too long for one line
    harmless, evil = Read(html_page(hostile(build, step, padding))), html_page(hostile(build, step, text + padding))
    evil.encode("utf-8")
    read = Read(evil)
    assert read.tags == harmless.tags
    assert [name for name, _ in read.attributes] == [name for name, _ in harmless.attributes]
    assert read.scripts[1] == harmless.scripts[1]
    json.loads(read.scripts[0][1])
    assert "\x00" not in evil
    assert "\u202e" not in evil


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(codec=None), min_size=1))
def test_no_text_whatever_adds_an_element(build: Build, step: Any, text: str) -> None:
    read = Read(html_page(build([step(call=CALL, guess=CALL, result=text)], task=text)))
    assert read.tags.count("script") == 2
    assert {"img", "iframe", "b"} & set(read.tags) == {"b"}
    json.loads(read.scripts[0][1])


def test_megabytes_of_text_are_cut_and_the_page_says_so(build: Build, step: Any) -> None:
    result = "<" * 3_000_000 + "the very end"
    page = html_page(build([step(call=CALL, guess=CALL, result=result)]))
    assert len(page) < 300_000
    text = told(page)
    assert "2,990,012 characters left out" in text
    assert "the very end" in text


def test_a_run_that_broke_off_has_a_page_at_every_length(build: Build, step: Any) -> None:
    events = build([step(call=CALL, guess=CALL), step(call=CALL, guess=OTHER, ending="discarded")])
    for length in range(len(events)):
        page = html_page(events[:length])
        assert "interrupted" in page
        assert page.rstrip().endswith("</html>")


def test_a_turn_cut_off_before_its_message_says_so() -> None:
    started = RunStarted(at=0.0, agent="a", model="m", task="t")
    assert "The trace ends before this message is complete." in html_page([started, TurnStarted(turn=0, at=0.0)])


def test_a_run_without_guessing_says_that_it_was_off(build: Build, step: Any) -> None:
    text = told(html_page(build([step(call=CALL)], settings={"speculation": None})))
    assert "Guessing was off; the model called tools in 1 turn." in text


def test_each_turn_of_the_ledger_leads_to_its_place_in_the_conversation(build: Build, step: Any) -> None:
    page = html_page(build([step(call=CALL, guess=CALL)] * 3))
    for number in (1, 2, 3):
        assert f'href="#turn-{number}"' in page
        assert f'id="turn-{number}"' in page
