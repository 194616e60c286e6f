"""Estimates with intervals: proportions, paired differences, calibration, quantiles, and what a suite is able to see.

Invariant: every interval is two-sided 95 % and honest about dependence: tasks of one template count as one cluster.
Pure functions of their inputs and a fixed seed. No suite, router or report is known here.
"""

import math
from collections.abc import Sequence

import numpy as np

from agentops.types import Interval

Z = 1.959963984540054  # 97.5 % quantile of the normal distribution
_Z_POWER = 0.8416212335729143  # 80 %
RESAMPLES = 2000


def wilson(successes: int, n: int) -> Interval:
    """A proportion with Wilson's interval (1927). n = 0 gives [0, 1]: nothing is known.

    Raises:
        ValueError: successes not in 0..n.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} cannot be")
    if n == 0:
        return Interval(math.nan, 0.0, 1.0, 0)
    share = successes / n
    centre = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half), n)


def proportion(values: Sequence[float], clusters: Sequence[str] | None = None) -> Interval:
    """Mean of 0/1 values; with clusters of several tasks, Wilson's interval at the effective sample size.

    The design effect is the cluster-robust variance of the mean over the independent one (Miller 2024), never below 1.
    """
    data = np.asarray(values, dtype=float)
    n = len(data)
    if n == 0:
        return wilson(0, 0)
    plain = wilson(round(float(data.sum())), n)
    effect = design_effect(data, clusters)
    if effect <= 1.0:
        return plain
    effective = n / effect
    share = float(data.mean())
    centre = (share + Z * Z / (2 * effective)) / (1 + Z * Z / effective)
    half = Z / (1 + Z * Z / effective) * math.sqrt(share * (1 - share) / effective + Z * Z / (4 * effective**2))
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half), n)


def design_effect(values: Sequence[float] | np.ndarray, clusters: Sequence[str] | None) -> float:
    """Variance of the mean with clusters over that without; 1 when there are no clusters or no variance."""
    data = np.asarray(values, dtype=float)
    if clusters is None or len(set(clusters)) in (0, 1, len(data)):
        return 1.0
    residual = data - data.mean()
    independent = float((residual**2).sum())
    if independent == 0:
        return 1.0
    sums = _cluster_sums(residual, clusters)
    groups = len(sums)
    return max(1.0, groups / (groups - 1) * float((sums**2).sum()) / independent)


def median(values: Sequence[float]) -> float:
    """Middle value; NaN when there is none."""
    return float(np.median(values)) if len(values) else math.nan


def mean_interval(values: Sequence[float], clusters: Sequence[str] | None = None) -> Interval:
    """Mean of numbers with a normal interval from cluster-robust errors. n = 0: NaN, unbounded."""
    data = np.asarray(values, dtype=float)
    n = len(data)
    if n == 0:
        return Interval(math.nan, -math.inf, math.inf, 0)
    mean = float(data.mean())
    if n == 1:
        return Interval(mean, -math.inf, math.inf, 1)
    variance = float(data.var(ddof=1)) / n * design_effect(data, clusters)
    half = Z * math.sqrt(variance)
    return Interval(mean, mean - half, mean + half, n)


def paired_difference(
    candidate: Sequence[float], baseline: Sequence[float], clusters: Sequence[str] | None = None, seed: int = 0
) -> Interval:
    """Mean of candidate - baseline over the same tasks, percentile bootstrap over clusters (or tasks).

    When no task differs the bootstrap has no spread; the interval is then the largest difference that the suite could
    have missed (rule of three: +- 3/n).

    Raises:
        ValueError: the two sides have different lengths.
    """
    difference = np.asarray(candidate, dtype=float) - np.asarray(baseline, dtype=float)  # raises on unequal lengths
    n = len(difference)
    if n == 0:
        return Interval(math.nan, -1.0, 1.0, 0)
    mean = float(difference.mean())
    if not difference.any():
        return Interval(0.0, -min(1.0, 3 / n), min(1.0, 3 / n), n)
    names = [str(position) for position in range(n)] if clusters is None else clusters
    sums = _cluster_sums(difference, names)
    sizes = _cluster_sums(np.ones(n), names)
    rng = np.random.default_rng(seed)
    means = np.empty(RESAMPLES)
    for index in range(RESAMPLES):
        chosen = rng.integers(0, len(sums), len(sums))
        means[index] = sums[chosen].sum() / sizes[chosen].sum()
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(mean, float(low), float(high), n)


def mcnemar(fixed: int, broken: int) -> float:
    """Two-sided exact p-value that `fixed` and `broken` flips are equally likely (McNemar 1947, binomial form)."""
    n = fixed + broken
    if n == 0:
        return 1.0
    tail = sum(math.comb(n, count) for count in range(min(fixed, broken) + 1))
    return min(1.0, 2 * tail / 2**n)


def detectable_effect(n: int, discordance: float) -> float:
    """Smallest paired difference that n tasks show with 80 % power at the 5 % level.

    Args:
        n: number of paired tasks.
        discordance: share of tasks on which the two sides differ.
    """
    z = (Z + _Z_POWER) ** 2
    return min(1.0, math.sqrt(z * discordance / (n + z))) if n > 0 else 1.0


def pairs_needed(effect: float, discordance: float) -> int:
    """Paired tasks needed to see `effect` with 80 % power at the 5 % level: (z_a + z_b)^2 (d - e^2) / e^2.

    Raises:
        ValueError: the effect is not positive.
    """
    if effect <= 0:
        raise ValueError(f"effect = {effect!r} must be positive")
    return math.ceil((Z + _Z_POWER) ** 2 * max(0.0, discordance - effect * effect) / (effect * effect))


def calibration_error(confidence: Sequence[float], correct: Sequence[float], bins: int = 15, seed: int = 0) -> Interval:
    """Expected calibration error: mean |confidence - accuracy| over equally filled bins, bootstrap interval.

    Equal-mass bins (Nixon et al. 2019) keep every bin's accuracy estimable. Both inputs in [0, 1], equal lengths.
    """
    trust, right = np.asarray(confidence, dtype=float), np.asarray(correct, dtype=float)
    n = len(trust)
    if n == 0:
        return Interval(math.nan, 0.0, 1.0, 0)
    value = _ece(trust, right, bins)
    rng = np.random.default_rng(seed)
    draws = np.empty(300)
    for index in range(len(draws)):
        chosen = rng.integers(0, n, n)
        draws[index] = _ece(trust[chosen], right[chosen], bins)
    # The resampled error is biased upwards by sampling noise once more: shift by the bias before taking the quantiles.
    draws -= draws.mean() - value
    low, high = np.quantile(draws, [0.025, 0.975])
    return Interval(value, max(0.0, float(low)), min(1.0, float(high)), n)


def quantile(values: Sequence[float], share: float) -> Interval:
    """A quantile with its distribution-free interval (order statistics). n = 0: NaN, unbounded."""
    data = np.sort(np.asarray(values, dtype=float))
    n = len(data)
    if n == 0:
        return Interval(math.nan, -math.inf, math.inf, 0)
    half = Z * math.sqrt(n * share * (1 - share))
    low = max(0, math.floor(n * share - half))
    high = min(n - 1, math.ceil(n * share + half))
    return Interval(float(np.quantile(data, share)), float(data[low]), float(data[high]), n)


def quantile_ratio(candidate: Sequence[float], baseline: Sequence[float], share: float, seed: int = 0) -> Interval:
    """Quantile of the candidate over that of the baseline, paired bootstrap over tasks. NaN when there is nothing."""
    top, bottom = np.asarray(candidate, dtype=float), np.asarray(baseline, dtype=float)
    n = len(top)
    if n == 0 or len(bottom) != n:
        return Interval(math.nan, 0.0, math.inf, 0)
    rng = np.random.default_rng(seed)
    draws = np.empty(1000)
    for index in range(len(draws)):
        chosen = rng.integers(0, n, n)
        draws[index] = np.quantile(top[chosen], share) / max(1e-12, float(np.quantile(bottom[chosen], share)))
    value = float(np.quantile(top, share)) / max(1e-12, float(np.quantile(bottom, share)))
    low, high = np.quantile(draws, [0.025, 0.975])
    return Interval(value, float(low), float(high), n)


def pass_hat(n: int, successes: int, k: int) -> float:
    """pass^k: chance that k runs of a task all succeed, unbiased from `successes` of n runs: C(c, k) / C(n, k).

    Raises:
        ValueError: k is larger than n.
    """
    if not 1 <= k <= n:
        raise ValueError(f"pass^{k} needs at least {k} runs, there are {n}")
    return math.comb(successes, k) / math.comb(n, k)


def _ece(trust: np.ndarray, right: np.ndarray, bins: int) -> float:
    order = np.argsort(trust, kind="stable")
    parts = np.array_split(order, min(bins, len(order)))
    return float(sum(len(part) * abs(trust[part].mean() - right[part].mean()) for part in parts) / len(order))


def _cluster_sums(values: np.ndarray, clusters: Sequence[str]) -> np.ndarray:
    _, index = np.unique(np.asarray(clusters), return_inverse=True)
    return np.bincount(index, weights=values)
