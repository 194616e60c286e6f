"""A lake, a redactor, and exports built with the real protobuf classes."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from agentops.redact import Redactor
from agentops.store import Lake


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture(scope="session")
def redactor() -> Redactor:
    return Redactor(b"a key of thirty-two bytes exactly")


def _set(target: Any, value: Any) -> None:
    if isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, int):
        target.int_value = value
    elif isinstance(value, float):
        target.double_value = value
    elif isinstance(value, bytes):
        target.bytes_value = value
    elif isinstance(value, list):
        target.array_value.SetInParent()
        for item in value:
            _set(target.array_value.values.add(), item)
    else:
        target.string_value = value if isinstance(value, str) else json.dumps(value)


@pytest.fixture(scope="session")
def export() -> Callable[..., bytes]:
    """An ExportTraceServiceRequest from spans as dictionaries: id, parent, name, start, end, attributes, error."""

    def build(spans: list[Mapping[str, Any]], trace: int = 1, service: str = "shop", scope: str = "lib") -> bytes:
        request = ExportTraceServiceRequest()
        group = request.resource_spans.add()
        _set_attributes(group.resource.attributes, {"service.name": service})
        scoped = group.scope_spans.add()
        scoped.scope.name = scope
        for given in spans:
            span = scoped.spans.add()
            span.trace_id = given.get("trace", trace).to_bytes(16, "big")
            span.span_id = given["id"].to_bytes(8, "big")
            if given.get("parent"):
                span.parent_span_id = given["parent"].to_bytes(8, "big")
            span.name = given.get("name", "span")
            span.start_time_unix_nano = int(given.get("start", 1) * 1e9)
            span.end_time_unix_nano = int(given.get("end", 2) * 1e9)
            _set_attributes(span.attributes, given.get("attributes", {}))
            for name, attributes in given.get("events", ()):
                event = span.events.add()
                event.name = name
                _set_attributes(event.attributes, attributes)
            if given.get("error"):
                span.status.code = 2
                span.status.message = given["error"]
        return request.SerializeToString()

    return build


def _set_attributes(target: Any, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        pair = target.add()
        pair.key = key
        _set(pair.value, value)
