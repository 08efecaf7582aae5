"""`agent runs diff`: where two runs part, and how their timing and guessing compare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import parameters
from .errors import ExitCode
from .output import note, print_json, stdout_console
from .text import duration, one_line, percent

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from agent_runtime.report.conversation import ReportedTurn
    from agent_runtime.report.diff import AlignedTurn, Difference, FirstDivergence, RunsDiff
    from agent_runtime.traces import RunRow
    from agent_runtime.traces.events import Event

DIFFERENT = ExitCode.FAILED
BEFORE = 40
"""Characters shown before the place where two texts part."""
AFTER = 200


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A run's id or its beginning, or last.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The run to compare it with.")],
    db: parameters.Db = None,
    as_json: parameters.Json = False,
) -> int:
    """Compare two runs: where they part, and their timing and guessing side by side.

    Runs are equal when task, messages, calls, results and ending are; timing and guessing don't count. Exit code 0 if
    they are equal, 1 if they differ, 2 if they can't be compared.
    """
    from agent_runtime.report.diff import diff_runs
    from agent_runtime.traces import TraceStore

    with TraceStore.open(db) as store:
        rows = store.run(a), store.run(b)
        events: list[list[Event]] = []
        for row in rows:
            stored = store.events(row.run_id)
            events.append(list(stored))
            if stored.skipped:
                note(f"{stored.skipped} events of a newer version in {row.run_id} are left out; upgrade agent-runtime")
    found = diff_runs(*events)
    if as_json:
        print_json({"a": _run_json(rows[0], found, "a"), "b": _run_json(rows[1], found, "b"), **found.to_json()})
    else:
        _show(stdout_console(), rows, found)
    return ExitCode.DONE if found.equal else DIFFERENT


def _run_json(row: RunRow, found: RunsDiff, side: str) -> dict[str, Any]:
    run = found.a if side == "a" else found.b
    return {
        "run_id": row.run_id,
        "status": row.status,
        "agent": row.agent,
        "model": row.model,
        "wall_ms": row.wall_ms,
        "speculation": run.ledger.summary(),
    }


def _show(console: Console, rows: tuple[RunRow, RunRow], found: RunsDiff) -> None:
    from rich.text import Text

    console.print(_runs_table(rows, found))
    console.print()
    first = found.first
    if first is None:
        console.print(Text("The runs are equal: same task, messages, calls, results and ending.", style="bold green"))
    else:
        _show_first(console, first, found)
    console.print()
    console.print(_turn_table(found))


def _runs_table(rows: tuple[RunRow, RunRow], found: RunsDiff) -> Table:
    from rich.text import Text

    table = _plain_table("", "A", "B")
    table.add_row("run", *(Text(row.run_id) for row in rows))
    table.add_row("agent", *(Text(one_line(f"{row.agent} on {row.model}", 60)) for row in rows))
    table.add_row("status", *(row.status for row in rows))
    table.add_row("took", *(duration(row.wall_ms) for row in rows))
    ledgers = (found.a.ledger, found.b.ledger)
    table.add_row("turns", *(str(len(ledger.turns)) for ledger in ledgers))
    table.add_row("guessing", *(Text(one_line(run.guessing or "-")) for run in (found.a, found.b)))
    hits = (None if run.guessing == "off" else run.ledger.hit_at_1 for run in (found.a, found.b))
    table.add_row("Hit@1", *(percent(share) for share in hits))
    table.add_row("saved", *(duration(ledger.saved_ms) for ledger in ledgers))
    table.add_row("in vain", *(duration(ledger.wasted_ms) for ledger in ledgers))
    table.add_row("slowdown", *(duration(ledger.slowdown_ms) for ledger in ledgers))
    return table


def _show_first(console: Console, first: FirstDivergence, found: RunsDiff) -> None:
    from rich.text import Text

    difference = first.difference
    if first.turn is None:
        place = f"in the {difference.part}"
    else:
        place = f"at {_turn_name(found.turns[first.turn])}, in its {difference.part}"
        if difference.part == "turn":
            place = f"at {_turn_name(found.turns[first.turn])}, which the other run lacks"
    console.print(Text(f"The runs part {place}:", style="bold red"))
    for name, text in (("A", difference.a), ("B", difference.b)):
        console.print(Text.assemble((f"{name}  ", "bold"), _around(text, difference)))


def _around(text: str | None, difference: Difference) -> Text:
    """Return the surroundings of the place where two texts part, with the rest of the text marked."""
    from rich.text import Text

    if text is None:
        return Text("(nothing)", style="dim")
    offset = difference.offset
    start = max(0, offset - BEFORE)
    same = ("…" if start else "") + _shown(text[start:offset])
    differs = _shown(text[offset : offset + AFTER])
    more = f"… ({len(text) - offset - AFTER} characters more)" if len(text) > offset + AFTER else ""
    return Text.assemble((same, "dim"), (differs or "(ends here)", "bold red" if differs else "dim"), (more, "dim"))


def _shown(text: str) -> str:
    """Return text on one line; a line's end and what can't be seen are spelled out, since that may be what differs."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def _turn_name(turn: AlignedTurn) -> str:
    if turn.a is not None and turn.b is not None and turn.a.turn != turn.b.turn:
        return f"turn {turn.a.turn + 1} of A and {turn.b.turn + 1} of B"
    side = turn.a or turn.b
    number = side.turn + 1 if side else 0
    return f"turn {number}" if turn.a and turn.b else f"turn {number} of {'A' if turn.a else 'B'}"


def _turn_table(found: RunsDiff) -> Table:
    from rich.text import Text

    table = _plain_table("turn", "differs in", "generation", "tool", "guess", "saved", right=frozenset({2, 3, 5}))
    first = found.first
    for number, turn in enumerate(found.turns):
        parts = ", ".join(difference.part for difference in turn.differences)
        if turn.a is None or turn.b is None:
            parts = f"only in {'A' if turn.a else 'B'}"
        style = "" if not parts else "bold red" if first and first.turn == number else "red"
        table.add_row(
            _numbers(turn),
            Text(parts or "-", style=style or "dim"),
            _pair(turn, lambda one: duration(one.ledger.t_gen_ms)),
            _pair(turn, lambda one: "-" if one.ledger.t_tool_ms is None else duration(one.ledger.t_tool_ms)),
            _pair(turn, _guess),
            _pair(turn, lambda one: duration(one.ledger.saved_ms) if one.ledger.saved_ms else "-"),
        )
    return table


def _guess(turn: ReportedTurn) -> str:
    ledger = turn.ledger
    if ledger.boundary is None:
        return "-"
    return ledger.ending or "none"


def _numbers(turn: AlignedTurn) -> str:
    return " | ".join(str(side.turn + 1) if side else "-" for side in (turn.a, turn.b))


def _pair(turn: AlignedTurn, show: Any) -> str:
    shown = [show(side) if side else "" for side in (turn.a, turn.b)]
    return " | ".join(shown) if any(text not in ("", "-") for text in shown) else "-"


def _plain_table(*heads: str, right: frozenset[int] = frozenset()) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, head in enumerate(heads):
        table.add_column(head, justify="right" if index in right else "left", overflow="fold")
    return table
