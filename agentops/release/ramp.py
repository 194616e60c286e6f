"""The rule that moves a canary, apart from where its figures come from.

Invariant: pure, and the same function for one live release and for arrays of simulated ones, so what
`benchmarks/canary.py` measures is what serves. Harm wins over everything; no step is left without its evidence.
"""

from typing import Any

import numpy as np

HOLD, ADVANCE, PROMOTE, ROLL_BACK, UNDECIDED = 0, 1, 2, -1, 3


def move(
    peak_harm: np.ndarray,
    harm_limits: np.ndarray,
    promote: np.ndarray,
    units: Any,
    total_units: Any,
    step_units: Any,
    step_evidence: Any,
    last: Any,
    max_units: int,
) -> np.ndarray:
    """What to do now.

    Args:
        peak_harm: shape (..., G), largest log e-value so far of each guardrail's harm test.
        harm_limits: shape (G,), log(1/alpha) of each.
        promote: shape (..., H), log e-value now of everything that must be proved. Not the largest so far: that would
        be
            valid too, but a candidate 5 points worse was then promoted in 1 % of runs instead of none.
        units: canary sessions of this step, shape (...).
        total_units: since the canary began.
        step_units: needed to leave this step.
        step_evidence: e-value every guardrail needs to leave it.
        last: whether the step is the last one.
        max_units: canary sessions after which a person decides.

    Returns:
        HOLD, ADVANCE, PROMOTE, ROLL_BACK or UNDECIDED (too long without a decision), shape (...).
    """
    harmed = (peak_harm >= harm_limits).any(axis=-1)
    needed = np.log(np.maximum(step_evidence, 1e-300))
    ready = (np.asarray(units) >= step_units) & (promote.min(axis=-1) >= needed)
    return np.select(
        [harmed, ready & np.asarray(last), ready, np.asarray(total_units) >= max_units],
        [ROLL_BACK, PROMOTE, ADVANCE, UNDECIDED],
        HOLD,
    )
