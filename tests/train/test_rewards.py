import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentops.errors import TrainError
from agentops.train.rewards import Pace, Signals, Weights, latency_scale, paces, reward, signals
from agentops.types import StepRecord, Trajectory, Verdict

unit = st.floats(0, 1)
seconds = st.floats(0, 1e6)
weights = st.builds(Weights, st.floats(0, 0.3), st.floats(0, 0.2), st.floats(0, 0.2))


@st.composite
def pace(draw: st.DrawFn) -> Pace:
    free = draw(st.floats(0, 100))
    return Pace(free, free + draw(st.floats(1e-3, 100)), draw(st.floats(1e-3, 1e6)))


@given(weights, pace(), unit, unit, seconds, seconds, unit, unit, unit, unit)
def test_no_success_ever_scores_below_a_failure(
    terms: Weights,
    limits: Pace,
    scale: float,
    other_scale: float,
    slow: float,
    fast: float,
    process: float,
    other_process: float,
    invalid: float,
    other_invalid: float,
) -> None:
    success = Signals(1.0, min(slow, limits.deadline_s), process, invalid)
    failure = Signals(0.0, fast, other_process, other_invalid)
    assert reward(success, limits, terms, scale) > reward(failure, limits, terms, other_scale)


@given(weights, pace(), unit, unit, unit, unit, seconds, seconds)
def test_slower_is_never_better_and_more_outcome_never_worse(
    terms: Weights, limits: Pace, scale: float, outcome: float, process: float, invalid: float, one: float, other: float
) -> None:
    fast, slow = sorted((one, other))
    quick = reward(Signals(outcome, fast, process, invalid), limits, terms, scale)
    assert quick >= reward(Signals(outcome, slow, process, invalid), limits, terms, scale)
    assert reward(Signals(1.0, fast, process, invalid), limits, terms, scale) >= quick - 1e-12
    assert -0.2 - 1e-12 <= quick <= 1.2 + 1e-12


def test_past_the_deadline_a_success_counts_as_a_failure() -> None:
    late = reward(Signals(1.0, 31.0), Pace(0.2, 5.0, 30.0), Weights())
    assert late == reward(Signals(0.0, 31.0), Pace(0.2, 5.0, 30.0), Weights())


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -0.1, 1.1])
def test_a_missing_or_impossible_signal_is_an_error_not_a_zero(value: float) -> None:
    for name in ("outcome", "process", "invalid"):
        given_signals = {"outcome": 1.0, "latency_s": 1.0, name: value}
        with pytest.raises(TrainError, match=name):
            reward(Signals(**given_signals), Pace(), Weights())
    if value != 1.1:
        with pytest.raises(TrainError, match="latency_s"):
            reward(Signals(1.0, value), Pace(), Weights())


@pytest.mark.parametrize("changed", [{"latency": 0.31}, {"process": 0.3}, {"invalid": -0.1}, {"latency": math.nan}])
def test_weights_that_could_flip_the_order_are_refused(changed: dict[str, float]) -> None:
    with pytest.raises(TrainError, match=next(iter(changed))):
        Weights(**changed)


def test_latency_starts_to_count_when_half_of_a_group_succeeds_and_fades_in() -> None:
    assert latency_scale(0.49) == 0
    assert latency_scale(0.5) == 0.5
    assert latency_scale(1.0, step=5, warmup_steps=10) == 0.5
    assert latency_scale(1.0, step=50, warmup_steps=10) == 1.0


def record(status: str) -> StepRecord:
    return StepRecord("c", "tool", {}, status)  # type: ignore[arg-type]


def trajectory(*statuses: str, error: str = "") -> Trajectory:
    return Trajectory("t", "s", 10.0, 12.0, (), steps=tuple(map(record, statuses)), error=error)


def test_signals_measure_virtual_time_process_and_refusals() -> None:
    found = signals(trajectory("ok", "denied", "ok", "error"), Verdict("t", "v", True), 50, 10.0)
    assert found == Signals(outcome=1.0, latency_s=2.5, process=0.5, invalid=0.25)
    assert signals(trajectory(error="PlanError: no"), Verdict("t", "v", False)) == Signals(0.0, 2.0, 0.0, 1.0)


def test_an_undecided_episode_is_unscorable() -> None:
    with pytest.raises(TrainError, match="unscorable"):
        signals(trajectory("ok"), Verdict("t", "v", None))


def test_paces_come_from_successful_latencies_where_there_are_enough() -> None:
    found = paces({"many": [float(value) for value in range(101)], "few": [1.0, 2.0], "flat": [1.0] * 20})
    assert list(found) == ["many"]
    assert (found["many"].free_s, found["many"].max_s) == (5.0, 95.0)
