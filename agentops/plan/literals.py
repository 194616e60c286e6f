"""Values of the plan language: how they are written, and a cheap check of literals against a JSON Schema.

Invariant: `mismatch` never rejects a value the schema accepts; it may let a wrong one pass (the gateway validates all).
A reference has no value yet and is never checked.
"""

import json
from collections.abc import Mapping
from typing import Any

from agentops.types import Ref

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_BOUNDS = (
    ("minimum", "below"),
    ("exclusiveMinimum", "not above"),
    ("maximum", "above"),
    ("exclusiveMaximum", "not below"),
)


def write(value: Any) -> str:
    """`value` in the plan language: JSON, with references bare."""
    if isinstance(value, Ref):
        return ".".join([value.step, *map(str, value.path)])
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{write(key)}: {write(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(write, value)) + "]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def shown(value: Any) -> str:
    """`value` inside an answer template: text as it is, braces doubled so that they are no hole."""
    text = value if isinstance(value, str) else write(value)
    return text.replace("{", "{{").replace("}", "}}")


def mismatch(value: Any, schema: Any, root: Mapping[str, Any]) -> str:
    """Why a literal cannot be what `schema` asks for, or "".

    Args:
        value: a literal, a Ref, or lists and objects that hold them.
        schema: the argument's schema.
        root: the schema of all arguments, where `$defs` live.
    """
    return _mismatch(value, schema, root, 16)


def _mismatch(value: Any, schema: Any, root: Mapping[str, Any], depth: int) -> str:
    if isinstance(value, Ref) or not isinstance(schema, Mapping) or depth <= 0:
        return ""
    target = schema.get("$ref")
    if isinstance(target, str):
        return _mismatch(value, root.get("$defs", {}).get(target.rpartition("/")[2]), root, depth - 1)
    choices = schema.get("anyOf")
    if isinstance(choices, list) and choices:
        reasons = [_mismatch(value, choice, root, depth - 1) for choice in choices]
        return "" if "" in reasons else reasons[0]
    allowed = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(allowed, list) and not _holds_reference(value) and value not in allowed:
        return f"= {_short(value)} is not one of {', '.join(map(_short, allowed[:20]))}"
    kind = schema.get("type")
    if isinstance(kind, str) and kind in _TYPES and not _is(value, kind):
        return f"= {_short(value)} is not of type {kind}"
    if isinstance(value, str):
        return _length(value, schema, "minLength", "maxLength", "characters")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _range(value, schema)
    if isinstance(value, list):
        wrong = _length(value, schema, "minItems", "maxItems", "items")
        return wrong or next(
            filter(None, (_mismatch(item, schema.get("items"), root, depth - 1) for item in value)), ""
        )
    return ""


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind])


def _length(value: Any, schema: Mapping[str, Any], least: str, most: str, unit: str) -> str:
    if isinstance(schema.get(least), int) and len(value) < schema[least]:
        return f"needs at least {schema[least]} {unit}"
    if isinstance(schema.get(most), int) and len(value) > schema[most]:
        return f"takes at most {schema[most]} {unit}"
    return ""


def _range(value: float, schema: Mapping[str, Any]) -> str:
    for key, word in _BOUNDS:
        limit = schema.get(key)
        if not isinstance(limit, int | float):
            continue
        broken = {"minimum": value < limit, "exclusiveMinimum": value <= limit, "maximum": value > limit}
        if broken.get(key, value >= limit):
            return f"= {value} is {word} {limit}"
    return ""


def _holds_reference(value: Any) -> bool:
    if isinstance(value, Ref):
        return True
    if isinstance(value, Mapping):
        return any(map(_holds_reference, value.values()))
    return isinstance(value, list) and any(map(_holds_reference, value))


def _short(value: Any) -> str:
    text = write(value)
    return text if len(text) <= 40 else text[:40] + "…"
