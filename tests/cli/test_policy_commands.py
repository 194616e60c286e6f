"""`agentops policy …` and `audit erase`, on a copy of the reference project with recorded traffic."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentops import project as projects
from agentops.audit import records, verify
from agentops.policy import principal
from agentops.types import Run, ToolCall
from agentops.workspace import open_workspace

CALLS: dict[str, dict[str, Any]] = {
    "get_order": {"order_id": "SO-10001"},
    "search_articles": {"query": "where is my parcel"},
    "create_refund": {"order_id": "SO-10001", "amount_cents": 12_345, "reason": "damaged"},
}
AUDITOR = ("--as", "ada")


@pytest.fixture
def desk(copy: Path) -> Path:
    """120 orders read by one user and 120 refunds of another, decided by the project's own live policies."""
    with open_workspace(copy) as workspace:
        for n in range(120):
            for user, agent, tool in (("C-1", "orders", "get_order"), ("C-2", "billing", "create_refund")):
                who = principal(workspace.project.policies, "default", user, ("customer",))
                run = Run(f"r{n}", f"r{n}", who, workspace.project.agents[agent], 1e12, f"trace{n}")
                call = ToolCall("s1", tool, CALLS[tool])
                facts = {"calls_used": 1, "money_used_cents": 12_345, "untrusted_seen": False, "approved": False}
                facts |= {"seen_confidentiality": "public", "sources": dict.fromkeys(CALLS[tool], "request")}
                decision = workspace.policy.decide(run, call, workspace.specs[tool], facts)
                assert decision.effect == "allow"
                workspace.decisions.post(run, call, workspace.specs[tool], facts, decision)
    return copy


def candidate(desk: Path, old: str = "", new: str = "") -> Path:
    folder = desk / "candidate"
    folder.mkdir()
    for file in (desk / "policies").glob("*.cedar"):
        text = file.read_text()
        (folder / file.name).write_text(text.replace(old, new) if old else text)
    return folder


def of_type(desk: Path, kind: str) -> list[dict[str, Any]]:
    return [record for record in records(desk / ".agentops" / "audit") if record.get("type") == kind]


def test_the_same_policies_change_nothing(agentops: Callable, desk: Path) -> None:
    ran = agentops("policy", "diff", candidate(desk), *AUDITOR, "--strict", "--project", desk)
    assert ran.code == 0, ran.err
    assert ran.out == "240 decisions replayed, 0 would be others\n"


def test_a_stricter_set_is_shown_with_an_example_and_fails_when_strict(agentops: Callable, desk: Path) -> None:
    folder = candidate(desk, "amount_cents > 200000", "amount_cents > 10000")
    ran = agentops("policy", "diff", folder, *AUDITOR, "--project", desk)
    assert ran.code == 0
    for part in ("120", "create_refund", "billing", "allow", "deny", "refund-hard-limit", "trace0/s1"):
        assert part in ran.out
    assert "12345" not in ran.out
    assert "12,345" not in ran.out
    strict = agentops("policy", "diff", folder, *AUDITOR, "--strict", "--json", "--project", desk)
    assert strict.code == 1
    assert "120 calls that were allowed would be denied" in strict.err
    [change] = json.loads(strict.out)["changes"]
    assert (change["before"], change["after"], change["count"]) == ("allow", "deny", 120)
    assert len(of_type(desk, "decisions.read")) == 2


def test_an_approval_more_is_no_denial(agentops: Callable, desk: Path) -> None:
    folder = candidate(desk, "amount_cents > 20000 ", "amount_cents > 10000 ")
    ran = agentops("policy", "diff", folder, *AUDITOR, "--strict", "--json", "--project", desk)
    assert ran.code == 0
    [change] = json.loads(ran.out)["changes"]
    assert change["after"] == "approve by finance"


def test_reading_needs_the_role_and_is_recorded_before_it_happens(agentops: Callable, desk: Path) -> None:
    folder = candidate(desk)
    refused = agentops("policy", "diff", folder, *AUDITOR, "--role", "staff", "--project", desk)
    assert refused.code == 2
    assert "reading them needs the role 'auditor'" in refused.err
    assert of_type(desk, "decisions.read") == []
    agentops("policy", "diff", folder, *AUDITOR, "--since", "1h", "--project", desk)
    [record] = of_type(desk, "decisions.read")
    assert record["purpose"] == "policy diff"
    assert record["until"] - record["since"] in (3600, 3601)
    assert "ada" not in json.dumps(record)


