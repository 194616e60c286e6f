"""JSON text from outside, where two readers must not see two values.

Invariant: what is returned is what every JSON reader finds in the text: no name twice in an object (readers keep the
first or the last), nor two that differ only in their Unicode form, no NaN or infinity, no half surrogate pair, no
number that overflows. Traces that were recorded elsewhere are read more leniently, by `agentops.trace.jsontext`.
"""

import json
import math
import unicodedata

import orjson

from agentops.errors import PolicyError
from agentops.types import Json

MAX_DIGITS = 400  # of one number


def json_value(text: str | bytes, limit: int) -> Json:
    """The value of a JSON text.

    Args:
        text: UTF-8 when bytes.
        limit: the largest size that is looked at, in bytes or characters.

    Raises:
        PolicyError: larger than `limit`, not JSON, nested too deep, or ambiguous; the text is not repeated.
    """
    if len(text) > limit:
        raise PolicyError(f"JSON of {len(text)} bytes: at most {limit} are read")
    try:
        if isinstance(text, bytes):
            text = text.decode()
        if "\\u" in text:
            orjson.loads(text)  # refuses half a surrogate pair, which the standard library lets in
        return json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_float, parse_int=_integer
        )
    except RecursionError:
        raise PolicyError("JSON is nested too deep") from None
    except UnicodeDecodeError:
        raise PolicyError("JSON is not UTF-8") from None
    except ValueError as error:
        known = str(error) if type(error) is ValueError else "it does not parse"
        raise PolicyError(f"JSON is not plain: {known}") from None


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    names = found if all(name.isascii() for name in found) else {unicodedata.normalize("NFKC", name) for name in found}
    if len(names) != len(pairs):
        raise ValueError("an object has a name twice")
    return found


def _constant(name: str) -> Json:
    raise ValueError(f"{name} is no number")


def _float(digits: str) -> float:
    value = float(digits) if len(digits) <= MAX_DIGITS else math.inf
    if not math.isfinite(value):
        raise ValueError("a number is out of range")
    return value


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError("a number is out of range")
    return int(digits)
