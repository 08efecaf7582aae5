"""Text from models and tools, made visible: nothing in it can hide, reorder or break what stands around it.

Escaping for HTML is the template's work; this is what escaping doesn't do. Characters that a reader would not see are
replaced by their code points.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from agent_runtime.tools.values import MalformedCall, ToolCall

LIMIT = 8_000
"""Characters kept of a text's beginning on a page."""
TAIL = 2_000
"""Characters kept of its end."""

_SPACE = "\N{NO-BREAK SPACE}"

_HIDDEN = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls but tab and newline
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # what turns the direction of text round
    "\u200b\u2060\ufeff"  # spaces of no width
    "\ufff0-\ufffb\ufffe\uffff"
    "\ud800-\udfff"  # halves of a pair: no text holds them, yet JSON can
    "\U000e0000-\U000e0fff"  # tags and selectors that smuggle text past the eye
    "]"
)
_REDACTED = re.compile(r"redacted:hmac:([0-9a-f]{6})[0-9a-f]{26}")


def visible(text: str) -> str:
    """Return `text` with code points in place of the characters that a reader would not see."""
    text = text.replace("\r\n", "\n")
    return _HIDDEN.sub(_code_point, _REDACTED.sub(r"(redacted \1)", text))


def _code_point(match: re.Match[str]) -> str:
    return f"⟨U+{ord(match.group()):04X}⟩"  # the pictures that Unicode has for controls are missing in many fonts


def clipped(text: str, limit: int = LIMIT, tail: int = TAIL) -> tuple[str, int, str]:
    """Return the beginning of `text`, the number of characters left out, and its end; all of it where it is short."""
    if len(text) <= limit + tail:
        return visible(text), 0, ""
    return visible(text[:limit]), len(text) - limit - tail, visible(text[len(text) - tail :])


def one_line(text: str, limit: int) -> str:
    """Return `text` made visible, on one line, cut to `limit` characters with an ellipsis at its end."""
    line = " ".join(visible(text[: 4 * limit]).split())
    whole = len(line) <= limit and len(text) <= 4 * limit
    return line if whole else line[: max(0, limit - 1)].rstrip() + "…"


def call_text(call: ToolCall | MalformedCall, limit: int = LIMIT) -> str:
    """Return a call the way a person writes it, `find_order(id=7)`, made visible and on one line."""
    if isinstance(call, MalformedCall):
        return one_line(f"malformed call: {call.text}", limit)
    if not call.name and set(call.arguments) == {"malformed"}:  # as the dispatcher names a malformed call
        return one_line(f"malformed call: {call.arguments['malformed']}", limit)
    return one_line(f"{call.name}({_arguments(call.arguments)})", limit)


def _arguments(arguments: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False, default=str)}" for name, value in arguments.items()
    )


def duration(ms: float | None) -> str:
    """Return milliseconds as people read them: `0.4 ms`, `812 ms`, `3.2 s`, `12 min 5 s`; a dash for None."""
    if ms is None:
        return "–"
    if ms >= 120_000:
        return f"{int(ms // 60_000)}{_SPACE}min {int(ms % 60_000 // 1000)}{_SPACE}s"
    if ms >= 1000:
        return f"{ms / 1000:.{0 if ms >= 10_000 else 1}f}{_SPACE}s"
    return f"{ms:.{0 if ms >= 10 or ms == 0 else 1}f}{_SPACE}ms"


def percent(share: float | None) -> str:
    """Return a share of 1 as a percentage; a dash where there is none."""
    return "–" if share is None else f"{100 * share:.0f}{_SPACE}%"
