"""Canonical JSON (RFC 8785): one value, one sequence of bytes, so that a digest of a value means something.

Invariant: two values with equal bytes are equal, and what cannot be written unambiguously (NaN, integers beyond 2^53,
lone surrogates, keys that are not text, more than 64 levels) is refused, never rounded. It does not parse.
"""

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import orjson

from agentops.errors import AuditError
from agentops.types import Json

MAX_DEPTH = 64
_INNER = bytes(number ^ 0x36 for number in range(256))
_OUTER = bytes(number ^ 0x5C for number in range(256))
MAX_INTEGER = 2**53 - 1  # RFC 8785 numbers are IEEE 754 doubles: larger integers would not survive another reader


def canonical(value: Json) -> bytes:
    """`value` as RFC 8785 bytes.

    Raises:
        AuditError: the value has no canonical form; names the rule, never the content.
    """
    try:
        if _plain(value, 0):
            return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        return orjson.dumps(_ordered(value))
    except (orjson.JSONEncodeError, RecursionError) as error:
        raise AuditError(f"the value has no canonical JSON form ({error}): use valid Unicode text") from None


def digest(value: Json) -> str:
    """`sha256:…` over the canonical bytes of `value`. For values that are not personal: it can be guessed.

    Raises:
        AuditError: as `canonical`.
    """
    return "sha256:" + hashlib.sha256(canonical(value)).hexdigest()


def digest_value(key: bytes, value: Json) -> str:
    """`hmac-sha256:…` of `value` under a secret key: what a log may hold of a personal value.

    Equal values give equal digests under one key; without the key a short value cannot be found by trying all.

    Raises:
        AuditError: as `canonical`, or the key has fewer than 16 bytes.
    """
    if len(key) < 16:
        raise AuditError(f"the key has {len(key)} bytes: use at least 16 random ones")
    return "hmac-sha256:" + hmac_sha256(key, canonical(value)).hex()


def hmac_sha256(key: bytes, message: bytes) -> bytes:
    """HMAC (RFC 2104) of a key of at most 64 bytes; OpenSSL's own, fetched anew for each call, takes ten times as long.

    Raises:
        AuditError: the key has more than 64 bytes.
    """
    if len(key) > 64:
        raise AuditError(f"the key has {len(key)} bytes: use at most 64")
    block = key.ljust(64, b"\0")
    inner = hashlib.sha256(block.translate(_INNER) + message).digest()
    return hashlib.sha256(block.translate(_OUTER) + inner).digest()


def _plain(value: Json, depth: int) -> bool:
    """Whether the fast encoder's output is canonical as it stands; raises on what has no canonical form."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        if -MAX_INTEGER <= value <= MAX_INTEGER:
            return True
        raise AuditError("an integer beyond 2^53 has no canonical form: write it as a string")
    if depth >= MAX_DEPTH:
        raise AuditError(f"more than {MAX_DEPTH} levels of nesting: flatten the value")
    if kind is dict:
        try:
            # Only ASCII keys sort alike by UTF-8 bytes and by UTF-16 code units.
            plain = "".join(value).isascii()
        except TypeError:
            [wrong, *_] = [type(key).__name__ for key in value if not isinstance(key, str)]
            raise AuditError(f"a key of type {wrong} has no canonical form: keys are text") from None
        for item in value.values():
            if type(item) is not str:  # most values are: a call less for each halves the time
                plain &= _plain(item, depth + 1)
        return plain
    if kind is list or kind is tuple:
        plain = True
        for item in value:
            if type(item) is not str:
                plain &= _plain(item, depth + 1)
        return plain
    if kind is float:
        if math.isfinite(value):
            return False
        raise AuditError("NaN and infinity have no canonical form: write null or a string")
    if isinstance(value, Mapping):
        _plain(dict(value), depth)
        return False
    raise AuditError(f"a value of type {kind.__name__} has no canonical form: use text, integers, lists and objects")


def _ordered(value: Json) -> Any:
    """`value` with keys in UTF-16 order and floats in ECMAScript's form, ready for the encoder as it stands."""
    if isinstance(value, float):
        return orjson.Fragment(_number(value))
    if isinstance(value, Mapping):
        keys = sorted(value, key=lambda key: key.encode("utf-16-be", "surrogatepass"))
        return {key: _ordered(value[key]) for key in keys}
    if isinstance(value, list | tuple):
        return [_ordered(item) for item in value]
    return value


def _number(value: float) -> bytes:
    """A finite double as ECMAScript writes it (ECMA-262, Number::toString), which RFC 8785 prescribes.

    Python's repr gives the same shortest digits; only the placement of the point and the exponent differ.
    """
    if value == 0:
        return b"0"
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    count = len(digits)
    if count <= point <= 21:
        text = digits + "0" * (point - count)
    elif 0 < point <= 21:
        text = f"{digits[:point]}.{digits[point:]}"
    elif -6 < point <= 0:
        text = "0." + "0" * -point + digits
    else:
        power = point - 1
        mark = f"e{'+' if power > 0 else '-'}{abs(power)}"
        text = digits + mark if count == 1 else f"{digits[0]}.{digits[1:]}{mark}"
    return (sign + text).encode()
