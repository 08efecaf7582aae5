"""Takes values of the expected kind out of JSON that nobody vouches for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .errors import Broken


def kind(value: object) -> str:
    """Return what JSON calls a value of this type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"


def as_object(value: Any, what: str) -> dict[str, Any]:
    """Return an object.

    Raises:
        Broken: it is none; the reason calls it `what`.
    """
    if not isinstance(value, dict):
        raise Broken(f"{what} is {kind(value)}, not an object")
    return value


def as_array(value: Any, what: str) -> list[Any]:
    """Return an array; a missing one (null) is empty.

    Raises:
        Broken: it is none.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise Broken(f"{what} is {kind(value)}, not an array")
    return value


def as_string(value: Any, what: str) -> str:
    """Return a string; a missing one (null) is empty.

    Raises:
        Broken: it is none.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Broken(f"{what} is {kind(value)}, not a string")
    return value


def as_text(value: Any, what: str) -> str:
    """Return the text of a message's content: a string, or parts of which those without text are named in brackets.

    Raises:
        Broken: it is neither.
    """
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise Broken(f"{what} is {kind(value)}, neither a string nor an array of parts")
    return "\n".join(_part(part, what) for part in value)


def _part(part: Any, what: str) -> str:
    if isinstance(part, str):
        return part
    text = as_object(part, f"a part of {what}").get("text")
    return text if isinstance(text, str) else f"[{label(part.get('type')) or 'part'}]"


def as_seconds(value: Any) -> float | None:
    """Return a duration in seconds; numbers written as strings count; None where it is missing or nonsense."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def label(value: Any) -> str | None:
    """Return a string or a whole number as a string; None for everything else, and for the empty string."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    try:
        return str(value) or None
    except ValueError:  # more digits than Python writes
        return None


def first_label(record: Mapping[str, Any], keys: Sequence[str]) -> str | None:
    """Return the first of some fields that is a label."""
    return next((found for key in keys if (found := label(record.get(key))) is not None), None)


def without(record: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """Return the fields that a reader doesn't know, and so keeps as they are."""
    return {key: value for key, value in record.items() if key not in known}
