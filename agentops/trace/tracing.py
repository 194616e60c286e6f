"""Spans of this process: OpenTelemetry in front, redacted Parquet segments (and optionally OTLP) behind.

Invariant: recording a span never blocks on disk, network or redaction and never raises into the code it measures; what
cannot be kept is counted and logged. Only redacted spans leave the process. The global tracer provider is not touched.
"""

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry import trace as otel
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, Status, StatusCode, TraceFlags

from agentops.errors import StoreError
from agentops.redact import FAILED, Redactor
from agentops.store import Lake
from agentops.trace import names
from agentops.trace.jsontext import dumps
from agentops.trace.rows import SpanRecord, redacted, row

if TYPE_CHECKING:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

QUEUE_LIMIT = 50_000  # ended spans waiting to be written; about 100 MB
BATCH = 2_048  # spans in one segment, at most
INTERVAL_S = 2.0  # between two segments of a quiet process
OTLP_TIMEOUT_S = 10.0  # for one export, retries included
LOG_EVERY_S = 60.0
_INHERITED = (names.TENANT, names.CONVERSATION)  # copied from a span to those inside it
_INHERIT_KEY = otel_context.create_key("agentops-inherited")
_LOG = logging.getLogger("agentops.trace")


class Tracing:
    """Owns a TracerProvider; one per process.

    Args:
        lake: where segments go.
        service: service name on spans and segments.
        redactor: sees every span before it is written or sent.
        otlp_endpoint: also send redacted spans to this OTLP/HTTP collector ("http://host:4318/v1/traces").
        resource: more resource attributes.
    """

    def __init__(
        self,
        lake: Lake,
        service: str,
        redactor: Redactor,
        otlp_endpoint: str = "",
        resource: Mapping[str, str] | None = None,
    ) -> None:
        exporter = _otlp(otlp_endpoint) if otlp_endpoint else None
        self._processor = _Processor(lake, service, redactor, exporter)
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource({"service.name": service, **(resource or {})}),
            id_generator=_RandomIds(),
            span_limits=SpanLimits(max_span_attributes=512, max_events=128, max_links=128),
        )
        self._provider.add_span_processor(self._processor)
        self._tracer = self._provider.get_tracer("agentops")

    def span(
        self, name: str, operation: str = "", attributes: Mapping[str, Any] | None = None
    ) -> AbstractContextManager[Span]:
        """A span that is current inside the `with` block. An exception marks it as an error and passes through.

        Tenant and conversation are inherited by spans inside. Mappings and lists are recorded as JSON text; None is
        left out.

        Args:
            name: for example "execute_tool get_order".
            operation: value of `gen_ai.operation.name`; "" for none.
            attributes: recorded at the start; more with `set_attributes(span, …)`.
        """
        return _Current(self._tracer, name, operation, attributes)

    def flush(self) -> None:
        """Write every span that has ended. Failures are logged and counted, not raised."""
        self._processor.force_flush()

    def close(self) -> None:
        """Flush and stop the background thread; spans that end later are dropped and counted."""
        self._provider.shutdown()

    @property
    def counts(self) -> dict[str, int]:
        """So far: spans written and dropped (queue full, closed), failed writes, redactions and exports."""
        return dict(self._processor.counts)


@contextmanager
def continued(trace_id: str, span_id: str) -> Generator[None]:
    """Spans inside belong to an earlier trace, below one of its spans: a turn that waited goes on where it stopped."""
    flags = TraceFlags(TraceFlags.SAMPLED)
    earlier = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=flags)
    token = otel_context.attach(otel.set_span_in_context(NonRecordingSpan(earlier)))
    try:
        yield
    finally:
        otel_context.detach(token)


def set_attributes(span: Span, attributes: Mapping[str, Any]) -> None:
    """Record more on a span: mappings and lists of mappings as JSON text, None left out."""
    for key, value in attributes.items():
        if value is not None:
            span.set_attribute(key, attribute(value))


def attribute(value: Any) -> Any:
    """A value as OpenTelemetry takes it: text, number, boolean or a list of texts; everything else as JSON text."""
    if isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(value)
    return dumps(value)


