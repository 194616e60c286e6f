"""A lenient reader of OTLP's protobuf bytes, for files the strict parser refuses.

Invariant: linear in the input, never raises, and gives every span whose bytes are all there; text that is not UTF-8
gets replacement characters. The field numbers are those of opentelemetry-proto's trace.proto and common.proto.
"""

import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any

_MAX_DEPTH = 32
_KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")
_STATUSES = ("unset", "ok", "error")
Field = tuple[int, int, Any]  # number, wire type, value


class _Damaged(Exception):
    """The bytes are no protobuf from here on."""


def salvage(data: bytes, refused: Counter[str]) -> Iterator[tuple[dict[str, Any], str, list[dict[str, Any]]]]:
    """(resource attributes, scope name, span records) of every group that can still be read."""
    for resource_spans in _messages(data, 1, refused, opened=True):
        resource: dict[str, Any] = {}
        for number, _, value in _fields(resource_spans, refused, opened=True):
            if number == 1 and isinstance(value, bytes):
                resource = _attributes(value, 1, refused)
            elif number == 2 and isinstance(value, bytes):
                name, spans = "", []
                for inner, _, content in _fields(value, refused):
                    if inner == 1 and isinstance(content, bytes):
                        name = next((_text(v) for n, _, v in _fields(content, refused) if n == 1), "")
                    elif inner == 2 and isinstance(content, bytes):
                        spans.append(_span(content, refused))
                yield resource, name, spans


def _span(data: bytes, refused: Counter[str]) -> dict[str, Any]:
    record: dict[str, Any] = {"attributes": {}, "events": [], "links": []}
    for number, _, value in _fields(data, refused):
        if number in (1, 2, 4) and isinstance(value, bytes):
            record[{1: "trace_id", 2: "span_id", 4: "parent_id"}[number]] = value.hex()
        elif number == 5:
            record["name"] = _text(value)
        elif number == 6 and isinstance(value, int):
            record["kind"] = _KINDS[value] if value < len(_KINDS) else _KINDS[0]
        elif number in (7, 8) and isinstance(value, int):
            record["start_ns" if number == 7 else "end_ns"] = value
        elif number == 9 and isinstance(value, bytes):
            record["attributes"].update([_pair(value, refused)])
        elif number == 11 and isinstance(value, bytes):
            record["events"].append(_event(value, refused))
        elif number == 15 and isinstance(value, bytes):
            for inner, _, content in _fields(value, refused):
                if inner == 2:
                    record["status_message"] = _text(content)
                elif inner == 3 and isinstance(content, int):
                    record["status"] = _STATUSES[content] if content < len(_STATUSES) else _STATUSES[0]
    return record


def _event(data: bytes, refused: Counter[str]) -> dict[str, Any]:
    event: dict[str, Any] = {"name": "", "time_ns": 0, "attributes": {}}
    for number, _, value in _fields(data, refused):
        if number == 1 and isinstance(value, int):
            event["time_ns"] = value if value < 2**63 else 0
        elif number == 2:
            event["name"] = _text(value)
        elif number == 3 and isinstance(value, bytes):
            event["attributes"].update([_pair(value, refused)])
    return event


def _attributes(data: bytes, number: int, refused: Counter[str]) -> dict[str, Any]:
    return dict(_pair(value, refused) for value in _messages(data, number, refused))


def _pair(data: bytes, refused: Counter[str]) -> tuple[str, Any]:
    key, value = "", None
    for number, _, content in _fields(data, refused):
        if number == 1:
            key = _text(content)
        elif number == 2 and isinstance(content, bytes):
            value = _value(content, refused, 0)
    return key, value


def _value(data: bytes, refused: Counter[str], depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return None
    found: Any = None
    for number, _, value in _fields(data, refused):
        if number == 1:
            found = _text(value)
        elif number == 2 and isinstance(value, int):
            found = bool(value)
        elif number == 3 and isinstance(value, int):
            found = value - 2**64 if value >= 2**63 else value
        elif number == 4 and isinstance(value, int):
            found = struct.unpack("<d", value.to_bytes(8, "little"))[0]
        elif number == 5 and isinstance(value, bytes):
            found = [_value(item, refused, depth + 1) for item in _messages(value, 1, refused)]
        elif number == 6 and isinstance(value, bytes):
            found = _attributes(value, 1, refused)
        elif number == 7 and isinstance(value, bytes):
            found = f"<{len(value)} bytes>"
    return found


def _messages(data: bytes, wanted: int, refused: Counter[str], opened: bool = False) -> Iterator[bytes]:
    for number, _, value in _fields(data, refused, opened):
        if number == wanted and isinstance(value, bytes):
            yield value


def _fields(data: bytes, refused: Counter[str], opened: bool = False) -> Iterator[Field]:
    """Fields up to the first that is cut off or no field; the rest of this message is counted as lost.

    `opened`: a message that is cut off is given as far as it goes, because what is whole inside it counts.
    """
    at = 0
    try:
        while at < len(data):
            key, at = _varint(data, at)
            number, kind = key >> 3, key & 7
            if kind == 0:
                value, at = _varint(data, at)
            elif kind == 1 or kind == 5:
                size = 8 if kind == 1 else 4
                if at + size > len(data):
                    raise _Damaged
                value, at = int.from_bytes(data[at : at + size], "little"), at + size
            elif kind == 2:
                size, at = _varint(data, at)
                if at + size > len(data):
                    if opened:
                        yield number, kind, data[at:]
                    raise _Damaged
                value, at = data[at : at + size], at + size
            else:
                raise _Damaged
            yield number, kind, value
    except _Damaged:
        refused["bytes that are no protobuf (cut off or damaged)"] += 1


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise _Damaged
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value & (2**64 - 1), at
        shift += 7


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
