"""An environment made of the project itself: its tools, its policies, a fresh copy of its world, and virtual time.

Invariant: an episode is a function of (project, task, seed, plan): it starts from the seeded world, shares nothing with
another episode, and takes no real time, so that a minute of simulated latency costs milliseconds and reproduces.
Plan language, scheduler and gateway are injected: what serves is what is simulated. Nothing here learns.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from agentops.audit import MemoryAudit
from agentops.errors import EvaluateError, PlanError
from agentops.graph import Clock, VirtualClock, resolve
from agentops.project import Project, module
from agentops.protocols import Gateway, Verifier
from agentops.types import (
    AgentSpec,
    Json,
    Message,
    Plan,
    Principal,
    Route,
    Run,
    StepRecord,
    Task,
    ToolResult,
    ToolSpec,
    Trajectory,
    Verdict,
)

START = 1_700_000_000.0  # seconds since the epoch at which every episode begins
NOT_A_PLAN = "PlanError: "  # how Trajectory.error begins when the text did not parse: the reward's `invalid` term

Parse = Callable[[str, Mapping[str, ToolSpec]], Plan]
MakeGateway = Callable[[Any, Clock, MemoryAudit], Gateway]
Execute = Callable[[Plan, Gateway, Run, Clock], Awaitable[Mapping[str, ToolResult]]]
Answer = Callable[[Plan, Mapping[str, ToolResult]], str]


class World(Protocol):
    """What a project's world module must offer (`[tool.agentops] world`)."""

    def fork(self, path: Path, clock: Clock, seed: int) -> Any: ...

    def changes(self, world: Any, path: Path) -> list[dict[str, Json]]: ...


class ProjectEnvironment:
    """`protocols.Environment` over a project. One instance runs one episode at a time; make as many as are needed."""

    def __init__(
        self,
        project: Project,
        world: Path,
        *,
        parse: Parse,
        gateway: MakeGateway,
        execute: Execute,
        verify: Verifier,
        answer: Answer,
        principal: Callable[[Task], Principal],
        policy_digest: str = "",
    ) -> None:
        """Prepare; nothing is opened before `reset`.

        Args:
            project: the loaded project.
            world: the seeded database that episodes start from.
            parse: from the plan language to a Plan; raises PlanError.
            gateway: makes the only door to the tools from a world, a clock and an audit log.
            execute: the scheduler; it runs a step under the project's sub-agent that `step.agent` names.
            verify: the pipeline's verifier: task, episode, changes of the world.
            answer: text of the answer from a plan and its results.
            principal: who asks in a task, with roles and scopes.
            policy_digest: written on the trajectory.
        """
        self._project = project
        self._path = world
        self._parse = parse
        self._gateway = gateway
        self._execute = execute
        self._verify = verify
        self._principal = principal
        self._answer = answer
        self._policy_digest = policy_digest
        self._specs = {name: tool.spec for name, tool in project.tools.items()}
        self._module: World = module(project.root, project.settings.world)  # type: ignore[assignment]
        self._task: Task | None = None
        self._seed = 0
        self._ran = False
        self._clock = VirtualClock(START)
        self._world: Any = None
        self.audit = MemoryAudit()

    def reset(self, seed: int, task: Task) -> str:
        """Start an episode in a fresh copy of the world.

        Args:
            seed: of the latencies; equal seeds give equal episodes.
            task: what is asked and by whom.

        Returns:
            the request's text.
        """
        self.close()
        self._task, self._seed, self._ran = task, seed, False
        self._clock = VirtualClock(START)
        self._world = self._module.fork(self._path, self._clock, seed)
        self.audit = MemoryAudit()
        return task.text

    async def run(self, plan: str) -> Trajectory:
        """Execute a plan through the governed gateway. May be called once per `reset`.

        Returns:
            the episode in virtual time; a plan that does not parse gives status "error", not an exception.

        Raises:
            EvaluateError: `reset` was not called, or the world was already used.
        """
        task = self._started()
        if self._ran:
            raise EvaluateError("this world was already used by a plan: call reset(seed, task) for a fresh one")
        self._ran = True
        agents = agents_of(self._project, task.labels)
        run = self._run(task, agents, plan)
        began = self._clock.now()
        try:
            parsed = _assigned(self._parse(plan, self._specs), agents)
        except PlanError as error:
            return self._trajectory(task, run, plan, None, {}, began, "", f"{NOT_A_PLAN}{error}")
        gateway = self._gateway(self._world, self._clock, self.audit)
        results = await self._clock.drive(self._execute(parsed, gateway, run, self._clock))
        return self._trajectory(task, run, plan, parsed, results, began, self._answer(parsed, results), "")

    def verify(self, trajectory: Trajectory) -> Verdict:
        """What the project's verifier says of the episode and of the world as it is now."""
        return self._verify(self._started(), trajectory, self.changes())

    def changes(self) -> list[dict[str, Json]]:
        """What the episode wrote, as a canonical difference from the seeded world."""
        self._started()
        return self._module.changes(self._world, self._path)

    def close(self) -> None:
        """Drop the world. `reset` opens the next."""
        if self._world is not None:
            self._world.close()
        self._world, self._task = None, None

    def _started(self) -> Task:
        if self._task is None:
            raise EvaluateError("the environment has no episode: call reset(seed, task) first")
        return self._task

    def _run(self, task: Task, agents: tuple[AgentSpec, ...], plan: str) -> Run:
        """As online: the run has the first route's ceiling, and as much time as its slowest agent may take."""
        content = f"{self._seed}\0{task.id}\0{plan}".encode()
        trace_id = hashlib.sha256(content).hexdigest()[:32]
        return Run(
            id=trace_id[:16],
            session=f"simulated-{trace_id[:12]}",
            principal=self._principal(task),
            agent=agents[0],
            deadline=self._clock.now() + max(agent.max_seconds for agent in agents),
            trace_id=trace_id,
        )

    def _trajectory(
        self,
        task: Task,
        run: Run,
        text: str,
        plan: Plan | None,
        results: Mapping[str, ToolResult],
        began: float,
        answer: str,
        error: str,
    ) -> Trajectory:
        steps = _records(plan, results)
        offered = frozenset().union(*(agent.tools for agent in agents_of(self._project, task.labels)))
        failed = "" if error else next((step.error for step in steps if step.status not in ("ok", "skipped")), "")
        return Trajectory(
            trace_id=run.trace_id,
            service=self._project.settings.service,
            started_at=began,
            ended_at=self._clock.now(),
            messages=_messages(task.text, steps, answer),
            tools=tuple(self._specs[name].openai() for name in sorted(offered & self._specs.keys())),
            steps=steps,
            routes=tuple(Route(label, 1.0, "gold") for label in task.labels),
            plan=plan.text if plan is not None and plan.text else text,
            answer=answer,
            status="error" if error or failed else "ok",
            error=error or failed,
            session=run.session,
            tenant=run.principal.tenant,
            user=run.principal.user,
            agent=run.agent.name,
            policy_digest=self._policy_digest,
            project_digest=self._project.digest,
            source="simulated",
        )


