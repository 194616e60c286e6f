"""A micro base model, and data sets written as harvest writes them."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Iterable[Mapping[str, Any]]], Path]:
    """Writes rows; returns the folder."""

    def write_rows(rows: Iterable[Mapping[str, Any]]) -> Path:
        folder = tmp_path / f"rows-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return folder

    return write_rows


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random micro-Llama; its vocabulary has the words of the rows in this folder."""
    from agentops.train import micro

    texts = [
        "where is order SO-10000? It was sent. I do not know. is order 1 here?",
        'You may call one or more functions to assist with the user query. <tool_call> {"name": "get_order", '
        '"arguments": {"order_id": "SO-1"}} </tool_call> <tools> {"type": "function", "function": {"description": "x", '
        '"parameters": {"type": "object", "properties": {}}}} </tools> For each function call, return a json object',
        "system user assistant Name the topic of the customer's message in one word: status, request, check, other.",
        "track my order, money back please, I want a refund, do you have it in stock, is it available, sing a song",
        'a = order() & b = stock()\nsay "done"',
    ]
    return micro.make(tmp_path_factory.mktemp("micro"), texts * 4)
