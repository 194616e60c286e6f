"""Whether an episode did what its task asked: the end state and the facts of the answer."""

import json
from collections.abc import Mapping, Sequence

from agentops.types import OUT_OF_SCOPE, Json, Task, Trajectory, Verdict

NAME = "shop-end-state"


def verify(task: Task, trajectory: Trajectory, changes: Sequence[Mapping[str, Json]] | None) -> Verdict:
    """Judge one episode; `changes` is what it wrote. What cannot be judged is None, never a failure."""
    if changes is None:
        return Verdict(trajectory.trace_id, NAME, None, evidence="the end state is not known")
    checks = {"end state": _canonical(changes) == _canonical(task.changes)}
    if task.labels == (OUT_OF_SCOPE,) or task.plan.startswith("handoff"):
        checks["no tool was used"] = not trajectory.steps
    else:
        checks["there is an answer"] = bool(trajectory.answer.strip())
        for fact in task.answer_facts:
            checks[f"the answer says {fact!r}"] = fact.lower() in trajectory.answer.lower()
    failed = [name for name, held in checks.items() if not held]
    evidence = "; ".join(f"failed: {name}" for name in failed) or f"{len(checks)} checks held"
    return Verdict(trajectory.trace_id, NAME, not failed, 1 - len(failed) / len(checks), evidence)


def _canonical(changes: Sequence[Mapping[str, Json]]) -> list[str]:
    return sorted(json.dumps(dict(change), sort_keys=True) for change in changes)
