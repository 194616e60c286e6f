"""A deployment with a registry, three artifacts and the shipped rules, on either state backend."""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentops.audit import MemoryAudit
from agentops.graph import VirtualClock
from agentops.release import Controller, Metrics, Registry, ReplayUnit, load_rules
from agentops.release.rules import Rules, rules_from
from agentops.store import Artifacts, open_state


@pytest.fixture(autouse=True)
def _same_salts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Release ids, and so salts and splits, are the same on every run."""
    numbers = itertools.count(1)
    fixed = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=f"{next(numbers):012x}" + 20 * "0"))
    monkeypatch.setattr("agentops.release.controller.uuid", fixed)


@dataclass
class Deployment:
    """Parts of one deployment; `replica` opens another process's view of the same state."""

    home: Path
    redis_url: str | None
    rules: Rules
    clock: VirtualClock
    versions: dict[str, str]
    audit: MemoryAudit

    def replica(self, rules: Rules | None = None) -> Controller:
        state = open_state(self.home, self.redis_url)
        registry = Registry(state, Artifacts(self.home / "artifacts"), self.audit, self.clock)
        return Controller(registry, rules or self.rules)


@pytest.fixture
def rules(repo: Path) -> Rules:
    return load_rules(repo / "policies")


@pytest.fixture(params=["sqlite", "redis"])
def deployment(request: pytest.FixtureRequest, tmp_path: Path, rules: Rules) -> Deployment:
    return _deployment(tmp_path, rules, request.getfixturevalue("redis_url") if request.param == "redis" else None)


@pytest.fixture
def local(tmp_path: Path, rules: Rules) -> Deployment:
    return _deployment(tmp_path, rules, None)


def _deployment(home: Path, rules: Rules, redis_url: str | None) -> Deployment:
    artifacts = Artifacts(home / "artifacts")
    versions = {}
    for name in ("old", "new", "newer"):
        folder = home / name
        folder.mkdir()
        (folder / "head.json").write_text(f'{{"name": "{name}"}}')
        versions[name] = artifacts.put(folder, {"kind": "router", "name": name, "dataset": f"sha256:{name}"})
    made = Deployment(home, redis_url, rules, VirtualClock(1_800_000_000.0), versions, MemoryAudit())
    made.replica().registry.set("intent", versions["old"], by="ana", reason="first version")
    return made


@pytest.fixture
def rules_with(rules: Rules) -> Callable[..., Rules]:
    """The shipped rules with some tables changed: rules_with(shadow={"sessions": 100})."""

    def change(**tables: object) -> Rules:
        table = {**rules.table}
        for name, value in tables.items():
            table[name] = {**table[name], **value} if isinstance(value, dict) else value
        return rules_from(table)

    return change


@pytest.fixture
def traffic() -> Callable[..., Iterator[ReplayUnit]]:
    return _traffic


def _traffic(
    n: int, stable: float = 0.9, candidate: float = 0.9, seed: int = 0, tag: str = "s", slow: float = 1.0
) -> Iterator[ReplayUnit]:
    """Independent sessions with these success rates; the candidate's latency is `slow` times the incumbent's."""
    rng = random.Random(seed)
    for index in range(n):
        both = [(float(rng.random() < rate), rng.lognormvariate(-6, 0.4)) for rate in (stable, candidate)]
        yield ReplayUnit(
            f"{tag}-{seed}-{index}",
            Metrics(success=both[0][0], latency_s=both[0][1], cost=1.0, denied=False, error=False),
            Metrics(success=both[1][0], latency_s=both[1][1] * slow, cost=1.0, denied=False, error=False),
        )
