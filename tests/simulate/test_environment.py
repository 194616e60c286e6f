import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agentops import project
from agentops.errors import EvaluateError
from agentops.simulate import NOT_A_PLAN, START, ProjectEnvironment, compare
from agentops.types import Task, Trajectory, Verdict

Desk = Callable[[], ProjectEnvironment]
pytestmark = pytest.mark.anyio


@pytest.fixture(scope="session")
def tasks(repo: Path) -> list[Task]:
    return project.module(repo, "pipelines.support.tasks").tasks("frozen")


def pick(tasks: list[Task], label: str, **wanted: bool) -> Task:
    """The first task with this one label, with or without expected changes."""
    return next(
        task for task in tasks if task.labels == (label,) and bool(task.changes) is wanted.get("changes", False)
    )


async def play(environment: ProjectEnvironment, task: Task, plan: str, seed: int = 1) -> tuple[Trajectory, Verdict]:
    environment.reset(seed, task)
    trajectory = await environment.run(plan)
    return trajectory, environment.verify(trajectory)


async def test_gold_plans_succeed_and_doing_nothing_does_not(desk: Desk, tasks: list[Task]) -> None:
    environment = desk()
    failures = []
    for task in [task for task in tasks if task.plan and not task.plan.startswith("handoff")][::25]:
        _, verdict = await play(environment, task, task.plan)
        if verdict.success is not True:
            failures.append((task.id, verdict.evidence))
        _, nothing = await play(environment, task, 'say "Hello."')
        if nothing.success:
            failures.append((task.id, "doing nothing passed"))
    environment.close()
    assert failures == []


async def test_an_episode_takes_virtual_time_and_leaves_the_world_alone(desk: Desk, tasks: list[Task]) -> None:
    environment, task = desk(), pick(tasks, "cancel_order", changes=True)
    began = time.perf_counter()
    trajectory, verdict = await play(environment, task, task.plan)
    assert verdict.success
    assert environment.changes() == [dict(change) for change in task.changes]
    assert trajectory.started_at == START
    assert trajectory.ended_at > START + 0.05  # services have latencies
    assert trajectory.source == "simulated"
    assert trajectory.policy_digest.startswith("sha256:")
    assert all(step.started_at >= START and step.ended_at >= step.started_at for step in trajectory.steps)
    assert environment.audit.records  # simulated calls are recorded as real ones are
    environment.reset(1, task)
    assert environment.changes() == []
    environment.close()
    assert time.perf_counter() - began < 5


async def test_equal_seeds_give_equal_episodes_and_others_another_latency(desk: Desk, tasks: list[Task]) -> None:
    one, other = desk(), desk()
    task = pick(tasks, "delivery_delay")
    first, _ = await play(one, task, task.plan, 1)
    different, _ = await play(other, task, task.plan, 2)
    again, _ = await play(other, task, task.plan, 1)
    assert again == first
    assert different.ended_at != first.ended_at
    one.close()
    other.close()


async def test_independent_steps_run_side_by_side(desk: Desk, tasks: list[Task]) -> None:
    environment = desk()
    task = next(task for task in tasks if task.labels == ("delivery_delay",) and " & " in task.plan)
    trajectory, _ = await play(environment, task, task.plan)
    durations = [step.ended_at - step.started_at for step in trajectory.steps]
    assert len(durations) > 1
    assert trajectory.ended_at - trajectory.started_at == pytest.approx(max(durations))
    environment.close()


async def test_a_text_that_is_no_plan_is_a_failed_episode_not_an_exception(desk: Desk, tasks: list[Task]) -> None:
    environment, task = desk(), pick(tasks, "order_status")
    for text in ("", "hello", 'x = no_such_tool("a")\nsay "x"', "o = get_order(", "say {o.status}", "\x00" * 100):
        trajectory, verdict = await play(environment, task, text)
        assert trajectory.status == "error"
        assert trajectory.error.startswith(NOT_A_PLAN)
        assert trajectory.steps == ()
        assert verdict.success is not True
    environment.close()


async def test_the_policy_is_the_real_one(desk: Desk, tasks: list[Task]) -> None:
    environment = desk()
    asked = pick(tasks, "shipping_costs")  # the help agent reads articles and nothing else
    trajectory, verdict = await play(environment, asked, 'o = list_orders()\nsay "{o.orders}"')
    assert [step.status for step in trajectory.steps] == ["denied"]
    assert not verdict.success
    environment.close()


async def test_another_customers_order_stays_closed(desk: Desk, tasks: list[Task]) -> None:
    environment = desk()
    mine = next(task for task in tasks if task.labels == ("order_status",) and "get_order(" in task.plan and task.user)
    theirs = next(user for user in sorted({task.user for task in tasks}) if user != mine.user)
    gold, _ = await play(environment, mine, mine.plan)
    trajectory, _ = await play(environment, replace(mine, user=theirs), mine.plan)
    assert [step.status for step in gold.steps] == ["ok"] * len(gold.steps)
    assert "error" in [step.status for step in trajectory.steps]
    environment.close()


async def test_messages_are_a_conversation_that_training_accepts(desk: Desk, tasks: list[Task]) -> None:
    environment, task = desk(), pick(tasks, "delivery_delay")
    trajectory, _ = await play(environment, task, task.plan)
    roles = [message["role"] for message in trajectory.messages]
    assert roles == ["user", "assistant", *["tool"] * len(trajectory.steps), "assistant"]
    assert trajectory.request == task.text
    assert trajectory.messages[-1]["content"] == trajectory.answer != ""
    calls = trajectory.messages[1]["tool_calls"]
    assert [call["id"] for call in calls] == [message["tool_call_id"] for message in trajectory.messages[2:-1]]
    assert all(isinstance(call["function"]["arguments"], dict) for call in calls)
    offered = {schema["function"]["name"] for schema in trajectory.tools}
    assert {step.tool for step in trajectory.steps} <= offered
    environment.close()


async def test_an_episode_starts_with_reset(desk: Desk, tasks: list[Task]) -> None:
    environment = desk()
    with pytest.raises(EvaluateError, match="call reset"):
        await environment.run('say "x"')
    with pytest.raises(EvaluateError, match="call reset"):
        environment.changes()
    environment.close()  # closing what never began is fine
    await play(environment, tasks[0], 'say "x"')
    with pytest.raises(EvaluateError, match="already used"):
        await environment.run('say "x"')
    environment.close()


async def test_plans_of_one_request_are_compared_in_equal_worlds(desk: Desk, tasks: list[Task]) -> None:
    task = next(task for task in tasks if task.labels == ("delivery_delay",) and " & " in task.plan)
    wasteful = re.sub(r'track_shipment\("(.+?)"\)', "track_shipment(w.order_id)", task.plan)
    wasteful = (
        f"w = get_order({json.dumps(re.findall('SO-[0-9]+', task.plan)[0])})\n{wasteful}"  # asked to be asked again
    )
    found = await compare(desk(), task, ['say "I do not know."', task.plan, task.plan, wasteful])
    assert [one.plan for one in found][:2] == [task.plan, wasteful]
    assert found[0].verdict.success is True
    assert found[0].latency_s < found[1].latency_s
    shipment = [step for one in found[:2] for step in one.trajectory.steps if step.tool == "track_shipment"]
    fast, slow = (step.ended_at - step.started_at for step in shipment)
    assert fast == pytest.approx(slow)  # the same service is as slow: the difference is the plan's
