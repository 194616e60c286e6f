"""Plans run as early as their inputs allow, each step ends exactly once, and nothing is repeated on resume."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentops import graph
from agentops.act import execute, idempotency_key
from agentops.errors import PlanError
from agentops.graph import RealClock, VirtualClock
from agentops.plan import parse
from agentops.types import AgentSpec, Labels, Plan, Principal, Ref, Run, Step, ToolCall, ToolResult


def work(id: str, seconds: float, *after: str) -> Step:
    return Step(id, "work", {"seconds": seconds, "after": [Ref(other) for other in after]}, after)


def timed(id: str, tool: str, seconds: float, *after: str) -> Step:
    """A step that takes `seconds`, through the plain, the cached or the recorded path of the gateway."""
    if tool == "work":
        return work(id, seconds, *after)
    return Step(id, tool, {"order_id": id, "wait": seconds}, after)


def statuses(results: Mapping[str, ToolResult]) -> dict[str, str]:
    return {step: result.status for step, result in results.items()}


@st.composite
def dags(draw: st.DrawFn) -> Plan:
    steps: list[Step] = []
    for number in range(draw(st.integers(1, 12))):
        earlier = [step.id for step in steps]
        after = draw(st.lists(st.sampled_from(earlier), unique=True, max_size=4)) if earlier else []
        tool = draw(st.sampled_from(["work", "look", "cancel"]))
        steps.append(timed(f"s{number}", tool, draw(st.integers(0, 7)) / 8, *after))
    return Plan(tuple(steps), "", text=repr(steps))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(dags())
def test_the_makespan_is_the_critical_path(desk: Any, plan: Plan) -> None:
    started = desk.clock.now()
    asyncio.run(desk.cache.close())  # what an earlier example stored
    results = desk.go(execute(plan, desk.gateway, desk.run(), desk.clock))
    length, _ = graph.critical_path(
        {step.id: step.after for step in plan.steps},
        {step.id: step.arguments.get("seconds", step.arguments.get("wait")) for step in plan.steps},
    )
    assert set(statuses(results).values()) == {"ok"}
    assert list(results) == [step.id for step in plan.steps]
    assert desk.clock.now() - started == length
    for step in plan.steps:
        assert results[step.id].started_at == max((results[other].ended_at for other in step.after), default=started)


def test_a_parsed_plan_runs_with_references(desk: Any) -> None:
    plan = parse(
        'o = look("A", wait=0.5) & a = article("1")\nc = cancel(o.id)\nn = look(o.items.0.sku)\n'
        'say "{c.status} {n.id}"',
        desk.specs,
    )
    results = desk.go(execute(plan, desk.gateway, desk.run(), desk.clock))
    assert graph.render(plan.say, {step: result.value for step, result in results.items()}) == "cancelled A"
    assert results["o"].started_at == results["a"].started_at
    assert results["c"].started_at == results["o"].ended_at
    assert (results["a"].labels.integrity, results["c"].labels.integrity) == ("untrusted", "trusted")  # c used o only


def test_a_failed_step_takes_only_its_dependents_along(desk: Any) -> None:
    plan = parse(
        'a = look("A", wait=9.0) & b = look("B")\nc = look(a.id) & d = look(b.id) & e = look(b.nothing.here)\n'
        'f = look(c.id)\nsay ""',
        desk.specs,
    )
    results = desk.go(execute(plan, desk.gateway, desk.run(), desk.clock))
    assert statuses(results) == {"a": "timeout", "b": "ok", "c": "skipped", "d": "ok", "e": "error", "f": "skipped"}
    assert results["c"].error == "not done, because 'a' is timeout"
    assert results["f"].error == "not done, because 'c' is skipped"
    assert "'b.nothing.here': the result has no 'nothing'" in results["e"].error


def test_parts_neither_wait_for_each_other_nor_fail_together(desk: Any) -> None:
    plan = parse(
        'a = look("A", wait=0.5)\nb = pay(a.id, 20000)\nalso\nc = look("C", wait=9.0)\nd = cancel("C")\nsay ""',
        desk.specs,
    )
    results = desk.go(execute(plan, desk.gateway, desk.run(), desk.clock))
    assert statuses(results) == {"a": "ok", "b": "pending", "c": "timeout", "d": "skipped"}
    assert results["b"].started_at == results["a"].ended_at


def test_pending_approvals_surface_together_and_resume_repeats_nothing(desk: Any, people: Any) -> None:
    plan = parse(
        'o = look("A")\np = pay(o.id, 20000) & q = pay("B", 30000) & c = cancel("C")\nr = look("D")\nsay "{p.cents}"',
        desk.specs,
    )
    first = desk.go(execute(plan, desk.gateway, desk.run(), desk.clock))
    assert statuses(first) == {"o": "ok", "p": "pending", "q": "pending", "c": "ok", "r": "skipped"}
    assert len({first["p"].approval_id, first["q"].approval_id, ""}) == 3
    desk.restart()
    for step, yes in (("p", True), ("q", False)):
        desk.approvals.decide(first[step].approval_id, yes, people[1])
    second = desk.go(execute(plan, desk.gateway, desk.run(), desk.clock, first))
    assert statuses(second) == {"o": "ok", "p": "ok", "q": "denied", "c": "ok", "r": "skipped"}
    assert [(order, cents) for order, cents, _ in desk.world.paid] == [("A", 20_000)]
    assert desk.world.counts == {"look": 1, "cancel": 1, "pay": 1}
    third = desk.go(execute(plan, desk.gateway, desk.run(), desk.clock, second))
    assert statuses(third) == statuses(second)
    assert desk.world.counts["pay"] == 1


def test_untrusted_content_read_before_a_restart_still_counts(desk: Any, people: Any) -> None:
    plan = parse('a = article("1")\nalso\np = pay("A", 20000)\nq = pay("B", 5)\nsay ""', desk.specs)
    first = desk.go(execute(plan, desk.gateway, desk.run(), desk.clock))
    assert first["p"].status == "pending"
    desk.restart()
    desk.approvals.decide(first["p"].approval_id, True, people[1])
    again = desk.go(execute(plan, desk.gateway, desk.run(), desk.clock, first))
    assert statuses(again) == {"a": "ok", "p": "ok", "q": "pending"}


def test_idempotency_keys_are_stable_and_belong_to_the_conversation(desk: Any) -> None:
    plan = parse('c = cancel("A")\nsay ""', desk.specs)
    run = desk.run()
    key = idempotency_key(run, plan, "c")
    assert key == idempotency_key(replace(run, id="another turn", deadline=0.0), plan, "c")
    others = {
        idempotency_key(replace(run, session="s-2"), plan, "c"),
        idempotency_key(replace(run, principal=replace(run.principal, user="bob")), plan, "c"),
        idempotency_key(run, parse('c = cancel("B")\nsay ""', desk.specs), "c"),
        idempotency_key(run, plan, "d"),
    }
    assert len(others | {key}) == 5


def test_the_runs_deadline_ends_the_plan(desk: Any) -> None:
    plan = Plan((work("a", 5.0), work("b", 5.0, "a"), work("c", 1.0)), "", "p")
    results = desk.go(execute(plan, desk.gateway, desk.run(seconds=2.0), desk.clock))
    assert statuses(results) == {"a": "timeout", "b": "skipped", "c": "ok"}
    assert desk.clock.now() == 1_002.0


class Rogue:
    """A gateway that breaks its promises."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock

    async def call(self, run: Run, call: ToolCall) -> ToolResult:
        if call.tool == "raises":
            raise KeyError("internals")
        if call.tool == "hangs":
            await self.clock.sleep(1e9)
        return ToolResult(call.id, call.tool, "ok", 1, labels=Labels())


