"""JSON in span attributes: written compactly whatever the value, read only when it is an object or a list.

Invariant: writing never raises (what JSON has no form for becomes text), and text that is no JSON is returned as it is.
"""

import json
import re
from collections.abc import Mapping

import orjson

from agentops.types import Json

_LONG_INTEGER = re.compile(r"[0-9]{19}")  # orjson reads integers beyond 64 bits as floats


def dumps(value: Json) -> str:
    """Compact JSON; sets become lists, other objects text."""
    try:
        return orjson.dumps(value, default=_fallback, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # orjson's own error is one
        # Lone surrogates and integers beyond 64 bits: the standard library can, orjson cannot.
        return json.dumps(value, default=_fallback, separators=(",", ":"), skipkeys=True)


def parse(written: str) -> Json:
    """JSON text as a value, integers exactly.

    Raises:
        ValueError: not JSON, or nested too deeply.
    """
    if not _LONG_INTEGER.search(written):
        try:
            return orjson.loads(written)
        except ValueError:
            pass  # NaN and infinities, or no JSON at all
    try:
        return json.loads(written)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def loads(value: Json) -> Json:
    """`value` parsed when it is the JSON text of a list or object, else `value` itself."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return parse(value)
        except ValueError:
            return value
    return value


def text(value: Json) -> str:
    """A value as a string; None is ""."""
    return value if isinstance(value, str) else "" if value is None else str(value)


def integer(value: Json) -> int | None:
    """A value as a 64-bit integer, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = int(value)
    except (ValueError, OverflowError):
        return None
    return number if -(2**63) <= number < 2**63 else None


def _fallback(value: object) -> Json:
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)
