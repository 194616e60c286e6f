"""The bookshop's tasks: requests whose success is decidable. They are the rows of suites/*.jsonl.

`frozen` is only ever measured on: no row of it, and nothing close to one, may enter a data set.
"""

import json
from pathlib import Path

from agentops.types import Task

SUITES = Path(__file__).parent / "suites"


def tasks(split: str) -> list[Task]:
    """Tasks of "train" (suites/traffic.jsonl) or "frozen"."""
    return [task for task in generate() if task.split == split]


def generate() -> list[Task]:
    """All tasks, in the order of the files."""
    found = []
    for file in sorted(SUITES.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            for name in ("labels", "changes", "answer_facts"):
                row[name] = tuple(row.get(name, ()))
            found.append(Task(**row))
    return found
