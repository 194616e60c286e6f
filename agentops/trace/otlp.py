"""OTLP exports (protobuf and JSON) as span records.

Invariant: bytes from outside never crash the reader and nothing is dropped without being counted by reason: a file that
the protobuf parser refuses (cut off, flipped bits, invalid UTF-8) is read again leniently and gives every span that is
still whole. Nothing is redacted or written here.
"""

import base64
import binascii
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agentops.trace import wire
from agentops.trace.jsontext import integer, text
from agentops.trace.rows import SpanRecord
from agentops.types import Json

KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")
STATUSES = ("unset", "ok", "error")
_MAX_DEPTH = 32
_MAX_NS = 2**63 - 1


def from_protobuf(data: bytes, refused: Counter[str], noted: Counter[str]) -> Iterator[SpanRecord]:
    """Spans of one ExportTraceServiceRequest (or TracesData: the same bytes).

    Args:
        data: the whole file.
        refused: counts what was left out, by reason.
        noted: counts what was taken but is not right, by what.
    """
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    request = ExportTraceServiceRequest()
    try:
        request.ParseFromString(data)
        groups: Iterable[Any] = [
            (_attributes(resource.resource.attributes), scope.scope.name, scope.spans)
            for resource in request.resource_spans
            for scope in resource.scope_spans
        ]
        if not request.resource_spans and data:
            refused["no resource spans: not an OTLP trace export"] += 1
    except (DecodeError, UnicodeDecodeError):
        noted["protobuf damaged: read leniently"] += 1
        groups = wire.salvage(data, refused)
    for resource, scope, spans in groups:
        for span in spans:
            record = span if isinstance(span, Mapping) else _plain(span)
            found = checked({**record, "scope": scope, "resource": resource}, refused, noted)
            if found is not None:
                yield found


def from_json(value: Mapping[str, Any], refused: Counter[str], noted: Counter[str]) -> Iterator[SpanRecord]:
    """Spans of an OTLP JSON document, in camelCase or snake_case; arguments as `from_protobuf`."""
    for group in _list(_get(value, "resourceSpans", "resource_spans")):
        resource = _json_attributes(_get(_mapping(_get(group, "resource")), "attributes"))
        scopes = _get(group, "scopeSpans", "scope_spans", "instrumentationLibrarySpans")
        for scope in _list(scopes):
            library = _mapping(_get(scope, "scope", "instrumentationLibrary"))
            for span in _list(_get(scope, "spans")):
                if not isinstance(span, Mapping):
                    refused["span is not an object"] += 1
                    continue
                status = _mapping(_get(span, "status"))
                record = {
                    "trace_id": _json_id(_get(span, "traceId", "trace_id"), 16),
                    "span_id": _json_id(_get(span, "spanId", "span_id"), 8),
                    "parent_id": _json_id(_get(span, "parentSpanId", "parent_span_id"), 8),
                    "name": _get(span, "name"),
                    "kind": _enum(_get(span, "kind"), KINDS, "SPAN_KIND_"),
                    "start_ns": _get(span, "startTimeUnixNano", "start_time_unix_nano"),
                    "end_ns": _get(span, "endTimeUnixNano", "end_time_unix_nano"),
                    "status": _enum(_get(status, "code"), STATUSES, "STATUS_CODE_"),
                    "status_message": _get(status, "message"),
                    "attributes": _json_attributes(_get(span, "attributes")),
                    "events": [
                        {
                            "name": text(_get(event, "name")),
                            "time_ns": integer(_get(event, "timeUnixNano", "time_unix_nano")) or 0,
                            "attributes": _json_attributes(_get(event, "attributes")),
                        }
                        for event in _list(_get(span, "events"))
                        if isinstance(event, Mapping)
                    ],
                    "links": [
                        {
                            "trace_id": _json_id(_get(link, "traceId", "trace_id"), 16),
                            "span_id": _json_id(_get(link, "spanId", "span_id"), 8),
                            "attributes": _json_attributes(_get(link, "attributes")),
                        }
                        for link in _list(_get(span, "links"))
                        if isinstance(link, Mapping)
                    ],
                    "scope": text(_get(library, "name")),
                    "resource": resource,
                }
                found = checked(record, refused, noted)
                if found is not None:
                    yield found


