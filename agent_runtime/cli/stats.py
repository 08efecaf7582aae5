"""`agent stats`: what guessing came to over many recorded runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from . import parameters
from .output import note, print_json, stdout_console
from .text import TABLE_WIDTH, duration, one_line, percent

if TYPE_CHECKING:
    from rich.table import Table

    from agent_runtime.report.statistics import Group, Hits
    from agent_runtime.traces.proportion import Proportion

NAME_LIMIT = 60


def stats(
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="Only runs of this agent.")] = None,
    model: Annotated[str | None, typer.Option(metavar="MODEL", help="Only runs on this model.")] = None,
    tools: Annotated[bool, typer.Option("--tools", help="Show Hit@1 by tool as well.")] = False,
    db: parameters.Db = None,
    as_json: parameters.Json = False,
) -> None:
    """Show what guessing hit, saved and cost over all recorded runs.

    One line per agent, model and predictor; runs without guessing have a line of their own. Intervals are those of
    Wilson for 95 %.
    """
    from agent_runtime.report.statistics import statistics

    found = statistics(db, agent=agent, model=model)
    if as_json:
        print_json(found.to_json())
        return
    if not found.groups:
        note('no such runs are recorded yet; make one: agent run shop "..."')
        return
    console = stdout_console()
    console.print(_table(found.groups) if console.width >= TABLE_WIDTH else _list(found.groups))
    if tools:
        console.print()
        console.print(_tool_table(found.groups))


def _table(groups: Iterable[Group]) -> Table:
    """Return a row per group, for wide terminals."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("agent", overflow="fold", ratio=3)
    table.add_column("model", overflow="fold", ratio=3)
    table.add_column("guessing", overflow="fold")
    for head in ("runs", "calls", "Hit@1", "by name", "saved", "in vain", "hidden", "lead", "tokens"):
        table.add_column(head, justify="right", overflow="fold")
    for group in groups:
        off = group.guessing == "off"
        table.add_row(
            Text(one_line(group.agent or "", NAME_LIMIT)),
            Text(one_line(group.model or "", NAME_LIMIT)),
            Text(one_line(group.guessing or "")),
            str(group.runs),
            str(group.all.boundaries),
            "-" if off else _with_interval(group.all.exact),
            "-" if off else percent(group.all.by_name.share),
            "-" if off else duration(group.sums["saved_ms"]),
            "-" if off else duration(group.sums["wasted_ms"]),
            "-" if off else percent(group.hidden_share),
            _median(group),
            _per_forward(group),
        )
    table.caption = "calls: turns that made any; lead: median; tokens: per forward pass"
    table.caption_style = "dim"
    table.caption_justify = "left"
    return table


def _list(groups: Iterable[Group]) -> Table:
    """Return the groups as blocks of short lines, for terminals where a table's columns would get too narrow."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for number, group in enumerate(groups):
        if number:
            table.add_row("", "")
        table.add_row(
            Text("agent", style="bold"),
            Text(
                f"{one_line(group.agent or '', NAME_LIMIT)} on {one_line(group.model or '', NAME_LIMIT)}", style="bold"
            ),
        )
        table.add_row("runs", f"{group.runs} ({_statuses(group)}), {group.turns} turns")
        table.add_row("tokens", f"{_per_forward(group)} per forward pass")
        if group.guessing == "off":
            table.add_row("guessing", "off")
            continue
        table.add_row("guessing", Text(one_line(group.guessing or "")))
        table.add_row("Hit@1", f"{_with_interval(group.all.exact)} of {group.all.boundaries} calls")
        table.add_row("by name", _with_interval(group.all.by_name))
        table.add_row(
            "saved", f"{duration(group.sums['saved_ms'])}, {percent(group.hidden_share)} of what can be hidden"
        )
        table.add_row("in vain", f"{duration(group.sums['wasted_ms'])} of tool time")
        table.add_row("slowdown", duration(group.sums["slowdown_ms"]))
        table.add_row("lead", _quantiles(group))
    return table


def _tool_table(groups: Iterable[Group]) -> Table:
    from rich.table import Table
    from rich.text import Text

    tools: dict[str, list[Hits]] = {}
    for group in groups:
        if group.guessing != "off":
            for name, hits in group.tools.items():
                tools.setdefault(name, []).append(hits)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("tool", overflow="fold")
    for head in ("calls", "guessed", "Hit@1", "by name"):
        table.add_column(head, justify="right", no_wrap=True)
    for name, parts in sorted(tools.items(), key=lambda item: (-sum(one.boundaries for one in item[1]), item[0])):
        whole = parts[0].plus(*parts[1:])
        table.add_row(
            Text(one_line(name, NAME_LIMIT) or "(malformed)"),
            str(whole.boundaries),
            str(whole.predicted),
            _with_interval(whole.exact),
            percent(whole.by_name.share),
        )
    return table


def _with_interval(hits: Proportion) -> str:
    if hits.interval is None:
        return "-"
    low, high = hits.interval
    return f"{percent(hits.share)} ({100 * low:.0f} to {100 * high:.0f})"


def _median(group: Group) -> str:
    median = group.lead.p50
    return "-" if median is None else duration(median)


def _quantiles(group: Group) -> str:
    lead = group.lead
    if lead.p10 is None or lead.p50 is None or lead.p90 is None:
        return "-"
    return f"{duration(lead.p50)} in the median, {duration(lead.p10)} to {duration(lead.p90)} for 80 % of {lead.count}"


def _per_forward(group: Group) -> str:
    return "-" if group.tokens_per_forward is None else f"{group.tokens_per_forward:.2f}"


def _statuses(group: Group) -> str:
    return ", ".join(f"{number} {status}" for status, number in sorted(group.statuses.items()))
