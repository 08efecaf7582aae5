"""The page in a real browser: hostile runs do nothing, and the timeline can be used by mouse and by keyboard."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.events import Event

from agent_runtime.report.page import html_page

sync_api = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="the browser tests need a chromium on the PATH")

Build = Callable[..., list[Event]]
Opened = Callable[..., Any]
CALL, OTHER = ToolCall("find_order", {"id": 7}), ToolCall("find_order", {"id": 8})
EVIL = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "<svg onload=\"document.title='owned'\"></svg>\u202e\x00"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Opened]:
    """Open a run's page; `page.said` holds what the console, errors and requests said."""
    contexts = []

    def open_(events: list[Event], *, width: int = 1200, theme: str = "light") -> Any:
        file = tmp_path / "run.html"
        file.write_text(html_page(events), encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        contexts.append(context)
        page = context.new_page()
        page.said = []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("request", lambda request: page.said.append(request.url) if request.url != file.as_uri() else None)
        page.on("dialog", lambda dialog: page.said.append(dialog.message))
        page.goto(file.as_uri())
        page.wait_for_selector("#chart svg", state="attached")
        return page

    yield open_
    for context in contexts:
        context.close()


def turns(step: Any, number: int) -> list[Any]:
    kinds = (
        step(call=CALL, guess=CALL, thinking="Hm."),
        step(call=CALL, guess=OTHER, ending="discarded"),
        step(call=CALL, guess=CALL, ending="refused", reason="effect"),
    )
    return [kinds[turn % 3] for turn in range(number - 1)] + [step(text="It left.")]


def frame(page: Any) -> None:
    """Wait until what was asked for is drawn."""
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_draws_without_a_word_on_the_console_and_fits_the_window(
    opened: Opened, build: Build, step: Any, width: int, theme: str
) -> None:
    page = opened(build(turns(step, 4)), width=width, theme=theme)
    assert page.said == []
    assert page.locator("#chart .k-served").count() == 1
    assert page.locator("#chart .k-missed").count() == 1
    assert page.locator("#chart .arrow").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 20, 23)"
    assert dark == (theme == "dark")


def test_hostile_text_neither_runs_nor_loads_anything(opened: Opened, build: Build, step: Any) -> None:
    call = ToolCall(EVIL, {EVIL: EVIL})
    events = build(
        [step(call=call, guess=call, thinking=EVIL, text=EVIL, result=EVIL)], task=EVIL, output=EVIL, agent=EVIL
    )
    page = opened(events)
    page.focus("#chart")
    for _ in range(12):
        page.keyboard.press("ArrowDown")  # shows every item's details
    frame(page)
    assert page.said == []
    assert page.title() != "owned"
    assert page.locator("img, iframe, main script").count() == 0
    assert "<img src=x" in page.locator("#details").inner_text()
    assert "⟨U+202E⟩" in page.locator("#conversation").inner_text()


def test_the_keyboard_zooms_pans_and_goes_from_turn_to_turn(opened: Opened, build: Build, step: Any) -> None:
    page = opened(build(turns(step, 6)))
    where = page.locator("#where")
    assert where.inner_text() == "all 6 turns"
    page.focus("#chart")
    page.keyboard.press("PageDown")
    frame(page)
    assert where.inner_text() == "turn 1 of 6"
    page.keyboard.press("PageDown")
    frame(page)
    assert where.inner_text() == "turn 2 of 6"
    before = page.locator("#chart .span").first.get_attribute("x")
    page.keyboard.press("ArrowRight")
    frame(page)
    assert page.locator("#chart .span").first.get_attribute("x") != before
    page.keyboard.press("0")
    frame(page)
    assert where.inner_text() == "all 6 turns"
    for key in ("+", "+", "+", "+"):
        page.keyboard.press(key)
    frame(page)
    assert where.inner_text() != "all 6 turns"
    page.keyboard.press("Home")
    frame(page)
    assert where.inner_text().startswith("turn")


def test_the_arrow_keys_tell_item_after_item(opened: Opened, build: Build, step: Any) -> None:
    page = opened(build(turns(step, 3)))
    page.focus("#chart")
    page.keyboard.press("ArrowDown")
    frame(page)
    first = page.locator("#details").inner_text()
    assert "turn 1" in first
    assert page.locator("#chart .picked").count() == 1
    page.keyboard.press("ArrowDown")
    frame(page)
    assert page.locator("#details").inner_text() != first
    page.keyboard.press("Escape")
    frame(page)
    assert page.locator("#chart .picked").count() == 0


def test_the_mouse_shows_items_drags_and_zooms(opened: Opened, build: Build, step: Any) -> None:
    page = opened(build(turns(step, 6)))
    page.locator("#chart .k-missed").first.hover()
    assert "Guess that ran in vain, turn 2" in page.locator("#details").inner_text()
    box = page.locator("#chart").bounding_box()
    page.mouse.move(box["x"] + 400, box["y"] + 30)
    page.keyboard.down("Control")
    for _ in range(8):
        page.mouse.wheel(0, -120)
    page.keyboard.up("Control")
    frame(page)
    zoomed = page.locator("#where").inner_text()
    assert zoomed != "all 6 turns"
    page.mouse.down()
    page.mouse.move(box["x"] + 100, box["y"] + 30, steps=4)
    page.mouse.up()
    page.mouse.move(box["x"] + 900, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 30, steps=4)
    page.mouse.up()
    frame(page)
    assert page.locator("#where").inner_text() != zoomed
    page.get_by_role("button", name="Fit").click()
    frame(page)
    assert page.locator("#where").inner_text() == "all 6 turns"


def test_a_turn_of_the_ledger_opens_in_the_timeline(opened: Opened, build: Build, step: Any) -> None:
    page = opened(build(turns(step, 6)))
    page.get_by_role("button", name="Show turn 4 in the timeline").click()
    frame(page)
    assert page.locator("#where").inner_text() == "turn 4 of 6"
    assert page.evaluate("document.activeElement.id") == "chart"


def test_the_ledger_can_be_narrowed_to_what_was_not_guessed(opened: Opened, build: Build, step: Any) -> None:
    page = opened(build(turns(step, 6)))
    rows = page.locator("table.turns tbody tr:visible")
    assert rows.count() == 6
    page.get_by_label("only calls that were not guessed right").check()
    assert rows.count() == 2


def test_a_run_of_200_turns_draws_few_elements_at_any_zoom(opened: Opened, build: Build, step: Any) -> None:
    page = opened(build(turns(step, 200)))
    assert page.locator("#where").inner_text() == "all 200 turns"
    page.focus("#chart")
    most = 0
    for key in ("0", *"++++++++", "ArrowRight", "PageDown", "End"):
        page.keyboard.press(key)
        frame(page)
        most = max(most, page.locator("#chart svg *").count())
    assert 0 < most < 4000
    assert page.said == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_rule_of_accessibility_is_broken(browser: Any, tmp_path: Path, build: Build, step: Any, theme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    file = tmp_path / "run.html"
    file.write_text(html_page(build(turns(step, 4), task="Where is it?")), encoding="utf-8")
    context = browser.new_context(color_scheme=theme, bypass_csp=True)  # axe is a script that isn't the page's own
    try:
        page = context.new_page()
        page.goto(file.as_uri())
        for summary in page.locator("summary").all():
            summary.click()
        page.focus("#chart")
        page.keyboard.press("ArrowDown")
        frame(page)
        found = axe.Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
    finally:
        context.close()
