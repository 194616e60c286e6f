"""Calibration of classifiers: softmax, temperature, expected calibration error, the threshold of abstention.

Invariant: pure functions of arrays; nothing here is fitted on rows it is then judged on, callers pass held-out rows.
"""

import math
from collections.abc import Callable

import numpy as np

BINS = 15
OUTSIDE_SHARE = 0.1  # of traffic that fits no label, when nobody measured it
_SMALL, _LARGE = np.log(0.02), np.log(20.0)  # bounds of log temperature


def softmax(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Rows of (n, k) logits as probabilities that sum to 1."""
    scaled = logits / temperature
    exponentials = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def negative_log_likelihood(logits: np.ndarray, truth: np.ndarray, temperature: float = 1.0) -> float:
    """Mean over rows, in nats. `truth` holds column numbers."""
    scaled = logits / temperature
    top = scaled.max(axis=1)
    total = top + np.log(np.exp(scaled - top[:, None]).sum(axis=1))
    return float((total - scaled[np.arange(len(truth)), truth]).mean())


def temperature(logits: np.ndarray, truth: np.ndarray) -> float:
    """The temperature in [0.02, 20] that minimises the likelihood loss (Guo et al. 2017), by golden-section search.

    Args:
        logits: (n, k) of held-out rows.
        truth: (n,) column numbers of the right labels.
    """
    if not len(truth):
        return 1.0
    return float(np.exp(_golden(lambda log: negative_log_likelihood(logits, truth, float(np.exp(log))))))


def expected_calibration_error(confidence: np.ndarray, right: np.ndarray, bins: int = BINS) -> float:
    """Weighted mean of |accuracy - confidence| over equal-width bins of confidence, in [0, 1]; NaN without rows.

    Args:
        confidence: (n,) in [0, 1].
        right: (n,) whether each answer was right.
        bins: number of bins.
    """
    if not len(confidence):
        return float("nan")
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    counts = np.bincount(place, minlength=bins)
    gaps = np.abs(np.bincount(place, confidence, bins) - np.bincount(place, right.astype(float), bins))
    return float(gaps.sum() / counts.sum())


def abstention_threshold(inside: np.ndarray, outside: np.ndarray, keep: float, share: float = OUTSIDE_SHARE) -> float:
    """The in-scope score below which to abstain.

    At least a share `keep` of the in-scope rows stays answered. With out-of-scope rows it is the point of least
    expected error if both kinds were normal and a share `share` of traffic fitted nothing. Counting errors instead puts
    it beside the last of a few, well separated rows, where unseen ones pass (CLINC150, 20 rows: recall .65 instead of
    .82). Without such rows it is the highest point that keeps enough.

    Args:
        inside: (n,) scores of held-out in-scope rows.
        outside: (m,) scores of held-out out-of-scope rows, possibly none.
        keep: in (0, 1].
        share: in (0, 1).
    """
    highest = float(np.sort(inside)[int(np.floor((1 - keep) * len(inside)))])
    if not len(outside) or outside.mean() >= highest:
        return highest
    points = np.linspace(outside.mean(), highest, 256)
    refused = [_normal((point - inside.mean()) / max(inside.std(), 1e-9)) for point in points]
    passed = [1 - _normal((point - outside.mean()) / max(outside.std(), 1e-9)) for point in points]
    return float(points[np.argmin((1 - share) * np.array(refused) + share * np.array(passed))])


def _normal(z: float) -> float:
    """Cumulative distribution of the standard normal."""
    return 0.5 * (1 + math.erf(z / math.sqrt(2)))


def _golden(loss: Callable[[float], float], steps: int = 40) -> float:
    ratio = (np.sqrt(5.0) - 1) / 2
    low, high = _SMALL, _LARGE
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = loss(left), loss(right)
    for _ in range(steps):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = loss(right)
    return (low + high) / 2
