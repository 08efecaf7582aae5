"""What is only written: traces for Perfetto, OpenTelemetry spans, Parquet tables."""

from __future__ import annotations

import builtins
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_runtime.tools.values import GuessProposed
from agent_runtime.traces.formats import MissingExtra, RecordedRun, emit_spans, perfetto, read, write


def refuse(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Make a package look as if it weren't installed."""
    real = builtins.__import__

    def importing(name: str, *rest: Any, **named: Any) -> Any:
        if name == package or name.startswith(f"{package}."):
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", importing)


# --- Perfetto ----------------------------------------------------------------------------------------------------


def lanes(trace: dict[str, Any]) -> dict[int, str]:
    return {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}


def slices(trace: dict[str, Any], lane: str) -> list[tuple[str, float, float]]:
    names = lanes(trace)
    return [(e["name"], e["ts"], e["dur"]) for e in trace["traceEvents"] if e["ph"] == "X" and names[e["tid"]] == lane]


def test_there_is_a_lane_for_the_model_the_tools_and_every_guess(recorded: RecordedRun) -> None:
    trace = perfetto(recorded.events, recorded.info.run_id)
    json.dumps(trace, allow_nan=False)
    assert set(lanes(trace).values()) == {
        "model", "tools", "tools 2", "tools 3", "probes without a guess",
        "guess 0: find", "guess 1: find", "guess 2: find",
    }  # fmt: skip
    assert [name for name, _, _ in slices(trace, "model")] == [
        "prefill", "generate", "turn 0", "generate", "turn 1", "generate", "turn 2",
    ]  # fmt: skip
    assert slices(trace, "guess 0: find") == [("probe", 10_000, 90_000), ("adopted find", 110_000, 140_000)]
    assert slices(trace, "guess 1: find") == [("discarded find", 350_000, 150_000)]
    assert slices(trace, "probes without a guess") == [("no call", 1_000_000, 100_000)]


def test_an_arrow_goes_from_a_guess_to_the_call_it_served(recorded: RecordedRun) -> None:
    trace = perfetto(recorded.events)
    start, end = (event for event in trace["traceEvents"] if event["ph"] in "sf")
    names = lanes(trace)
    assert (start["ph"], names[start["tid"]], start["ts"]) == ("s", "guess 0: find", 110_000)
    assert (end["ph"], names[end["tid"]], end["ts"], end["bp"]) == ("f", "tools", 300_000, "e")
    assert start["id"] == end["id"]


def test_slices_of_a_lane_nest_or_follow_each_other(recorded: RecordedRun) -> None:
    trace = perfetto(recorded.events)
    for lane in lanes(trace).values():
        spans = sorted((start, -duration, start + duration) for _, start, duration in slices(trace, lane))
        ends: list[float] = []
        for start, _, end in spans:
            while ends and ends[-1] <= start:
                ends.pop()
            assert not ends or end <= ends[-1] + 1e-6
            ends.append(end)


@pytest.mark.parametrize("end", range(40))
def test_a_run_that_broke_off_anywhere_is_drawn(recorded: RecordedRun, end: int) -> None:
    trace = perfetto(recorded.events[:end])
    assert all(event.get("dur", 0) >= 0 for event in trace["traceEvents"])


def test_each_run_of_a_file_is_a_process(tmp_path: Path, recorded: RecordedRun) -> None:
    write([recorded, recorded], tmp_path / "a.json", "perfetto")
    trace = json.loads((tmp_path / "a.json").read_text("utf-8"))
    assert {event["pid"] for event in trace["traceEvents"]} == {1, 2}
    assert len({event["id"] for event in trace["traceEvents"] if event["ph"] == "s"}) == 2


# --- OpenTelemetry -----------------------------------------------------------------------------------------------


def spans_of(run: RecordedRun, **settings: Any) -> list[Any]:
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = sdk.TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    emit_spans(run, provider.get_tracer("test"), **settings)
    return list(exporter.get_finished_spans())


def test_spans_have_the_names_and_attributes_of_the_conventions(recorded: RecordedRun) -> None:
    spans = spans_of(recorded)
    assert sorted(span.name for span in spans) == [
        "chat pocket", "chat pocket", "chat pocket",
        "execute_tool find", "execute_tool find", "execute_tool find", "execute_tool find",
        "invoke_agent shop",
        "speculate find", "speculate find", "speculate find",
    ]  # fmt: skip
    root = spans[-1]
    assert root.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert root.attributes["gen_ai.conversation.id"] == "02qmsmh6arr"
    assert all(span.parent.span_id == root.context.span_id for span in spans[:-1])
    chat = next(span for span in spans if span.name == "chat pocket")
    assert chat.attributes["gen_ai.usage.input_tokens"] == 10
    assert chat.attributes["gen_ai.usage.cache_read.input_tokens"] == 5
    assert chat.attributes["gen_ai.response.finish_reasons"] == ("tool_call",)


def test_spans_begin_and_end_when_it_happened(recorded: RecordedRun) -> None:
    spans = spans_of(recorded)
    root = spans[-1]
    zero = round(recorded.info.started_at.timestamp() * 1e6) * 1000
    assert (root.start_time, root.end_time) == (zero, zero + 1_250_000_000)
    assert all(root.start_time <= span.start_time <= span.end_time <= root.end_time for span in spans)


def test_a_call_links_to_the_guess_that_served_it(recorded: RecordedRun) -> None:
    spans = spans_of(recorded)
    (linked,) = [span for span in spans if span.links]
    (guess,) = [span for span in spans if span.context.span_id == linked.links[0].context.span_id]
    assert (linked.name, guess.name) == ("execute_tool find", "speculate find")
    assert guess.attributes["agent_runtime.guess.ending"] == "adopted"
    assert guess.attributes["agent_runtime.guess.saved_ms"] == 140.0


def test_a_failed_call_is_an_error(recorded: RecordedRun) -> None:
    failed = [span for span in spans_of(recorded) if not span.status.is_ok]
    assert {span.attributes["error.type"] for span in failed} == {"not_found", "malformed"}


def test_what_was_said_is_left_out_unless_asked_for(recorded: RecordedRun) -> None:
    assert "lamp" not in repr([dict(span.attributes) for span in spans_of(recorded)])
    told = [dict(span.attributes) for span in spans_of(recorded, content=True)]
    messages = json.loads(next(t["gen_ai.output.messages"] for t in told if "gen_ai.output.messages" in t))
    assert messages[0]["parts"][0] == {"type": "reasoning", "content": "a lamp"}
    assert any(t.get("gen_ai.tool.call.result") == '{"id": 1}' for t in told)


def test_a_file_of_spans_has_a_line_per_run(tmp_path: Path, recorded: RecordedRun) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.json.file")
    write([recorded, recorded], tmp_path / "a.jsonl", "otel")
    first, second = (json.loads(line) for line in (tmp_path / "a.jsonl").read_text("utf-8").splitlines())
    (resource,) = first["resourceSpans"]
    assert len(resource["scopeSpans"][0]["spans"]) == 11
    assert first != second


# --- Parquet -----------------------------------------------------------------------------------------------------


def test_a_table_has_a_row_per_call_and_per_turn_without_one(tmp_path: Path, recorded: RecordedRun) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    write([recorded, recorded], tmp_path / "a.parquet", "parquet")
    rows = pq.read_table(tmp_path / "a.parquet").to_pylist()
    assert len(rows) == 10
    assert [(row["turn"], row["index"], row["tool"], row["ending"]) for row in rows[:5]] == [
        (0, 0, "find", "adopted"),
        (1, 0, "find", "discarded"),
        (1, 1, None, None),
        (1, 2, "find", None),
        (2, None, None, None),
    ]
    first = rows[0]
    assert (first["arguments"], first["result"], first["latency_s"]) == ('{"name": "lamp"}', '{"id": 1}', 0.14)
    assert (first["hit"], first["saved_ms"], first["confidence"]) == (True, 140.0, 0.75)
    assert first["started"] == recorded.info.started_at
    assert rows[3]["result_status"] == "error"


def test_a_tables_row_of_a_later_call_tells_what_was_guessed_of_it(tmp_path: Path, recorded: RecordedRun) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    events = [
        replace(event, index=2) if isinstance(event, GuessProposed) and event.turn == 1 else event
        for event in recorded.events
    ]
    write([replace(recorded, events=tuple(events))], tmp_path / "a.parquet", "parquet")
    rows = pq.read_table(tmp_path / "a.parquet").to_pylist()
    assert [(row["index"], row["ending"], row["saved_ms"] is None) for row in rows[1:4]] == [
        (0, None, False),
        (1, None, True),
        (2, "refused", True),
    ]


@pytest.mark.parametrize(
    ("format", "package", "extra"),
    [("otel", "opentelemetry", "otel"), ("parquet", "pyarrow", "parquet")],
)
def test_without_its_package_one_line_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: RecordedRun, format: str, package: str, extra: str
) -> None:
    refuse(monkeypatch, package)
    with pytest.raises(MissingExtra, match=rf"agent-runtime\[{extra}\]"):
        write([recorded], tmp_path / "a", format)
    with pytest.raises(MissingExtra, match=r"agent-runtime\[otel\]"):
        emit_spans(recorded) if extra == "otel" else refuse_spans(monkeypatch, recorded)
    assert list(tmp_path.iterdir()) == []


def refuse_spans(monkeypatch: pytest.MonkeyPatch, recorded: RecordedRun) -> None:
    refuse(monkeypatch, "opentelemetry")
    emit_spans(recorded)


def test_what_is_only_written_is_not_taken_for_a_recording(tmp_path: Path, recorded: RecordedRun) -> None:
    from agent_runtime.traces.formats import UnreadableFile

    pytest.importorskip("opentelemetry.exporter.otlp.json.file")
    pytest.importorskip("pyarrow")
    for name in ("perfetto", "otel", "parquet"):
        write([recorded], tmp_path / name, name)
        with pytest.raises(UnreadableFile):
            list(read(tmp_path / name))
