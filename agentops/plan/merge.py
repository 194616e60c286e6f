"""Several plans for one message become one.

Invariant: the merged plan is an ordinary plan of the language (it is written and parsed again), so its order of effects
is the language's. Plans that change things and speak of the same thing run one after the other, in order of mention;
all others are independent parts: one that fails or waits for an approval holds up no other.
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
    renamed = [_renamed(plan, letter + "_") for plan, letter in zip(plans, string.ascii_lowercase, strict=False)]
    steps: list[Step] = []
    for part, group in enumerate(_groups(renamed, tools)):
        for plan in group:
            start = len(steps)  # above every stage so far: only the order counts
            steps += [replace(step, stage=start + step.stage, part=part) for step in plan.steps]
    say = "\n".join(dict.fromkeys(plan.say for plan in renamed if plan.say))
    sources = "+".join(dict.fromkeys(plan.source for plan in plans if plan.source))
    whole = language.parse(language.format(Plan(tuple(steps), say)), tools, sources)
    agents = {
        step.id: step.agent for step in steps
    }  # not part of the language: who may do a step is not the plan's say
    return replace(whole, steps=tuple(replace(step, agent=agents[step.id]) for step in whole.steps))


def _groups(plans: Sequence[Plan], tools: Mapping[str, ToolSpec]) -> list[list[Plan]]:
    """Plans with steps, those that must run one after the other together, in order of mention."""
    groups: list[list[Plan]] = []
    for plan in plans:
        if plan.steps:
            bound = [group for group in groups if any(_clash(other, plan, tools) for other in group)]
            groups = [group for group in groups if group not in bound]
            groups.append([*(other for group in bound for other in group), plan])
    return sorted(groups, key=lambda group: plans.index(group[0]))


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
