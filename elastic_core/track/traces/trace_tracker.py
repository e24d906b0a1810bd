"""`Tracker` over an OpenTelemetry collector (OTLP over HTTP): what is over of each job's life, as spans."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from elastic_core.errors import InfrastructureError
from elastic_core.protocol.events import Event, Feed
from elastic_core.track.traces.life_spans import Span, spans_of
from elastic_core.track.tracker import Jobs

SERVICE = "elastic"
_RESOURCE = Resource({"service.name": SERVICE, "service.version": version("elastic-airflow")})
_SCOPE = InstrumentationScope("elastic_core", version("elastic-airflow"))


class TraceTracker:
    def __init__(self, endpoint: str, jobs: Jobs, feed: Feed) -> None:
        """`endpoint`: the whole URL for traces. Headers, certificates and time limits are OpenTelemetry's own variables
        (OTEL_EXPORTER_OTLP_HEADERS, ...)."""
        self._endpoint = endpoint
        self._exporter: SpanExporter = OTLPSpanExporter(endpoint=endpoint)
        self._jobs, self._feed = jobs, feed

    def record(self, events: Sequence[Event]) -> None:
        spans = [_readable(span) for event in events for span in spans_of(event, self._feed, self._jobs)]
        if spans and self._exporter.export(spans) is not SpanExportResult.SUCCESS:
            raise InfrastructureError(
                f"The collector at {self._endpoint} did not take {len(spans)} spans; the line above says why. They "
                "wait in the ledger."
            )

    def answers(self, _event: Event, /) -> bool:
        """As the contract says: it is asked for spans alone, all of one size."""
        return True


def _readable(span: Span) -> ReadableSpan:
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id),
        parent=None if span.parent_id is None else _context(span.trace_id, span.parent_id),
        resource=_RESOURCE,
        attributes=span.attributes,
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error),
        start_time=round(span.start * 1e9),
        end_time=round(span.end * 1e9),
        instrumentation_scope=_SCOPE,
    )


def _context(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
