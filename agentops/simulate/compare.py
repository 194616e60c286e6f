"""Several plans of one request, each in its own copy of the same world: which is better, and by how much.

Invariant: every plan meets the same world, the same seed and so the same latencies: a difference is the plan's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agentops.protocols import Environment
from agentops.types import Task, Trajectory, Verdict


@dataclass(frozen=True, slots=True)
class Compared:
    """One plan and how it went."""

    plan: str
    verdict: Verdict
    latency_s: float  # virtual
    trajectory: Trajectory


async def compare(environment: Environment, task: Task, plans: Sequence[str], seed: int = 0) -> list[Compared]:
    """Run `plans` for `task`; best first: verified success before failure before undecided, then the faster.

    Args:
        environment: reset for every plan, closed at the end.
        task: the request and its truth.
        plans: plan texts; repeated ones run once.
        seed: of the world's latencies, the same for all.
    """
    found = []
    try:
        for plan in dict.fromkeys(plans):
            environment.reset(seed, task)
            trajectory = await environment.run(plan)
            verdict = environment.verify(trajectory)
            found.append(Compared(plan, verdict, trajectory.ended_at - trajectory.started_at, trajectory))
    finally:
        environment.close()
    order = {True: 0, False: 1, None: 2}
    return sorted(found, key=lambda one: (order[one.verdict.success], one.latency_s))
