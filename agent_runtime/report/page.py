"""A run as one HTML page that needs nothing else: no network, no fonts, no scripts but its own.

Whatever came from a model or a tool is hostile. Three walls stand around it: the template escapes everything, `visible`
takes away what could hide or reorder text, and the page's policy lets only the page's own script and style run, which
it names by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import resources
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from agent_runtime.tools.values import MalformedCall
from agent_runtime.traces import GuessRecord, HitRate, Ledger, TurnLedger
from agent_runtime.traces.events import Event
from agent_runtime.traces.proportion import Proportion

from .conversation import RecordedCall, ReportedRun, ReportedTurn, read_run
from .timeline import timeline
from .visible import call_text, clipped, duration, one_line, percent

if TYPE_CHECKING:
    from jinja2 import Template

    from agent_runtime.traces import RunRow

TITLE = 120
"""Characters of the task in the page's title."""
HEADING = 280
"""Characters of the task in its heading."""
CELL = 200
"""Characters of a call in a table."""
SHORT = 90
"""Characters up to which a call stands on one line of the conversation."""

MEANINGS = {
    "running": "The run is still going on; this is what it had written.",
    "interrupted": "The process ended before the run did; this is what it had written.",
    "cancelled": "The run was stopped before it was done.",
    "limit": "The run reached one of its limits.",
}


def html_page(events: Iterable[Event], run: RunRow | None = None) -> str:
    """Return the page of one run.

    Args:
        events: The run's events in order; they may break off anywhere.
        run: The store's row of the run, which knows its id, its date and how it stands.
    """
    events = list(events)
    told = read_run(events)
    css, script = _resource("page.css"), _resource("page.js")
    return _template().render(
        css=css,
        script=script,
        policy=_policy(css, script),
        data=_data_island(timeline(events).to_json()),
        head=_head(told, run),
        tiles=list(_tiles(told.ledger)),
        expected=told.ledger.expected,
        tools=[_tool_row(name, rate) for name, rate in sorted(told.ledger.by_tool.items(), key=_by_weight)],
        turns=[_turn_row(turn) for turn in told.turns],
        messages=[_message(turn) for turn in told.turns],
        task=_text(told.started.task if told.started else run.task if run else ""),
        contracts=[_contract(tool) for tool in _settings(told).get("tools", ())],
        settings=_text(json.dumps(_plain_settings(told), indent=2, ensure_ascii=False, default=str)),
        version=version("agent-runtime"),
        duration=duration,
        percent=percent,
    )


@cache
def _resource(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_resource("page.html.jinja"))


