"""Calibration of classifiers: softmax, temperature, expected calibration error, the threshold of abstention.

Invariant: pure functions of arrays; nothing here is fitted on rows it is then judged on, callers pass held-out rows.
"""

from collections.abc import Callable

import numpy as np

BINS = 15
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


def abstention_threshold(inside: np.ndarray, right: np.ndarray, outside: np.ndarray, keep: float) -> float:
    """The score below which to abstain.

    At least a share `keep` of the in-scope rows stays answered. Among the thresholds that allow this, the one with the
    best sum of in-scope accuracy and out-of-scope recall; without out-of-scope rows the highest one.

    Args:
        inside: (n,) scores of held-out in-scope rows.
        right: (n,) whether their label was right.
        outside: (m,) scores of held-out out-of-scope rows, possibly none.
        keep: in (0, 1].
    """
    highest = float(np.sort(inside)[int(np.floor((1 - keep) * len(inside)))])
    if not len(outside):
        return highest
    candidates = np.unique(np.concatenate([inside, outside, [highest]]))
    candidates = candidates[candidates <= highest]
    order = np.argsort(inside)
    kept = np.concatenate([[0], np.cumsum(right[order][::-1])])[::-1]  # right answers among the rows from i on
    accuracy = kept[np.searchsorted(inside[order], candidates, side="left")] / len(inside)
    recall = np.searchsorted(np.sort(outside), candidates, side="left") / len(outside)
    return float(candidates[int(np.argmax(accuracy + recall))])


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
