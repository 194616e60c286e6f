"""How often an agent finishes its task: success by the project's own verifier, with time and calls.

Invariant: an episode the verifier could not judge is unknown, counted and shown, never a failure and never a success. A
crash of the harness is such an episode too. It runs whatever function it is given and gates nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentops.errors import EvaluateError
from agentops.evaluate import statistics
from agentops.evaluate.suites import Suite
from agentops.types import Report, Task, Trajectory, Verdict

Run = Callable[[Task], Awaitable[tuple[Trajectory, Verdict]]]
SHOWN = 200


@dataclass(frozen=True, slots=True)
class Episode:
    """One task's result. `verdict` None: the run itself failed, and `error` says with what type of exception."""

    task: Task
    trajectory: Trajectory | None
    verdict: Verdict | None
    error: str = ""

    @property
    def success(self) -> bool | None:
        return self.verdict.success if self.verdict else None

    @property
    def why(self) -> str:
        """What is known about an episode that could not be judged."""
        return self.error or (self.verdict.evidence if self.verdict else "")


async def evaluate_agent(
    suite: Suite,
    run: Run,
    baseline: Run | None = None,
    *,
    candidate: str = "",
    baseline_version: str = "",
    limit: int | None = None,
    concurrency: int = 1,
) -> Report:
    """Run every task and report success, unknowns, latency and calls; paired against `baseline` when given.

    Args:
        suite: tasks with a decidable outcome.
        run: executes a task in a fresh world and verifies it.
        baseline: the same with the version that serves.
        candidate: artifact digest the report is about.
        baseline_version: artifact digest of the baseline.
        limit: only the first tasks, for a quick look.
        concurrency: episodes at a time; 1 keeps latencies honest.

    Returns:
        Metrics: success (of the judged), unknown, latency_p50_s, latency_p95_s (of timed trajectories), calls, errors;
        with a baseline also baseline/success and difference (over tasks both of whose episodes were judged).

    Raises:
        EvaluateError: limit or concurrency is not positive.
    """
    if concurrency < 1 or (limit is not None and limit < 1):
        raise EvaluateError(f"limit = {limit!r} and concurrency = {concurrency!r} must be at least 1")
    tasks = list(suite.tasks[:limit])
    episodes = await _run_all(tasks, run, concurrency)
    judged = [episode for episode in episodes if episode.success is not None]
    trajectories = [episode.trajectory for episode in episodes if episode.trajectory is not None]
    seconds = [trajectory.ended_at - trajectory.started_at for trajectory in trajectories if trajectory.timed]
    metrics = {
        "success": statistics.proportion(
            [float(bool(e.success)) for e in judged], _templates([e.task for e in judged])
        ),
        "unknown": statistics.wilson(len(episodes) - len(judged), len(episodes)),
        "latency_p50_s": statistics.quantile(seconds, 0.5),
        "latency_p95_s": statistics.quantile(seconds, 0.95),
        "calls": statistics.mean_interval([float(len(trajectory.steps)) for trajectory in trajectories]),
        "errors": statistics.wilson(sum(t.status == "error" for t in trajectories), len(trajectories)),
    }
    unknown = [episode for episode in episodes if episode.success is None]
    details: dict[str, Any] = {
        "tasks": len(tasks),
        "failed": [episode.task.id for episode in judged if not episode.success][:SHOWN],
        "unknown": [{"task": episode.task.id, "why": episode.why} for episode in unknown][:SHOWN],
        "must_pass": sum(task.must_pass for task in tasks),
    }
    if baseline is not None:
        others = await _run_all(tasks, baseline, concurrency)
        pairs = [
            (a, b) for a, b in zip(episodes, others, strict=True) if a.success is not None and b.success is not None
        ]
        ours, theirs = [float(bool(a.success)) for a, _ in pairs], [float(bool(b.success)) for _, b in pairs]
        known = [float(e.success) for e in others if e.success is not None]
        metrics["baseline/success"] = statistics.proportion(known)
        metrics["difference"] = statistics.paired_difference(ours, theirs, _templates([a.task for a, _ in pairs]))
        details["fixed"] = sum(a > b for a, b in zip(ours, theirs, strict=True))
        details["broken"] = sum(a < b for a, b in zip(ours, theirs, strict=True))
        details["mcnemar_p"] = statistics.mcnemar(details["fixed"], details["broken"])
    return Report(
        suite=suite.name,
        suite_digest=suite.digest,
        candidate=candidate,
        baseline=baseline_version if baseline is not None else "",
        metrics=metrics,
        must_pass_failures=tuple(e.task.id for e in episodes if e.task.must_pass and e.success is not True),
        details=details,
    )


async def _run_all(tasks: Sequence[Task], run: Run, concurrency: int) -> list[Episode]:
    gate = asyncio.Semaphore(concurrency)

    async def one(task: Task) -> Episode:
        async with gate:
            try:
                trajectory, verdict = await run(task)
            except Exception as error:  # noqa: BLE001 - an episode that breaks is data (unknown), not the end of the run
                return Episode(task, None, None, type(error).__name__)
            return Episode(task, trajectory, verdict)

    return list(await asyncio.gather(*(one(task) for task in tasks)))


def _templates(tasks: Sequence[Task]) -> list[str] | None:
    if not any(task.template for task in tasks):
        return None
    return [task.template or f"\0{task.id}" for task in tasks]
