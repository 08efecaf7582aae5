"""Writes runs as a Parquet table for data frames: a row per call, with what guessing did for it.

A turn without calls has one row, without tool. What a turn saved and wasted stands in the row of its first call.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from agent_runtime.tools.values import CallFinished, MalformedCall, ToolCall

from ..ledger import ledger
from ..turns import TurnLedger
from .errors import MissingExtra
from .runs import RecordedRun, trajectory_of

_TEXT = ("run_id", "agent", "model", "task", "status")
_NUMBERS = ("turn", "index")
_SAID = ("thinking", "text", "tool", "arguments", "result_status", "result")
_TIMES = ("generation_s", "latency_s")
_GUESSED = ("source", "ending", "reason", "guessed_tool", "guessed_arguments")
_FLAGS = ("pre_executable", "hit", "hit_name")
_FIGURES = ("confidence", "lead_ms", "saved_ms", "wasted_ms", "slowdown_ms")


def write_parquet(runs: Iterable[RecordedRun], file: BinaryIO) -> None:
    """Write the calls of runs as one table, a row group per run.

    Raises:
        MissingExtra: the package `pyarrow` isn't installed.
    """
    try:
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtra.of("Parquet", "pyarrow", "parquet") from error
    schema = pa.schema(
        [
            *((name, pa.string()) for name in _TEXT),
            ("started", pa.timestamp("us", tz="UTC")),
            *((name, pa.int32()) for name in _NUMBERS),
            *((name, pa.string()) for name in _SAID),
            *((name, pa.float64()) for name in _TIMES),
            *((name, pa.string()) for name in _GUESSED),
            *((name, pa.bool_()) for name in _FLAGS),
            *((name, pa.float64()) for name in _FIGURES),
        ]
    )
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for run in runs:
            writer.write_table(pa.Table.from_pylist(list(_rows(run)), schema=schema))


def _rows(run: RecordedRun) -> Iterator[dict[str, Any]]:
    info = run.info
    about = {name: getattr(info, name) for name in _TEXT} | {"started": info.started_at}
    finished = {(event.turn, event.index): event for event in reversed(run.events) if isinstance(event, CallFinished)}
    ledgers = {turn.turn: turn for turn in ledger(run.events).turns}
    numbers = sorted({event.turn for event in run.events if event.type == "generation_finished"})
    for number, turn in zip(numbers, trajectory_of(info, run.events).turns, strict=True):
        said = {
            "turn": number,
            "thinking": turn.message.thinking,
            "text": turn.message.text,
            "generation_s": turn.generation_s,
        }
        guessed = ledgers.get(number)
        for index, (call, result) in enumerate(zip(turn.message.calls, turn.results, strict=True)):
            ended = finished.get((number, index))
            called = isinstance(call, ToolCall)
            yield (
                about
                | said
                | ({} if guessed is None else _guessed(guessed) if index == 0 else _guessed_later(guessed, index, call))
                | {
                    "index": index,
                    "tool": call.name if isinstance(call, ToolCall) else None,
                    "arguments": _json(call.arguments) if isinstance(call, ToolCall) else None,
                    "result_status": ended.outcome.status if ended is not None else None,
                    "result": result.content if result is not None else None,
                    "latency_s": result.latency_s if result is not None and called else None,
                }
            )
        if not turn.message.calls:
            yield about | said


def _guessed(turn: TurnLedger) -> dict[str, Any]:
    """Return what was guessed of a turn's first call, and what guessing did for the turn."""
    guess = turn.standing.call if turn.standing is not None else None
    return {
        "source": turn.source,
        "ending": turn.ending,
        "reason": turn.reason,
        "guessed_tool": guess.name if guess is not None else None,
        "guessed_arguments": _json(guess.arguments) if guess is not None else None,
        "pre_executable": turn.pre_executable,
        "hit": turn.hit,
        "hit_name": turn.hit_name,
        "confidence": turn.confidence,
        "lead_ms": turn.lead_ms,
        "saved_ms": turn.saved_ms,
        "wasted_ms": turn.wasted_ms,
        "slowdown_ms": turn.slowdown_ms,
    }


def _guessed_later(turn: TurnLedger, index: int, call: ToolCall | MalformedCall) -> dict[str, Any]:
    """Return what was guessed of a later call: the guess that served it, else the last one that repeats no other."""
    guesses = [guess for guess in turn.guesses if guess.index == index and guess.reason != "same_as_standing"]
    if not guesses:
        return {}
    guess = next((guess for guess in guesses if guess.served), guesses[-1])
    return {
        "source": guess.source,
        "ending": guess.ending,
        "reason": guess.reason,
        "guessed_tool": guess.call.name,
        "guessed_arguments": _json(guess.call.arguments),
        "hit": guess.matched or guess.call == call,
        "hit_name": guess.matched_name or guess.call.name == getattr(call, "name", None),
        "confidence": guess.confidence,
        "lead_ms": guess.lead_ms if guess.started else None,
    }


def _json(arguments: Any) -> str:
    return json.dumps(dict(arguments), ensure_ascii=False)
