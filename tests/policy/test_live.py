"""Policies that follow their files: good edits come into force, bad ones change nothing, a shadow set only watches."""

import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from policy_world import AGENTS, CALM, CEDAR, IDENTITIES, TOOLS, call_of, run_of, spec_of

from agentops.audit import AuditLog, MemoryAudit, records
from agentops.errors import AuditError, PolicyError
from agentops.policy import PolicySet, policy_problems
from agentops.policy import live as module
from agentops.policy.live import LivePolicy
from agentops.types import Decision

CLOSED = '\n@id("closed") forbid (principal, action == Action::"get_order", resource);'
TIGHTER = CEDAR + CLOSED
LOOSER = CEDAR.replace("> 40000", "> 45000").replace("> 10000", "> 45000")


@pytest.fixture
def audit() -> MemoryAudit:
    return MemoryAudit()


@pytest.fixture
def policy(policies: Path, audit: MemoryAudit, monkeypatch: pytest.MonkeyPatch) -> LivePolicy:
    monkeypatch.setattr(module, "LOOK_S", 0.05)
    return LivePolicy(policies, TOOLS, AGENTS, audit)


def ask(policy: LivePolicy | PolicySet, name: str = "get_order", **arguments: object) -> Decision:
    given = arguments or {"order_id": "SO-1"}
    return policy.decide(run_of(), call_of(name, **given), spec_of(name), CALM)


def until(policy: LivePolicy, expected: Callable[[], bool]) -> None:
    """Go on asking, as traffic does, until the edit is noticed."""
    deadline = time.monotonic() + 5
    while not expected():
        ask(policy)
        assert time.monotonic() < deadline
        time.sleep(0.01)


def of_type(audit: MemoryAudit, kind: str) -> list[dict]:
    return [record for record in audit.records if record["type"] == kind]


def test_a_good_edit_comes_into_force_under_traffic_and_is_recorded(
    policy: LivePolicy, policies: Path, audit: MemoryAudit
) -> None:
    before = policy.digest
    assert ask(policy).effect == "allow"
    (policies / "base.cedar").write_text(TIGHTER)
    until(policy, lambda: ask(policy).effect == "deny")
    assert ask(policy).policies == ("closed",)
    assert policy.digest == PolicySet.load(policies, TOOLS, AGENTS).digest == ask(policy).policy_digest
    assert "closed" in policy.policies
    start, change = of_type(audit, "policy.loaded")
    assert (start["before"], start["policy"]) == ("", before)
    assert (change["before"], change["policy"]) == (before, policy.digest)
    assert policy.status().problems == ()


def test_a_call_after_a_quiet_time_obeys_an_edit_made_meanwhile(policy: LivePolicy, policies: Path) -> None:
    ask(policy)
    (policies / "base.cedar").write_text(TIGHTER)
    time.sleep(0.2)
    assert ask(policy).effect == "deny"


@pytest.mark.parametrize(
    ("break_it", "told"),
    [
        (lambda p: (p / "base.cedar").write_text(CEDAR + '\n@id("x") permit (principal action);'), "base.cedar:23"),
        (lambda p: (p / "base.cedar").write_text(CEDAR.replace('@id("never")', "")), "has no usable id"),
        (lambda p: (p / "base.cedar").write_text(CEDAR.replace("amount_cents", "amount")), "attribute `args.amount`"),
        (lambda p: (p / "base.cedar").write_text(""), "has no policy"),
        (lambda p: (p / "base.cedar").write_bytes(b"\xff\xfe"), "cannot be read"),
        (lambda p: (p / "base.cedar").unlink(), "has no policy"),
        (lambda p: shutil.rmtree(p), "has no policy"),
        (lambda p: (p / "identities.toml").unlink(), "identities.toml: is missing"),
        (lambda p: (p / "identities.toml").write_text("[roles.customer"), "identities.toml:"),
        (
            lambda p: (p / "identities.toml").write_text(IDENTITIES.replace("[roles.finance]", "[roles.money]")),
            "waits for role 'finance'",
        ),
    ],
)
def test_what_is_broken_changes_nothing_and_is_told_once(
    policy: LivePolicy,
    policies: Path,
    audit: MemoryAudit,
    caplog: pytest.LogCaptureFixture,
    break_it: Callable[[Path], object],
    told: str,
) -> None:
    before = policy.current
    break_it(policies)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            policy.refresh()
    assert policy.current is before
    assert ask(policy).effect == "allow"
    [record] = of_type(audit, "policy.rejected")
    assert any(told in problem for problem in record["problems"])
    assert record["policy"] == policy.digest
    assert any(told in problem for problem in policy.status().problems)
    assert len(caplog.records) == 1


