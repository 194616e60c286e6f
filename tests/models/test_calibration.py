import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentops.models.calibration import (
    abstention_threshold,
    expected_calibration_error,
    negative_log_likelihood,
    softmax,
    temperature,
)

scores = st.lists(st.floats(-20, 20), min_size=3, max_size=3)


@given(st.lists(scores, min_size=1, max_size=20), st.floats(0.05, 20))
def test_softmax_is_a_distribution_in_the_same_order(rows: list[list[float]], warmth: float) -> None:
    logits = np.array(rows)
    probabilities = softmax(logits, warmth)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    best = logits.argmax(axis=1)
    assert (probabilities[np.arange(len(rows)), best] == probabilities.max(axis=1)).all()


@pytest.mark.parametrize("true", [0.2, 1.0, 4.0])
def test_the_temperature_that_made_the_data_is_found(true: float) -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(4000, 5)) * 3
    truth = np.array([generator.choice(5, p=row) for row in softmax(logits, true)])
    assert temperature(logits, truth) == pytest.approx(true, rel=0.15)


@given(st.lists(st.tuples(scores, st.integers(0, 2)), min_size=1, max_size=30))
def test_no_other_temperature_is_better(rows: list[tuple[list[float], int]]) -> None:
    logits, truth = np.array([row for row, _ in rows]), np.array([label for _, label in rows])
    best = negative_log_likelihood(logits, truth, temperature(logits, truth))
    for other in (0.05, 0.3, 1.0, 3.0, 15.0):
        assert best <= negative_log_likelihood(logits, truth, other) + 1e-6


def test_without_rows_nothing_is_calibrated() -> None:
    assert temperature(np.zeros((0, 3)), np.zeros(0, int)) == 1.0
    assert np.isnan(expected_calibration_error(np.zeros(0), np.zeros(0, bool)))


def test_calibration_error_of_known_cases() -> None:
    confidence = np.array([0.8] * 10)
    assert expected_calibration_error(confidence, np.array([True] * 8 + [False] * 2)) == pytest.approx(0)
    assert expected_calibration_error(confidence, np.array([True] * 3 + [False] * 7)) == pytest.approx(0.5)
    assert expected_calibration_error(np.array([1.0, 0.0]), np.array([True, False])) == pytest.approx(0)


@given(
    st.lists(st.floats(-5, 5), min_size=1, max_size=60),
    st.lists(st.floats(-10, 5), max_size=30),
    st.floats(0.5, 1),
)
def test_the_threshold_keeps_what_it_must(inside: list[float], outside: list[float], keep: float) -> None:
    threshold = abstention_threshold(np.array(inside), np.array(outside), keep)
    assert np.mean(np.array(inside) >= threshold) >= keep - 1e-9


def test_the_threshold_lies_between_two_kinds_not_beside_the_last_row() -> None:
    inside, outside = np.random.default_rng(0).normal(0, 1, 500), np.random.default_rng(1).normal(-8, 1, 20)
    assert -6 < abstention_threshold(inside, outside, 0.95) < -3
