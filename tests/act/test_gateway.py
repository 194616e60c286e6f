"""The call path: what runs, what does not, what is recorded, and that nothing gets through sideways."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentops.audit import AuditLog, MemoryAudit, records, verify
from agentops.errors import AuditError
from agentops.graph import RealClock, VirtualClock
from agentops.store import Lake
from agentops.trace import Tracing
from agentops.types import Labels, ToolCall


def test_a_read_runs_and_is_recorded(desk: Any) -> None:
    result = desk.go(desk.call("look", order_id="A-1", wait=0.25))
    assert (result.status, result.value["id"], result.cached) == ("ok", "A-1", False)
    assert result.ended_at - result.started_at == 0.25
    assert result.decision.policies == ("within-scopes",)
    decision, outcome = desk.records()
    assert (decision["type"], decision["decision"], decision["tool"]) == ("tool.decision", "allow", "look")
    assert (outcome["type"], outcome["status"], outcome["cached"]) == ("tool.outcome", "ok", False)
    assert "A-1" not in str(desk.records())
    assert "ann" not in str(desk.records())


def test_defaults_are_part_of_the_decision_and_the_tool_gets_what_was_decided(desk: Any) -> None:
    given = {"order_id": "A-1"}
    call = ToolCall("c", "look", given)
    desk.world.inside = lambda _: given.update(order_id="B-2")
    assert desk.go(desk.gateway.call(desk.run(), call)).value["id"] == "A-1"


@pytest.mark.parametrize(
    ("tool", "arguments", "status", "words"),
    [
        ("unheard_of", {}, "denied", "no tool 'unheard_of'"),
        ("../x\n", {}, "denied", "no tool '?'"),
        ("look", {}, "error", "order_id: Field required"),
        ("look", {"order_id": 5}, "error", "valid string"),
        ("look", {"order_id": "A", "admin": True}, "error", "admin: Extra inputs"),
        ("look", {"order_id": "A", "wait": float("nan")}, "error", "not JSON"),
        ("look", {"order_id": "\ud800"}, "error", "not JSON"),
        ("look", {"order_id": "x" * 70_000}, "error", "more than 65536 bytes"),
        ("pay", {"order_id": "A", "cents": 2**63}, "denied", "below 2^53"),
        ("pay", {"order_id": "A", "cents": -5}, "denied", "not negative"),
        ("pay", {"order_id": "A", "cents": 10.5}, "error", "integer"),
        ("work", {"after": [float("inf")]}, "error", "not JSON"),
        ("work", {"after": [2**60]}, "error", "no canonical form"),
    ],
)
def test_what_does_not_fit_never_reaches_a_tool(desk: Any, tool: str, arguments: dict, status: str, words: str) -> None:
    result = desk.go(desk.call(tool, **arguments))
    assert (result.status, result.value) == (status, None)
    assert words in result.error
    assert desk.world.counts == {}


def test_arguments_nested_ten_thousand_deep(desk: Any) -> None:
    deep: list = []
    for _ in range(10_000):
        deep = [deep]
    assert desk.go(desk.call("work", after=deep)).status == "error"
    assert desk.world.counts == {}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["look", "work", "cancel", "pay", "article"]),
    st.dictionaries(
        st.sampled_from(["order_id", "cents", "wait", "after", "id", "__entity"]) | st.text(max_size=5),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        ),
        max_size=4,
    ),
)
def test_no_arguments_make_the_gateway_raise(desk: Any, tool: str, arguments: dict) -> None:
    result = desk.go(desk.call(tool, run=desk.run(seconds=3.0), **{"order_id": "A", **arguments}))
    assert result.status in ("ok", "error", "denied", "pending", "timeout")


def test_a_denied_call_does_not_run_and_gives_its_budget_back(desk: Any, people: Any) -> None:
    run = desk.run(replace(people[0], scopes=frozenset({"r"})))
    result = desk.go(desk.call("cancel", run, order_id="A-1"))
    assert (result.status, result.decision.policies) == ("denied", ("default-deny",))
    assert desk.world.counts == {}
    assert desk.records()[-1]["decision"] == "deny"
    assert desk.budgets.used(run)[0] == 0


def test_fifty_concurrent_calls_never_pass_the_limit(desk: Any) -> None:
    run = desk.run(agent=replace(desk.run().agent, max_calls=10))

    async def all_at_once() -> list:
        calls = (desk.gateway.call(run, ToolCall(f"c{n}", "work", {"seconds": 1.0})) for n in range(50))
        return await asyncio.gather(*calls)

    statuses = [result.status for result in desk.go(all_at_once())]
    assert statuses.count("ok") == 10
    assert statuses.count("denied") == 40
    assert desk.world.counts == {"work": 10}


def test_without_the_shared_state_nothing_runs(desk: Any) -> None:
    desk.state.close()
    for name in ("look", "cancel"):
        result = desk.go(desk.call(name, order_id="A"))
        assert (result.status, "try again later" in result.error) == ("error", True)
    assert desk.world.counts == {}
    desk.restart()


# ------------------------------------------------------------------ approvals


def test_an_approval_survives_a_restart_and_lets_exactly_this_call_run_once(desk: Any, people: Any) -> None:
    waiting = desk.go(desk.call("pay", key="k1", order_id="A", cents=20_000))
    assert (waiting.status, waiting.error) == ("pending", "pay: payments above 100.00 need finance")
    assert desk.go(desk.call("pay", key="k1", order_id="A", cents=20_000)).approval_id == waiting.approval_id
    desk.restart()
    desk.approvals.decide(waiting.approval_id, True, people[1])
    assert desk.go(desk.call("pay", key="k1", order_id="A", cents=20_001)).status == "pending"
    assert desk.go(desk.call("pay", key="k2", order_id="A", cents=20_000)).status == "pending"
    assert desk.world.paid == []
    assert desk.go(desk.call("pay", key="k1", order_id="A", cents=20_000)).status == "ok"
    again = desk.go(desk.call("pay", key="k1", order_id="A", cents=20_000))
    assert (again.status, "carried out already" in again.error) == ("denied", True)
    assert desk.world.paid == [("A", 20_000, "k1")]
    assert desk.records("intent")[0]["approval"] == waiting.approval_id


def test_a_declined_approval_denies(desk: Any, people: Any) -> None:
    waiting = desk.go(desk.call("pay", key="k1", order_id="A", cents=20_000))
    desk.approvals.decide(waiting.approval_id, False, people[1], "known fraudster")
    result = desk.go(desk.call("pay", key="k1", order_id="A", cents=20_000))
    assert (result.status, result.error) == ("denied", "pay: a colleague declined this")
    assert desk.world.paid == []


def test_two_workers_on_one_approval_pay_once(desk: Any, people: Any) -> None:
    waiting = desk.go(desk.call("pay", key="k1", order_id="A", cents=20_000))
    desk.approvals.decide(waiting.approval_id, True, people[1])

    async def race() -> list:
        return await asyncio.gather(
            *(desk.call("pay", key="k1", order_id="A", cents=20_000, wait=0.0) for _ in range(5))
        )

    assert sorted(result.status for result in desk.go(race())) == ["denied"] * 4 + ["ok"]
    assert len(desk.world.paid) == 1


def test_untrusted_content_marks_the_conversation_and_what_is_derived_from_it(desk: Any) -> None:
    def pay(run: str, session: str) -> str:
        return desk.go(desk.call("pay", run=desk.run(id=run, session=session), order_id="A", cents=5)).status

    assert pay("run-1", "s-1") == "ok"
    read = desk.go(desk.call("article", run=desk.run(id="run-2", session="s-1"), id="1"))
    assert read.labels.integrity == "untrusted"
    assert pay("run-2", "s-1") == pay("run-3", "s-1") == "pending"
    assert pay("run-4", "s-2") == "ok"
    tainted = ToolCall("c", "pay", {"order_id": "A", "cents": 5}, Labels("untrusted"))
    assert desk.go(desk.gateway.call(desk.run(id="run-5", session="s-3"), tainted)).status == "pending"


# ------------------------------------------------------------------ cache


def test_a_cached_read_is_decided_and_recorded_again(desk: Any, people: Any) -> None:
    desk.go(desk.call("look", order_id="A"))
    hit = desk.go(desk.call("look", order_id="A"))
    assert (hit.status, hit.cached, hit.value["id"]) == ("ok", True, "A")
    assert desk.world.counts == {"look": 1}
    assert [one["type"] for one in desk.records()] == ["tool.decision", "tool.outcome"] * 2
    assert desk.records("outcome")[1]["cached"] is True
    stranger = desk.run(replace(people[0], scopes=frozenset()))
    assert desk.go(desk.call("look", stranger, order_id="A")).status == "denied"
    for other in (
        replace(people[0], user="bob"),
        replace(people[0], tenant="globex"),
        replace(people[0], roles=frozenset({"staff"})),
    ):
        assert desk.go(desk.call("look", desk.run(other), order_id="A")).cached is False


def test_a_write_makes_what_it_declares_stale_also_when_its_end_is_unknown(desk: Any) -> None:
    assert desk.go(desk.call("look", order_id="A")).value["status"] == "open"
    assert desk.go(desk.call("cancel", order_id="A")).status == "ok"
    assert desk.go(desk.call("look", order_id="A")).value["status"] == "cancelled"
    desk.world.status = "changed by a call that timed out"
    assert desk.go(desk.call("cancel", order_id="A", wait=5.0)).status == "timeout"
    assert desk.go(desk.call("look", order_id="A")).cached is False


def test_concurrent_reads_run_once_and_share_even_a_failure(desk: Any) -> None:
    async def many(wait: float) -> list:
        return await asyncio.gather(*(desk.call("look", order_id="A", wait=wait) for _ in range(20)))

    results = desk.go(many(0.5))
    assert desk.world.counts == {"look": 1}
    assert sorted(result.cached for result in results) == [False] + [True] * 19
    failed = desk.go(many(9.0))
    assert {result.status for result in failed} == {"timeout"}
    assert desk.go(desk.call("look", order_id="A", wait=0.5)).cached is True


# ------------------------------------------------------------------ audit


def test_the_intent_is_on_disk_before_the_tool_runs(make_desk: Any, tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit", "desk") as audit:
        desk = make_desk(RealClock(), audit)
        seen: list[dict] = []
        desk.world.inside = lambda _: seen.extend(records(tmp_path / "audit"))
        result = desk.go(desk.call("cancel", order_id="A"))
    assert result.status == "ok"
    [intent] = [one for one in seen if one.get("type") == "tool.intent"]
    assert (intent["tool"], intent["call"]) == ("cancel", "c-1")
    report = verify(tmp_path / "audit")
    assert report.ok
    assert [one["type"] for one in records(tmp_path / "audit") if one["type"].startswith("tool")] == [
        "tool.intent",
        "tool.outcome",
    ]


def test_without_an_audit_log_nothing_runs(make_desk: Any, tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "audit", "desk")
    desk = make_desk(RealClock(), audit)
    audit.close()
    for name in ("cancel", "look"):
        result = desk.go(desk.call(name, order_id="A"))
        assert result.status == "error"
        assert "was not done" in result.error
    assert desk.world.counts == {}


# ------------------------------------------------------------------ deadlines, failures, cancellation


def test_a_slow_effect_times_out_on_the_clock_and_is_not_repeated(desk: Any) -> None:
    result = desk.go(desk.call("pay", order_id="A", cents=5, wait=10.0))
    assert (result.status, result.error) == ("timeout", "pay did not answer in time")
    assert result.ended_at - result.started_at == 1.0
    assert desk.world.counts == {"pay": 1}
    assert desk.records("outcome")[0]["status"] == "timeout"
    assert desk.budgets.used(desk.run()) == (1, 5)


def test_a_clean_refusal_gives_the_money_back(desk: Any) -> None:
    assert desk.go(desk.call("pay", order_id="gone", cents=5)).error == "nothing to pay back"
    assert desk.budgets.used(desk.run())[1] == 0


def test_an_idempotent_call_is_tried_once_more(desk: Any) -> None:
    result = desk.go(desk.call("look", order_id="A", wait=10.0))
    assert (result.status, result.ended_at - result.started_at) == ("timeout", 2.0)
    assert desk.world.counts == {"look": 2}


def test_the_runs_deadline_bounds_every_call(desk: Any) -> None:
    run = desk.run(seconds=0.4)

    async def two() -> list:
        return [await desk.call("look", run, order_id="A", wait=10.0), await desk.call("look", run, order_id="A")]

    first, second = desk.go(two())
    assert (first.status, first.ended_at - first.started_at) == ("timeout", pytest.approx(0.4))
    assert (second.status, second.error) == ("timeout", "look: the time for this request is over")
    assert desk.world.counts == {"look": 1}


def test_a_tool_that_ignores_its_cancellation_holds_up_nobody(desk: Any) -> None:
    result = desk.go(asyncio.wait_for(desk.call("broken", kind="deaf"), 5))
    assert result.status == "timeout"


@pytest.mark.parametrize("kind", ["error", "exit", "cancel", "object"])
def test_what_a_tool_raises_stays_inside(desk: Any, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        result = desk.go(desk.call("broken", kind=kind))
    assert result.status == "error"
    assert result.error.startswith("broken: internal error (")
    id = result.error.partition("(")[2][:8]
    assert id in caplog.text
    assert "hunter2" not in caplog.text
    assert "ann@example.com" not in caplog.text


def test_a_lost_connection_and_a_huge_result_are_plain_errors(desk: Any) -> None:
    lost = desk.go(desk.call("broken", kind="lost"))
    assert "could not be reached" in lost.error
    assert "10.0.0.7" not in lost.error
    assert desk.world.counts == {"lost": 2}
    assert "at most 262144" in desk.go(desk.call("broken", kind="big")).error


def test_a_refusals_text_is_redacted(desk: Any) -> None:
    result = desk.go(desk.call("cancel", order_id="gone"))
    assert result.error.startswith("order gone does not exist")
    assert "ann@example.com" not in result.error


def test_a_cancelled_effect_is_recorded_charged_and_makes_stale(real_desk: Any) -> None:
    desk = real_desk

    async def cancelled() -> None:
        await desk.call("look", order_id="A")
        task = asyncio.create_task(desk.call("cancel", order_id="A", wait=30.0))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await desk.call("look", order_id="A")).cached is False

    desk.go(cancelled())
    assert [one["status"] for one in desk.records("outcome")] == ["ok", "cancelled", "ok"]
    assert desk.budgets.used(desk.run())[0] == 3


# ------------------------------------------------------------------ traces


def test_each_call_is_a_span_with_its_decision(make_desk: Any, tmp_path: Path) -> None:
    from agentops.redact import Redactor

    lake = Lake(tmp_path / "lake")
    tracing = Tracing(lake, "desk", Redactor(b"k" * 32))
    desk = make_desk(VirtualClock(), MemoryAudit(), None, tracing)
    desk.go(desk.call("look", order_id="A"))
    desk.go(desk.call("look", order_id=7))
    desk.go(desk.call("pay", order_id="A", cents=20_000))
    tracing.close()
    rows = lake.sql("select name, status, attributes from spans order by start_ns")
    assert [(row["name"], row["status"]) for row in rows] == [
        ("execute_tool look", "unset"),
        ("execute_tool look", "error"),
        ("execute_tool pay", "unset"),
    ]
    assert '"agentops.call.status":"pending"' in rows[2]["attributes"].replace(" ", "")
    assert "agentops.approval.id" in rows[2]["attributes"]
    assert "gen_ai.tool.call.result" in rows[0]["attributes"]
    assert '\\"order_id\\":7' in rows[1]["attributes"].replace(" ", "")


# ------------------------------------------------------------------ effects are done once


def test_an_effect_that_timed_out_is_not_tried_again(desk: Any) -> None:
    first = desk.go(desk.call("cancel", key="k", order_id="A", wait=5.0))
    assert first.status == "timeout"
    again = desk.go(desk.call("cancel", key="k", order_id="A"))
    assert (again.status, desk.world.counts["cancel"]) == ("denied", 1)
    assert "is not repeated" in again.error
    desk.restart()
    assert desk.go(desk.call("cancel", key="k", order_id="A")).status == "denied"


def test_an_effect_is_done_once_and_a_refused_one_may_be_tried_again(desk: Any) -> None:
    assert desk.go(desk.call("pay", key="k", order_id="A", cents=5)).status == "ok"
    again = desk.go(desk.call("pay", key="k", order_id="A", cents=5))
    assert (again.status, len(desk.world.paid)) == ("denied", 1)
    assert "is not repeated" in again.error
    assert desk.go(desk.call("pay", key="l", order_id="gone", cents=5)).error == "nothing to pay back"
    assert desk.go(desk.call("pay", key="l", order_id="B", cents=5)).status == "ok"


def test_an_effect_that_could_not_be_recorded_may_be_tried_again(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(record: Any) -> int:
        raise AuditError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(desk.audit, "append", full)
        assert desk.go(desk.call("pay", key="k", order_id="A", cents=5)).status == "error"
    assert desk.go(desk.call("pay", key="k", order_id="A", cents=5)).status == "ok"
    assert len(desk.world.paid) == 1
