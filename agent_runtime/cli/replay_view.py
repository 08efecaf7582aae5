"""What a replay came to, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .output import note, print_rows, stdout_console
from .text import duration, one_line, percent

TOOLS_SHOWN = 15
ARGUMENTS_SHOWN = 8

_CAUSES = {
    "no_guess": "nothing was guessed",
    "wrong_tool": "wrong tool",
    "unseen_text": "right tool, wrong argument: its text was not in the conversation yet",
    "wrong_argument": "right tool, wrong argument",
}


def show(report: Mapping[str, Any]) -> None:
    """Print a report of `Replay.to_json`."""
    _summary(report)
    if "predictors" in report:
        _section("by predictor")
        _rates({name: _whole(score) for name, score in report["predictors"].items()}, "predictor")
    _section("by tool")
    tools = list(report["by_tool"].items())
    _rates(dict(tools[:TOOLS_SHOWN]), "tool")
    if len(tools) > TOOLS_SHOWN:
        note(f"{len(tools) - TOOLS_SHOWN} more tools: see --json")
    _section("after")
    _rates(
        {
            {"user": "a user's message", "tool": "a tool's result"}.get(name, name): row
            for name, row in report["after"].items()
        },
        "the turn follows",
    )
    positioned = report.get("predictors", {}).get("self", report)["by_position"]
    if len(positioned) > 1:
        _section("by position of the probe of 'self', in recorded thinking")
        _rates({percent(float(position)): row for position, row in positioned.items()}, "thinking written")
    _misses(report["misses"])
    if "what_if" in report:
        _what_if(report["what_if"])


def _summary(report: Mapping[str, Any]) -> None:
    from rich.table import Table

    hits, fit, latency = report["hit_at_1"], report["fit"], report["latency"]
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_row("recordings", f"{report['trajectories']} trajectories, {report['boundaries']} boundaries")
    table.add_row("predictor", report["predictor"] + (f" ({one_line(report['model'])})" if report["model"] else ""))
    if fit is not None:
        table.add_row("counter's fit", _fit(fit))
    table.add_row("Hit@1", _with_interval(hits["exact"], hits["intervals"]["exact"]))
    table.add_row("  by name", _with_interval(hits["name"], hits["intervals"]["name"]))
    table.add_row(
        f"  over {hits['reads']} reads",
        _with_interval(hits["exact_over_reads"], hits["intervals"]["exact_over_reads"]),
    )
    table.add_row("coverage", percent(report["coverage"]))
    inferred = report["effects"]["schemas_inferred"]
    if inferred:
        table.add_row("schemas", f"of {len(inferred)} of {report['effects']['tools']} tools read off their calls")
    if latency is not None:
        table.add_row("without guessing", f"{duration(latency['serial_ms'])} ({_source(latency)})")
        speedup = "-" if latency["speedup"] is None else f"{latency['speedup']:.3f}x"
        hidden = f"{percent(latency['hidden_share'])} of what could be hidden"
        table.add_row("with guessing", f"{duration(latency['speculative_ms'])}, {speedup}, {hidden}")
    else:
        table.add_row("latency", "the recording has none: inject some with --tool-latency MS")
    stdout_console().print(table)


def _fit(fit: Mapping[str, Any]) -> str:
    if fit["how"] == "other recordings":
        return f"{fit['trajectories']} other recordings, and the turns before within each"
    if fit["how"] == "nothing":
        return "none: only the turns before within the recording"
    return f"leaving one group of {fit['groups']} out ({fit['folds']} fits), and the turns before within each"


def _source(latency: Mapping[str, Any]) -> str:
    missing = latency["calls_without_latency"]
    gap = f"; {missing} calls without latency count as 0" if missing else ""
    return f"tools {_tools(latency)}; generation {_generation(latency)}; {latency['time']} time{gap}"


def _tools(figures: Mapping[str, Any]) -> str:
    """Return where the times of calls come from."""
    if figures["tool_latency_ms"] is not None:
        return f"{duration(figures['tool_latency_ms'])} injected"
    return figures["source"] or "none"


def _generation(figures: Mapping[str, Any]) -> str:
    """Return where the times of messages come from."""
    injected = "" if figures["generation_ms"] is None else f"{duration(figures['generation_ms'])} "
    return injected + str(figures["generation_source"])


def _rates(rows: Mapping[str, Mapping[str, Any]], head: str) -> None:
    print_rows(
        (
            (
                one_line(name) or "(malformed call)",
                str(row["boundaries"]),
                _with_interval(row["exact"], row["intervals"]["exact"]),
                _with_interval(row["name"], row["intervals"]["name"]),
                percent(row["coverage"]),
            )
            for name, row in rows.items()
        ),
        heads=(head, "boundaries", "Hit@1 (95 %)", "by name (95 %)", "coverage"),
        right=frozenset({1, 2, 3, 4}),
    )


def _whole(score: Mapping[str, Any]) -> dict[str, Any]:
    hits = score["hit_at_1"]
    return {**hits, "boundaries": score["boundaries"], "coverage": score["coverage"]}


def _misses(misses: Mapping[str, Any]) -> None:
    _section(f"why {misses['missed']} misses missed")
    for cause, count in misses["by_cause"].items():
        if count:
            stdout_console().print(f"{count:6}  {_CAUSES[cause]}")
    if misses["call_holds_unseen_text"]:
        unseen = misses["call_holds_unseen_text"]
        stdout_console().print(f"in {unseen} of them the call holds text that nobody had written yet")
    arguments = list(misses["wrong_arguments"].items())[:ARGUMENTS_SHOWN]
    if arguments:
        listed = ", ".join(f"{one_line(name)} {count}" for name, count in arguments)
        stdout_console().print(f"wrong arguments: {listed}")


def _what_if(outcomes: Sequence[Mapping[str, Any]]) -> None:
    _section(f"in virtual time, through the runtime's own loop; generation {_generation(outcomes[0])}")
    print_rows(
        (
            (
                outcome["predictor"],
                _tools(outcome),
                f"{outcome['min_confidence']:g}/{outcome['in_flight']}/{outcome['wasted_calls_limit']}",
                duration(outcome["serial_ms"]),
                duration(outcome["speculative_ms"]),
                _ratio(outcome["speedup"]),
                _ratio(outcome["expected"]["speedup"]),
                _ratio(outcome["expected"]["closed_form"]),
                f"{outcome['wasted_calls']}: {duration(outcome['wasted_ms'])}",
            )
            for outcome in outcomes
        ),
        heads=("predictor", "tools", "limits*", "serial", "guessing", "speed-up", "by turn", "closed", "wasted"),
        right=frozenset({3, 4, 5, 6, 7, 8}),
    )
    stdout_console().print(
        "* least confidence / guesses in flight / wasted calls per run. Beside the speed-up stands what was expected: "
        "summed by turn, and by the closed form.",
        style="dim",
    )


def _section(title: str) -> None:
    stdout_console().print(f"\n{title}", style="bold")


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _with_interval(share: float | None, interval: Sequence[float] | None) -> str:
    if share is None or interval is None:
        return "-"
    return f"{100 * share:.1f} % ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"
