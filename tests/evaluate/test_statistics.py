"""Intervals that cover, and the published figures."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentops.evaluate import statistics


def test_wilson_is_the_published_interval():
    got = statistics.wilson(81, 263)  # Newcombe 1998, table I, method 3
    assert (got.low, got.high) == (pytest.approx(0.2553, abs=5e-5), pytest.approx(0.3662, abs=5e-5))
    assert statistics.wilson(0, 20).low == 0.0
    assert statistics.wilson(0, 0).high == 1.0
    with pytest.raises(ValueError, match="cannot be"):
        statistics.wilson(3, 2)


@given(st.integers(0, 500), st.integers(0, 500))
def test_wilson_holds_the_estimate_and_stays_in_the_unit_interval(k, extra):
    got = statistics.wilson(k, k + extra)
    if got.n:
        assert 0 <= got.low <= got.value + 1e-12
        assert got.value - 1e-12 <= got.high <= 1


def test_clusters_that_agree_within_widen_the_interval():
    values = [1.0] * 50 + [0.0] * 50
    alone = statistics.proportion(values)
    families = statistics.proportion(values, [str(index // 5) for index in range(100)])
    assert families.value == alone.value == 0.5
    assert statistics.design_effect(values, [str(index // 5) for index in range(100)]) == pytest.approx(5, rel=0.1)
    assert families.high - families.low > 1.9 * (alone.high - alone.low)


def test_cluster_robust_interval_covers_where_the_naive_one_does_not():
    rng = np.random.default_rng(0)
    naive = robust = 0
    for _ in range(300):
        rates = rng.beta(1.8, 0.2, 60)  # 60 templates, .9 on average, strongly alike within
        values = (rng.random((60, 5)) < rates[:, None]).astype(float).ravel()
        names = np.repeat(np.arange(60), 5).astype(str).tolist()
        one, two = statistics.proportion(values), statistics.proportion(values, names)
        naive += one.low <= 0.9 <= one.high
        robust += two.low <= 0.9 <= two.high
    assert naive / 300 < 0.85
    assert robust / 300 > 0.90


@given(st.integers(0, 12), st.integers(0, 12))
def test_mcnemar_is_the_exact_binomial(fixed, broken):
    n = fixed + broken
    outcomes = [math.comb(n, k) / 2**n for k in range(n + 1)] or [1.0]
    expected = min(1.0, sum(p for k, p in enumerate(outcomes) if abs(k - n / 2) >= abs(fixed - n / 2) - 1e-9))
    assert statistics.mcnemar(fixed, broken) == pytest.approx(expected)


@pytest.mark.parametrize(("points", "pairs"), [(0.02, 1954), (0.03, 864), (0.05, 306)])
def test_pairs_needed_at_ten_percent_discordance(points, pairs):
    assert statistics.pairs_needed(points, 0.10) == pytest.approx(pairs, abs=1.01)
    assert statistics.detectable_effect(pairs, 0.10) == pytest.approx(points, rel=0.01)


def test_paired_bootstrap_covers_and_no_flip_is_not_certainty():
    rng = np.random.default_rng(1)
    covered = 0
    for index in range(120):
        before = rng.random(400) < 0.8
        after = np.where(rng.random(400) < 0.1, rng.random(400) < 0.5, before)  # E[after - before] = .1 (.5 - .8)
        got = statistics.paired_difference(after.astype(float), before.astype(float), seed=index)
        covered += got.low <= -0.03 <= got.high
    assert covered / 120 > 0.89
    same = statistics.paired_difference([1.0] * 300, [1.0] * 300)
    assert (same.value, same.low, same.high) == (0.0, -0.01, 0.01)


def test_calibration_error_of_a_calibrated_and_a_boastful_router():
    rng = np.random.default_rng(2)
    trust = rng.uniform(0.5, 1, 4000)
    honest = statistics.calibration_error(trust, (rng.random(4000) < trust).astype(float))
    boastful = statistics.calibration_error(np.full(4000, 0.99), (rng.random(4000) < 0.8).astype(float))
    assert honest.value < 0.03
    assert boastful.value == pytest.approx(0.19, abs=0.02)
    assert boastful.low <= 0.19 <= boastful.high


@given(st.integers(1, 8), st.data())
def test_pass_hat_is_the_share_of_all_succeeding_subsets(n, data):
    successes = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    runs = [True] * successes + [False] * (n - successes)
    subsets = list(combinations(runs, k))
    assert statistics.pass_hat(n, successes, k) == pytest.approx(sum(map(all, subsets)) / len(subsets))


def test_quantile_interval_covers_the_median():
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(200):
        got = statistics.quantile(rng.exponential(1.0, 100), 0.5)
        covered += got.low <= math.log(2) <= got.high
    assert covered / 200 > 0.92


def test_nothing_measured_is_unbounded():
    assert math.isinf(statistics.quantile([], 0.5).high)
    assert math.isnan(statistics.mean_interval([]).value)
    assert statistics.paired_difference([], []).low == -1.0
    assert statistics.quantile_ratio([], [], 0.95).n == 0
