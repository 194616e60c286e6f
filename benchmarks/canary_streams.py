"""Simulated releases by the thousand: random sessions, and the canary's own rule over arrays of runs.

Invariant: evidence, pairing ratio, limits and the rule that moves a step are the product's (`release.eprocess`,
`release.ramp`, `policies/release.toml`); only sessions are invented, one block a turn for every run at once. The
plumbing around it (log, state, replicas) is not simulated here: a test checks that the real controller decides the same
streams the same way.
"""

from dataclasses import dataclass, field

import numpy as np

from agentops.release import ramp
from agentops.release.eprocess import EVIDENCE_FIELDS, Evidence
from agentops.release.rules import Rules
from agentops.release.sessions import COST_CLIP, MAX_CONTROLS

FROZEN = 4  # beside ramp's codes: the health tests stopped the release
SIGMA = 0.8  # of log cost


@dataclass(frozen=True)
class World:
    """How sessions turn out. Rates of the incumbent are fixed at those of the published prototype."""

    success: float = 0.90  # of the candidate; the incumbent has `base`
    base: float = 0.90
    slow: float = 0.05  # share of the candidate's requests above the incumbent's p95
    cost: float = 1.0  # candidate's cost over the incumbent's
    denied: float = 0.01
    error: float = 0.005
    season: float = 0.0  # amplitude of a weekly wave common to both, in success
    per_week: float = 20_000.0  # sessions
    missing: tuple[float, float] = (0.0, 0.0)  # share of outcomes that never arrive: incumbent, candidate
    requests: int = 1  # in a session
    correlation: float = 0.0  # intraclass correlation of a session's requests
    disagreement: float | None = (
        None  # share of sessions in which the versions differ; the success effect is on all traffic
    )
    request_level: bool = False  # the mutant: every request counts as a unit


@dataclass
class Result:
    """One row a run: how it ended, after how many canary sessions, and after how many sessions in all."""

    outcome: np.ndarray
    units: np.ndarray
    sessions: np.ndarray
    guardrail: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=int))  # which one rolled back

    def share(self, code: int) -> float:
        return float((self.outcome == code).mean())

    def quantiles(self, code: int, what: str = "units") -> list[float]:
        """Median, 90th and 99th percentile over the runs that ended with `code`."""
        values = getattr(self, what)[self.outcome == code]
        return [float(value) for value in np.quantile(values, [0.5, 0.9, 0.99])] if len(values) else []


def release(world: World, rules: Rules, runs: int, rng: np.random.Generator, most: int | None = None) -> Result:
    """`runs` whole releases, each until it is promoted, rolled back, frozen or undecided."""
    weights, controls = _steps(world, rules)
    needed = np.array([step.units for step in rules.steps])
    proof = np.array([step.evidence for step in rules.steps])
    limits, top = np.array(rules.harm_limits), len(rules.steps) - 1
    most = most or rules.promote.max_units
    evidence = Evidence(rules.tolerances, rules.margins, runs)
    missing = Evidence([rules.health.missing_difference] * 2, [rules.health.missing_margin] * 2, runs)
    freeze_at = np.log(2 / rules.health.missing_alpha)
    result = Result(np.full(runs, ramp.UNDECIDED), np.zeros(runs, int), np.zeros(runs), np.full(runs, -1))
    ids, step = np.arange(runs), np.zeros(runs, int)
    here, units, turns, sessions = np.zeros(runs, int), np.zeros(runs, int), np.zeros(runs, int), np.zeros(runs)
    while len(ids):
        blocks, lost, exposed = draw(world, controls[step], sessions, rng)
        for block in blocks:
            evidence.update(block)
        missing.update(np.stack([lost, -lost], axis=-1))
        turns += 1
        here += exposed
        units += exposed
        sessions += 1.0 / weights[step]
        shown = np.concatenate([evidence.log_promote(), missing.log_promote()], axis=-1)
        moved = ramp.move(evidence.peak_harm, limits, shown, here, units, needed[step], proof[step], step == top, most)
        frozen = (missing.peak_harm.max(axis=-1) >= freeze_at) & (moved != ramp.ROLL_BACK)
        moved = np.where(frozen, FROZEN, moved)
        advance = moved == ramp.ADVANCE
        step[advance] += 1
        here[advance] = 0
        over = (moved != ramp.HOLD) & ~advance
        if over.any():
            ended = ids[over]
            result.outcome[ended], result.units[ended] = moved[over], turns[over]
            result.sessions[ended] = sessions[over]
            result.guardrail[ended] = (evidence.peak_harm[over] - limits).argmax(axis=-1)
            keep = ~over
            ids, step, here, units = ids[keep], step[keep], here[keep], units[keep]
            turns, sessions = turns[keep], sessions[keep]
            _keep(evidence, keep)
            _keep(missing, keep)
    return result


