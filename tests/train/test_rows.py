import json
from pathlib import Path
from typing import Any

import pytest

from agentops.errors import TrainError
from agentops.train import rows
from agentops.types import Dataset


def call(arguments: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}],
    }


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"role": "assistant", "content": None}, "content is NoneType"),
        ({"role": "asistant", "content": "x"}, "role 'asistant'"),
        ({"content": "x"}, "role None"),
        ("hello", "role 'hello'"),
        (call('{"a": 1}'), "arguments of 'f' are str, not an object"),
        (call(None), "not an object"),
        ({"role": "user", "content": "x", "tool_calls": [{}]}, "tool_calls"),
        ({"role": "assistant", "content": "", "tool_calls": [{}]}, "function.name"),
    ],
)
def test_a_row_the_template_would_distort_is_refused_by_name(message: Any, says: str) -> None:
    with pytest.raises(TrainError, match="row 7, message 2") as caught:
        rows.messages([{"role": "user", "content": "x"}, message], "row 7")
    assert says in str(caught.value)


def test_a_system_message_comes_first_so_that_no_template_invents_one() -> None:
    assert rows.messages([{"role": "user", "content": "x"}], "row 1")[0]["role"] == "system"
    own = [{"role": "system", "content": "own"}, {"role": "user", "content": "x", "weight": 3}]
    assert rows.messages(own, "row 1") == [own[0], {"role": "user", "content": "x"}]


def test_rows_are_read_from_folder_file_or_dataset(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n\n{"a": 2}\n')
    from_folder = rows.read(tmp_path, "sft")
    assert [row["a"] for row in from_folder.rows] == [1, 2]
    assert rows.read(tmp_path / "rows.jsonl", "sft") == from_folder
    given = Dataset("sft", tmp_path, 2, "sha256:abc", {})
    assert rows.read(given, "sft").digest == "sha256:abc"
    with pytest.raises(TrainError, match="trains on 'dpo' rows, got a 'sft'"):
        rows.read(given, "dpo")


@pytest.mark.parametrize(
    ("text", "says"), [("", "no rows"), ('{"a": 1}\n{', ":2: not valid JSON"), ("[1]\n", ":1: a row")]
)
def test_unreadable_rows_name_the_line(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "rows.jsonl").write_text(text)
    with pytest.raises(TrainError, match=says):
        rows.read(tmp_path, "sft")
    with pytest.raises(TrainError, match="cannot be read"):
        rows.read(tmp_path / "missing", "sft")


def test_more_than_one_row_in_a_hundred_over_the_limit_is_an_error_and_fewer_are_left_out() -> None:
    lengths = [10] * 99 + [50]
    assert rows.fit(lengths, 0, 2048, str) == (50, list(range(100)))
    assert rows.fit(lengths, 20, 2048, str) == (20, list(range(99)))
    assert rows.fit(lengths, 0, 30, str) == (30, list(range(99)))  # what the model can hold
    with pytest.raises(TrainError, match=r"2 of 100 rows are longer than 20 tokens .* 99, has 50"):
        rows.fit([10] * 98 + [30, 50], 20, 2048, str)


def test_the_template_is_applied_before_training(base: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    conversation = rows.messages([{"role": "user", "content": "hi"}, call({"a": [1, {"b": None}]})], "row 1")
    assert rows.length(tokenizer, conversation, None, "row 1") > 5
    assert json.dumps({"a": [1, {"b": None}]}) in tokenizer.apply_chat_template(conversation, tokenize=False)