def test_a_repaired_or_reverted_file_ends_the_complaint(policy: LivePolicy, policies: Path, audit: MemoryAudit) -> None:
    (policies / "base.cedar").write_text("nonsense")
    assert policy.refresh().problems
    (policies / "base.cedar").write_text(CEDAR)
    assert policy.refresh().problems == ()
    assert len(of_type(audit, "policy.loaded")) == 1  # the set in force never changed
    (policies / "base.cedar").write_text("nonsense too")
    assert policy.refresh().problems
    (policies / "base.cedar").write_text(TIGHTER)
    assert policy.refresh().problems == ()
    assert ask(policy).effect == "deny"
    assert len(of_type(audit, "policy.rejected")) == 2


def test_what_is_broken_again_is_told_again(policy: LivePolicy, policies: Path, audit: MemoryAudit) -> None:
    for _ in range(2):
        (policies / "base.cedar").write_text("nonsense")
        assert policy.refresh().problems
        assert policy.refresh().problems
        (policies / "base.cedar").write_text(CEDAR)
        assert policy.refresh().problems == ()
    assert len(of_type(audit, "policy.rejected")) == 2


def test_a_file_of_guards_that_was_emptied_takes_no_guard_away(policies: Path, audit: MemoryAudit) -> None:
    (policies / "guards.cedar").write_text(CLOSED)
    policy = LivePolicy(policies, TOOLS, AGENTS, audit)
    assert ask(policy).effect == "deny"
    (policies / "guards.cedar").write_text("")  # what a full disk leaves of a file that is written anew
    assert "guards.cedar: has no policy" in policy.refresh().problems[0]
    assert ask(policy).effect == "deny"


def test_a_file_that_is_being_replaced_is_not_missed(
    policies: Path, audit: MemoryAudit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.2)
    (policies / "guards.cedar").write_text(CLOSED)
    policy = LivePolicy(policies, TOOLS, AGENTS, audit)
    time.sleep(0.7)  # a quiet time
    (policies / "guards.cedar").unlink()  # as a version-control tool replaces a file
    assert ask(policy).effect == "deny"
    (policies / "guards.cedar").write_text(CLOSED)
    time.sleep(0.7)
    assert ask(policy).effect == "deny"
    assert len(of_type(audit, "policy.loaded")) == 1


def test_an_edit_that_keeps_size_and_times_is_followed(policy: LivePolicy, policies: Path) -> None:
    file = policies / "base.cedar"
    before = file.stat()
    file.write_text(CEDAR.replace('@id("never")', '@id("ne-er")'))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    until(policy, lambda: "ne-er" in policy.policies)


def test_touching_a_file_loads_nothing(policy: LivePolicy, policies: Path, audit: MemoryAudit) -> None:
    before = policy.current
    (policies / "base.cedar").touch()
    policy.refresh()
    assert policy.current is before
    assert len(of_type(audit, "policy.loaded")) == 1


def test_an_edit_that_cannot_be_recorded_is_not_followed_until_it_can(
    policy: LivePolicy, policies: Path, audit: MemoryAudit, monkeypatch: pytest.MonkeyPatch
) -> None:
    (policies / "base.cedar").write_text(LOOSER)
    before = policy.digest

    def full(_: object) -> int:
        raise AuditError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(audit, "append_now", full)
        assert "cannot be recorded" in policy.refresh().problems[0]
        assert policy.digest == before
    until(policy, lambda: policy.digest != before)


