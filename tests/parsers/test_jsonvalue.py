"""JSON from outside has one reading."""

import pytest

from agentops.errors import PolicyError
from agentops.parsers import json_value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": 1, "a": 2}', "a name twice"),
        ('{"x": [{"a": 1, "\\u0061": 2}]}', "a name twice"),
        ('{"\u00e9": 1, "e\u0301": 2}', "a name twice"),
        ('{"email": 1, "\uff45mail": 2}', "a name twice"),
        ("[NaN]", "no number"),
        ("[Infinity]", "no number"),
        ("[-Infinity]", "no number"),
        ("[1e999]", "out of range"),
        ("[" + "9" * 401 + "]", "out of range"),
        ("[" + "9" * 5_000 + "]", "out of range"),
        ('["\\ud800"]', "does not parse"),
        ('{"\\udc00": 1}', "does not parse"),
        ("[1,]", "does not parse"),
        ("", "does not parse"),
        ("{'a': 1}", "does not parse"),
        ('["a\nb"]', "does not parse"),
        (b"\xff", "not UTF-8"),
        (b"\xef\xbb\xbf[]", "plain"),
        ("[" * 10_000 + "]" * 10_000, "too deep"),
        ('{"a":' * 10_000 + "1" + "}" * 10_000, "too deep"),
        (" " * 70_000 + "[]", "at most 65536"),
    ],
)
def test_json_that_two_readers_read_differently(text: str | bytes, why: str) -> None:
    with pytest.raises(PolicyError, match=why) as caught:
        json_value(text, 65_536)
    assert len(str(caught.value)) < 120


def test_json_as_it_should_be() -> None:
    text = '{"a": [1, -2.5, true, null, "\\ud83d\\ude00 \\u00e9"], "A": {"a": 9223372036854775808}}'
    value = {"a": [1, -2.5, True, None, "😀 é"], "A": {"a": 2**63}}
    assert json_value(text, 1_000) == json_value(text.encode(), 1_000) == value
    assert type(json_value("[1]", 9)[0]) is int
