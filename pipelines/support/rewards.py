"""The terms a reward of this pipeline may be made of, by name. Pure functions of (task, episode, verdict).

Invariant: every term is in [0, 1] or None when the episode cannot be judged; None is never read as 0. How terms are
weighed, and the bounds that keep a slow success above a fast failure, is the trainer's business.
"""

import functools
import math
import random
import re
from collections import Counter
from collections.abc import Callable

from agentops.types import Task, Trajectory, Verdict

from ...tools.world import latencies
from .tasks import playbooks

Term = Callable[[Task, Trajectory, Verdict], float | None]
NOT_A_PLAN = "PlanError: "  # how the error of an episode begins whose text was no plan
DRAWS = 500
_CALLED = re.compile(r"= (\w+)\(")


def outcome(task: Task, trajectory: Trajectory, verdict: Verdict) -> float | None:
    """1 for a verified success, 0 for a failure."""
    return None if verdict.success is None else float(verdict.success)


def process(task: Task, trajectory: Trajectory, verdict: Verdict) -> float | None:
    """F1 between the calls of the gold plan and those that were made: missing and wasted calls both cost."""
    if verdict.success is None:
        return None
    gold = Counter(_CALLED.findall(task.plan))
    made = Counter(step.tool for step in trajectory.steps if step.status in ("ok", "error", "pending"))
    if not gold and not made:
        return 1.0 if verdict.success else 0.0
    return 2 * (gold & made).total() / (gold.total() + made.total())


def invalid(task: Task, trajectory: Trajectory, verdict: Verdict) -> float | None:
    """1 when the text was no plan, else the share of calls that were denied or whose arguments made no sense."""
    if verdict.success is None:
        return None
    if trajectory.error.startswith(NOT_A_PLAN):
        return 1.0
    if not trajectory.steps:
        return 0.0
    refused = sum(
        step.status == "denied" or (step.status == "error" and step.error.startswith(f"{step.tool}: "))
        for step in trajectory.steps
    )
    return refused / len(trajectory.steps)


def latency(task: Task, trajectory: Trajectory, verdict: Verdict) -> float | None:
    """How slow the episode was for its kind of request: clip((T - T_free) / (T_max - T_free), 0, 1)."""
    if verdict.success is None or not trajectory.timed:
        return None
    free_s, max_s = pace(task.labels)
    return min(1.0, max(0.0, (trajectory.ended_at - trajectory.started_at - free_s) / (max_s - free_s)))


def pace(labels: tuple[str, ...]) -> tuple[float, float]:
    """(T_free, T_max) in simulated seconds for a kind of request.

    T_free is the 5th percentile of its playbook run as written, T_max the 95th of the same calls one after the other,
    both drawn from the latencies in the packs. Several intents in one message wait for the slowest, or for each other.
    """
    found = [paces()[label] for label in labels if label in paces()] or [(0.0, 1.0)]
    return max(free for free, _ in found), sum(most for _, most in found)


@functools.cache
def paces() -> dict[str, tuple[float, float]]:
    """`pace` of every intent whose playbook calls a tool."""
    rng = random.Random("support paces")
    found = {}
    for label, playbook in playbooks().items():
        stages = [_CALLED.findall(line) for line in playbook["plan"].strip().splitlines()[:-1]]
        if not any(stages):
            continue
        written, single = [], []
        for _ in range(DRAWS):
            taken = [[_draw(tool, rng) for tool in stage] for stage in stages]
            written.append(sum(map(max, taken)))
            single.append(sum(map(sum, taken)))
        found[label] = (sorted(written)[DRAWS // 20], sorted(single)[-DRAWS // 20])
    return found


def _draw(tool: str, rng: random.Random) -> float:
    median_ms, sigma = latencies()[tool]
    return median_ms / 1000 * math.exp(sigma * rng.gauss(0.0, 1.0))


TERMS: dict[str, Term] = {"outcome": outcome, "process": process, "invalid": invalid, "latency": latency}
