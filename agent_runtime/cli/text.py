"""Text from models and tools, made safe and short for a terminal."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from agent_runtime.tools.values import MalformedCall, ToolCall, canonical_json

if TYPE_CHECKING:
    from agent_runtime.traces.events import RunStarted

NO_SECRETS: Mapping[str, Collection[str]] = {}
TABLE_WIDTH = 110
"""Columns from which on a table reads better than a list."""

_SEQUENCES = re.compile(
    r"(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])"  # OSC, DCS, SOS, PM, APC ...
    r"[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # ... up to their end mark
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: cursor, colour, erase
    r"|\x1b[ -/]*[0-~]"  # the other escapes
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""C0 but tab and newline, DEL, C1, and the marks that turn the direction of text round."""


def safe(text: str) -> str:
    """Return `text` without terminal escapes and control characters; newlines and tabs stay.

    An escape sequence goes as a whole where its end is there; of a broken one the control characters go, so that
    what is left is harmless text.
    """
    text = text.replace("\r\n", "\n")
    text = _CONTROLS.sub("", _SEQUENCES.sub("", text))
    return text.encode("utf-8", "replace").decode("utf-8")


def one_line(text: str, limit: int | None = None) -> str:
    """Return `text` made safe, on one line, cut to `limit` characters with an ellipsis at its end."""
    line = " ".join(safe(text).split())
    return line if limit is None or len(line) <= limit else line[: max(0, limit - 1)].rstrip() + "…"


def tail(text: str, limit: int) -> str:
    """Return the last `limit` characters of `text`, made safe and on one line, with an ellipsis at the front."""
    line = one_line(text[-4 * limit :])
    return line if len(line) <= limit and len(text) <= 4 * limit else "…" + line[-(limit - 1) :].lstrip()


def call_text(
    call: ToolCall | MalformedCall, limit: int | None = None, secrets: Mapping[str, Collection[str]] = NO_SECRETS
) -> str:
    """Return a call the way a person writes it: `find_order(id=7, open=true)`; `secrets` by tool are masked."""
    if isinstance(call, MalformedCall):
        return one_line(f"malformed call: {call.text}", limit)
    return one_line(f"{call.name}({_arguments(call.arguments, secrets.get(call.name, ()))})", limit)


def secret_arguments(started: RunStarted) -> dict[str, Collection[str]]:
    """Return the names of the arguments that must not be shown, by tool, as the run's settings declare them."""
    tools = started.settings.get("tools", ())
    return {tool["name"]: tool["secret"] for tool in tools if tool.get("secret")}


def _arguments(arguments: Mapping[str, Any], secret: Collection[str]) -> str:
    return ", ".join(
        f"{name}={'***' if name in secret else canonical_json(value)}" for name, value in arguments.items()
    )


def duration(ms: float) -> str:
    """Return milliseconds as people read them: `0.4 ms`, `812 ms`, `3.2 s`."""
    if ms >= 10_000:
        return f"{ms / 1000:.0f} s"
    if ms >= 1000:
        return f"{ms / 1000:.1f} s"
    return f"{ms:.0f} ms" if ms >= 10 or ms == 0 else f"{ms:.1f} ms"


def percent(share: float | None) -> str:
    """Return a share of 1 as a percentage; a dash where there is none."""
    return "-" if share is None else f"{100 * share:.0f} %"
