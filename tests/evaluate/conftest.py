"""Suites written to disk and routers with known mistakes."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from agentops.evaluate import Suite, suite_of
from agentops.types import OUT_OF_SCOPE, Route, Task


@dataclass
class Scripted:
    """A router that is right on a fixed share of texts, by a hash of version and text."""

    version: str
    gold: Mapping[str, tuple[str, ...]]
    share: float
    confidence: float = 0.9
    wrong: frozenset[str] = frozenset()  # texts it always gets wrong
    calls: list[int] = field(default_factory=list)

    def route(self, texts: Sequence[str]) -> list[tuple[Route, ...]]:
        self.calls.append(len(texts))
        return [
            tuple(Route(label, self.confidence, self._stage(text)) for label in self._labels(text)) for text in texts
        ]

    def _labels(self, text: str) -> tuple[str, ...]:
        draw = int.from_bytes(hashlib.sha256(f"{self.version}|{text}".encode()).digest()[:4], "big") / 2**32
        return self.gold.get(text, ("timed",)) if draw < self.share and text not in self.wrong else ("wrong",)

    def _stage(self, text: str) -> str:
        return "encoder" if len(text) % 3 else "causal"


def tasks(n: int = 1000, must_pass: int = 0) -> Suite:
    rows = []
    for index in range(n):
        labels = (OUT_OF_SCOPE,) if index % 10 == 0 else (f"label{index % 7}",)
        if index % 10 == 1:
            labels = ("label1", "label2")
        rows.append(
            Task(
                f"t{index}",
                f"text number {index}",
                labels,
                "C-1",
                template=f"w{index // 2}",
                must_pass=index < must_pass,
            )
        )
    return suite_of("made", rows)


@pytest.fixture
def made() -> Callable[..., Suite]:
    return tasks


@pytest.fixture
def scripted() -> Callable[..., Scripted]:
    def build(suite: Suite, version: str, share: float, **more) -> Scripted:
        return Scripted(version, {task.text: task.labels for task in suite.tasks}, share, **more)

    return build
