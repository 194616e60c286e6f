"""Messages in every written form become the engine's one form."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentops.trace import messages

NAMES = st.text("abcdefg_", min_size=1, max_size=8)
CALLS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.text("abc123", min_size=1, max_size=6),
            "type": st.just("function"),
            "function": st.fixed_dictionaries(
                {"name": NAMES, "arguments": st.dictionaries(NAMES, st.integers() | st.text(max_size=9), max_size=3)}
            ),
        }
    ),
    min_size=1,
    max_size=3,
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": st.text(max_size=20)})
    | st.fixed_dictionaries({"role": st.just("assistant"), "content": st.text(max_size=20), "tool_calls": CALLS})
    | st.fixed_dictionaries(
        {
            "role": st.just("tool"),
            "content": st.text(max_size=20),
            "tool_call_id": st.text("abc", min_size=1, max_size=4),
        },
        optional={"name": NAMES},
    ),
    max_size=6,
)


@given(MESSAGES)
def test_written_as_parts_and_read_back_they_are_the_same(turns: list[dict[str, Any]]) -> None:
    assert messages.decode(messages.encode(turns)) == messages.normal(turns)
    assert messages.normal(messages.normal(turns)) == messages.normal(turns)


CALL = {"id": "c1", "type": "function", "function": {"name": "get_order", "arguments": {"order_id": "W1"}}}


AS_TEXT = {"name": "get_order", "arguments": '{"order_id": "W1"}'}
LANGCHAIN = {"type": "ai", "content": "", "tool_calls": [{"id": "c1", "name": "get_order", "args": {"order_id": "W1"}}]}
TOOL_USE = {"type": "tool_use", "id": "c1", "name": "get_order", "input": {"order_id": "W1"}}
TOOL_RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "ok"}]}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ([{"role": "user", "content": "hi"}], [{"role": "user", "content": "hi"}]),
        ([["user", "hi"]], [{"role": "user", "content": "hi"}]),
        ([{"role": "assistant", "content": None}], [{"role": "assistant", "content": ""}]),
        ({"messages": [{"type": "human", "data": {"content": "hi"}}]}, [{"role": "user", "content": "hi"}]),
        (
            [{"lc": 1, "kwargs": LANGCHAIN}],
            [{"role": "assistant", "content": "", "tool_calls": [CALL]}],
        ),
        (
            [{"role": "assistant", "content": "", "tool_calls": [{**CALL, "function": AS_TEXT}]}],
            [{"role": "assistant", "content": "", "tool_calls": [CALL]}],
        ),
        (
            [
                {"role": "assistant", "content": [{"type": "text", "text": "look"}, TOOL_USE]},
                {"role": "user", "content": [TOOL_RESULT, {"type": "text", "text": "and?"}]},
            ],
            [
                {"role": "assistant", "content": "look", "tool_calls": [CALL]},
                {"role": "tool", "content": "ok", "tool_call_id": "c1"},
                {"role": "user", "content": "and?"},
            ],
        ),
        ([{"role": "function", "name": "f", "content": "1"}], [{"role": "tool", "content": "1", "name": "f"}]),
        ("not json", []),
        ("[1, 2", []),
        (None, []),
        ([1, None, "x"], []),
    ],
)  # fmt: skip
def test_forms(written: object, read: list[dict[str, Any]]) -> None:
    assert messages.decode(written) == read
    if not isinstance(written, str):
        assert messages.decode(json.dumps(written)) == read


def test_arguments_that_are_no_object_are_kept() -> None:
    assert messages.arguments_object("") == {}
    assert messages.arguments_object("W1042") == {"_raw": "W1042"}
    assert messages.arguments_object("[1]") == {"_raw": [1]}
