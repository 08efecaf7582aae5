"""What a run came to, for people: the answer, then what was guessed, what hit and what it saved."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_runtime.tools.values import CallDemanded, GuessEnded, GuessProposed
from agent_runtime.traces.events import Event, GenerationFinished, ProbeFinished, RunStarted, TurnStarted
from agent_runtime.traces.ledger import LedgerFold

from .lanes import ending_text
from .text import NO_SECRETS, TABLE_WIDTH, call_text, duration, one_line, percent, safe, secret_arguments

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from agent_runtime.traces import RunRow

CALL_LIMIT = 160
"""Characters of a call that are shown."""


@dataclass(slots=True)
class TurnRow:
    """One turn as the guess of its first call saw it; times in milliseconds. `saved_ms` is the whole turn's."""

    turn: int
    call: str = ""
    guess: str = ""
    confidence: float | None = None
    ending: str = ""
    style: str = "dim"
    lead_ms: float | None = None
    saved_ms: float | None = None
    _calls: int = 0
    _proposed: dict[int, GuessProposed] = field(default_factory=dict)
    _shown: GuessEnded | None = None
    _served: bool = False
    """Whether guesses served any call."""
    _later_served: int = 0
    """Calls after the first that guesses served."""


def turn_rows(events: Iterable[Event]) -> list[TurnRow]:
    """Return a row per turn, with the guess that mattered most where a turn had several."""
    rows: dict[int, TurnRow] = {}
    fold, secrets = LedgerFold(), NO_SECRETS
    for event in events:
        fold.add(event)
        match event:
            case RunStarted():
                secrets = secret_arguments(event)
            case TurnStarted():
                rows[event.turn] = TurnRow(event.turn)
            case ProbeFinished() if event.turn in rows and event.completed and event.call is None:
                row = rows[event.turn]
                if not row._proposed:
                    row.guess, row.confidence = "no call", event.confidence
            case CallDemanded() if event.turn in rows:
                row = rows[event.turn]
                row._calls += 1
                row.call = row.call or call_text(event.call, CALL_LIMIT, secrets)
            case GuessProposed() if event.turn in rows:
                rows[event.turn]._proposed[event.guess] = event
            case GuessEnded() if event.turn in rows:
                _show(rows[event.turn], event, secrets)
            case GenerationFinished() if event.turn in rows and not event.calls:
                rows[event.turn].call = "(answers)"
            case _:
                pass
    for row in rows.values():
        if row._calls > 1:
            row.call += f" and {row._calls - 1} more"
        if row._later_served:
            row.guess = f"{row.guess or '-'}, and {row._later_served} more in time"
        if row._served:
            row.saved_ms = fold.turn(row.turn).saved_ms
    return list(rows.values())


def _show(row: TurnRow, ended: GuessEnded, secrets: Mapping[str, Collection[str]]) -> None:
    shown, proposed = row._shown, row._proposed.get(ended.guess)
    served = ended.ending in ("adopted", "joined")
    row._served |= served
    if proposed is not None and proposed.index > 0:
        row._later_served += served  # else the row is about the turn's first call
        return
    if shown is not None and _weight(shown) > _weight(ended):
        return
    row._shown = ended
    if proposed is not None:
        row.guess = "the same" if ended.matched else call_text(proposed.call, CALL_LIMIT, secrets)
        row.confidence = proposed.confidence
    row.ending = ended.ending if served else ending_text(ended)
    row.style = "green" if served else "red" if ended.executed else "dim"
    row.lead_ms = ended.lead_ms if ended.executed else None


def _weight(ended: GuessEnded) -> int:
    """Rank guesses of one turn: one that served, one that ran, one that was right, one that is no repetition."""
    if ended.ending in ("adopted", "joined"):
        return 4
    if ended.executed:
        return 3
    if ended.matched:
        return 2
    return 0 if ended.reason == "same_as_standing" else 1


