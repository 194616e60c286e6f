"""Gold plans through the real gateway, policies, scheduler and environment: what serves is what is simulated."""

import functools

import pytest

from agentops.act import ToolGateway, execute
from agentops.cache import MemoryCache
from agentops.plan import answer, parse
from agentops.policy import Approvals, Budgets, Effects, PolicySet, Readings, identities, principal
from agentops.redact import Redactor
from agentops.simulate import ProjectEnvironment
from agentops.store import MemoryState

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def environment(project, part, world_file) -> ProjectEnvironment:
    specs = {name: tool.spec for name, tool in project.tools.items()}
    policy = PolicySet.load(project.policies, specs, project.agents)
    redactor = Redactor(b"k" * 32)

    def gateway(world, clock, audit) -> ToolGateway:
        state = MemoryState()
        budgets = Budgets(state, clock, identities(project.policies).limits)
        approvals = Approvals(state, clock)
        cache = MemoryCache(1000)
        return ToolGateway(
            project.tools,
            policy,
            audit,
            approvals,
            budgets,
            Readings(state, clock),
            Effects(state, clock),
            cache,
            world,
            clock,
            None,
            redactor,
        )

    return ProjectEnvironment(
        project,
        world_file,
        parse=parse,
        gateway=gateway,
        execute=functools.partial(execute, agents=project.agents),
        answer=answer,
        verify=part("pipelines.support.verify").verify,
        principal=lambda task: principal(project.policies, "default", task.user, ["customer"]),
        policy_digest=policy.digest,
    )


async def _outcome(environment, task, plan=None, seed=0):
    environment.reset(seed, task)
    trajectory = await environment.run(plan or task.plan or 'handoff "nothing fits"')
    return trajectory, environment.verify(trajectory)


async def test_gold_plans_succeed_under_the_real_policies(environment, part) -> None:
    for task in part("pipelines.support.tasks").generate()[::47]:
        trajectory, verdict = await _outcome(environment, task)
        assert verdict.success is True, f"{task.id} {task.text!r}: {verdict.evidence} ({trajectory.answer!r})"


@pytest.mark.slow
async def test_every_gold_plan_succeeds_under_the_real_policies(environment, part) -> None:
    for task in part("pipelines.support.tasks").generate():
        _, verdict = await _outcome(environment, task)
        assert verdict.success is True, f"{task.id} {task.text!r}: {verdict.evidence}"


async def test_refunds_above_the_limit_wait_for_finance(environment, part) -> None:
    waits = part("pipelines.support.verify").waits_for_approval
    waiting = [task for task in part("pipelines.support.tasks").generate() if waits(task)]
    assert len(waiting) >= 10
    for task in waiting:
        trajectory, verdict = await _outcome(environment, task)
        assert verdict.success is True, f"{task.id}: {verdict.evidence} ({trajectory.answer!r})"
        pending = next(step for step in trajectory.steps if step.status == "pending")
        assert pending.tool == "create_refund"
        assert environment.changes() == []


async def test_a_document_does_not_leave_for_an_unknown_domain(environment, part) -> None:
    rows = [t for t in part("pipelines.support.tasks").tasks("frozen") if t.labels == ("invoice_copy",) and t.changes]
    for task in rows[:5]:
        plan = task.plan.replace("o.email", '"somebody@elsewhere.example"')
        trajectory, verdict = await _outcome(environment, task, plan)
        assert verdict.success is False
        assert trajectory.steps[-1].status in ("pending", "denied")
        assert environment.changes() == []


async def test_money_after_a_text_of_outsiders_waits_for_a_person(environment, part) -> None:
    rows = [t for t in part("pipelines.support.tasks").tasks("frozen") if t.labels == ("invoice_copy",) and t.changes]
    for task in rows[:5]:
        *lines, send, say = task.plan.splitlines()
        plan = "\n".join([*lines, "t = get_document(d.documents.0.document_id)", send, say])
        trajectory, _ = await _outcome(environment, task, plan)
        assert [step.status for step in trajectory.steps].count("pending") == 1
        assert environment.changes() == []


async def test_equal_seeds_give_equal_episodes_and_others_do_not(environment, part) -> None:
    task = next(
        t for t in part("pipelines.support.tasks").tasks("frozen") if t.labels == ("damaged_item",) and t.changes
    )
    first, _ = await _outcome(environment, task, seed=3)
    again, _ = await _outcome(environment, task, seed=3)
    other, _ = await _outcome(environment, task, seed=4)
    assert first == again
    assert first.ended_at - first.started_at != other.ended_at - other.started_at
    free, most = part("pipelines.support.rewards").pace(task.labels)
    assert free / 3 < first.ended_at - first.started_at < 3 * most
