"""The answer of a simulated episode, from a plan and what its steps returned.

Invariant: it says only what results hold: a hole without its result is never filled with a guess.
"""

from collections.abc import Mapping

from agentops.graph import render
from agentops.types import Plan, ToolResult


def answer(plan: Plan, results: Mapping[str, ToolResult]) -> str:
    """The plan's sentence with its holes filled, or what went wrong in the order of the plan.

    Args:
        plan: with `say`, or with `handoff` when a person takes over.
        results: step id -> result; steps that never ran may be missing.
    """
    if plan.handoff:
        return f"A colleague will take over: {plan.handoff}"
    wrong = [
        result.error or f"{step.tool}: {result.status}"
        for step in plan.steps
        if (result := results.get(step.id)) is not None and result.status not in ("ok", "skipped")
    ]
    if wrong:
        return " ".join(wrong)
    try:
        return render(plan.say, {name: result.value for name, result in results.items() if result.status == "ok"})
    except ValueError as error:
        return f"The answer could not be completed: {error}"