def agents_of(project: Project, labels: tuple[str, ...]) -> tuple[AgentSpec, ...]:
    """The sub-agents that requests with these routes are served by, in order of mention.

    At least one: a request none of whose routes has an agent runs under a ceiling that allows nothing.
    """
    table = {
        label: str(entry.get("agent", ""))
        for definition in project.routers.values()
        for label, entry in definition.table.get("labels", {}).items()
    }
    known = project.agents
    names = dict.fromkeys(name for label in labels if (name := table.get(label, "")) in known)
    return tuple(known[name] for name in names) or (AgentSpec("none", frozenset(), frozenset(), max_calls=0),)


def _assigned(plan: Plan, agents: tuple[AgentSpec, ...]) -> Plan:
    """Each step under the first of the agents that has its tool; under the first of all when none has: a denial.

    The plan language has no agents, because who may do a step is not the plan's say.
    """
    if len(agents) == 1:
        return plan
    steps = tuple(
        replace(step, agent=next((agent.name for agent in agents if step.tool in agent.tools), agents[0].name))
        for step in plan.steps
    )
    return replace(plan, steps=steps)


def _records(plan: Plan | None, results: Mapping[str, ToolResult]) -> tuple[StepRecord, ...]:
    """One record per step that has a result, in plan order, with the arguments the tool saw."""
    if plan is None:
        return ()
    values = {name: result.value for name, result in results.items() if result.status == "ok"}
    return tuple(
        StepRecord(
            call_id=result.call_id,
            tool=step.tool,
            arguments=_shown(step.arguments, values),
            status=result.status,
            result=result.value,
            error=result.error,
            cached=result.cached,
            started_at=result.started_at,
            ended_at=result.ended_at,
            policies=result.decision.policies if result.decision else (),
            span_id=step.id,
        )
        for step in plan.steps
        if (result := results.get(step.id)) is not None
    )


def _shown(arguments: Mapping[str, Any], values: Mapping[str, Json]) -> dict[str, Json]:
    """Arguments with references resolved; one whose source never came stays out, as the tool never saw it."""
    shown = {}
    for name, value in arguments.items():
        try:
            shown[name] = resolve(value, values)
        except ValueError:
            continue
    return shown


def _messages(request: str, steps: tuple[StepRecord, ...], answer: str) -> tuple[Message, ...]:
    messages: list[Message] = [{"role": "user", "content": request}]
    if steps:
        calls = [
            {"id": step.call_id, "type": "function", "function": {"name": step.tool, "arguments": dict(step.arguments)}}
            for step in steps
        ]
        messages.append({"role": "assistant", "content": "", "tool_calls": calls})
        for step in steps:
            content = step.result if step.status == "ok" else {"error": step.error or step.status}
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": step.call_id,
                    "name": step.tool,
                    "content": json.dumps(content, ensure_ascii=False),
                }
            )
    messages.append({"role": "assistant", "content": answer})
    return tuple(messages)
