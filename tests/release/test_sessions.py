"""Units and blocks: what counts as one observation."""

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentops.errors import ReleaseError
from agentops.release import Metrics
from agentops.release.monitor import Monitor
from agentops.release.rules import Rules
from agentops.release.sessions import Block, Ledger, Pairing, Unit


def unit(
    candidate: bool, weight: float, success: float | None, disagreed: bool | None = None, cost: float = 1.0
) -> Unit:
    made = Unit(candidate, weight, 0.0)
    made.add(
        Metrics(success=success, latency_s=1.0, cost=cost, denied=False, error=False, disagreed=disagreed), 2.0, 1.0
    )
    return made


def test_several_requests_of_a_session_are_one_unit():
    made = Unit(True, 0.05, 0.0)
    for success, latency in ((1.0, 1.0), (0.0, 3.0), (None, 1.0), (1.0, None)):
        made.add(Metrics(success=success, latency_s=latency, denied=False), 2.0, 1.0)
    assert made.values() == [pytest.approx(2 / 3), pytest.approx(1 / 3), None, 0.0, None]


def test_cost_is_in_units_of_five_times_the_incumbents_mean_and_clipped():
    for cost, mean, expected in ((10.0, 10.0, 0.2), (1000.0, 10.0, 1.0), (0.0, 0.0, 0.0), (0.1, 0.0, 1.0)):
        made = Unit(True, 0.05, 0.0)
        made.add(Metrics(cost=cost), None, mean)
        assert made.values()[2] == expected


def test_a_block_is_one_canary_session_against_the_nine_latest_others():
    pairing = Pairing()
    for success in [0.0] * 20 + [1.0] * 9:
        assert pairing.add(unit(False, 0.01, success)) == []
    traffic, outcome = pairing.add(unit(True, 0.01, 0.0, cost=2.0))
    assert outcome == Block((-1.0, None, None, 0.0, 0.0), None, True)
    assert traffic.goodness[2] == pytest.approx(-0.2)  # dearer is worse
    assert traffic.missing == 0.0


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=200), st.sampled_from([0.01, 0.1, 0.25, 0.5, 0.9]))
def test_no_session_enters_two_blocks_and_differences_stay_in_range(stream, weight):
    pairing, blocks, scarce = Pairing(), 0, 0
    for candidate, success in stream:
        one = unit(candidate, weight, float(success))
        scarce += one.scarce
        found = [block for block in pairing.add(one) if block.goodness[0] is not None]
        blocks += len(found)
        assert all(-1 <= block.goodness[0] <= 1 for block in found)
    size = {0.01: 9, 0.1: 9, 0.25: 3, 0.5: 1, 0.9: 9}[weight]
    assert blocks <= scarce
    assert blocks * size <= len(stream) - scarce


def test_after_promotion_the_old_version_is_the_scarce_arm_and_signs_still_mean_candidate():
    pairing = Pairing()
    for _ in range(9):
        pairing.add(unit(True, 0.9, 0.0))
    outcome = pairing.add(unit(False, 0.9, 1.0))[-1]
    assert outcome.goodness[0] == -1.0


def test_a_session_in_which_the_versions_agreed_is_a_block_of_difference_zero():
    pairing = Pairing()
    for _ in range(9):
        pairing.add(unit(False, 0.01, 1.0, disagreed=False))  # agreeing controls are not compared
    blocks = pairing.add(unit(True, 0.01, 0.0, disagreed=False))
    assert blocks[-1] == Block((0.0, None, None, 0.0, 0.0), None, False)
    assert len(blocks) == 2  # and latency and cost are compared on all traffic


def test_unknown_outcomes_say_nothing_but_are_counted_as_missing():
    pairing = Pairing()
    for _ in range(9):
        pairing.add(unit(False, 0.01, 1.0))
    traffic, outcome = pairing.add(unit(True, 0.01, None))
    assert outcome.goodness[0] is None
    assert traffic.missing == 1.0


def test_sessions_settle_in_the_order_they_began_whatever_arrives_first():
    ledger = Ledger()
    ledger.open = {"a": Unit(True, 0.1, 0.0), "b": Unit(False, 0.1, 1.0, complete=True), "c": Unit(False, 0.1, 50.0)}
    assert ledger.settle(5.0, 10.0) == []  # b is complete but waits for a
    assert [one.began for one in ledger.settle(10.0, 10.0)] == [0.0, 1.0]
    assert list(ledger.open) == ["c"]


@pytest.mark.parametrize(
    "metrics",
    [
        Metrics(success=1.5),
        Metrics(latency_s=-1.0),
        Metrics(cost=math.nan),
        Metrics(latency_s=math.inf),
        Metrics(hard="fire"),
    ],
)
def test_metrics_out_of_range_are_refused(metrics):
    with pytest.raises(ReleaseError, match="="):
        metrics.checked()


def observations(seed: int, n: int) -> list[tuple]:
    rng = random.Random(seed)
    rows = []
    for index in range(n):
        candidate = rng.random() < 0.25
        for turn in range(rng.randint(1, 3)):
            metrics = Metrics(
                success=rng.choice([0.0, 1.0, None]),
                latency_s=rng.random(),
                cost=rng.random(),
                denied=False,
                error=rng.random() < 0.1,
                disagreed=rng.choice([None, True, False]),
            )
            rows.append((f"s{index}", candidate, 0.25, float(index), metrics, turn == 0))
    return rows


def canary_monitor(rules: Rules) -> Monitor:
    monitor = Monitor(rules)
    monitor.latencies, monitor.cost = [index / 100 for index in range(100)], [100, 50.0]
    monitor.begin("canary", 0.25)
    return monitor


@given(st.integers(0, 10_000), st.lists(st.integers(1, 60), max_size=4))
def test_the_monitor_does_not_depend_on_how_its_log_was_cut(rules_of_session, seed, cuts):
    rows = observations(seed, 40)
    whole, parts = canary_monitor(rules_of_session), canary_monitor(rules_of_session)
    for row in rows:
        whole.observe(*row)
        whole.settle(row[3])
    for index, row in enumerate(rows):
        if index in cuts:
            parts = Monitor.from_json(rules_of_session, json.loads(json.dumps(parts.to_json())))
        parts.observe(*row)
        if index % 3 == 0:  # settling less often makes the same blocks
            parts.settle(row[3])
    whole.settle(1e9)
    parts.settle(1e9)
    assert json.dumps(parts.to_json()) == json.dumps(whole.to_json())
    assert whole.counts["settled"] == 40


def test_what_arrives_after_the_deadline_does_not_count(rules):
    monitor = canary_monitor(rules)
    monitor.observe("a", True, 0.25, 0.0, Metrics(success=1.0), True)
    monitor.observe("a", True, 0.25, rules.outcomes.deadline_s + 1, Metrics(success=0.0), False)
    monitor.observe("a", False, 0.25, 1.0, Metrics(success=0.0), False)  # the session belongs to the arm it began in
    assert monitor.ledger.open["a"].values()[0] == 1.0
    assert (monitor.counts["late"], monitor.counts["switched"]) == (1, 1)


@pytest.fixture(scope="module")
def rules_of_session(repo) -> Rules:
    from agentops.release import load_rules

    return load_rules(repo / "policies")
