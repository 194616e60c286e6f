"""The answer of an episode, from a plan and what its steps returned.

Invariant: it says only what results hold. A hole without its result is never filled with a guess, and when a step
failed a sentence without a hole is not said either: it could claim what did not happen.
"""

from collections.abc import Mapping

from agentops.graph import holes, render
from agentops.types import Plan, ToolResult

HANDED_OVER = "I have passed this to a colleague, who will get back to you."


def answer(plan: Plan, results: Mapping[str, ToolResult]) -> str:
    """The plan's sentences with their holes filled, then what went wrong in the order of the plan.

    Args:
        plan: with `say` (a sentence a line), or with `handoff` when a person takes over.
        results: step id -> result; steps that never ran may be missing.
    """
    if plan.handoff:
        return HANDED_OVER
    values = {name: result.value for name, result in results.items() if result.status == "ok"}
    failed = [
        result.error or f"{step.tool}: {result.status}"
        for step in plan.steps
        if (result := results.get(step.id)) is not None and result.status not in ("ok", "skipped")
    ]
    said: list[str] = []
    for line in plan.say.split("\n"):
        try:
            if not failed or holes(line):
                said.append(render(line, values))
        except ValueError as error:
            if not failed:
                failed.append(f"The answer could not be completed: {error}")
    return "\n".join([*said, *dict.fromkeys(failed)]).strip()
