"""Approvals on both real stores: bound, single use, decided once by somebody else, over restarts and processes."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from policy_world import call_of, run_of, spec_of, who

from agentops.audit import MemoryAudit
from agentops.errors import PolicyError, StoreError
from agentops.graph import VirtualClock
from agentops.policy import Approval, Approvals
from agentops.policy.approvals import MAX_OPEN, VALID_S
from agentops.store import State
from agentops.types import Decision, Principal

ASKS = Decision("approve", "large refunds need finance", ("large",), "sha256:policies", "finance")
CALL = call_of("create_refund", order_id="SO-1", amount_cents=20_000)
SPEC = spec_of("create_refund")
FINANCE = who("E-1", roles=("finance",))


@pytest.fixture
def approvals(open_store: Callable[[], State]) -> Approvals:
    return Approvals(open_store(), VirtualClock(1000.0))


def clock_of(approvals: Approvals) -> VirtualClock:
    clock = approvals._clock
    assert isinstance(clock, VirtualClock)
    return clock


def approved(approvals: Approvals) -> Approval:
    return approvals.decide(approvals.request(run_of(), CALL, SPEC, ASKS).id, True, FINANCE, "looks right")


def test_a_person_sees_what_they_decide(approvals: Approvals) -> None:
    asked = approvals.request(run_of(), CALL, SPEC, ASKS)
    [shown] = approvals.list()
    assert shown == asked
    assert (shown.tool, shown.arguments, shown.user, shown.reason, shown.approver, shown.status) == (
        "create_refund",
        {"order_id": "SO-1", "amount_cents": 20_000},
        "C-1",
        "large refunds need finance",
        "finance",
        "pending",
    )
    clock_of(approvals)._now += 90
    assert shown.age(clock_of(approvals).now()) == 90


def test_the_same_call_asks_once(approvals: Approvals) -> None:
    first = approvals.request(run_of(), CALL, SPEC, ASKS)
    assert approvals.request(run_of(), replace(CALL, id="call-9"), SPEC, ASKS) == first
    assert approvals.find(run_of(), CALL) == first
    assert len(approvals.list()) == 1


def test_approved_it_is_used_exactly_once(approvals: Approvals) -> None:
    one = approved(approvals)
    assert (one.status, one.decided_by, one.decision_reason) == ("approved", "E-1", "looks right")
    assert approvals.consume(one.id, CALL, SPEC, "sha256:policies", run_of())
    assert not approvals.consume(one.id, CALL, SPEC, "sha256:policies", run_of())
    assert approvals.list() == []
    assert approvals.list("consumed")[0].id == one.id


def test_pending_and_denied_cannot_be_used(approvals: Approvals) -> None:
    asked = approvals.request(run_of(), CALL, SPEC, ASKS)
    assert not approvals.consume(asked.id, CALL, SPEC, "sha256:policies")
    approvals.decide(asked.id, False, FINANCE)
    assert not approvals.consume(asked.id, CALL, SPEC, "sha256:policies")
    assert approvals.request(run_of(), CALL, SPEC, ASKS).status == "denied"  # asking again does not reopen it


@pytest.mark.parametrize(
    "change",
    [
        {"call": replace(CALL, arguments={"order_id": "SO-1", "amount_cents": 20_001})},
        {"call": replace(CALL, arguments={"order_id": "SO-2", "amount_cents": 20_000})},
        {"call": replace(CALL, arguments={**CALL.arguments, "tags": []})},
        {"call": replace(CALL, idempotency_key="key-2")},
        {"call": replace(CALL, tool="send_document")},
        {"spec": replace(SPEC, digest="sha256:swapped")},
        {"spec": spec_of("send_document")},
        {"policy_digest": "sha256:newer"},
        {"run": run_of(user="C-2")},
        {"run": run_of(tenant="acme")},
        {"run": run_of("help")},
        {"run": replace(run_of(), session="session-2")},
    ],
)
def test_it_is_bound_to_everything_that_was_approved(approvals: Approvals, change: dict) -> None:
    one = approved(approvals)
    given = {"call": CALL, "spec": SPEC, "policy_digest": "sha256:policies", "run": run_of(), **change}
    assert not approvals.consume(one.id, **given)
    assert approvals.consume(one.id, CALL, SPEC, "sha256:policies", run_of())


def test_changed_arguments_ask_anew_and_are_what_find_returns(approvals: Approvals) -> None:
    old = approved(approvals)
    changed = replace(CALL, arguments={"order_id": "SO-1", "amount_cents": 30_000})
    new = approvals.request(run_of(), changed, SPEC, ASKS)
    assert new.id != old.id
    assert new.status == "pending"
    assert approvals.find(run_of(), changed) == new
    newer = approvals.request(run_of(), CALL, SPEC, replace(ASKS, policy_digest="sha256:newer"))
    assert newer.status == "pending"


def test_the_requester_cannot_approve_their_own(approvals: Approvals) -> None:
    asked = approvals.request(run_of(), CALL, SPEC, ASKS)
    with pytest.raises(PolicyError, match="another person"):
        approvals.decide(asked.id, True, who("C-1", roles=("customer", "finance")))


def test_a_service_that_asked_for_somebody_does_not_decide_it(approvals: Approvals) -> None:
    run = run_of()
    asked = approvals.request(replace(run, principal=replace(run.principal, actors=("E-1",))), CALL, SPEC, ASKS)
    with pytest.raises(PolicyError, match="another person"):
        approvals.decide(asked.id, True, FINANCE)
    assert approvals.decide(asked.id, True, who("E-2", roles=("finance",))).status == "approved"


def test_one_user_cannot_bury_the_approvers(approvals: Approvals) -> None:
    def ask(cents: int, user: str = "C-1") -> Approval:
        call = call_of("create_refund", order_id="SO-1", amount_cents=cents)
        return approvals.request(run_of(user=user), call, SPEC, ASKS)

    asked = [ask(cents) for cents in range(MAX_OPEN)]
    with pytest.raises(PolicyError, match="wait for approval already"):
        ask(MAX_OPEN)
    assert ask(3) == asked[3], "what waits is still found"
    assert ask(1, "C-2").status == "pending"
    approvals.decide(asked[0].id, False, FINANCE)
    assert ask(MAX_OPEN).status == "pending"
    asyncio.run(clock_of(approvals).drive(clock_of(approvals).sleep(VALID_S)))
    assert ask(MAX_OPEN + 1).status == "pending", "the others have expired"


def test_the_role_is_needed_all_of_them(approvals: Approvals) -> None:
    asked = approvals.request(run_of(), CALL, SPEC, replace(ASKS, approver="finance+staff"))
    with pytest.raises(PolicyError, match="needs role staff"):
        approvals.decide(asked.id, True, FINANCE)
    assert approvals.decide(asked.id, True, who("E-2", roles=("staff", "finance"))).status == "approved"


def test_another_tenant_cannot_see_or_decide(approvals: Approvals) -> None:
    asked = approvals.request(run_of(), CALL, SPEC, ASKS)
    stranger = Principal("acme", "E-1", frozenset(), frozenset({"finance"}))
    with pytest.raises(PolicyError, match="no approval"):
        approvals.decide(asked.id, True, stranger)
    with pytest.raises(PolicyError, match="no approval"):
        approvals.get(asked.id, "acme")
    assert approvals.list(tenant="acme") == []
    assert approvals.find(run_of(tenant="acme"), CALL) is None
    assert approvals.find(run_of(user="C-2"), CALL) is None


def test_a_decision_is_made_once(approvals: Approvals) -> None:
    one = approved(approvals)
    with pytest.raises(PolicyError, match="already approved"):
        approvals.decide(one.id, False, FINANCE)
    with pytest.raises(PolicyError, match="already approved"):
        approvals.decide(one.id, True, who("E-2", roles=("finance",)))
    assert approvals.decide(one.id, True, FINANCE, "once more") == one
    assert approvals.consume(one.id, CALL, SPEC, "sha256:policies", run_of())
    with pytest.raises(PolicyError, match="already consumed"):
        approvals.decide(one.id, True, FINANCE)


@pytest.mark.parametrize("id", ["", "a" * 21, "../../x", "a\x00", "x" * 5000, "é", "approvals/item/"])
def test_ids_that_do_not_exist(approvals: Approvals, id: str) -> None:
    with pytest.raises(PolicyError, match="no approval"):
        approvals.decide(id, True, FINANCE)
    assert not approvals.consume(id, CALL, SPEC, "sha256:policies")


def test_it_expires_before_and_after_the_decision(approvals: Approvals) -> None:
    clock = clock_of(approvals)
    asked = approvals.request(run_of(), CALL, SPEC, ASKS)
    clock._now += 24 * 3600
    assert approvals.list() == []
    with pytest.raises(PolicyError, match="expired"):
        approvals.decide(asked.id, True, FINANCE)
    again = approvals.request(run_of(), CALL, SPEC, ASKS)
    assert (again.status, again.requested_at) == ("pending", clock.now())
    approvals.decide(again.id, True, FINANCE)
    clock._now += 24 * 3600
    assert not approvals.consume(again.id, CALL, SPEC, "sha256:policies")
    assert [one.id for one in approvals.list("expired")] == [again.id]


def test_a_restart_keeps_everything(open_store: Callable[[], State]) -> None:
    clock = VirtualClock(1000.0)
    first = open_store()
    asked = Approvals(first, clock).request(run_of(), CALL, SPEC, ASKS)
    first.close()
    second = open_store()
    Approvals(second, clock).decide(asked.id, True, FINANCE)
    second.close()
    assert Approvals(open_store(), clock).consume(asked.id, CALL, SPEC, "sha256:policies", run_of())


def test_of_many_workers_one_wins(open_store: Callable[[], State]) -> None:
    clock = VirtualClock(1000.0)
    workers = [Approvals(open_store(), clock) for _ in range(8)]
    one = approved(workers[0])
    barrier, won = threading.Barrier(8), []

    def work(approvals: Approvals) -> None:
        barrier.wait()
        won.append(approvals.consume(one.id, CALL, SPEC, "sha256:policies", run_of()))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 7 + [True]


def test_of_two_deciders_one_wins(open_store: Callable[[], State]) -> None:
    clock = VirtualClock(1000.0)
    workers = [Approvals(open_store(), clock) for _ in range(6)]
    asked = workers[0].request(run_of(), CALL, SPEC, ASKS)
    barrier, outcomes = threading.Barrier(6), []

    def work(number: int, approvals: Approvals) -> None:
        barrier.wait()
        try:
            person = who(f"E-{number}", roles=("finance",))
            outcomes.append(approvals.decide(asked.id, number % 2 == 0, person).status)
        except PolicyError as error:
            outcomes.append("refused" if "already" in str(error) else str(error))

    threads = [threading.Thread(target=work, args=item) for item in enumerate(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes)[-5:] == ["refused"] * 5
    assert sorted(outcomes)[0] in ("approved", "denied")


CONSUMER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from policy_world import call_of, run_of, spec_of
from agentops.graph import VirtualClock
from agentops.policy import Approvals
from agentops.store import open_state

state = open_state(Path(sys.argv[2]), None)
approvals = Approvals(state, VirtualClock(1000.0))
call = call_of("create_refund", order_id="SO-1", amount_cents=20_000)
sys.stdout.write("ready\\n"); sys.stdout.flush(); sys.stdin.readline()
sys.stdout.write(str(approvals.consume(sys.argv[3], call, spec_of("create_refund"), "sha256:policies", run_of())))
"""


