"""What a release should do next, and the sentence that says why.

Invariant: pure: it reads a monitor and a release and changes neither. The canary's rule itself is `ramp.move`; numbers
come from the rules the release began with. What follows from a verdict is done by the controller.
"""

from typing import Literal

import numpy as np

from agentops.release import ramp
from agentops.release.monitor import Monitor
from agentops.release.rules import GUARDRAILS
from agentops.types import Release

Action = Literal["hold", "advance", "promote", "roll_back", "freeze", "resume", "finish"]


def judge(monitor: Monitor, release: Release, now: float) -> tuple[Action, str]:
    """Action and reason for a release whose observations are folded. `now`: clock time in seconds."""
    if monitor.hard:
        return "roll_back", f"hard failure of the candidate: {monitor.hard}"
    if release.stage == "held":
        return "hold", "held for a person: resume, promote or abort it"
    if release.stage == "shadow":
        return _shadow(monitor)
    if release.stage == "full":
        return _watch(monitor, release, now)
    return _canary(monitor, step_of(release))


def step_of(release: Release) -> int:
    """Index of the step a release is on; -1 before the first."""
    return next((int(entry["step"]) for entry in reversed(release.history) if "step" in entry), -1)


def ended(release: Release) -> bool:
    """Whether nothing can happen to a release any more."""
    return release.stage == "rolled_back" or (release.stage == "full" and release.weight >= 1)


def _shadow(monitor: Monitor) -> tuple[Action, str]:
    shadow, counts = monitor.rules.shadow, monitor.counts
    settled, rate = counts["settled"], monitor.disagreement
    if settled < shadow.sessions:
        return "hold", f"shadow: {settled} of {shadow.sessions} sessions seen"
    if rate is not None and rate < shadow.min_disagreement:
        return "freeze", (
            f"no behavioural change: the versions disagreed in {counts['disagreed']} of {counts['compared']} sessions, "
            f"below {100 * shadow.min_disagreement:g} %; promote it by hand if it is wanted for another reason"
        )
    seen = "not compared" if rate is None else f"{100 * (1 - rate):.1f} % agreement"
    return "advance", f"shadow complete: {settled} sessions, {seen}"


def _canary(monitor: Monitor, number: int) -> tuple[Action, str]:
    rules, evidence = monitor.rules, monitor.evidence
    step, last = rules.steps[number], number == len(rules.steps) - 1
    limits, proofs = np.array(rules.harm_limits), monitor.proofs()
    moved = int(
        ramp.move(
            evidence.peak_harm,
            limits,
            np.array(list(proofs.values())),
            monitor.step_units,
            monitor.units,
            step.units,
            step.evidence,
            last,
            rules.promote.max_units,
        )
    )
    if moved == ramp.ROLL_BACK:
        return "roll_back", _harm(monitor, int((evidence.peak_harm - limits).argmax()))
    unhealthy = monitor.unhealthy()
    if unhealthy:
        return "freeze", unhealthy
    name = min(proofs, key=lambda one: proofs[one])
    proof = float(np.exp(proofs[name]))
    share = f"{100 * monitor.weight:.3g} %"
    if moved == ramp.PROMOTE:
        return "promote", (
            f"no guardrail is worse than its margin (weakest: {name}, e-value {proof:.3g}, needed {step.evidence:g}) "
            f"after {monitor.units} canary sessions"
        )
    if moved == ramp.ADVANCE:
        return "advance", f"{monitor.step_units} canary sessions at {share} without harm"
    if moved == ramp.UNDECIDED:
        return "freeze", (
            f"undecided after {monitor.units} canary sessions: {name} shows neither harm nor non-inferiority "
            f"(e-value {proof:.3g} of {rules.steps[-1].evidence:g})"
        )
    if name in GUARDRAILS and int(evidence.n[GUARDRAILS.index(name)]) == 0:
        return "hold", f"no comparison of {name} yet: without a metric nothing moves"
    return "hold", (
        f"{monitor.step_units} of {step.units} canary sessions at {share}, weakest evidence {name} {proof:.3g} "
        f"of {step.evidence:g}"
    )


def _watch(monitor: Monitor, release: Release, now: float) -> tuple[Action, str]:
    rules = monitor.rules.hold_back
    worst = int(monitor.watch.peak.argmax())
    name, level = GUARDRAILS[worst], float(np.exp(min(700.0, monitor.watch.peak[worst])))
    if level >= rules.roll_back:
        return "roll_back", (
            f"{name} fell after promotion: detector {level:.3g} reached {rules.roll_back:g} after "
            f"{int(monitor.watch.n[worst])} hold-back sessions"
        )
    promoted = next((entry["at"] for entry in reversed(release.history) if entry["action"] == "promote"), now)
    if now - promoted >= rules.days * 86400:
        return "finish", f"{rules.days:g} days of hold-back without a regression"
    if level >= rules.warn:
        return "hold", f"warning: {name} may have fallen after promotion, detector {level:.3g} of {rules.roll_back:g}"
    return "hold", "watching after promotion"


def _harm(monitor: Monitor, column: int) -> str:
    name = GUARDRAILS[column]
    mean, low, high = monitor.evidence.interval(column)
    return (
        f"{name} is worse: {100 * mean:+.1f} points (95 % {100 * low:+.1f} to {100 * high:+.1f}; higher is better), "
        f"e-value {float(np.exp(min(700.0, monitor.evidence.peak_harm[column]))):.3g} reached its limit "
        f"{1 / monitor.rules.guardrails[name].alpha:.3g} after {int(monitor.evidence.n[column])} blocks"
    )
