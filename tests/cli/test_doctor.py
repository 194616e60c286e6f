"""`agentops doctor`: what it says of policies, the shared state and decision records."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def findings(agentops: Callable, copy: Path) -> Callable[[], dict[str, tuple[str, str]]]:
    def look() -> dict[str, tuple[str, str]]:
        ran = agentops("doctor", "--project", copy, "--json")
        return {line["what"]: (line["status"], line["detail"]) for line in json.loads(ran.out)}

    return look


def test_a_new_project_has_policies_and_nothing_recorded(findings: Callable, copy: Path) -> None:
    found = findings()
    assert found["policies"][0] == "ok"
    assert "sha256:" in found["policies"][1]
    assert found["shared state"] == ("info", "none yet: made with the first request")
    assert found["decision records"][1].startswith("none yet; kept for 7 days")
    assert {path.name for path in (copy / ".agentops").iterdir()} == {".gitignore"}  # looking makes nothing


def test_what_is_stopped_is_shown(findings: Callable, agentops: Callable, copy: Path) -> None:
    agentops("kill", "tool:create_refund", "--as", "olga", "--reason", "wrong sums", "--project", copy)
    found = findings()
    assert found["shared state"][0] == "ok"
    assert "tool:create_refund" in found["kill switch"][1]


def test_policies_that_would_not_come_into_force_fail(findings: Callable, agentops: Callable, copy: Path) -> None:
    (copy / "policies" / "refunds.cedar").write_text("permit (principal, action, resource)")
    status, detail = findings()["policies"]
    assert status == "fail"
    assert "policies/refunds.cedar:1" in detail
    assert agentops("doctor", "--project", copy).code == 1


def test_a_damaged_or_unreachable_state_fails_and_tells_no_password(
    findings: Callable, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (copy / ".agentops").mkdir()
    (copy / ".agentops" / "state.db").write_bytes(b"no database" * 1000)
    assert findings()["shared state"][0] == "fail"
    monkeypatch.setenv("AGENTOPS_REDIS_URL", "redis://:s3cret-word@127.0.0.1:9/0")
    found = findings()
    assert found["shared state"][0] == "fail"
    assert "s3cret-word" not in str(found)


def test_a_shadow_set_is_mentioned(findings: Callable, copy: Path) -> None:
    shadow = copy / "policies" / "shadow"
    shadow.mkdir()
    for file in (copy / "policies").glob("*.cedar"):
        (shadow / file.name).write_bytes(file.read_bytes())
    assert findings()["shadow policies"][0] == "info"
