"""Canonical JSON against RFC 8785's own examples and properties."""

import hmac
import json
import math
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentops.audit import canonical, digest, digest_value
from agentops.audit.canonical import hmac_sha256
from agentops.errors import AuditError

PLAIN = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text()
VALUES = st.recursive(
    PLAIN | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("bits", "text"),
    [  # RFC 8785, appendix B
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_numbers_have_the_form_of_the_rfc(bits: str, text: str) -> None:
    import struct

    [number] = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(number) == text.encode()


def test_keys_are_sorted_by_utf16_code_units() -> None:
    # RFC 8785, section 3.2.3: the emoji sorts before the Hebrew presentation form, which code points would not do.
    keys = {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\u0080": 6, "\u00f6": 7}
    assert list(json.loads(canonical(keys))) == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]


def test_the_example_of_the_rfc() -> None:
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/",
        "literals": [None, True, False],
    }
    expected = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    assert canonical(value).decode() == expected


@given(VALUES)
def test_reading_back_gives_the_value_and_the_same_bytes(value: object) -> None:
    data = canonical(value)
    again = json.loads(data, parse_int=lambda text: int(text) if abs(int(text)) < 2**53 else float(text))
    assert again == value
    assert canonical(again) == data


@given(st.dictionaries(st.text(), PLAIN, min_size=2))
def test_the_order_of_keys_does_not_matter(value: dict[str, object]) -> None:
    assert canonical(dict(reversed(value.items()))) == canonical(value)


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        2**53,
        -(2**63),
        {1: "x"},
        {"a": {"b": [object()]}},
        b"bytes",
        "\ud800",
        {"\udfff": 1},
        {"x": [1.5, "\ud800"]},
        {1, 2},
    ],
)
def test_what_has_no_canonical_form_is_refused(value: object) -> None:
    with pytest.raises(AuditError):
        canonical(value)


def test_depth_is_bounded() -> None:
    deep: object = 0
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(AuditError, match="levels"):
        canonical(deep)


def test_mappings_and_tuples_are_objects_and_lists() -> None:
    assert canonical(MappingProxyType({"b": (1, 2), "a": MappingProxyType({})})) == b'{"a":{},"b":[1,2]}'


def test_salted_digests_need_the_salt() -> None:
    salt, other = bytes(range(16)), bytes(16)
    assert digest_value(salt, "mara@example.com") == digest_value(salt, "mara@example.com")
    assert digest_value(salt, "mara@example.com") != digest_value(other, "mara@example.com")
    assert "mara" not in digest_value(salt, "mara@example.com")
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    with pytest.raises(AuditError, match="16"):
        digest_value(b"short", "x")


@given(key=st.binary(min_size=16, max_size=64), message=st.binary(max_size=300))
def test_hmac_is_the_standard_ones(key: bytes, message: bytes) -> None:
    assert hmac_sha256(key, message) == hmac.digest(key, message, "sha256")


def test_a_long_key_is_refused() -> None:
    with pytest.raises(AuditError, match="at most 64"):
        hmac_sha256(bytes(65), b"")
