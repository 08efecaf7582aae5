"""Writes runs as OpenTelemetry spans to a file: OTLP as JSON, one line per run, as collectors read it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

from ..errors import TracesError
from .errors import MissingExtra
from .otel import PROVIDER, emit_spans
from .runs import RecordedRun


def write_otel(runs: Iterable[RecordedRun], file: TextIO) -> None:
    """Write the spans of runs, with what was said and called.

    Raises:
        MissingExtra: OpenTelemetry's SDK or its exporter to files isn't installed.
        TracesError: the spans of a run can't be written.
    """
    try:
        from opentelemetry.exporter.otlp.json.file import FileSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON
    except ImportError as error:
        raise MissingExtra.of("OpenTelemetry", "opentelemetry-exporter-otlp-json-file", "otel") from error
    exporter, spans = FileSpanExporter(stream=file), InMemorySpanExporter()
    provider = TracerProvider(
        sampler=ALWAYS_ON, resource=Resource({"service.name": PROVIDER}), shutdown_on_exit=False
    )  # not the program's own provider: a file holds all of a run, whatever is sampled elsewhere
    provider.add_span_processor(SimpleSpanProcessor(spans))
    for run in runs:
        emit_spans(run, provider.get_tracer(PROVIDER), content=True)
        if exporter.export(spans.get_finished_spans()) is not SpanExportResult.SUCCESS:
            raise TracesError(f"the spans of run {run.info.run_id} could not be written")
        spans.clear()
