"""Several plans for one message become one.

Invariant: the merged plan is an ordinary plan of the language (it is written and parsed again), so its order of effects
is the language's. Plans that change things and speak of the same thing run one after the other, in order of mention;
all others run side by side, line by line.
"""

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentops.errors import PlanError
from agentops.plan import language
from agentops.types import Json, Plan, Ref, Step, ToolSpec

_HOLE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")


def merged(plans: Sequence[Plan], tools: Mapping[str, ToolSpec]) -> Plan:
    """One plan with the steps of all, their answers joined; a single plan stays as it is.

    Args:
        plans: without hand-overs, at most 26, in order of mention.
        tools: the tools they name.

    Raises:
        PlanError: too many steps or too long together.
    """
    if len(plans) == 1:
        return plans[0]
    if len(plans) > len(string.ascii_lowercase):
        raise PlanError(f"{len(plans)} plans for one message are too many: at most 26")
    steps: list[Step] = []
    ends: list[int] = []  # first stage after each plan
    renamed = [_renamed(plan, letter + "_") for plan, letter in zip(plans, string.ascii_lowercase, strict=False)]
    for plan in renamed:
        before = [end for other, end in zip(renamed, ends, strict=False) if _clash(other, plan, tools)]
        start = max(before, default=0)
        steps += [replace(step, stage=start + step.stage) for step in plan.steps]
        ends.append(start + 1 + max((step.stage for step in plan.steps), default=-1))
    steps.sort(key=lambda step: step.stage)  # stable: within a stage in order of mention
    say = "\n".join(dict.fromkeys(plan.say for plan in renamed if plan.say))
    sources = "+".join(dict.fromkeys(plan.source for plan in plans if plan.source))
    whole = language.parse(language.format(Plan(tuple(steps), say)), tools, sources)
    agents = {step.id: step.agent for step in steps}  # not part of the language: who may do a step is not the plan's say
    return replace(whole, steps=tuple(replace(step, agent=agents[step.id]) for step in whole.steps))


def _clash(one: Plan, other: Plan, tools: Mapping[str, ToolSpec]) -> bool:
    """Whether both change something and share a value: the later one must see what the earlier one did."""
    both = all(any(tools[step.tool].effect != "read" for step in plan.steps) for plan in (one, other))
    return both and bool(_values(one) & _values(other))


def _values(plan: Plan) -> set[str]:
    """Texts among the arguments: order numbers and the like."""
    found: set[str] = set()

    def walk(value: Any) -> None:
        if isinstance(value, str):
            found.add(value)
        elif isinstance(value, Mapping):
            for item in value.values():
                walk(item)
        elif isinstance(value, list | tuple):
            for item in value:
                walk(item)

    for step in plan.steps:
        walk(step.arguments)
    return found


def _renamed(plan: Plan, prefix: str) -> Plan:
    def value(old: Any) -> Json | Ref:
        if isinstance(old, Ref):
            return Ref(prefix + old.step, old.path)
        if isinstance(old, Mapping):
            return {key: value(item) for key, item in old.items()}
        if isinstance(old, list | tuple):
            return [value(item) for item in old]
        return old

    def hole(match: re.Match[str]) -> str:
        return match[0] if match[1] is None else "{" + prefix + match[1].strip() + "}"

    steps = [
        replace(
            step,
            id=prefix + step.id,
            arguments={name: value(given) for name, given in step.arguments.items()},
            after=tuple(prefix + other for other in step.after),
        )
        for step in plan.steps
    ]
    return Plan(tuple(steps), _HOLE.sub(hole, plan.say))
