"""The reference project loaded once, private worlds, and a way to call its tools and run its plans without policies."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentops import project as projects
from agentops.act import Context
from agentops.act.scheduler import execute
from agentops.act.tool import arguments
from agentops.errors import ToolError
from agentops.graph import Clock, VirtualClock
from agentops.plan.answer import answer
from agentops.plan.language import parse
from agentops.project import Project
from agentops.types import AgentSpec, Plan, Principal, Run, StepRecord, Task, ToolCall, ToolResult, Trajectory

NOBODY_STOPS = AgentSpec("all", frozenset(), frozenset(), max_calls=100, max_money_cents=10**9, max_seconds=600.0)


@pytest.fixture(scope="session")
def project(repo: Path) -> Project:
    return projects.load(repo, environment={})


@pytest.fixture(scope="session")
def part(project: Project) -> Callable[[str], ModuleType]:
    """A module of the project by its dotted name: `part("tools.world")`."""
    return lambda dotted: projects.module(project.root, dotted)


@pytest.fixture(scope="session")
def world_file(part: Callable[[str], ModuleType], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("world") / "world.db"
    part("tools.world").create(path)
    return path


@pytest.fixture
def fork(part: Callable[[str], ModuleType], world_file: Path) -> Iterator[Callable[..., Any]]:
    """A private world on its own virtual clock; closed after the test."""
    opened = []

    def make(seed: int = 0, clock: Clock | None = None) -> Any:
        opened.append(part("tools.world").fork(world_file, clock or VirtualClock(), seed))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


class Desk:
    """Calls tools directly, as the gateway does after it has decided: validated arguments and a context."""

    def __init__(self, project: Project, world: Any, user: str, roles: tuple[str, ...] = ("customer",)) -> None:
        self.tools, self.world = project.tools, world
        principal = Principal("default", user, frozenset(), frozenset(roles))
        self.run = Run("run", "session", principal, NOBODY_STOPS, deadline=world.clock.now() + 600.0)
        self._keys = itertools.count()

    async def call(self, tool: str, key: str | None = None, **given: Any) -> Any:
        """The tool's result; a fresh idempotency key unless one is given."""
        key = f"key-{next(self._keys)}" if key is None else key
        context = Context(self.run, self.world, self.world.clock, f"call-{key}", key)
        function = self.tools[tool].function(context, **arguments(self.tools[tool], given))
        return await self.world.clock.drive(function)


class Direct:
    """A gateway without policy, budget, cache and audit: what a plan does when everything is allowed."""

    def __init__(self, project: Project, world: Any) -> None:
        self.tools, self.world = project.tools, world

    async def call(self, run: Run, call: ToolCall) -> ToolResult:
        clock = self.world.clock
        began = clock.now()
        context = Context(run, self.world, clock, call.id, call.idempotency_key)
        try:
            value = await self.tools[call.tool].function(context, **arguments(self.tools[call.tool], call.arguments))
        except ToolError as error:
            return ToolResult(call.id, call.tool, "error", error=str(error), started_at=began, ended_at=clock.now())
        return ToolResult(call.id, call.tool, "ok", value, started_at=began, ended_at=clock.now())


async def episode(project: Project, world: Any, user: str, text: str) -> Trajectory:
    """A plan text run in `world` for `user`, without policies, as a Trajectory."""
    specs = {name: tool.spec for name, tool in project.tools.items()}
    plan = parse(text, specs)
    principal = Principal("default", user, frozenset(), frozenset({"customer"}))
    run = Run("run", "session", principal, NOBODY_STOPS, deadline=world.clock.now() + 600.0)
    began = world.clock.now()
    results = await world.clock.drive(execute(plan, Direct(project, world), run, world.clock))
    return trajectory(plan, results, began, world.clock.now())


def trajectory(plan: Plan, results: dict[str, ToolResult], began: float, ended: float) -> Trajectory:
    steps = tuple(
        StepRecord(result.call_id, step.tool, {}, result.status, result.value, result.error)
        for step in plan.steps
        if (result := results.get(step.id)) is not None
    )
    return Trajectory(
        "trace", "test", began, ended, (), steps=steps, plan=plan.text or "handoff", answer=answer(plan, results)
    )


@pytest.fixture
def desk(project: Project, fork: Callable[..., Any]) -> Callable[..., Desk]:
    """`desk("C-1001")`: calls tools for that user in a private world."""
    return lambda user, roles=("customer",), world=None: Desk(project, world or fork(), user, roles)


@pytest.fixture
def run_task(project: Project, part: Callable[[str], ModuleType], fork: Callable[..., Any]) -> Callable[..., Any]:
    """Runs a plan (default: the gold one) of a task in a fresh world; returns (trajectory, changes, verdict)."""

    async def run(task: Task, plan: str | None = None) -> tuple[Any, Any, Any]:
        world = fork()
        text = (task.plan or 'handoff "nothing fits"') if plan is None else plan
        found = await episode(project, world, task.user, text)
        changed = part("tools.world").changes(world)
        verdict = part("pipelines.support.verify").verify(task, found, changed)
        world.close()
        return found, changed, verdict

    return run