def test_a_file_written_bit_by_bit_never_shows_half_of_it(
    policy: LivePolicy, policies: Path, audit: MemoryAudit
) -> None:
    """Every prefix that ends after a policy is itself a valid set: without the later forbids."""
    reordered = CEDAR.replace('@id("never")', '@id("not-ever")')
    stop = threading.Event()
    wrong: list[Decision] = []

    def traffic() -> None:
        while not stop.is_set():
            got = ask(policy, "create_refund", order_id="SO-1", amount_cents=40_001)
            if got.effect != "deny":
                wrong.append(got)

    thread = threading.Thread(target=traffic)
    thread.start()
    with (policies / "base.cedar").open("w") as file:
        for part in reordered.split(";"):
            file.write(part + (";" if part.strip() else ""))
            file.flush()
            time.sleep(0.02)
    until(policy, lambda: "not-ever" in policy.policies)
    stop.set()
    thread.join()
    assert not wrong


def test_decisions_under_reloads_are_each_of_one_whole_set(policy: LivePolicy, policies: Path) -> None:
    """Two policies that are only ever right together: the amount goes up in one while another takes its place."""
    sets = [
        CEDAR.replace('@id("never")', f'@id("never-{n}")').replace('@id("ceiling")', f'@id("ceiling-{n}")')
        for n in range(6)
    ]
    digests: dict[str, int] = {}
    for n, text in enumerate(sets):
        (policies / "base.cedar").write_text(text)
        digests[PolicySet.load(policies, TOOLS, AGENTS).digest] = n
    stop = threading.Event()

    def edits() -> None:
        for text in sets * 3:
            (policies / "base.cedar").write_text(text)
            policy.refresh()
        stop.set()

    thread = threading.Thread(target=edits)
    thread.start()
    seen = set()
    while not stop.is_set():
        got = ask(policy, "create_refund", order_id="SO-1", amount_cents=40_001)
        if got.policy_digest in digests:
            assert got.policies == (f"never-{digests[got.policy_digest]}",)
            seen.add(got.policy_digest)
    thread.join()
    assert len(seen) > 1


def test_changed_identities_are_recorded_too(policy: LivePolicy, policies: Path, audit: MemoryAudit) -> None:
    (policies / "identities.toml").write_text(IDENTITIES + '[roles.extra]\nscopes = ["orders:read"]\n')
    policy.refresh()
    start, change = of_type(audit, "policy.loaded")
    assert change["before"] == change["policy"] == start["policy"]  # the Cedar set is the same
    assert change["content"].startswith("sha256:")


def test_a_process_does_not_start_on_policies_it_would_not_follow(policies: Path, audit: MemoryAudit) -> None:
    (policies / "identities.toml").write_text(IDENTITIES.replace("[roles.finance]", "[roles.money]"))
    with pytest.raises(PolicyError, match=r"base.cedar:\d+: policy 'large' waits for role 'finance'"):
        LivePolicy(policies, TOOLS, AGENTS, audit)


# ------------------------------------------------------------------ shadow


def shadow(policies: Path, text: str) -> None:
    (policies / "shadow").mkdir(exist_ok=True)
    (policies / "shadow" / "base.cedar").write_text(text)


def test_a_shadow_set_is_asked_and_never_followed(policy: LivePolicy, policies: Path, audit: MemoryAudit) -> None:
    shadow(policies, TIGHTER)
    policy.refresh()
    assert ask(policy).effect == "allow"
    assert ask(policy, "cancel_order", order_id="SO-1").effect == "allow"  # both say so: no record
    [record] = of_type(audit, "policy.shadow")
    assert record == {
        "type": "policy.shadow",
        "tenant": "default",
        "agent": "billing",
        "tool": "get_order",
        "run": "run-1",
        "trace": "trace-1",
        "call": "call-1",
        "decision": "allow",
        "policies": ["read"],
        "policy": policy.digest,
        "shadow_decision": "deny",
        "shadow_policies": ["closed"],
        "shadow_policy": policy.status().shadow,
    }
    status = policy.status()
    assert (status.shadow_decisions, status.shadow_differences) == (2, 1)
    shutil.rmtree(policies / "shadow")
    assert policy.refresh().shadow == ""
    ask(policy)
    assert len(of_type(audit, "policy.shadow")) == 1