def test_of_two_processes_one_wins(tmp_path: Path) -> None:
    from agentops.store import open_state

    state = open_state(tmp_path, None)
    one = approved(Approvals(state, VirtualClock(1000.0)))
    state.close()
    command = [sys.executable, "-c", CONSUMER, str(Path(__file__).parent), str(tmp_path), one.id]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as first, subprocess.Popen(command, **pipes) as second:
        for process in (first, second):
            assert process.stdout.readline() == "ready\n"
        for process in (first, second):
            process.stdin.write("go\n")
            process.stdin.flush()
        outputs = [process.communicate(timeout=30)[0] for process in (first, second)]
    assert sorted(outputs) == ["False", "True"]


@pytest.mark.parametrize(
    ("decision", "call", "message"),
    [
        (replace(ASKS, effect="allow"), CALL, "ask for no approval"),
        (replace(ASKS, approver=""), CALL, "ask for no approval"),
        (ASKS, replace(CALL, idempotency_key=""), "idempotency key"),
        (ASKS, replace(CALL, arguments={"x": "y" * 300_000}), "cannot be shown"),
    ],
)
def test_what_cannot_wait_is_refused(approvals: Approvals, decision: Decision, call, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        approvals.request(run_of(), call, SPEC, decision)


def test_decisions_are_recorded_with_digests_only(open_store: Callable[[], State]) -> None:
    audit = MemoryAudit()
    approvals = Approvals(open_store(), VirtualClock(1000.0), audit)
    approved(approvals)
    [record] = audit.records
    assert (record["type"], record["status"], record["tool"]) == ("approval.decided", "approved", "create_refund")
    text = str(record)
    for personal in ("C-1", "E-1", "SO-1", "looks right"):
        assert personal not in text


def test_a_damaged_approval_is_an_error_not_a_yes(open_store: Callable[[], State]) -> None:
    state = open_store()
    approvals = Approvals(state, VirtualClock(1000.0))
    one = approved(approvals)
    state.put(f"approvals/item/{one.id}", b'{"status": "approved"}')
    with pytest.raises(StoreError, match="damaged"):
        approvals.consume(one.id, CALL, SPEC, "sha256:policies")


def test_an_unknown_status_is_refused(approvals: Approvals) -> None:
    with pytest.raises(PolicyError, match="pending, approved"):
        approvals.list("done")
