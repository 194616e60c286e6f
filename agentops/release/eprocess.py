"""Sequential tests that stay valid however often one looks: betting e-processes for harm and for non-inferiority.

Invariant: under its null hypothesis each process is a non-negative supermartingale that starts at 1, so the chance that
it ever reaches 1/alpha is at most alpha (Ville), whatever the stopping rule. Everything is kept as logarithms. Nothing
here knows what a session, a metric or a release is: the inputs are differences in [-1, 1], one column a guardrail.

Sources: Waudby-Smith & Ramdas 2024, "Estimating means of bounded random variables by betting"; Shin, Ramdas & Rinaldo
2022, "E-detectors" (the Shiryaev-Roberts form); Waudby-Smith et al. 2024, "Time-uniform central limit theory" (the
display interval).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

LOG_ZERO = -1e300  # log of nothing that survives JSON
BETS = np.array([0.02, 0.04, 0.08, 0.15, 0.25, 0.4, 0.6, 0.85])  # share of the wealth staked on each block
# The mixture's weights, proportional to the bet. Equal weights find the same differences in the same time at the same
# rate of false alarms (0.3 % of equal candidates a guardrail), but need twice the alpha for it: 0.009 instead of 0.005
# for success.
PRIOR = BETS / BETS.sum()
_LOG_PRIOR = np.log(PRIOR)
_IMBALANCES = np.array([-0.5, -0.2, -0.1, -0.05, -0.02, 0.02, 0.05, 0.1, 0.2, 0.5])  # relative, tried by SampleRatio


def harm_factors(difference: np.ndarray, tolerance: np.ndarray | float) -> np.ndarray:
    """Log growth of each bet against H0: E[D] >= -tolerance.

    Args:
        difference: shape (...), candidate minus incumbent in [-1, 1], higher is better; NaN where nothing was measured.
        tolerance: in [0, 1), broadcast against `difference`.

    Returns:
        Shape (..., 8); 0 where the difference is NaN.
    """
    shifted = np.where(np.isnan(difference), 0.0, (difference + tolerance) / (1.0 + np.asarray(tolerance)))
    return np.log1p(-BETS * shifted[..., None])


def promote_factors(difference: np.ndarray, margin: np.ndarray | float) -> np.ndarray:
    """Log growth of each bet against H0: E[D] <= -margin. Arguments and result as `harm_factors`."""
    shifted = np.where(np.isnan(difference), 0.0, (difference + margin) / (1.0 - np.asarray(margin)))
    return np.log1p(BETS * shifted[..., None])


def log_mixture(logs: np.ndarray) -> np.ndarray:
    """Log of the weighted mean over the bets. Shape (..., 8) -> (...)."""
    weighted = logs + _LOG_PRIOR
    top = weighted.max(axis=-1)
    return top + np.log(np.exp(weighted - top[..., None]).sum(axis=-1))


class Evidence:
    """Both processes for every guardrail, one run or many at once.

    Arrays have shape (G,) for one run, (runs, G) for a simulation of many. `peak_harm` is the largest log value so far:
    a harm test that has crossed its limit stays crossed, however seldom one looks.
    """

    def __init__(self, tolerance: Sequence[float], margin: Sequence[float], runs: int | None = None) -> None:
        self.tolerance = np.asarray(tolerance, dtype=float)
        self.margin = np.asarray(margin, dtype=float)
        shape = self.tolerance.shape if runs is None else (runs, *self.tolerance.shape)
        self.harm = np.zeros((*shape, len(BETS)))
        self.promote = np.zeros((*shape, len(BETS)))
        self.peak_harm = np.zeros(shape)
        self.n = np.zeros(shape, dtype=int)
        self.total = np.zeros(shape)
        self.squares = np.zeros(shape)

    def update(self, difference: np.ndarray, rows: Any = ...) -> None:
        """Add one block.

        Args:
            difference: shape (G,), or (len(rows), G) when `rows` selects runs; NaN where nothing was measured.
            rows: index of the runs that this block belongs to; default all.
        """
        known = ~np.isnan(difference)
        self.harm[rows] += harm_factors(difference, self.tolerance)
        self.promote[rows] += promote_factors(difference, self.margin)
        self.peak_harm[rows] = np.maximum(self.peak_harm[rows], log_mixture(self.harm[rows]))
        value = np.where(known, difference, 0.0)
        self.n[rows] += known
        self.total[rows] += value
        self.squares[rows] += value * value

    def log_harm(self) -> np.ndarray:
        return log_mixture(self.harm)

    def log_promote(self) -> np.ndarray:
        return log_mixture(self.promote)

    def interval(self, column: int, alpha: float = 0.05) -> tuple[float, float, float]:
        """Mean difference of one guardrail of a single run, with its asymptotic confidence sequence (for display)."""
        return confidence_sequence(int(self.n[column]), float(self.total[column]), float(self.squares[column]), alpha)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name).tolist() for name in EVIDENCE_FIELDS}

    @classmethod
    def from_json(cls, tolerance: Sequence[float], margin: Sequence[float], saved: Mapping[str, Any]) -> "Evidence":
        return _restored(cls(tolerance, margin), EVIDENCE_FIELDS, saved)


EVIDENCE_FIELDS = ("harm", "promote", "peak_harm", "n", "total", "squares")


WATCH_FIELDS = ("logs", "peak", "n")


class Watch:
    """Shiryaev-Roberts e-detector of a later harm: M <- (M + 1) e, mixed over the bets, one column a guardrail.

    While nothing is wrong the expected time until M reaches L is at least L blocks, however long it runs.
    """

    def __init__(self, tolerance: Sequence[float], runs: int | None = None) -> None:
        self.tolerance = np.asarray(tolerance, dtype=float)
        shape = self.tolerance.shape if runs is None else (runs, *self.tolerance.shape)
        self.logs = np.full((*shape, len(BETS)), LOG_ZERO)
        self.peak = np.full(shape, LOG_ZERO)
        self.n = np.zeros(shape, dtype=int)

    def update(self, difference: np.ndarray, rows: Any = ...) -> None:
        """Add one block; arguments as `Evidence.update`."""
        known = ~np.isnan(difference)
        grown = np.logaddexp(self.logs[rows], 0.0) + harm_factors(difference, self.tolerance)
        self.logs[rows] = np.where(known[..., None], grown, self.logs[rows])
        self.peak[rows] = np.maximum(self.peak[rows], log_mixture(self.logs[rows]))
        self.n[rows] += known

    def value(self) -> np.ndarray:
        """log M, LOG_ZERO before the first block."""
        return log_mixture(self.logs)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name).tolist() for name in WATCH_FIELDS}

    @classmethod
    def from_json(cls, tolerance: Sequence[float], saved: Mapping[str, Any]) -> "Watch":
        return _restored(cls(tolerance), WATCH_FIELDS, saved)


class SampleRatio:
    """Likelihood-ratio martingale against H0: each session lands in the scarce arm with exactly its stated probability.

    A mixture over relative imbalances of 2 to 50 % either way, so it may be looked at after every session and the
    stated probability may change from one session to the next.
    """

    def __init__(self, logs: Sequence[float] | None = None) -> None:
        self.logs = np.zeros(len(_IMBALANCES)) if logs is None else np.asarray(logs, dtype=float)

    def update(self, scarce: bool, probability: float) -> None:
        """One session. `probability` in (0, 0.5] is that of the scarce arm when it was assigned."""
        if scarce:
            self.logs += np.log1p(_IMBALANCES)
        else:
            self.logs += np.log1p(-_IMBALANCES * probability / (1.0 - probability))

    @property
    def log_e(self) -> float:
        top = float(self.logs.max())
        return top + math.log(float(np.exp(self.logs - top).mean()))


def confidence_sequence(
    n: int, total: float, squares: float, alpha: float = 0.05, tuned_for: int = 500
) -> tuple[float, float, float]:
    """Mean with an asymptotic confidence sequence, tightest near `tuned_for` blocks.

    Args:
        n: number of differences.
        total: their sum.
        squares: the sum of their squares.
        alpha: 1 - confidence.
        tuned_for: number of differences at which the interval is tightest.

    Returns:
        (mean, low, high), all NaN when n is 0, bounds -1 and 1 when n is 1.
    """
    if n == 0:
        return math.nan, math.nan, math.nan
    mean = total / n
    if n == 1:
        return mean, -1.0, 1.0
    variance = max(0.0, (squares - n * mean * mean) / (n - 1))
    tuning = (2 * math.log(1 / alpha) + math.log(1 + 2 * math.log(1 / alpha))) / tuned_for  # rho^2
    spread = n * tuning + 1
    half = math.sqrt(variance * 2 * spread / (n * n * tuning) * math.log(math.sqrt(spread) / alpha))
    return mean, max(-1.0, mean - half), min(1.0, mean + half)


def _restored(blank: Any, names: Sequence[str], saved: Mapping[str, Any]) -> Any:
    for name in names:
        like = getattr(blank, name)
        setattr(blank, name, np.asarray(saved[name], dtype=like.dtype).reshape(like.shape))
    return blank