def turn_table(rows: Iterable[TurnRow]) -> Table:
    """Return the rows as a table, for wide terminals."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("turn", justify="right")
    table.add_column("the model's call", overflow="fold", ratio=5)
    table.add_column("guessed", overflow="fold", ratio=4)
    table.add_column("sure", justify="right", no_wrap=True)
    table.add_column("ending", overflow="fold", ratio=3)
    table.add_column("lead", justify="right", no_wrap=True)
    table.add_column("saved", justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row.turn + 1),
            Text(row.call),
            Text(row.guess or "-", style="" if row.guess else "dim"),
            "-" if row.confidence is None else percent(row.confidence),
            Text(row.ending or "-", style=row.style),
            "-" if row.lead_ms is None else duration(row.lead_ms),
            Text("-" if row.saved_ms is None else duration(row.saved_ms), style="green" if row.saved_ms else ""),
        )
    return table


def turn_list(rows: Iterable[TurnRow]) -> Table:
    """Return the rows as a list of two lines each, for terminals where a table's columns would get too narrow."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(Text(f"turn {row.turn + 1}", style="bold"), Text(row.call or "-"))
        if row.guess:
            sure = "" if row.confidence is None else f" ({percent(row.confidence)} sure)"
            line = Text(f"guessed {row.guess}{sure}")
            if row.ending:
                line.append(", ").append(row.ending, style=row.style)
            if row.lead_ms is not None:
                line.append(f", {duration(row.lead_ms)} ahead")
            if row.saved_ms is not None:
                line.append(f", saved {duration(row.saved_ms)}", style="green")
            table.add_row("", line)
    return table


def verdict(speculation: Mapping[str, Any], *, wall_ms: float) -> str:
    """Return one sentence on what guessing did for a run, from the keys of `speculation` in its JSON."""
    boundaries, predicted = speculation["boundaries"], speculation["predicted"]
    if not boundaries:
        return "The model made no call, so there was nothing to guess."
    served = speculation["adopted"] + speculation["joined"]
    if not predicted and not served:
        return f"No call was guessed in time; the model made calls in {_count(boundaries, 'turn')}."
    hit_at_1 = speculation["hit_at_1"] or 0.0
    hits = round(hit_at_1 * boundaries)
    text = f"The speculator guessed {hits} of {_count(boundaries, 'call')} exactly (Hit@1 {percent(hit_at_1)}); "
    if not served:
        return text + "no result came early."
    saved = speculation["saved_ms"]
    text += f"{_count(served, 'result')} came early and saved {duration(saved)}"
    return text + (f" of a run that took {duration(wall_ms)}." if wall_ms else ".")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def costs(speculation: Mapping[str, Any]) -> str:
    """Return what guessing cost, as a short list."""
    hidden = speculation["hidden_share"]
    parts = [] if hidden is None else [f"hid {percent(hidden)} of what guesses can hide"]
    if speculation["wasted_ms"]:
        parts.append(f"{duration(speculation['wasted_ms'])} of tool time in vain")
    if speculation["slowdown_ms"]:
        parts.append(f"decoding {duration(speculation['slowdown_ms'])} slower")
    endings = ("discarded", "stale", "late", "refused")
    parts += [f"{speculation[ending]} {ending}" for ending in endings if speculation[ending]]
    return ", ".join(parts)


def print_speculation(
    console: Console, events: Iterable[Event], speculation: Mapping[str, Any], *, wall_ms: float
) -> None:
    """Print what was guessed turn by turn, what hit, and what it saved and cost."""
    from rich.text import Text

    rows = turn_rows(events)
    if not rows:
        return
    console.print(turn_table(rows) if console.width >= TABLE_WIDTH else turn_list(rows))
    console.print()
    console.print(Text(verdict(speculation, wall_ms=wall_ms), style="bold"))
    if speculation["predicted"] and (line := costs(speculation)):
        console.print(Text(line, style="dim"))


def print_stored(console: Console, run: RunRow, events: Iterable[Event]) -> None:
    """Print a run from the store, whole or broken off."""
    from rich.text import Text

    from agent_runtime.traces.ledger import ledger

    events = list(events)
    console.print(Text(f"run {run.run_id}  {run.status}  {duration(run.wall_ms)}", style="bold"))
    console.print(Text(f"{one_line(run.agent)} on {one_line(run.model)}, {run.started_at.astimezone():%Y-%m-%d %H:%M}"))
    console.print(Text(f"task: {one_line(run.task)}"))
    console.print()
    if run.output:
        console.print(Text(safe(run.output).strip()))
        console.print()
    if run.status not in ("done", "running"):
        reason = run.error or MEANINGS.get(run.status, "no reason is known")
        console.print(Text(f"{run.status}: {one_line(reason)}", style="red"))
        console.print()
    print_speculation(console, events, ledger(events).summary(), wall_ms=run.wall_ms)


MEANINGS = {
    "interrupted": "the process ended before the run did; this is what it had written",
    "cancelled": "it was stopped before it was done",
    "limit": "it reached one of its limits",
}
