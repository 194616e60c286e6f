"""An effect is marked as begun only when it was: outages, cancellation and refusals on the way leave nothing behind."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from agentops.act import Context, records, tool
from agentops.act.invoke import invoke
from agentops.errors import StoreError, ToolError


class Unclean(ToolError):
    """A refusal after something was done."""

    clean = False


def test_an_outage_before_the_call_leaves_no_mark_and_no_charge(
    desk: Any, people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = desk.go(desk.call("pay", key="k", order_id="A", cents=20_000))
    desk.approvals.decide(waiting.approval_id, True, people[1])

    def gone(*_: Any) -> bool:
        raise StoreError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(desk.approvals, "consume", gone)
        assert "try again later" in desk.go(desk.call("pay", key="k", order_id="A", cents=20_000)).error
    assert desk.budgets.used(desk.run()) == (0, 0)
    assert desk.go(desk.call("pay", key="k", order_id="A", cents=20_000)).status == "ok"
    assert len(desk.world.paid) == 1


def test_a_cancellation_before_the_call_leaves_no_mark_and_no_charge(
    real_desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = real_desk

    async def slow_disk(record: Any) -> int:
        desk.audit.append_now(record)
        await asyncio.sleep(30)
        return 0

    async def cancelled() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(desk.audit, "append", slow_disk)
            task = asyncio.create_task(desk.call("pay", key="k", order_id="A", cents=5))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert desk.world.counts == {}
        assert desk.budgets.used(desk.run()) == (0, 0)
        assert (await desk.call("pay", key="k", order_id="A", cents=5)).status == "ok"

    desk.go(cancelled())
    assert [one["status"] for one in desk.records("outcome")] == ["skipped", "ok"], "the intent on disk has its end"


def test_a_call_without_time_left_was_not_begun(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    append = desk.audit.append

    async def slow_disk(record: Any) -> int:
        await desk.clock.sleep(5.0)
        return await append(record)

    with monkeypatch.context() as patch:
        patch.setattr(desk.audit, "append", slow_disk)
        late = desk.go(desk.call("pay", desk.run(seconds=1.0), key="k", order_id="A", cents=5))
    assert (late.status, desk.world.counts, desk.budgets.used(desk.run())[1]) == ("timeout", {}, 0)
    assert desk.records("outcome")[-1]["status"] == "skipped"
    assert desk.go(desk.call("pay", key="k", order_id="A", cents=5)).status == "ok"


def test_what_the_gateway_refuses_after_the_policies_allowed_is_on_record(desk: Any) -> None:
    desk.go(desk.call("pay", key="k", order_id="A", cents=5))
    again = desk.go(desk.call("pay", key="k", order_id="A", cents=5))
    assert (again.status, again.decision.effect, again.decision.policies) == ("denied", "deny", ("effect-begun",))
    last = desk.records()[-1]
    assert (last["type"], last["decision"], last["policies"]) == ("tool.decision", "deny", ["effect-begun"])


def test_what_cannot_be_asked_for_is_a_denial_that_says_why(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentops.policy.approvals.MAX_OPEN", 1)
    assert desk.go(desk.call("pay", order_id="A", cents=20_000)).status == "pending"
    refused = desk.go(desk.call("pay", order_id="B", cents=20_000))
    assert (refused.status, refused.decision.effect) == ("denied", "deny")
    assert "wait for approval already" in refused.error
    assert desk.records()[-1]["decision"] == "deny"


def test_a_refused_payment_gives_back_the_money_and_not_the_call(desk: Any) -> None:
    run = desk.run(agent=replace(desk.run().agent, max_calls=3))
    statuses = [desk.go(desk.call("pay", run, order_id="gone", cents=5)).status for _ in range(5)]
    assert statuses == ["error"] * 3 + ["denied"] * 2, "refusals tell something too: they are counted"
    assert desk.budgets.used(run) == (3, 0)


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (ToolError("no"), ""),
        (Unclean("half done"), "unknown"),
        (ConnectionError("lost"), "unknown"),
        (ValueError("broken"), "unknown"),
    ],
)
def test_an_effect_whose_end_nobody_knows_is_listed(desk: Any, error: Exception, ended: str) -> None:
    def fail(_: Context) -> None:
        raise error

    desk.world.inside = fail
    result = desk.go(desk.call("pay", key="k", order_id="A", cents=5))
    assert result.status == "error"
    found = [{**one, "at": 0, "log": "acme", "index": number} for number, one in enumerate(desk.records())]
    assert [one.ended for one in records.unfinished(found, before=1.0)] == ([ended] if ended else [])
    desk.world.inside = None
    again = desk.go(desk.call("pay", key="k", order_id="A", cents=5)).status
    assert again == ("denied" if ended else "ok"), "the mark says the same"


@tool(effect="read", scopes={"r"}, timeout_s=1.0)
async def collect(ctx: Context, orders: list[str]) -> list[str]:
    """Collect orders, losing the connection the first time."""
    ctx.world.counts["collect"] = ctx.world.counts.get("collect", 0) + 1
    orders.append("planted")
    if ctx.world.counts["collect"] == 1:
        raise ConnectionError
    return orders


def test_a_second_try_gets_what_was_decided_on(desk: Any) -> None:
    context = Context(desk.run(), desk.world, desk.clock, "c", "k")
    outcome = desk.go(invoke(collect, context, {"orders": ["A"]}, desk.redactor))
    assert (outcome.status, outcome.value) == ("ok", ["A", "planted"]), "not what the first try left in its arguments"
