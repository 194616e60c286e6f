"""The benchmark's simulated releases: the same rule as the product, and a request-level unit is caught."""

from dataclasses import replace

import numpy as np
import pytest

from agentops.release import ramp
from agentops.release.eprocess import Evidence


@pytest.fixture
def streams(repo, monkeypatch):
    monkeypatch.syspath_prepend(str(repo))
    from benchmarks import canary_streams

    return canary_streams


def test_requests_of_a_session_may_not_count_one_by_one(streams, rules):
    """5 requests a session, ICC .3, nothing wrong: sessions raise few alarms, single requests far too many."""
    world = streams.World(requests=5, correlation=0.3)
    rng = np.random.default_rng(2)
    by_session = streams.delay(world, rules, 9, 500, 300, rng) <= 300
    by_request = streams.delay(replace(world, request_level=True), rules, 9, 500, 300, rng) <= 300
    assert by_session.mean() <= 0.015
    assert by_request.mean() > 0.03


def test_simulated_releases_end_as_the_rules_promise(streams, rules):
    rng = np.random.default_rng(3)
    equal = streams.release(streams.World(), rules, 100, rng)
    assert equal.share(ramp.PROMOTE) >= 0.95
    worse = streams.release(streams.World(success=0.80), rules, 100, rng)
    assert worse.share(ramp.ROLL_BACK) == 1.0
    assert worse.quantiles(ramp.ROLL_BACK)[0] < 200
    slower = streams.release(streams.World(slow=0.15), rules, 100, rng)
    assert slower.share(ramp.ROLL_BACK) == 1.0
    hidden = streams.release(streams.World(missing=(0.1, 0.3)), rules, 100, rng)
    assert hidden.share(streams.FROZEN) >= 0.95


def test_harm_wins_over_proof_and_steps_need_both_sessions_and_evidence():
    limits = np.array([5.0, 5.0])

    def move(harm, promote, units, evidence, last, total=10):
        return int(ramp.move(np.array(harm), limits, np.array(promote), units, total, 100, evidence, last, 5000))

    assert move([5.0, 0.0], [9.0, 9.0], 100, 20, True) == ramp.ROLL_BACK
    assert move([1.0, 0.0], [9.0, 9.0], 100, 20, True) == ramp.PROMOTE
    assert move([1.0, 0.0], [9.0, 2.9], 100, 20, True) == ramp.HOLD
    assert move([1.0, 0.0], [9.0, 9.0], 99, 20, False) == ramp.HOLD
    assert move([1.0, 0.0], [9.0, 1.7], 100, 5, False) == ramp.ADVANCE
    assert move([1.0, 0.0], [-9.0, -9.0], 100, 0, False) == ramp.ADVANCE  # evidence 0: a smoke test
    assert move([1.0, 0.0], [9.0, 2.9], 100, 20, True, total=5000) == ramp.UNDECIDED


def test_the_live_controller_holds_the_same_evidence_as_the_simulation(local, traffic):
    """Blocks rebuilt by hand from what each arm showed, in the order of sessions, give the controller's e-values."""
    controller = local.replica()
    controller.start("intent", local.versions["new"], by="ana", override="test")
    units = list(traffic(6000, 0.9, 0.87, seed=12))
    release = controller.release("intent")
    evidence = Evidence(controller.rules.tolerances, controller.rules.margins)
    waiting, controls = [], []
    for start in range(0, len(units), 100):
        batch = []
        for unit in units[start : start + 100]:
            assignment = controller.assign("intent", unit.session)
            mine = unit.candidate if assignment.version == release.candidate else unit.stable
            batch.append((unit.session, assignment, replace(mine, complete=True)))
            if assignment.weight == 0:
                continue
            size = {0.01: 9, 0.05: 9, 0.25: 3, 0.5: 1}[assignment.weight]
            if assignment.arm == "canary":
                waiting.append((size, mine.success))
            else:
                controls = [*controls, mine.success][-64:]
            while waiting and len(controls) >= waiting[0][0]:
                k, success = waiting.pop(0)
                difference = success - sum(controls[-k:]) / k
                controls = controls[:-k]
                evidence.update(np.array([difference, *[np.nan] * 4]))
        controller.observe_many("intent", batch)
        if controller.decide("intent").release.stage not in ("shadow", "canary"):
            break
    rail = controller.status("intent").figures["guardrails"]["success"]
    assert rail["blocks"] == evidence.n[0] > 100
    assert rail["harm_e"] == pytest.approx(float(np.exp(evidence.log_harm()[0])))
    assert rail["promote_e"] == pytest.approx(float(np.exp(evidence.log_promote()[0])))