def test_erased_people_are_out_of_every_reading_and_the_log_verifies(agentops: Callable, desk: Path) -> None:
    folder = candidate(desk)
    erase = ("audit", "erase", "--tenant", "default", "--user", "C-1", "--as", "omar", "--project", desk)
    refused = agentops(*erase, "--role", "auditor")
    assert (refused.code, "needs the role operator" in refused.err) == (2, True)
    first = agentops(*erase, "--json")
    assert first.code == 0, first.err
    subject = json.loads(first.out)["subject"]
    assert len(subject) == 32
    assert agentops(*erase).out == "there is no key: never seen, or erased before\n"
    ran = agentops("policy", "diff", folder, *AUDITOR, "--project", desk)
    assert "120 decisions are missing: their person was erased" in ran.out
    assert "120 decisions replayed" in ran.out
    [record] = of_type(desk, "subject.erased")
    assert (record["subject"], len(record["by"])) == (subject, 32)
    assert verify(desk / ".agentops" / "audit").ok


def test_advice_is_a_patch_that_applies_to_a_project_that_loads(agentops: Callable, desk: Path, tmp_path: Path) -> None:
    out = tmp_path / "less.patch"
    before = projects.digest(desk)
    ran = agentops("policy", "advise", *AUDITOR, "--out", out, "--project", desk)
    assert ran.code == 0, ran.err
    assert "agent orders used tool cancel_order in 0 of 120 calls" in ran.out
    assert "from 240 decisions between" in ran.out
    assert "0 of 240 recorded decisions would come out otherwise" in ran.out
    assert projects.digest(desk) == before
    copy = tmp_path / "after"
    shutil.copytree(desk, copy)
    subprocess.run(["git", "apply", "-p1", str(out)], cwd=copy, check=True)
    assert projects.load(copy).agents["orders"].tools == {"get_order"}
    again = agentops("policy", "advise", *AUDITOR, "--out", out, "--project", desk)
    assert again.code == 2  # never over a file that is there
    as_json = agentops("policy", "advise", *AUDITOR, "--json", "--project", desk)
    assert json.loads(as_json.out)["refused"] == 0


def test_advice_from_little_is_refused(agentops: Callable, copy: Path) -> None:
    ran = agentops("policy", "advise", *AUDITOR, "--project", copy)
    assert ran.code == 2
    assert "0 decisions are recorded in this time: advice needs at least 100" in ran.err


def test_decisions_are_checked_alone(agentops: Callable, copy: Path) -> None:
    ran = agentops("policy", "test", "--project", copy)
    assert ran.code == 0, ran.out
    assert ", 0 wrong" in ran.out
    text = (copy / "policies" / "refunds.cedar").read_text()
    (copy / "policies" / "refunds.cedar").write_text(text.replace("> 200000", "> 300000"))
    ran = agentops("policy", "test", "--json", "--project", copy)
    assert ran.code == 1
    [wrong] = json.loads(ran.out)["wrong"]
    assert wrong.startswith("policies/decisions.toml:")
    assert "above the hard limit nobody can approve" in wrong


def test_the_schema_is_shown_and_written(agentops: Callable, copy: Path) -> None:
    file = copy / "policies" / "schema.cedarschema"
    current = file.read_text()
    file.write_text("// old\n")
    shown = agentops("policy", "schema", "--project", copy)
    assert shown.out.splitlines() == current.splitlines()
    assert file.read_text() == "// old\n"
    assert agentops("policy", "schema", "--write", "--project", copy).out == "wrote policies/schema.cedarschema\n"
    assert file.read_text() == current


def test_decisions_past_their_retention_go_without_new_ones(agentops: Callable, desk: Path) -> None:
    old = desk / ".agentops" / "decisions" / "date=2020-01-01"
    old.mkdir()
    (old / "1-1-0.sealed").write_bytes(b"")
    ran = agentops("prune", "--json", "--project", desk)
    assert json.loads(ran.out)["days_of_decisions"] == 1
    assert [folder.name for folder in old.parent.iterdir()] != []
    assert not old.exists()