class _Current:
    """The context manager behind `Tracing.span`: the SDK's own costs 2 to 3 times as much."""

    __slots__ = ("_attributes", "_name", "_span", "_token", "_tracer")

    def __init__(self, tracer: otel.Tracer, name: str, operation: str, attributes: Mapping[str, Any] | None) -> None:
        given = {key: attribute(value) for key, value in (attributes or {}).items() if value is not None}
        if operation:
            given[names.OPERATION] = operation
        self._tracer, self._name, self._attributes = tracer, name, given

    def __enter__(self) -> Span:
        inherited = otel_context.get_value(_INHERIT_KEY)
        given = {**inherited, **self._attributes} if isinstance(inherited, dict) else self._attributes
        self._span = self._tracer.start_span(self._name, attributes=given)
        current = otel.set_span_in_context(self._span)
        passed_on = {key: given[key] for key in _INHERITED if key in given}
        if passed_on and passed_on != inherited:
            current = otel_context.set_value(_INHERIT_KEY, passed_on, current)
        self._token = otel_context.attach(current)
        return self._span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._span.record_exception(error)
            self._span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
        otel_context.detach(self._token)
        self._span.end()


class _RandomIds(IdGenerator):
    """Ids from the operating system. The SDK's own use `random`, which training code seeds: ids would repeat."""

    def generate_span_id(self) -> int:
        return secrets.randbits(64) or 1

    def generate_trace_id(self) -> int:
        return secrets.randbits(128) or 1


