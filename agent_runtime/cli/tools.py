"""`agent tools`: what each tool of an agent may do, and whether it may be started early."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from . import parameters
from .output import print_json, print_rows, stdout_console


def tools(
    target: parameters.Target,
    as_json: parameters.Json = False,
) -> None:
    """Show which tools may be started early, and why."""
    import anyio

    from .setup import before_torch
    from .target import load_target

    before_torch()
    found = load_target(target)

    async def contracts() -> list[dict[str, Any]]:
        async with found.open() as agent:
            return list(agent.tool_contracts())

    rows = anyio.run(contracts)
    if as_json:
        print_json({"tools": rows})
        return
    if not rows:
        print("The agent has no tools.")
        return
    print_rows(
        (
            (row["name"], row["effect"], "yes" if row["pre_executable"] else "no", row["reason"], _limits(row))
            for row in rows
        ),
        heads=("tool", "effect", "early", "because", "limits"),
    )
    sources = sorted({row["source"] for row in rows})
    stdout_console().print(f"\nContracts: {', '.join(sources)}. All fields: --json", style="dim")


def _limits(row: Mapping[str, Any]) -> str:
    """Return what bounds a tool, leaving out what is at its default of no bound."""
    parts = [f"fresh {_number(row['fresh_for'])} s"] if row["pre_executable"] else []
    units = {"timeout": "s", "max_concurrency": "at once", "rate": "per s"}
    parts += [f"{name} {_number(row[name])} {unit}" for name, unit in units.items() if row.get(name) is not None]
    parts += [flag.replace("_", " ") for flag in _flags(row)]
    return ", ".join(parts)


def _flags(row: Mapping[str, Any]) -> Iterable[str]:
    return (name for name in ("open_world", "destructive", "requires_approval", "sequential") if row.get(name))


def _number(value: float) -> str:
    return f"{value:g}"
