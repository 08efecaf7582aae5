"""Our own export: JSONL that holds everything the store has of a run. A line opens each run, its events follow."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime
from typing import Any, TextIO

from agent_runtime.tools.values import ToolCall
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from ..events import EVENT_ADAPTER, Event
from ..store import RunRow
from .errors import Broken
from .records import read_records
from .runs import RecordedRun
from .source import Source
from .values import as_object

FORMAT = "agent-runtime"
VERSION = 1
_MOST = 2**31 - 1

ROW_ADAPTER: TypeAdapter[RunRow] = TypeAdapter(RunRow)


def looks_like(record: dict[str, Any]) -> bool:
    """Tell whether an object opens a run of this format."""
    return record.get("type") == "run" and record.get("format") == FORMAT


def write_own(runs: Iterable[RecordedRun], file: TextIO) -> None:
    """Write runs with all their events."""
    for run in runs:
        info = ROW_ADAPTER.dump_python(run.info, mode="json")
        opening = {"type": "run", "format": FORMAT, "version": VERSION, "run": info}
        file.write(json.dumps(opening, ensure_ascii=False) + "\n")
        for event in run.events:
            file.write(json.dumps(dump_event(event), ensure_ascii=False) + "\n")


def read_own(source: Source) -> Iterator[RecordedRun]:
    """Yield the runs of a file, each with its events in memory."""
    info: RunRow | None = None
    events: list[Event] = []
    known = True
    for record in read_records(source):
        try:
            value = as_object(record.value, "the record")
            if value.get("type") == "run":
                if info is not None:
                    yield RecordedRun(info, tuple(events))
                info, events, known = None, [], False
                info = load_row(value)
                known = True
            elif info is not None:
                events.append(load_event(value))
            elif known:
                raise Broken("an event of no run")
        except Broken as broken:
            source.fault(record.place, str(broken))
    if info is not None:
        yield RecordedRun(info, tuple(events))


def dump_event(event: Event) -> dict[str, Any]:
    """Return an event as JSON."""
    dumped: dict[str, Any] = to_jsonable_python(EVENT_ADAPTER.dump_python(event), inf_nan_mode="strings", fallback=repr)
    return dumped


def load_event(value: Any) -> Event:
    """Return an event of its JSON.

    Raises:
        Broken: it is no event that this version knows.
    """
    try:
        event = EVENT_ADAPTER.validate_python(value)
    except ValidationError as error:
        raise Broken(f"no event: {first_error(error)}") from None
    _check_numbers(event)
    return event


def load_row(value: dict[str, Any]) -> RunRow:
    """Return the run that a line opens.

    Raises:
        Broken: a newer version wrote it, or a field is missing or wrong.
    """
    version = value.get("version")
    if version != VERSION:
        raise Broken(f"version {version!r} of the export; this agent-runtime reads version {VERSION}")
    return load_info(value.get("run"))


def load_info(value: Any) -> RunRow:
    """Return what the store lists of a run, of its JSON.

    Raises:
        Broken: a field is missing or wrong.
    """
    try:
        info = ROW_ADAPTER.validate_python(value)
        info = replace(
            info,
            started_at=_utc(info.started_at),
            ended_at=None if info.ended_at is None else _utc(info.ended_at),
            heartbeat_at=_utc(info.heartbeat_at),
        )
    except ValidationError as error:
        raise Broken(f"no run: {first_error(error)}") from None
    except OverflowError:
        raise Broken("no run: a time beyond the calendar") from None
    _check_numbers(info)
    return info


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _check_numbers(value: Any, name: str = "") -> None:
    """Refuse what no clock and no counter of ours gives: `inf` written as a string, numbers beyond a database's."""
    if isinstance(value, float) and not math.isfinite(value):
        raise Broken(f"{name} is not finite")
    if isinstance(value, int) and not 0 <= value <= _MOST:
        raise Broken(f"{name} is out of range")
    if isinstance(value, tuple):
        for item in value:
            _check_numbers(item, name)
    elif is_dataclass(value) and not isinstance(value, ToolCall):  # arguments are whatever a model wrote
        for field in fields(value):
            _check_numbers(getattr(value, field.name), field.name)


def first_error(error: ValidationError) -> str:
    """Return the first thing that a validation found, in one line."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]