class _Processor(SpanProcessor):
    """Collects ended spans; a thread turns them into redacted rows and segments."""

    def __init__(self, lake: Lake, service: str, redactor: Redactor, exporter: "OTLPSpanExporter | None") -> None:
        self._lake, self._service, self._redactor, self._exporter = lake, service, redactor, exporter
        self._ended: deque[ReadableSpan] = deque()
        self._unwritten: list[dict[str, Any]] = []  # rows a failed write left behind
        self._writing = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._logged: dict[str, float] = {}
        self.counts = {"written": 0, "dropped": 0, "failed_writes": 0, "failed_redactions": 0, "failed_exports": 0}
        self._thread = threading.Thread(target=self._run, name="agentops-trace", daemon=True)
        self._thread.start()

    def on_end(self, span: ReadableSpan) -> None:
        if self._closed or len(self._ended) >= QUEUE_LIMIT:
            self.counts["dropped"] += 1
            self._log("dropped", "spans are dropped: %d so far, the writer does not keep up or was closed", "dropped")
            return
        self._ended.append(span)
        if len(self._ended) >= BATCH:
            self._wake.set()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Write all that ended before this call; False when the disk refused."""
        if not self._writing.acquire(timeout=timeout_millis / 1000):
            return False
        try:
            waiting = len(self._ended)
            if not waiting:
                return self._write([])
            while waiting > 0:
                waiting -= self._drain()
            return not self._unwritten
        finally:
            self._writing.release()

    def shutdown(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._wake.set()
        self._thread.join(timeout=30)
        self.force_flush()
        if self._exporter is not None:
            self._guarded(self._exporter.shutdown, "failed_exports")

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(INTERVAL_S)
            self._wake.clear()
            try:
                with self._writing:
                    while self._ended and self._drain() == BATCH:
                        pass
            except Exception as error:  # noqa: BLE001 - the writer outlives any fault of one batch; what it lost is counted
                self.counts["failed_writes"] += 1
                self._log("thread", "writing spans failed: %s", type(error).__name__)

    def _drain(self) -> int:
        """Take up to one batch and write it; returns how many were taken."""
        spans = []
        while self._ended and len(spans) < BATCH:
            spans.append(self._ended.popleft())
        clean = [self._clean(span) for span in spans]
        self._write([row(span, self._service) for span in clean])
        if self._exporter is not None and spans:
            sent = [_exportable(before, after) for before, after in zip(spans, clean, strict=True)]
            exporter = self._exporter
            self._guarded(lambda: exporter.export(sent), "failed_exports")
        return len(spans)

    def _clean(self, span: ReadableSpan) -> SpanRecord:
        try:
            return redacted(_record(span), self._redactor)
        except Exception as error:  # noqa: BLE001 - fail closed: the span is kept, its content is not
            self.counts["failed_redactions"] += 1
            self._log("redaction", "a span's content was dropped, it could not be redacted: %s", type(error).__name__)
            context = span.get_span_context()
            ids = (f"{context.trace_id:032x}", f"{context.span_id:016x}") if context else ("", "")
            parent = f"{span.parent.span_id:016x}" if span.parent else ""
            return SpanRecord(*ids, parent, FAILED, span.start_time or 0, span.end_time or 0)

    def _write(self, rows: list[dict[str, Any]]) -> bool:
        rows = self._unwritten + rows
        self._unwritten = []
        if not rows:
            return True
        try:
            self._lake.write("spans", rows, self._service)
        except StoreError as error:
            self.counts["failed_writes"] += 1
            kept = rows[-QUEUE_LIMIT:]
            self.counts["dropped"] += len(rows) - len(kept)
            self._unwritten = kept
            self._log("write", "spans cannot be written and are kept in memory: %s", str(error))
            return False
        self.counts["written"] += len(rows)
        return True

    def _guarded(self, action: Callable[[], Any], counter: str) -> None:
        try:
            result = action()
            if getattr(result, "name", "SUCCESS") == "FAILURE":
                self.counts[counter] += 1
        except Exception as error:  # noqa: BLE001 - a collector's fault must not stop the writing of segments
            self.counts[counter] += 1
            self._log(counter, "the OTLP export failed: %s", type(error).__name__)

    def _log(self, about: str, message: str, detail: str) -> None:
        now = time.monotonic()
        if now - self._logged.get(about, -LOG_EVERY_S) >= LOG_EVERY_S:
            self._logged[about] = now
            _LOG.warning(message, self.counts.get(detail, detail))


def _record(span: ReadableSpan) -> SpanRecord:
    """An SDK span as plain data, before redaction."""
    context = span.get_span_context()
    start, end = span.start_time or 0, span.end_time or span.start_time or 0
    return SpanRecord(
        trace_id=f"{context.trace_id:032x}" if context else "",
        span_id=f"{context.span_id:016x}" if context else "",
        parent_id=f"{span.parent.span_id:016x}" if span.parent else "",
        name=span.name,
        start_ns=start,
        end_ns=end,
        kind=span.kind.name.lower(),
        status=span.status.status_code.name.lower(),
        status_message=span.status.description or "",
        attributes=dict(span.attributes or {}),
        events=tuple(
            {"name": event.name, "time_ns": event.timestamp, "attributes": dict(event.attributes or {})}
            for event in span.events
        ),
        links=tuple(
            {
                "trace_id": f"{link.context.trace_id:032x}",
                "span_id": f"{link.context.span_id:016x}",
                "attributes": dict(link.attributes or {}),
            }
            for link in span.links
        ),
        scope=span.instrumentation_scope.name if span.instrumentation_scope else "",
        resource=dict(span.resource.attributes),
    )


def _exportable(span: ReadableSpan, clean: SpanRecord) -> ReadableSpan:
    """`span` for another collector, with the texts of its redacted record."""
    from opentelemetry.sdk.trace import Event

    return ReadableSpan(
        name=clean.name,
        context=span.get_span_context(),
        parent=span.parent,
        resource=Resource({key: attribute(value) for key, value in clean.resource.items()}),
        attributes={key: attribute(value) for key, value in clean.attributes.items()},
        events=[
            Event(
                event["name"], {key: attribute(value) for key, value in event["attributes"].items()}, event["time_ns"]
            )
            for event in clean.events
        ],
        kind=span.kind,
        status=Status(span.status.status_code, clean.status_message or None),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _otlp(endpoint: str) -> "OTLPSpanExporter":
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=endpoint, timeout=OTLP_TIMEOUT_S)
