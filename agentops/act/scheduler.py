"""Runs a plan: every step is dispatched the moment its inputs exist, and results come in the plan's order.

Invariant: each step gets exactly one result. A step that fails, waits for an approval or cannot be called takes what
depends on it along as "skipped", and nothing else; all approvals a plan needs surface together. The same plan in the
same conversation gives each step the same idempotency key, so a plan resumed after an approval repeats no effect.
Time is the injected clock's. The gateway decides, records and bounds every call.
"""

import asyncio
import functools
import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import replace

from agentops import graph
from agentops.act.deadline import within
from agentops.errors import PlanError
from agentops.graph import Clock
from agentops.protocols import Gateway
from agentops.types import AgentSpec, CallStatus, Labels, Plan, Ref, Run, Step, ToolCall, ToolResult

_LOG = logging.getLogger(__name__)
_GRACE_S = 1.0  # the gateway ends calls at the run's deadline; what it could not end is cancelled this much later
LEAST = Labels("trusted", "public")
_NOTHING: Mapping[str, ToolResult] = {}
_NOBODY: Mapping[str, AgentSpec] = {}


async def execute(
    plan: Plan,
    gateway: Gateway,
    run: Run,
    clock: Clock,
    done: Mapping[str, ToolResult] = _NOTHING,
    agents: Mapping[str, AgentSpec] = _NOBODY,
) -> dict[str, ToolResult]:
    """Run the steps of `plan`.

    Args:
        plan: a DAG of steps.
        gateway: the only door to a tool.
        run: for whom; no call starts after `run.deadline`.
        clock: real online, virtual in simulation.
        done: results of an earlier turn by step id. They are kept, save those that were pending or skipped.
        agents: ceilings by name, for steps that name a sub-agent. One that is not here may do nothing.

    Returns:
        one result per step, in the plan's order.

    Raises:
        PlanError: steps wait for each other in a circle, or for a step that does not exist.
    """
    try:
        graph.topological({step.id: step.after for step in plan.steps})
    except ValueError as error:
        raise PlanError(str(error)) from None
    execution = _Execution(plan, gateway, run, clock, done, agents)
    try:
        await within(clock, max(0.0, run.deadline - clock.now()) + _GRACE_S, execution.run())
    except TimeoutError:
        execution.abandon()
    return {step.id: execution.results[step.id] for step in plan.steps}


def idempotency_key(run: Run, plan: Plan, step: str) -> str:
    """The key of a step's effect: equal for the same step of the same plan in one conversation, 64 hex digits."""
    text = plan.text or repr(plan.steps)
    parts = [run.principal.tenant, run.principal.user, run.session, text, step]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class _Execution:
    """The results so far, and what waits for what."""

    def __init__(
        self,
        plan: Plan,
        gateway: Gateway,
        run: Run,
        clock: Clock,
        done: Mapping[str, ToolResult],
        agents: Mapping[str, AgentSpec],
    ) -> None:
        self._plan, self._gateway, self._run, self._clock, self._agents = plan, gateway, run, clock, agents
        self._steps = {step.id: step for step in plan.steps}
        self._needs = {step.id: {*step.after, *graph.references(step.arguments)} for step in plan.steps}
        self._followers: dict[str, list[str]] = {step.id: [] for step in plan.steps}
        for step, needs in self._needs.items():
            for other in needs:
                self._followers.setdefault(other, []).append(step)
        self._waiting = {step: len(needs) for step, needs in self._needs.items()}
        self.results: dict[str, ToolResult] = {}
        self._done = {
            step: result
            for step, result in done.items()
            if step in self._steps and result.status not in ("pending", "skipped")
        }
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        async with asyncio.TaskGroup() as self._group:
            for step in self._plan.steps:
                if not self._needs[step.id]:
                    self._start(step.id)

    def abandon(self) -> None:
        """Give every step without a result one: the time is over."""
        for step in self._plan.steps:
            if step.id not in self.results:
                self.results[step.id] = self._failed(step, "timeout", "the time for this request is over")

    def _start(self, step: str) -> None:
        """Dispatch a step whose inputs exist, or settle at once what needs no call."""
        if step in self._done:
            self._finish(step, self._done[step])
            return
        failed = next((name for name in self._needs_in_order(step) if self.results[name].status != "ok"), "")
        if failed:
            reason = f"not done, because {failed!r} is {self.results[failed].status}"
            self._finish(step, self._failed(self._steps[step], "skipped", reason))
            return
        assert self._group is not None
        self._group.create_task(self._call(self._steps[step]))

    async def _call(self, step: Step) -> None:
        key = idempotency_key(self._run, self._plan, step.id)
        values = {name: self.results[name].value for name in self._needs[step.id]}
        labels, sources = LEAST, {}
        for argument, value in step.arguments.items():
            used = [self.results[name].labels for name in graph.references(value)]
            if used:  # what a plan takes from a result has the result's label; the rest the gateway looks up
                worst = functools.reduce(Labels.join, used)
                if isinstance(value, Ref) or worst.integrity == "untrusted":  # beside a reference stand a model's words
                    sources[argument] = worst.integrity
                labels = labels.join(worst)
        try:
            arguments = graph.resolve(step.arguments, values)
        except ValueError as error:
            self._finish(step.id, self._failed(step, "error", f"{step.tool}: {error}"))
            return
        call = ToolCall(f"{step.id}-{key[:12]}", step.tool, arguments, labels, key, sources)
        try:
            result = await self._gateway.call(self._run_of(step), call)
        except Exception as error:  # noqa: BLE001 - a broken gateway must end one step, not lose the others' results
            _LOG.error("step %s: the gateway failed: %s", step.id, type(error).__name__)
            result = self._failed(step, "error", f"{step.tool}: internal error")
        self._finish(step.id, result)

    def _finish(self, step: str, result: ToolResult) -> None:
        self.results[step] = result
        for follower in self._followers[step]:
            self._waiting[follower] -= 1
            if not self._waiting[follower]:
                self._start(follower)

    def _run_of(self, step: Step) -> Run:
        """The run under the ceiling of the step's own sub-agent."""
        if not step.agent:
            return self._run
        nobody = AgentSpec(step.agent, frozenset(), frozenset(), max_calls=0)
        return replace(self._run, agent=self._agents.get(step.agent, nobody))

    def _needs_in_order(self, step: str) -> list[str]:
        return [other.id for other in self._plan.steps if other.id in self._needs[step]]

    def _failed(self, step: Step, status: CallStatus, error: str) -> ToolResult:
        now = self._clock.now()
        return ToolResult(step.id, step.tool, status, error=error, started_at=now, ended_at=now)
