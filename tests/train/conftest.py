"""A micro base model and small data sets in the formats that harvest writes."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

FAST = 'a = order() & b = stock()\nsay "done"'
SLOW = 'a = order()\nb = stock()\nsay "done"'

TOOL = {
    "type": "function",
    "function": {
        "name": "get_order",
        "description": "An order.",
        "parameters": {"type": "object", "properties": {"order_id": {"type": "string"}}},
    },
}


def episode(number: int) -> dict[str, Any]:
    """An SFT row; odd ones call another tool with other arguments, so that Arrow would pad them with nulls."""
    arguments = {"order_id": f"SO-{10000 + number}"} if number % 2 == 0 else {"sku": f"SKU-{number}", "limit": 3}
    call = {"id": "c1", "type": "function", "function": {"name": "get_order", "arguments": arguments}}
    return {
        "messages": [
            {"role": "user", "content": f"where is order SO-{10000 + number}?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "name": "get_order", "content": '{"status": "sent"}'},
            {"role": "assistant", "content": "It was sent."},
        ],
        "tools": [TOOL],
        "trace_id": f"trace-{number}",
        "images": None,  # a metadata column with a name that TRL would take for pictures
    }


def pair(number: int) -> dict[str, Any]:
    """A DPO row."""
    return {
        "prompt": [{"role": "user", "content": f"is order {number} here?"}],
        "chosen": [{"role": "assistant", "content": "It was sent."}],
        "rejected": [{"role": "assistant", "content": "I do not know."}],
        "margin": 1.0,
        "trace_id": f"trace-{number}",
    }


Write = Callable[[Iterable[Mapping[str, Any]]], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes rows as harvest does; returns the folder."""

    def write_rows(rows: Iterable[Mapping[str, Any]]) -> Path:
        folder = tmp_path / f"rows-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return folder

    return write_rows


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random micro-Llama whose vocabulary covers the rows of this folder."""
    from agentops.train import micro

    texts = [json.dumps(episode(number)) for number in range(20)] + [json.dumps(pair(1)), FAST, SLOW] * 5
    return micro.make(tmp_path_factory.mktemp("micro"), texts)
