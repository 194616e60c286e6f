"""The terms a reward of this pipeline may be made of, by name: each in [0, 1], or None when nothing can be said."""

import re
from collections import Counter
from collections.abc import Callable

from agentops.types import Task, Trajectory, Verdict

Term = Callable[[Task, Trajectory, Verdict], float | None]
_CALLED = re.compile(r"= (\w+)\(")


def outcome(task: Task, trajectory: Trajectory, verdict: Verdict) -> float | None:
    """1 for a verified success, 0 for a failure."""
    return None if verdict.success is None else float(verdict.success)


def process(task: Task, trajectory: Trajectory, verdict: Verdict) -> float | None:
    """F1 between the calls of the right plan and those that were made."""
    if verdict.success is None:
        return None
    gold, made = Counter(_CALLED.findall(task.plan)), Counter(step.tool for step in trajectory.steps)
    if not gold and not made:
        return float(verdict.success)
    return 2 * (gold & made).total() / (gold.total() + made.total())


def invalid(task: Task, trajectory: Trajectory, verdict: Verdict) -> float | None:
    """Share of the calls that failed or were denied; 1 when the plan could not be read."""
    if not trajectory.steps:
        return float(trajectory.status == "error")
    return sum(step.status in ("error", "denied", "timeout") for step in trajectory.steps) / len(trajectory.steps)


TERMS: dict[str, Term] = {"outcome": outcome, "process": process, "invalid": invalid}
