"""The reward of a plan: outcome first, then latency, process and validity, so bounded that no order can flip.

    R = O*(1 - w_l*clip((T - T_free)/(T_max - T_free), 0, 1)) + w_p*P*(0.2 + 0.8*O) - w_x*invalid

Invariant: with the weights' bounds (w_l <= 0.3, w_p <= 0.2, w_x <= 0.2) a success scores at least 0.5 and a failure
at most 0.04: no slow success ever loses to a fast failure. A missing, NaN or infinite signal is an error, never a 0.
Latency is simulated time; wall time is for evaluation, it does not reproduce.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agentops.errors import TrainError
from agentops.types import Trajectory, Verdict

NOT_A_PLAN = "PlanError: "  # how an environment's Trajectory.error begins when the text was no plan
PASS_RATE_FLOOR = 0.5  # below this a group learns to succeed first; speed comes after


@dataclass(frozen=True, slots=True)
class Weights:
    """How much each shaping term may weigh. The bounds carry the invariant, so they are checked here."""

    latency: float = 0.3
    process: float = 0.1
    invalid: float = 0.1

    def __post_init__(self) -> None:
        for name, high in (("latency", 0.3), ("process", 0.2), ("invalid", 0.2)):
            value = getattr(self, name)
            if not (math.isfinite(value) and 0 <= value <= high):
                raise TrainError(f"reward weight {name} = {value!r} must be in [0, {high}]: more could flip the order")


@dataclass(frozen=True, slots=True)
class Pace:
    """The latencies a request is measured against, in simulated seconds."""

    free_s: float = 0.2  # up to here latency costs nothing
    max_s: float = 5.0  # from here on the whole latency weight is lost
    deadline_s: float = 30.0  # past this the outcome counts as 0

    def __post_init__(self) -> None:
        values = (self.free_s, self.max_s, self.deadline_s)
        if not all(map(math.isfinite, values)) or not 0 <= self.free_s < self.max_s or self.deadline_s <= 0:
            raise TrainError(f"latencies {values!r} must be finite with 0 <= free_s < max_s and deadline_s > 0")


@dataclass(frozen=True, slots=True)
class Signals:
    """What one episode showed."""

    outcome: float  # in [0, 1]
    latency_s: float  # simulated seconds, writing the plan included
    process: float = 0.0  # in [0, 1]: share of calls that did what they were asked
    invalid: float = 0.0  # in [0, 1]: 1 = no plan at all, else the share of refused calls


def reward(signals: Signals, pace: Pace, weights: Weights, latency_scale: float = 1.0) -> float:
    """The scalar an episode is worth, in [-0.2, 1.2].

    Args:
        signals: what the episode showed.
        pace: latencies of this kind of request, in seconds.
        weights: bounds included.
        latency_scale: in [0, 1], from `latency_scale`; multiplies the latency weight.

    Raises:
        TrainError: a signal that is missing (None), NaN, infinite or out of range; names it.
    """
    for name in ("outcome", "process", "invalid"):
        _unit(name, getattr(signals, name))
    _unit("latency_scale", latency_scale)
    if signals.latency_s is None or not math.isfinite(signals.latency_s) or signals.latency_s < 0:
        raise TrainError(f"latency_s = {signals.latency_s!r}: a reward needs a finite, non-negative simulated time")
    outcome = signals.outcome if signals.latency_s <= pace.deadline_s else 0.0
    slow = min(1.0, max(0.0, (signals.latency_s - pace.free_s) / (pace.max_s - pace.free_s)))
    return (
        outcome * (1 - weights.latency * latency_scale * slow)
        + weights.process * signals.process * (0.2 + 0.8 * outcome)
        - weights.invalid * signals.invalid
    )


def latency_scale(pass_rate: float, step: int = 0, warmup_steps: int = 0) -> float:
    """Share of the latency weight that a group with this pass rate feels at this step: 0 below one half.

    Args:
        pass_rate: share of the group's episodes that succeeded, in [0, 1].
        step: optimiser steps done.
        warmup_steps: steps over which the term fades in; 0 = at once.
    """
    _unit("pass_rate", pass_rate)
    warm = 1.0 if warmup_steps <= 0 else min(1.0, step / warmup_steps)
    return pass_rate * warm if pass_rate >= PASS_RATE_FLOOR else 0.0


def signals(trajectory: Trajectory, verdict: Verdict, written_tokens: int = 0, ms_per_token: float = 0.0) -> Signals:
    """Signals of one simulated episode.

    Args:
        trajectory: the episode; its times are virtual.
        verdict: what the verifier found. `success` None is unscorable: do not ask, drop the episode.
        written_tokens: length of the plan as the model wrote it.
        ms_per_token: simulated writing time of one token.

    Raises:
        TrainError: the verdict is undecided, or the trajectory has no times.
    """
    if verdict.success is None:
        raise TrainError(f"episode {trajectory.trace_id!r} has no verdict: it is unscorable, which is not a 0")
    if not trajectory.timed:
        raise TrainError(f"episode {trajectory.trace_id!r} has no times: a latency reward needs simulated ones")
    steps = trajectory.steps
    parsed = not trajectory.error.startswith(NOT_A_PLAN)
    denied = sum(step.status == "denied" for step in steps)
    return Signals(
        outcome=float(verdict.success),
        latency_s=trajectory.ended_at - trajectory.started_at + written_tokens * ms_per_token / 1000,
        process=(sum(step.status == "ok" for step in steps) / len(steps) if steps else 1.0) if parsed else 0.0,
        invalid=(denied / len(steps) if steps else 0.0) if parsed else 1.0,
    )


def paces(latencies: Mapping[str, Iterable[float]], deadline_s: float = 30.0) -> dict[str, Pace]:
    """A Pace for each kind of request: 5th and 95th percentile of its successful episodes' latencies.

    Kinds with fewer than 5 latencies, or with no spread, are left out: their percentiles say nothing.
    """
    found = {}
    for kind, values in latencies.items():
        ordered = sorted(values)
        if len(ordered) < 5:
            continue
        low, high = _quantile(ordered, 0.05), _quantile(ordered, 0.95)
        if high > low:
            found[kind] = Pace(low, high, deadline_s)
    return found


def _quantile(ordered: list[float], share: float) -> float:
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def _unit(name: str, value: float) -> None:
    if value is None or not math.isfinite(value) or not 0 <= value <= 1:
        raise TrainError(f"{name} = {value!r}: a reward needs a number in [0, 1]; a missing one is not a 0")
