"""Moments in time as recordings write them, and the seconds between them."""

from __future__ import annotations

from datetime import datetime
from typing import Any


def moment(value: Any) -> datetime | None:
    """Return an ISO timestamp that names its zone; None where it is missing or nonsense."""
    if not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def between(start: datetime | None, end: datetime | None) -> float | None:
    """Return the seconds from one moment to another; None where either is unknown or they are out of order."""
    if start is None or end is None:
        return None
    try:
        seconds = (end - start).total_seconds()
    except OverflowError:  # zones at the ends of the calendar
        return None
    return seconds if seconds >= 0 else None