def test_a_broken_gateway_costs_its_own_steps_only() -> None:
    clock = VirtualClock()
    run = Run("r", "s", Principal("t", "u"), AgentSpec("a", frozenset(), frozenset()), 3.0)
    plan = Plan(
        (Step("a", "raises", {}), Step("b", "hangs", {}), Step("c", "fine", {}), Step("d", "fine", {}, ("b",))), "", "p"
    )
    results = asyncio.run(clock.drive(execute(plan, Rogue(clock), run, clock)))
    assert statuses(results) == {"a": "error", "b": "timeout", "c": "ok", "d": "timeout"}
    assert "internals" not in results["a"].error
    assert clock.now() == 4.0


def test_a_cancelled_plan_cancels_its_calls(real_desk: Any) -> None:
    desk = real_desk
    plan = Plan((work("a", 30.0), work("b", 30.0)), "", "p")

    async def cancelled() -> None:
        task = asyncio.create_task(execute(plan, desk.gateway, desk.run(), desk.clock))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.01)
        assert [one["status"] for one in desk.records("outcome")] == ["cancelled", "cancelled"]

    desk.go(cancelled())


@pytest.mark.parametrize("after", [("b",), ("nowhere",)])
def test_a_plan_that_is_no_dag_is_refused(desk: Any, after: tuple[str, ...]) -> None:
    plan = Plan((Step("a", "work", {}, after), Step("b", "work", {}, ("a",))), "")
    with pytest.raises(PlanError):
        desk.go(execute(plan, desk.gateway, desk.run(), desk.clock))


def test_five_branches_run_side_by_side_on_the_real_clock(make_desk: Any) -> None:
    desk = make_desk(RealClock())
    branches = [work(f"b{n}", 0.05) for n in range(5)]
    plan = Plan((*branches, work("join", 0.01, *(step.id for step in branches))), "", "p")
    desk.go(execute(plan, desk.gateway, desk.run(id="warm"), desk.clock))
    started = time.perf_counter()
    results = desk.go(execute(plan, desk.gateway, desk.run(), desk.clock))
    assert set(statuses(results).values()) == {"ok"}
    assert time.perf_counter() - started < 0.2  # 0.26 s one after the other; the bound is 0.06 s
