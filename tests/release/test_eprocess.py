"""The tests' guarantees, by brute force and by simulation."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentops.release.eprocess import (
    BETS,
    PRIOR,
    Evidence,
    SampleRatio,
    Watch,
    confidence_sequence,
    log_mixture,
)

differences = st.lists(st.floats(-1, 1), min_size=1, max_size=60)


@given(differences, st.sampled_from([0.0, 0.002, 0.1]), st.sampled_from([0.02, 0.05, 0.3]))
def test_both_processes_are_the_published_products(blocks, tolerance, margin):
    evidence = Evidence([tolerance], [margin])
    for value in blocks:
        evidence.update(np.array([value]))
    harm = sum(
        weight * math.prod(1 - bet / (1 + tolerance) * (value + tolerance) for value in blocks)
        for bet, weight in zip(BETS, PRIOR, strict=True)
    )
    promote = sum(
        weight * math.prod(1 + bet / (1 - margin) * (value + margin) for value in blocks)
        for bet, weight in zip(BETS, PRIOR, strict=True)
    )
    assert evidence.log_harm()[0] == pytest.approx(math.log(harm), abs=1e-8)
    assert evidence.log_promote()[0] == pytest.approx(math.log(promote), abs=1e-8)


@given(differences, st.integers(0, 60))
def test_saving_half_way_changes_nothing(blocks, cut):
    whole, part = Evidence([0.0, 0.01], [0.03, 0.1]), Evidence([0.0, 0.01], [0.03, 0.1])
    watched, half = Watch([0.0]), Watch([0.0])
    for index, value in enumerate(blocks):
        whole.update(np.array([value, math.nan]))
        watched.update(np.array([value]))
        if index == cut:
            part = Evidence.from_json([0.0, 0.01], [0.03, 0.1], json.loads(json.dumps(part.to_json())))
            half = Watch.from_json([0.0], json.loads(json.dumps(half.to_json())))
        part.update(np.array([value, math.nan]))
        half.update(np.array([value]))
    assert part.to_json() == whole.to_json()
    assert half.to_json() == watched.to_json()
    assert whole.n.tolist() == [len(blocks), 0]
    assert whole.log_harm()[1] == pytest.approx(0.0, abs=1e-12)  # nothing measured, nothing learnt


def test_many_runs_at_once_equal_one_run_at_a_time():
    rng = np.random.default_rng(1)
    blocks = rng.uniform(-1, 1, (30, 4, 2))
    blocks[::3, :, 1] = np.nan
    many = Evidence([0.0, 0.01], [0.03, 0.1], runs=4)
    for block in blocks:
        many.update(block)
    for run in range(4):
        one = Evidence([0.0, 0.01], [0.03, 0.1])
        for block in blocks:
            one.update(block[run])
        np.testing.assert_allclose(one.log_harm(), many.log_harm()[run])
        np.testing.assert_allclose(one.log_promote(), many.log_promote()[run])
        np.testing.assert_allclose(one.peak_harm, many.peak_harm[run])


def _blocks(rng, runs, canary, control, k=9):
    return (rng.random((runs, 1)) < canary) - rng.binomial(k, control, (runs, 1)) / k


@pytest.mark.parametrize("side", ["harm", "promote"])
def test_mean_at_a_stopping_time_is_at_most_one_under_the_null(side):
    """At the edge of the null, stop when it looks good (E >= 3) or after 300 blocks: the gambler gains nothing."""
    rng = np.random.default_rng(7)
    margin, runs = 0.03, 6000
    evidence = Evidence([0.0], [margin], runs)
    stopped, value = np.zeros(runs, bool), np.ones(runs)
    for _ in range(300):
        evidence.update(_blocks(rng, runs, 0.9 if side == "harm" else 0.9 - margin, 0.9))
        now = np.exp((evidence.log_harm() if side == "harm" else evidence.log_promote())[:, 0])
        value = np.where(stopped, value, now)
        stopped |= now >= 3
    error = value.std() / math.sqrt(runs)
    assert value.mean() <= 1 + 3 * error
    assert (value >= 3).mean() > 0.05  # the stopping rule did stop: the test above is not empty


def test_false_alarms_stay_below_alpha_under_constant_looking():
    rng = np.random.default_rng(3)
    evidence = Evidence([0.0], [0.03], 3000)
    for _ in range(600):
        evidence.update(_blocks(rng, 3000, 0.9, 0.9))
    assert (evidence.peak_harm[:, 0] >= math.log(1 / 0.05)).mean() <= 0.05


def test_a_ten_point_fall_is_seen_in_about_150_blocks():
    rng = np.random.default_rng(4)
    evidence, found = Evidence([0.0], [0.03], 300), np.full(300, 999)
    for turn in range(1, 500):
        evidence.update(_blocks(rng, 300, 0.8, 0.9))
        found = np.where((evidence.peak_harm[:, 0] >= math.log(100)) & (found == 999), turn, found)
    assert 90 <= np.median(found) <= 180
    assert (found < 999).mean() > 0.99


def test_logs_stay_finite_over_a_long_one_sided_stream():
    evidence, watch = Evidence([0.0], [0.03]), Watch([0.0])
    for _ in range(5000):
        evidence.update(np.array([-1.0]))
        watch.update(np.array([-1.0]))
    assert math.isfinite(evidence.log_harm()[0])
    assert math.isfinite(evidence.log_promote()[0])
    assert math.isfinite(watch.value()[0])
    json.dumps([evidence.to_json(), watch.to_json()], allow_nan=False)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=40))
def test_watch_is_the_sum_over_every_possible_starting_point(blocks):
    """M_n = sum over j of the product of e_j..e_n: unrolls the recursion M <- (M + 1) e."""
    watch = Watch([0.0])
    for value in blocks:
        watch.update(np.array([value]))
    expected = sum(
        weight * sum(math.prod(1 - bet * value for value in blocks[start:]) for start in range(len(blocks)))
        for bet, weight in zip(BETS, PRIOR, strict=True)
    )
    assert watch.value()[0] == pytest.approx(math.log(expected), abs=1e-8)


def test_watch_grows_at_most_linearly_while_nothing_is_wrong():
    rng = np.random.default_rng(11)
    watch = Watch([0.0], 3000)
    for _ in range(200):
        watch.update(_blocks(rng, 3000, 0.9, 0.9))
    value = np.exp(watch.value()[:, 0])
    assert value.mean() <= 200 + 4 * value.std() / math.sqrt(3000)


def test_sample_ratio_sees_a_lost_tenth_and_not_an_honest_split():
    rng = np.random.default_rng(5)
    honest, lossy = SampleRatio(), SampleRatio()
    for scarce in rng.random(20_000) < 0.25:
        honest.update(bool(scarce), 0.25)
    for scarce in rng.random(20_000) < 0.25 * 0.9 / (0.25 * 0.9 + 0.75):
        lossy.update(bool(scarce), 0.25)
    assert honest.log_e < math.log(20)
    assert lossy.log_e > math.log(1000)


def test_sample_ratio_rarely_alarms_under_constant_looking_while_the_split_moves():
    rng = np.random.default_rng(6)
    alarms, runs = 0, 100
    for _ in range(runs):
        ratio = SampleRatio()
        top = 0.0
        for weight in (0.01, 0.05, 0.25, 0.5):
            for scarce in rng.random(200) < weight:
                ratio.update(bool(scarce), weight)
            top = max(top, ratio.log_e)
        alarms += top >= math.log(20)
    assert alarms / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_display_interval_covers_the_truth_at_all_times():
    rng = np.random.default_rng(8)
    missed = 0
    for _ in range(200):
        values = (rng.random(800) < 0.88) - rng.binomial(9, 0.9, 800) / 9
        sums, squares = np.cumsum(values), np.cumsum(values**2)
        outside = False
        for n in range(50, 801, 25):
            _, low, high = confidence_sequence(n, float(sums[n - 1]), float(squares[n - 1]))
            outside = outside or not low <= -0.02 <= high
        missed += outside
    assert missed / 200 <= 0.05


def test_no_block_no_interval():
    assert all(math.isnan(value) for value in confidence_sequence(0, 0.0, 0.0))
    assert confidence_sequence(1, 0.3, 0.09)[1:] == (-1.0, 1.0)


@settings(max_examples=50)
@given(st.lists(st.floats(-700, 700), min_size=8, max_size=8))
def test_mixture_lies_between_its_parts(logs):
    value = float(log_mixture(np.array(logs)))
    assert min(logs) - 1e-9 <= value <= max(logs) + 1e-9
