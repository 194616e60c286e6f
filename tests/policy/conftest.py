"""The small project on disk, and both real stores."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentops.policy import PolicySet, write_schema
from agentops.store import State, open_state

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode puts no test folder on the path

from policy_world import AGENTS, CEDAR, IDENTITIES, TOOLS


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "base.cedar").write_text(CEDAR)
    (folder / "identities.toml").write_text(IDENTITIES)
    write_schema(folder, TOOLS, AGENTS)
    return folder


@pytest.fixture
def loaded(policies: Path) -> PolicySet:
    return PolicySet.load(policies, TOOLS, AGENTS)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Runs Python text with arguments in a process of its own; none outlives the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start_one(text: str, *arguments: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", text, *arguments]))
        return started[-1]

    yield start_one
    for process in started:
        process.kill()
        process.wait(10)


@pytest.fixture
def open_store_of(tmp_path: Path) -> Iterator[Callable[[str], State]]:
    """Opens the store at a Redis URL, or the file of this test for an empty one, again and again."""
    opened: list[State] = []

    def open_one(url: str) -> State:
        opened.append(open_state(tmp_path, url or None))
        return opened[-1]

    yield open_one
    for state in opened:
        state.close()


@pytest.fixture(params=["sqlite", "redis"])
def open_store(request: pytest.FixtureRequest, open_store_of: Callable[[str], State]) -> Callable[[], State]:
    """Opens the same real store again and again, as several replicas or a restart would."""
    url = request.getfixturevalue("redis_url") if request.param == "redis" else ""
    return lambda: open_store_of(url)
