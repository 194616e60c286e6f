"""Which episodes a kind of data set may learn from: the filters over whole episodes, in their fixed order.

Invariant: success is the trajectory's own outcome (the project's one definition) and nothing else; an episode with an
unknown outcome is never taken for a failure. An episode in which a call was denied is never a positive example.
It looks at one episode at a time and writes nothing.
"""

import re
from collections.abc import Callable

from agentops.harvest.funnel import Funnel
from agentops.harvest.options import Options
from agentops.types import Feedback, Trajectory

# Names by which tools of an unknown project read, compute or hand over; every other name counts as an effect.
_HARMLESS = re.compile(
    r"(?:get|list|search|find|check|look|read|show|view|fetch|query|track|count|describe|calculate|compute|think|plan)"
    r"(?=_|[A-Z]|$)|.*(?:transfer|escalate|hand_?off|hand_?over|human)"
)


def correction(trajectory: Trajectory) -> Feedback | None:
    """The newest feedback that names the right routes; None when two equally new ones disagree or there is none."""
    given = [one for one in trajectory.feedback if one.corrected_labels]
    newest = [one for one in given if one.at == max(other.at for other in given)]
    return newest[0] if len({one.corrected_labels for one in newest}) == 1 else None


def rewritten(trajectory: Trajectory) -> Feedback | None:
    """The newest feedback that gives a better answer."""
    given = [one for one in trajectory.feedback if one.corrected_answer.strip()]
    return max(given, key=lambda one: (one.at, one.corrected_answer), default=None)


def denied(trajectory: Trajectory) -> bool:
    return any(step.status == "denied" for step in trajectory.steps)


def inaction(trajectory: Trajectory, options: Options) -> bool:
    """A success that an imported reward gave although no call with an effect succeeded.

    Such a reward compares end states, so an episode that did nothing earns it wherever nothing had to change: 53 of the
    84 rewarded episodes of tau-bench airline's published run. A verifier of the project or a person's thumbs-up also
    judged the answer, so a read-only success of theirs counts.
    """
    if trajectory.outcome.success != 1 or not trajectory.outcome.source.startswith("verdict:import"):
        return False
    return not any(step.status == "ok" and not _harmless(step.tool, options) for step in trajectory.steps)


def screen(kind: str, trajectory: Trajectory, options: Options, funnel: Funnel) -> bool:
    """Whether the episode passes every filter of `kind`; each filter it meets is counted."""
    return all(
        funnel.stage(name, "episodes").judge(reason(kind, trajectory, options)) for name, reason in _FILTERS.items()
    )


def _decidable(kind: str, trajectory: Trajectory, options: Options) -> str:
    if kind == "distill" or trajectory.outcome.success is not None:
        return ""
    if kind == "router" and any(one.corrected_labels for one in trajectory.feedback):
        return ""
    if kind == "dpo" and (rewritten(trajectory) or denied(trajectory)):
        return ""
    if kind == "sft" and options.include_undecided:
        return "" if _went_through(trajectory) else "outcome unknown, and it did not go through"
    return "outcome unknown"


def _outcome(kind: str, trajectory: Trajectory, _: Options) -> str:
    if kind == "router":
        if any(one.corrected_labels for one in trajectory.feedback):
            return "" if correction(trajectory) else "corrections contradict each other"
        return "" if trajectory.outcome.success == 1 else "failed and not corrected"
    if kind == "sft":
        return "failed" if trajectory.outcome.success == 0 else ""
    return ""


def _denied(kind: str, trajectory: Trajectory, _: Options) -> str:
    return "has a denied call" if kind == "sft" and denied(trajectory) else ""


def _inaction(kind: str, trajectory: Trajectory, options: Options) -> str:
    relevant = kind in ("sft", "dpo") and not options.include_inaction
    return "inaction" if relevant and inaction(trajectory, options) else ""


def _consent(_: str, trajectory: Trajectory, options: Options) -> str:
    if options.tenants and trajectory.tenant not in options.tenants:
        return "tenant not selected"
    if options.sources and trajectory.source not in options.sources:
        return "source not selected"
    if trajectory.trace_id in options.exclude_traces:
        return "episode withdrawn"
    if trajectory.user and trajectory.user in options.exclude_users:
        return "user withdrew"
    return ""


_FILTERS: dict[str, Callable[[str, Trajectory, Options], str]] = {
    "decidable": _decidable,
    "outcome": _outcome,
    "denied": _denied,
    "inaction": _inaction,
    "consent": _consent,
}


def _went_through(trajectory: Trajectory) -> bool:
    return trajectory.status == "ok" and bool(trajectory.answer) and all(s.status == "ok" for s in trajectory.steps)


def _harmless(tool: str, options: Options) -> bool:
    effect = options.effects.get(tool)
    return effect == "read" if effect else _HARMLESS.match(tool) is not None
