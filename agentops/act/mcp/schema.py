"""JSON Schemas that another server wrote: small enough, self-contained, and never a way to spend our time.

Invariant: a schema that `checked` returned names nothing outside itself, is not recursive and has at most MAX_NODES
parts once its references are written out, and its patterns are matched in linear time; so what `faults` does is bounded
by the schema times the value. Nothing here fetches anything.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import orjson
import re2
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend
from referencing import Registry

from agentops.errors import MCPError
from agentops.types import Json

MAX_BYTES = 64 * 1024  # of one schema as JSON
MAX_DEPTH = 32
MAX_NODES = 2_000  # objects and lists, with every reference written out
MAX_ARGUMENTS = 64  # of one tool
_LOCAL = ("#/$defs/", "#/definitions/")
_REFUSED = (  # they change what a name means, or match keys by expressions
    *("$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$vocabulary"),
    "patternProperties",
)


def checked(schema: Json, what: str) -> dict[str, Any]:
    """`schema`, once it is one we can hold values to.

    Args:
        schema: a JSON value.
        what: what it describes, for the error: "the arguments of 'search'".

    Raises:
        MCPError: it is too large or deep, refers outside itself or to itself, or is no schema (Draft 2020-12).
    """
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise MCPError(f"{what}: the schema is not of type 'object'")
    try:
        size = len(orjson.dumps(schema))
    except (orjson.JSONEncodeError, RecursionError):
        raise MCPError(f"{what}: the schema is not JSON, or nested too deep") from None
    if size > MAX_BYTES:
        raise MCPError(f"{what}: the schema has {size} bytes, at most {MAX_BYTES}")
    _Size(schema, what).of(schema, 0, ())
    if len(schema.get("properties", {})) > MAX_ARGUMENTS:
        raise MCPError(f"{what}: more than {MAX_ARGUMENTS} properties")
    try:
        Draft202012Validator.check_schema(schema)
    except (SchemaError, RecursionError) as error:
        why = error.message[:200] if isinstance(error, SchemaError) else "it is nested too deep"
        raise MCPError(f"{what}: not a JSON Schema: {why}") from None
    return schema


def faults(schema: Mapping[str, Any], value: Json) -> str:
    """What is wrong with `value`, without repeating it; "" when it conforms.

    Args:
        schema: one that `checked` returned.
        value: anything.
    """
    try:
        error = next(_validator(orjson.dumps(schema)).iter_errors(value), None)  # one: a value may have 100,000
    except RecursionError:
        return "it is nested too deep"
    if error is None:
        return ""
    place = ".".join(str(part)[:64] for part in error.absolute_path)[:200] or "the value"
    rule = error.validator_value
    shown = f"{error.validator} {rule!r}" if isinstance(rule, str | int | float | bool) else str(error.validator)
    if error.validator == "required":
        shown = f"lacks {', '.join(name for name in rule if name not in error.instance)[:200]}"
    elif error.validator == "additionalProperties":
        shown = "has a name that is not declared"
    return f"{place}: {shown[:200]}"


def strict(schema: Mapping[str, Any]) -> dict[str, Any]:
    """`schema` without names that it does not declare at its top level."""
    return {**schema, "additionalProperties": False}


class _Size:
    """Counts the parts of a schema as if each reference were replaced by what it names."""

    def __init__(self, root: Mapping[str, Any], what: str) -> None:
        self._root, self._what = root, what
        self._known: dict[str, int] = {}

    def of(self, value: Json, depth: int, inside: tuple[str, ...]) -> int:
        if depth > MAX_DEPTH:
            raise MCPError(f"{self._what}: the schema is nested deeper than {MAX_DEPTH}")
        if isinstance(value, list):
            return self._bounded(1 + sum(self.of(item, depth + 1, inside) for item in value))
        if not isinstance(value, dict):
            return 0
        total = 1
        for key, item in value.items():
            if key in _REFUSED:
                raise MCPError(f"{self._what}: the schema uses {key!r}, which is not accepted from other servers")
            if key == "$ref" and isinstance(item, str):
                total += self._referred(item, depth, inside)
            elif key == "pattern" and isinstance(item, str):
                _expression(item, self._what)
            else:
                total += self.of(item, depth + 1, inside)
        return self._bounded(total)

    def _referred(self, reference: str, depth: int, inside: tuple[str, ...]) -> int:
        if not reference.startswith(_LOCAL):
            raise MCPError(f"{self._what}: the schema refers to {reference[:80]!r}: only '#/$defs/NAME' is followed")
        if reference in inside:
            raise MCPError(f"{self._what}: the schema refers to itself through {reference[:80]!r}")
        if reference not in self._known:
            found: Json = self._root
            for part in reference[2:].split("/"):
                found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
            if not isinstance(found, dict):
                raise MCPError(f"{self._what}: the schema refers to {reference[:80]!r}, which it does not have")
            self._known[reference] = self.of(found, depth + 1, (*inside, reference))
        return self._known[reference]

    def _bounded(self, total: int) -> int:
        if total > MAX_NODES:
            raise MCPError(f"{self._what}: the schema has more than {MAX_NODES} parts once references are written out")
        return total


@lru_cache(maxsize=1024)
def _expression(pattern: str, what: str = "a value") -> Any:
    try:
        return re2.compile(pattern)
    except re2.error:
        raise MCPError(f"{what}: the pattern {pattern[:80]!r} is not one that can be matched in linear time") from None


def _pattern(_: Any, pattern: str, instance: Json, __: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _expression(pattern).search(instance):
        yield ValidationError("does not match its pattern")


_Validator = extend(Draft202012Validator, {"pattern": _pattern})


@lru_cache(maxsize=512)
def _validator(schema: bytes) -> Any:
    return _Validator(orjson.loads(schema), registry=Registry())