def checked(record: Mapping[str, Any], refused: Counter[str], noted: Counter[str]) -> SpanRecord | None:
    """A span with sound ids and times, or None when its ids are no ids. What was mended is counted in `noted`."""
    trace_id, span_id, parent_id = (text(record.get(key)).lower() for key in ("trace_id", "span_id", "parent_id"))
    if not _is_id(trace_id, 32):
        refused["trace id is not 16 bytes"] += 1
        return None
    if not _is_id(span_id, 16):
        refused["span id is not 8 bytes"] += 1
        return None
    if parent_id and not _is_id(parent_id, 16):
        if parent_id.strip("0"):
            noted["parent id is not 8 bytes: taken as a root"] += 1
        parent_id = ""
    if parent_id == span_id:
        noted["span is its own parent: taken as a root"] += 1
        parent_id = ""
    start, end = integer(record.get("start_ns")), integer(record.get("end_ns"))
    if not start or start < 0:
        noted["start time is missing or out of range"] += 1
        start = max(0, min(end or 0, _MAX_NS))
    if end is None or end <= 0:
        noted["end time is missing or out of range"] += 1
        end = start
    if end < start:
        noted["duration is negative: taken as 0"] += 1
        end = start
    return SpanRecord(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent_id,
        name=text(record.get("name")),
        start_ns=start,
        end_ns=end,
        kind=text(record.get("kind")) or "unspecified",
        status=text(record.get("status")) or "unset",
        status_message=text(record.get("status_message")),
        attributes=record.get("attributes") or {},
        events=tuple(record.get("events") or ()),
        links=tuple(record.get("links") or ()),
        scope=text(record.get("scope")),
        resource=record.get("resource") or {},
    )


def _plain(span: Any) -> dict[str, Any]:
    """A protobuf Span as the record `checked` takes."""
    return {
        "trace_id": span.trace_id.hex(),
        "span_id": span.span_id.hex(),
        "parent_id": span.parent_span_id.hex(),
        "name": span.name,
        "kind": _enum(span.kind, KINDS, ""),
        "start_ns": span.start_time_unix_nano,
        "end_ns": span.end_time_unix_nano,
        "status": _enum(span.status.code, STATUSES, ""),
        "status_message": span.status.message,
        "attributes": _attributes(span.attributes),
        "events": [
            {
                "name": event.name,
                "time_ns": integer(event.time_unix_nano) or 0,
                "attributes": _attributes(event.attributes),
            }
            for event in span.events
        ],
        "links": [
            {"trace_id": link.trace_id.hex(), "span_id": link.span_id.hex(), "attributes": _attributes(link.attributes)}
            for link in span.links
        ],
    }


def _attributes(pairs: Iterable[Any]) -> dict[str, Json]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any, depth: int = 0) -> Json:
    kind = value.WhichOneof("value")
    if kind is None or depth > _MAX_DEPTH:
        return None
    if kind == "array_value":
        return [_value(item, depth + 1) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {pair.key: _value(pair.value, depth + 1) for pair in value.kvlist_value.values}
    found = getattr(value, kind)
    return f"<{len(found)} bytes>" if isinstance(found, bytes) else found


def _json_attributes(pairs: Json) -> dict[str, Json]:
    return {
        text(_get(pair, "key")): _json_value(_get(pair, "value")) for pair in _list(pairs) if isinstance(pair, Mapping)
    }


def _json_value(value: Json, depth: int = 0) -> Json:
    if not isinstance(value, Mapping) or depth > _MAX_DEPTH:
        return value if not isinstance(value, Mapping | list) else None
    for key, item in value.items():
        if key in ("stringValue", "string_value", "boolValue", "bool_value", "doubleValue", "double_value"):
            return item
        if key in ("intValue", "int_value"):
            return integer(item)
        if key in ("arrayValue", "array_value"):
            return [_json_value(inner, depth + 1) for inner in _list(_get(_mapping(item), "values"))]
        if key in ("kvlistValue", "kvlist_value"):
            inner = _list(_get(_mapping(item), "values"))
            return {
                text(_get(pair, "key")): _json_value(_get(pair, "value"), depth + 1)
                for pair in inner
                if isinstance(pair, Mapping)
            }
        if key in ("bytesValue", "bytes_value"):
            return f"<{len(text(item)) * 3 // 4} bytes>"
    return None


def _json_id(value: Json, size: int) -> str:
    """Hexadecimal as the OTLP JSON mapping has it, or base64 as protobuf's own JSON has it."""
    given = text(value)
    if len(given) == 2 * size or not given:
        return given
    try:
        decoded = base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError):
        return given
    return decoded.hex() if len(decoded) == size else given


def _enum(value: Json, choices: tuple[str, ...], prefix: str) -> str:
    if isinstance(value, str) and not value.isdigit():
        name = value.removeprefix(prefix).lower()
        return name if name in choices else choices[0]
    number = integer(value) or 0
    return choices[number] if 0 <= number < len(choices) else choices[0]


def _is_id(value: str, length: int) -> bool:
    return len(value) == length and bool(value.strip("0")) and not value.strip("0123456789abcdef")


def _get(value: Json, *keys: str) -> Json:
    if not isinstance(value, Mapping):
        return None
    return next((value[key] for key in keys if key in value), None)


def _mapping(value: Json) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Json) -> list[Any]:
    return value if isinstance(value, list) else []