def test_a_broken_shadow_disturbs_nothing(policy: LivePolicy, policies: Path, audit: MemoryAudit) -> None:
    shadow(policies, "nonsense")
    status = policy.refresh()
    assert status.problems == ()
    assert status.shadow == ""
    assert "shadow/base.cedar:1" in status.shadow_problems[0]
    assert ask(policy).effect == "allow"
    assert [record["set"] for record in of_type(audit, "policy.rejected")] == ["shadow"]
    assert [str(problem) for problem in policy_problems(policies, TOOLS, AGENTS)] == [*status.shadow_problems]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(amount=st.integers(-1, 60_000), text=st.sampled_from([TIGHTER, LOOSER, CEDAR]), untrusted=st.booleans())
def test_decisions_are_the_same_with_and_without_a_shadow(
    policies: Path, loaded: PolicySet, amount: int, text: str, untrusted: bool
) -> None:
    shadow(policies, text)
    audit = MemoryAudit()
    policy = LivePolicy(policies, TOOLS, AGENTS, audit)
    call = call_of("create_refund", order_id="SO-77777", amount_cents=amount)
    facts = {**CALM, "untrusted_seen": untrusted}
    decided = policy.decide(run_of(), call, spec_of("create_refund"), facts)
    assert decided == loaded.decide(run_of(), call, spec_of("create_refund"), facts)
    then = PolicySet.load(policies / "shadow", TOOLS, AGENTS).decide(run_of(), call, spec_of("create_refund"), facts)
    assert len(of_type(audit, "policy.shadow")) == (then.effect != decided.effect or then.approver != decided.approver)
    assert "SO-77777" not in str(audit.records)


def test_several_processes_follow_and_each_records_its_change(policies: Path, tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from policy_world import AGENTS, CALM, TOOLS, call_of, run_of, spec_of
from agentops.audit import AuditLog
from agentops.policy.live import LivePolicy
with AuditLog(Path(sys.argv[2]), "desk") as audit:
    policy = LivePolicy(Path(sys.argv[1]), TOOLS, AGENTS, audit)
    for _ in sys.stdin:
        call = call_of("get_order", order_id="SO-1")
        print(policy.decide(run_of(), call, spec_of("get_order"), CALM).effect, flush=True)
"""
    arguments = [sys.executable, "-c", code, str(policies), str(tmp_path / "audit"), str(Path(__file__).parent)]
    running = [subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]

    def asked(process: subprocess.Popen) -> str:
        process.stdin.write("\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    assert [asked(process) for process in running] == ["allow", "allow"]
    (policies / "base.cedar").write_text(TIGHTER)
    time.sleep(3.1)
    assert [asked(process) for process in running] == ["deny", "deny"]
    for process in running:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()
    found = [record for record in records(tmp_path / "audit") if record.get("type") == "policy.loaded"]
    assert sorted(bool(record["before"]) for record in found) == [False, False, True, True]


def test_following_costs_a_decision_next_to_nothing(policies: Path, loaded: PolicySet, tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit", "desk") as audit:
        policy = LivePolicy(policies, TOOLS, AGENTS, audit)
        took: dict[str, list[float]] = {"fixed": [], "live": []}
        for _ in range(10):  # the best of several rounds in turn: the machine has other work
            for name, one in (("fixed", loaded), ("live", policy)):
                started = time.thread_time()
                for _ in range(50):
                    ask(one)
                took[name].append((time.thread_time() - started) / 50)
        assert min(took["live"]) < min(took["fixed"]) + 100e-6