def _policy(css: str, script: str) -> str:
    """Return a content security policy that lets this script and this style run, and nothing load."""

    def source(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; style-src {source(css)}; script-src {source(script)}; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _data_island(value: Any) -> str:
    """Return JSON that can't end the script element which holds it, nor open a comment in it."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _head(told: ReportedRun, run: RunRow | None) -> dict[str, Any]:
    started, finished = told.started, told.finished
    status = run.status if run else finished.status if finished else "interrupted"
    error = run.error if run else finished.error if finished else None
    task = started.task if started else run.task if run else ""
    output = finished.output if finished else (run.output or "") if run else ""
    return {
        "id": run.run_id if run else None,
        "status": status,
        "note": one_line(error, 600) if error else MEANINGS.get(status),
        "agent": one_line(started.agent if started else run.agent if run else "?", 80),
        "model": one_line(started.model if started else run.model if run else "?", 120),
        "title": one_line(task, TITLE),
        "task": one_line(task, HEADING),
        "when": f"{run.started_at:%Y-%m-%d %H:%M} UTC" if run else None,
        "machine": run.started_at.isoformat() if run else None,
        "took": duration(run.wall_ms if run else 1000 * told.seconds),
        "turns": len(told.turns),
        "sentence": sentence(told),
        "output": _text(output) if output.strip() else None,
    }


def sentence(told: ReportedRun) -> str:
    """Return one sentence on what guessing did."""
    ledger = told.ledger
    boundaries, hits = ledger.boundaries, ledger.all.hits
    if told.guessing == "off":
        return f"Guessing was off; the model called tools in {_count(boundaries, 'turn')}."
    if not boundaries:
        return "The model called no tool, so there was nothing to guess."
    served = ledger.endings["adopted"] + ledger.endings["joined"]
    if not ledger.predicted and not served:
        return f"No call was guessed in time; the model called tools in {_count(boundaries, 'turn')}."
    early = f"{_count(served, 'result')} came early and hid {duration(ledger.saved_ms)} of waiting"
    return f"{hits} of {_count(boundaries, 'call')} guessed exactly; {early if served else 'no result came early'}."


def _tiles(ledger: Ledger) -> Iterator[dict[str, str]]:
    hits = Proportion(ledger.all.hits, ledger.boundaries)
    endings = [f"{number} {ending}" for ending, number in ledger.endings.items() if number]
    hidden = "" if ledger.hidden_share is None else f"{percent(ledger.hidden_share)} of what guesses can hide"
    yield {
        "name": "Hit@1",
        "value": percent(hits.share),
        "detail": f"{hits.count} of {_count(hits.of, 'call')}; 95\N{NO-BREAK SPACE}% interval {_interval(hits)}"
        if hits.of
        else "",
    }
    yield {"name": "Waiting hidden", "value": duration(ledger.saved_ms), "detail": hidden}
    yield {
        "name": "Tool time in vain",
        "value": duration(ledger.wasted_ms),
        "detail": f"and {_count(ledger.wasted_tokens, 'token')} of probes",
    }
    yield {
        "name": "Decoding slowed by",
        "value": duration(ledger.slowdown_ms),
        "detail": f"net {'gain' if ledger.net_saved_ms >= 0 else 'loss'} {duration(abs(ledger.net_saved_ms))}",
    }
    yield {
        "name": "Guesses",
        "value": str(sum(len(turn.guesses) for turn in ledger.turns)),
        "detail": ", ".join(endings),
    }


def _interval(share: Proportion) -> str:
    low, high = share.interval or (0.0, 1.0)
    return f"{100 * low:.0f}–{percent(high)}"


def _by_weight(item: tuple[str, HitRate]) -> tuple[int, str]:
    return -item[1].boundaries, item[0]


def _tool_row(name: str, rate: HitRate) -> dict[str, Any]:
    hits = Proportion(rate.hits, rate.boundaries)
    low, high = hits.interval or (0.0, 1.0)
    return {
        "name": one_line(name, 80) or "(malformed)",
        "boundaries": rate.boundaries,
        "predicted": rate.predicted,
        "hits": rate.hits,
        "hits_name": rate.hits_name,
        "share": percent(hits.share),
        "interval": _interval(hits),
        "low": f"{100 * low:.1f}",
        "wide": f"{100 * (high - low):.1f}",
        "point": f"{96 * (hits.share or 0):.1f}",
    }


def _turn_row(turn: ReportedTurn) -> dict[str, Any]:
    ledger = turn.ledger
    shown = ledger.shown
    return {
        "number": turn.turn + 1,
        "call": call_text(ledger.boundary, CELL) if ledger.boundary else None,
        "more": max(0, ledger.calls - 1),
        "says": None if ledger.boundary else "answers" if turn.generation else "breaks off",
        "pre_executable": ledger.pre_executable,
        "guess": _guess(shown, ledger) if shown else None,
        "no_call": ledger.predicted_no_call and shown is None,
        "others": [_guess(guess, ledger) for guess in ledger.guesses if guess != shown],
        "verdict": _verdict(ledger),
        "lead": duration(ledger.lead_ms),
        "saved": duration(ledger.saved_ms) if ledger.saved_ms else "–",
        "wasted": duration(ledger.wasted_ms) if ledger.wasted_ms else "–",
        "slowdown": duration(ledger.slowdown_ms) if ledger.slowdown_ms else "–",
        "t_gen": duration(ledger.t_gen_ms),
        "t_tool": duration(ledger.t_tool_ms),
    }


def _verdict(ledger: TurnLedger) -> str:
    """Return a turn's class: `hit`, `missed`, `none` where nothing was predicted, `quiet` without a call."""
    if ledger.boundary is None:
        return "quiet"
    return "hit" if ledger.hit else "missed" if ledger.standing else "none"


def _guess(guess: GuessRecord, ledger: TurnLedger) -> dict[str, Any]:
    same = guess.index == 0 and ledger.boundary is not None and guess.call == ledger.boundary
    which = f"call {guess.index + 1}: " if guess.index else ""
    return {
        "call": "the same call" if same else which + call_text(guess.call, CELL),
        "same": same,
        "sure": percent(guess.confidence),
        "source": one_line(guess.source, 40),
        "ending": guess.ending or "unknown",
        "reason": one_line((guess.reason or "").replace("_", " "), 60),
        "served": guess.served,
        "executed": guess.executed,
    }


def _message(turn: ReportedTurn) -> dict[str, Any]:
    generation = turn.generation
    return {
        "number": turn.turn + 1,
        "thinking": _text(generation.thinking) if generation and generation.thinking.strip() else None,
        "text": _text(generation.text) if generation and generation.text.strip() else None,
        "calls": [_call(call, turn) for call in turn.calls],
        "whole": generation is not None,
        "took": duration(generation.generation_ms) if generation else None,
        "tokens": generation.completion_tokens if generation else None,
        "cut": generation is not None and generation.finish_reason == "length",
    }


def _call(call: RecordedCall, turn: ReportedTurn) -> dict[str, Any]:
    outcome = call.outcome
    guess = next((guess for guess in turn.ledger.guesses if guess.guess == call.guess), None)
    malformed = isinstance(call.call, MalformedCall)
    name = "malformed call" if malformed else one_line(getattr(call.call, "name", ""), 120)
    whole = call_text(call.call, SHORT + 1)
    short = len(whole) <= SHORT and not malformed
    return {
        "name": name,
        "shown": whole if short else name,
        "arguments": None if short else _arguments(call),
        "status": outcome.status if outcome else None,
        "error": one_line(outcome.error, 120) if outcome and outcome.error else None,
        "took": duration(1000 * outcome.seconds) if outcome else None,
        "content": _text(outcome.content) if outcome else None,
        "early": f"{guess.ending}, saved {duration(guess.saved_ms)}" if guess and guess.served else None,
    }


def _arguments(call: RecordedCall) -> tuple[str, int, str]:
    if isinstance(call.call, MalformedCall):
        return clipped(f"{call.call.text}\n\n{call.call.reason}")
    values = ((name, json.dumps(value, ensure_ascii=False, default=str)) for name, value in call.call.arguments.items())
    return clipped("\n".join(f"{name} = {value}" for name, value in values))


def _text(text: str) -> tuple[str, int, str]:
    return clipped(text.strip("\n"))


def _settings(told: ReportedRun) -> dict[str, Any]:
    return dict(told.started.settings) if told.started else {}


def _plain_settings(told: ReportedRun) -> dict[str, Any]:
    return {name: value for name, value in _settings(told).items() if name != "tools"}


def _contract(tool: Any) -> dict[str, Any]:
    def names(key: str) -> str:
        found: Sequence[Any] = tool.get(key) or ()
        return ", ".join(one_line(str(name), 80) for name in found) or "–"

    return {
        "name": one_line(str(tool.get("name", "?")), 80),
        "effect": one_line(str(tool.get("effect", "?")), 20),
        "early": bool(tool.get("pre_executable")),
        "reason": one_line(str(tool.get("reason", "")), 200),
        "reads": names("reads"),
        "writes": names("writes"),
    }


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
