"""Whether an episode did what its task asked: the end state and the facts of the answer, compared with the task.

Invariant: success needs evidence. An empty or evasive answer never passes, and neither does a right answer over a wrong
end state or the reverse. What cannot be judged (no end state, an episode that never ran) is None, not a failure.
How the answer is worded, in which order independent calls ran and what was read on the way does not matter.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentops.types import OUT_OF_SCOPE, Json, Task, Trajectory, Verdict

from ...tools.access import MONTHS

NAME = "support-end-state"
UNJUDGED = {"refunds": {"reason"}}  # a matter of opinion; who is right about the rest is not
_MONEY = re.compile(r"(\d+)\.(\d{2}) EUR")
_DAY = re.compile(r"(\d{1,2}) ([A-Z][a-z]+) (\d{4})")
_MONTHS = [month.lower() for month in MONTHS]
_EFFECTS = re.compile(r"\b(cancel_order|change_address|create_refund|reserve_item|send_document)\(([^)]*)\)")


def verify(task: Task, trajectory: Trajectory, changes: Sequence[Mapping[str, Json]] | None) -> Verdict:
    """Judge one episode.

    Args:
        task: with gold plan, expected changes and facts.
        trajectory: the episode; its plan, steps and answer are looked at.
        changes: what the episode wrote, from the world's `changes`; None when it is not known.

    Returns:
        success True, False or None (cannot be judged), the share of checks that held as score, and the evidence.
    """
    if changes is None:
        return _verdict(trajectory, None, None, "the end state is not known")
    if not task.plan and task.labels != (OUT_OF_SCOPE,):
        return _verdict(trajectory, None, None, f"task {task.id} has no gold plan to judge by")
    if trajectory.status == "error" and not (trajectory.plan or trajectory.steps or trajectory.answer):
        return _verdict(trajectory, None, None, f"the episode never ran: {trajectory.error}")
    checks: dict[str, bool] = {"end state": judged(changes) == judged(task.changes)}
    if task.labels == (OUT_OF_SCOPE,) or task.plan.startswith("handoff"):
        checks["no tool was used"] = not trajectory.steps
        checks["handed over to a person"] = trajectory.plan.startswith("handoff") or "colleague" in normal(
            trajectory.answer
        )
    elif waits_for_approval(task):
        checks["an approval was asked for"] = _pending(task, trajectory)
    else:
        checks["there is an answer"] = bool(trajectory.answer.strip())
        for fact in task.answer_facts:
            checks[f"the answer says {fact!r}"] = says(trajectory.answer, fact)
    failed = [name for name, held in checks.items() if not held]
    evidence = "; ".join(f"failed: {name}" for name in failed) or f"{len(checks)} checks held"
    return _verdict(trajectory, not failed, 1 - len(failed) / len(checks), evidence)


def judged(changes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Changes in a canonical order without the columns nobody judges."""
    rows = []
    for change in changes:
        hidden = UNJUDGED.get(change["table"], set())
        columns = {key: value for key, value in change["columns"].items() if key not in hidden}
        rows.append(json.dumps({**change, "columns": columns}, sort_keys=True))
    return sorted(rows)


def waits_for_approval(task: Task) -> bool:
    """A gold plan with an effect, no expected change and nothing to say: the policy suspends it."""
    return bool(_EFFECTS.search(task.plan)) and not task.changes and not task.answer_facts


def says(answer: str, fact: str) -> bool:
    """Whether `fact` stands in `answer`, whatever the case, spacing and the usual ways to write money and dates."""
    text = normal(answer)
    return any(_within(normal(form), text) for form in forms(fact))


def forms(fact: str) -> list[str]:
    """A fact and its other spellings: "4.90 EUR" is also "€4.90", "3 June 2026" also "2026-06-03"."""
    found = [fact]
    if match := _MONEY.search(fact):
        whole, cents = match[1], match[2]
        others = [
            f"€{whole}.{cents}",
            f"€ {whole}.{cents}",
            f"{whole},{cents} EUR",
            f"{whole}.{cents} €",
            f"{whole},{cents} €",
        ]
        others += [f"EUR {whole}.{cents}", f"{whole}.{cents} euros", f"€{whole},{cents}"]
        found += [fact.replace(match[0], other) for other in others]
    if (match := _DAY.search(fact)) and match[2].lower() in _MONTHS:
        month = _MONTHS.index(match[2].lower()) + 1
        others = [f"{match[2]} {match[1]}, {match[3]}", f"{match[3]}-{month:02d}-{int(match[1]):02d}"]
        found += [fact.replace(match[0], other) for other in others]
    return found


def normal(text: str) -> str:
    return " ".join(text.casefold().split())


def _within(fact: str, text: str) -> bool:
    """`fact` in `text`, not as a part of a longer number: 4.90 is not said by 14.90."""
    head = r"(?<![\d.,])" if fact[:1].isdigit() else ""
    tail = r"(?!\d|[.,]\d)" if fact[-1:].isdigit() else ""
    return re.search(head + re.escape(fact) + tail, text) is not None


def _pending(task: Task, trajectory: Trajectory) -> bool:
    gold = _EFFECTS.search(task.plan)
    return gold is not None and any(
        step.status == "pending" and step.tool == gold[1] and str(step.arguments.get("order_id", "")) in gold[2]
        for step in trajectory.steps
    )


def _verdict(trajectory: Trajectory, success: bool | None, score: float | None, evidence: str) -> Verdict:
    return Verdict(trajectory.trace_id, NAME, success, score, evidence, at=trajectory.ended_at)
