"""Draws lanes with rich: a block per slice of time, each lane's current text under it."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.text import Text

from .lanes import Activity, Lane, Lanes, Span

LABEL = 13
"""Columns of the lanes' names."""
STEPS = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.5)
"""One block stands for one of these times a power of ten; few steps, so that the picture seldom rescales."""
SHORTEST = 0.01
"""Seconds of the shortest slice."""

STYLES: dict[Activity, tuple[str, str]] = {
    # The characters differ too, so that the picture reads without colour. Later entries win a shared block.
    Activity.PREFILL: ("░", "blue"),
    Activity.THINKING: ("▒", "cyan"),
    Activity.WRITING: ("█", "blue"),
    Activity.STANDING: ("─", "magenta"),
    Activity.MISS: ("╌", "red"),
    Activity.HIT: ("━", "green"),
    Activity.PROBE: ("█", "magenta"),
    Activity.WASTED: ("░", "red"),
    Activity.EARLY: ("▒", "yellow"),
    Activity.USED: ("▓", "green"),
    Activity.TOOL: ("█", "yellow"),
    Activity.FAILED: ("█", "red"),
}
_RANK = {activity: rank for rank, activity in enumerate(STYLES)}

LEGEND = (
    (Activity.PREFILL, "reads"),
    (Activity.THINKING, "thinks"),
    (Activity.WRITING, "writes"),
    (Activity.TOOL, "tool on demand"),
    (Activity.USED, "early and used"),
    (Activity.WASTED, "early in vain"),
    (Activity.PROBE, "guesses"),
    (Activity.HIT, "hit"),
    (Activity.MISS, "miss"),
)


def slice_seconds(elapsed: float, width: int) -> float:
    """Return the seconds a block stands for, so that `elapsed` seconds fit into `width` blocks."""
    power = SHORTEST
    while True:
        for step in STEPS:
            if elapsed <= step * power * width:
                return step * power
        power *= 10


def blocks(spans: Iterable[Span], *, now: float, seconds: float, width: int) -> Text:
    """Return a lane's blocks, `width` columns wide, each `seconds` long; open spans last until `now`."""
    columns: list[Activity | None] = [None] * width
    for span in spans:
        end = now if span.end is None else span.end
        first = min(width - 1, int(span.start / seconds))
        last = min(width - 1, max(first, int((end - 1e-9) / seconds)))
        for column in range(first, last + 1):
            there = columns[column]
            if there is None or _RANK[span.activity] > _RANK[there]:
                columns[column] = span.activity
    text = Text(no_wrap=True)
    for activity in columns:
        if activity is None:
            text.append(" ")
        else:
            text.append(*STYLES[activity])
    return text


class LanesView:
    """A renderable of `lanes` at the time `now`, as wide as its console allows."""

    def __init__(self, lanes: Lanes, now: float) -> None:
        self._lanes = lanes
        self._now = max(now, lanes.at)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the header, two lines per lane, and what the blocks mean."""
        lanes, now = self._lanes, self._now
        width = max(10, options.max_width - LABEL - 1)
        seconds = slice_seconds(now, width)
        rows: list[Text] = [self._header(options.max_width)]
        for name, lane in (("model", lanes.model), ("tools", lanes.tools), ("speculation", lanes.speculation)):
            row = Text.assemble((f"{name:<{LABEL}}", "bold"), no_wrap=True)
            row.append_text(blocks(lane.spans.values(), now=now, seconds=seconds, width=width))
            rows += [row, _below(lane)]
        rows += legend(options.max_width, seconds)
        for row in rows:
            row.truncate(options.max_width, overflow="ellipsis")
        yield Group(*rows)

    def _header(self, width: int) -> Text:
        lanes = self._lanes
        left = " on ".join(name for name in (lanes.agent, lanes.model_name) if name) or "loading the model"
        right = f"turn {lanes.turn + 1}  {self._now:.1f} s"
        header = Text(left, style="bold", no_wrap=True)
        header.truncate(max(1, width - len(right) - 3), overflow="ellipsis", pad=True)
        header.append("  " + right, style="dim")
        return header


def _below(lane: Lane) -> Text:
    return Text(" " * LABEL + lane.text, style="dim", no_wrap=True, overflow="ellipsis")


def legend(width: int, seconds: float) -> list[Text]:
    """Return what the blocks mean, on as many lines as the width asks for."""
    entries = [Text.assemble(STYLES[activity], (f" {meaning}  ", "dim")) for activity, meaning in LEGEND]
    entries.append(Text(f"1 block: {1000 * seconds:g} ms", style="dim"))
    lines = [Text(no_wrap=True)]
    for entry in entries:
        if lines[-1].cell_len + entry.cell_len > width and lines[-1].cell_len:
            lines.append(Text(no_wrap=True))
        lines[-1].append_text(entry)
    return lines
