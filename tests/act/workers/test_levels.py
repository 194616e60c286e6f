"""Workers behave alike at every level this machine has."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from agentops.act.sandbox import pool
from agentops.act.sandbox.level import missing
from agentops.act.sandbox.process import start
from agentops.errors import SandboxError


@pytest.fixture(params=["none", "landlock"])
def leveled(request: pytest.FixtureRequest, lab: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The lab's workers at a level that is not this machine's best."""
    if missing(request.param):
        pytest.skip(missing(request.param))

    def spawn(argv: Any, profile: Any, *, least: str, **given: Any) -> Any:
        return start(request.param, argv, profile, **given)

    monkeypatch.setattr(pool, "spawn", spawn)
    lab.workers.close()
    yield lab
    lab.workers.close()


def test_calls_files_pages_and_connections_work(leveled: Any, server: Any) -> None:
    lab = leveled
    assert lab.go("echo", text="hello")["text"] == "hello"
    assert lab.go("once", text="x")["calls"] == 1
    assert lab.go("read", path="data/list.txt") == "one\ntwo\n"
    assert lab.go("fetch", url=f"http://127.0.0.1:{server.port}/ok", secret="shop")["body"] == "ok"
    assert lab.go("connect", host="127.0.0.1", port=server.port).endswith("ok")
    with pytest.raises(SandboxError):
        lab.go("fetch", url="http://169.254.169.254/")


def test_a_blocked_process_and_its_children_are_killed(leveled: Any, living: Any) -> None:
    with pytest.raises(TimeoutError):
        leveled.go("misbehave", timeout_s=3.0, kind="children")
    leveled.workers.close()
    deadline = time.monotonic() + 5
    while living() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not living()


def test_the_projects_policies_and_state_are_out_of_reach(leveled: Any, request: pytest.FixtureRequest) -> None:
    if "none" in request.node.name:
        pytest.skip("level none confines no path")
    lab = leveled
    hidden = [str(lab.root / path) for path in ("policies/base.cedar", ".agentops/world.db", ".")]
    seen = lab.go("look", paths=hidden)["paths"]
    assert all(seen[path] in ("FileNotFoundError", "PermissionError") for path in hidden), seen