def delay(world: World, rules: Rules, controls: int, runs: int, most: int, rng: np.random.Generator) -> np.ndarray:
    """Canary sessions until the harm test rolls back at a fixed split, `most` + 1 where it never did."""
    evidence = Evidence(rules.tolerances, rules.margins, runs)
    limits, ids = np.array(rules.harm_limits), np.arange(runs)
    found = np.full(runs, most + 1)
    for turn in range(1, most + 1):
        blocks, _, _ = draw(world, np.full(len(ids), controls), np.zeros(len(ids)), rng)
        for block in blocks:
            evidence.update(block)
        over = (evidence.peak_harm >= limits).any(axis=-1)
        if over.any():
            found[ids[over]] = turn
            keep = np.logical_not(over)
            ids = ids[keep]
            _keep(evidence, keep)
            if not len(ids):
                break
    return found


def draw(
    world: World, controls: np.ndarray, sessions: np.ndarray, rng: np.random.Generator
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """One canary session and its controls for every run.

    Args:
        world: how sessions turn out.
        controls: shape (runs,), controls a block.
        sessions: shape (runs,), sessions seen so far (for the season).
        rng: source of randomness.

    Returns:
        (blocks of goodness differences (runs, 5), difference in missing outcomes, whether the session was
        exposed).
    """
    runs = len(controls)
    used = np.arange(MAX_CONTROLS) < controls[:, None]
    wave = world.season * np.sin(2 * np.pi * sessions / world.per_week)
    exposed = np.ones(runs, bool) if world.disagreement is None else rng.random(runs) < world.disagreement
    effect = (world.success - world.base) / (world.disagreement or 1.0)
    rate = np.clip(world.base + wave, 0.0, 1.0)
    ours = _outcomes(np.clip(rate + effect, 0.0, 1.0)[:, None], world, rng)[:, 0]
    theirs = _outcomes(np.repeat(rate[:, None], MAX_CONTROLS, axis=1), world, rng)
    lost = np.zeros(runs)
    if any(world.missing):
        gone, gone_theirs = rng.random(runs) < world.missing[1], rng.random((runs, MAX_CONTROLS)) < world.missing[0]
        lost = gone - _mean(gone_theirs.astype(float), used)
        ours[gone] = np.nan
        theirs[gone_theirs] = np.nan
    rest = [
        -((rng.random(runs) < world.slow) - rng.binomial(controls, 0.05) / controls),
        -(_cost(world.cost, (runs,), rng) - _mean(_cost(1.0, (runs, MAX_CONTROLS), rng), used)) / COST_CLIP,
        np.where(exposed, -((rng.random(runs) < world.denied) - rng.binomial(controls, 0.01) / controls), 0.0),
        np.where(exposed, -((rng.random(runs) < world.error) - rng.binomial(controls, 0.005) / controls), 0.0),
    ]
    if not world.request_level:
        success = ours.mean(axis=-1) - _mean(theirs.mean(axis=-1), used)  # an outcome is missing for a whole session
        return [np.stack([np.where(exposed, success, 0.0), *rest], axis=-1)], lost, exposed
    nothing = [np.full(runs, np.nan)] * len(rest)
    blocks = [
        np.stack([ours[:, index] - _mean(theirs[:, :, index], used), *(rest if index == 0 else nothing)], axis=-1)
        for index in range(world.requests)
    ]
    return blocks, lost, exposed


def _outcomes(rate: np.ndarray, world: World, rng: np.random.Generator) -> np.ndarray:
    """Outcomes 0/1 of every request of a session: (..., requests), beta-binomial when they are correlated."""
    if world.correlation > 0:
        spread = 1 / world.correlation - 1
        rate = rng.beta(np.maximum(rate * spread, 1e-9), np.maximum((1 - rate) * spread, 1e-9))
    return (rng.random((*rate.shape, world.requests)) < rate[..., None]).astype(float)


def _cost(factor: float, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Lognormal cost with the incumbent's mean 1, clipped as the product clips it."""
    return np.minimum(factor * np.exp(SIGMA * rng.standard_normal(shape) - SIGMA * SIGMA / 2), COST_CLIP)


def cost_factor(difference: float, rng: np.random.Generator) -> float:
    """Factor at which the clipped, scaled cost is dearer by `difference`."""
    base = np.exp(SIGMA * rng.standard_normal(400_000) - SIGMA * SIGMA / 2)
    low, high = 1.0, 10.0
    for _ in range(40):
        middle = (low + high) / 2
        grown = float((np.minimum(middle * base, COST_CLIP) - np.minimum(base, COST_CLIP)).mean()) / COST_CLIP
        low, high = (middle, high) if grown < difference else (low, middle)
    return low


def _mean(values: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Mean over the used controls whose value is known; NaN when there is none."""
    known = used & ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.where(known, values, 0.0).sum(axis=-1) / known.sum(axis=-1)


def _steps(world: World, rules: Rules) -> tuple[np.ndarray, np.ndarray]:
    """Weight and controls a block of each step, spread over the disagreeing sessions when the design is triggered."""
    weights = np.array([step.weight for step in rules.steps])
    if world.disagreement is not None and rules.triggered:
        weights = np.minimum(0.5, weights / world.disagreement)
    return weights, np.clip(np.floor((1 - weights) / weights + 1e-9), 1, MAX_CONTROLS).astype(int)


def _keep(evidence: Evidence, rows: np.ndarray) -> None:
    for name in EVIDENCE_FIELDS:
        setattr(evidence, name, getattr(evidence, name)[rows])
