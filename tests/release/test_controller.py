"""Whole releases on real state: decided rightly, by any replica, across restarts, and never silently."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace as changed
from types import SimpleNamespace

import pytest

from agentops.errors import ReleaseError, StoreError
from agentops.release import Controller, Metrics, ReplayUnit, replay
from agentops.types import Report

GOOD = {"by": "ana", "override": "test"}


def start(deployment, name="new", **tables) -> Controller:
    controller = deployment.replica(tables.pop("rules", None))
    controller.start("intent", deployment.versions[name], **GOOD)
    return controller


def serve(controller, units, every=100, router="intent"):
    """Observe sessions as the online loop would, deciding now and then; returns the rulings that moved something."""
    moved = []
    for index, unit in enumerate(units, 1):
        assignment = controller.assign(router, unit.session)
        release = controller.release(router)
        mine = unit.candidate if assignment.version == release.candidate else unit.stable
        controller.observe(router, unit.session, assignment, changed(mine, complete=True))
        if index % every == 0:
            ruling = controller.decide(router)
            if ruling.action != "hold":
                moved.append(ruling)
    return moved


def test_a_better_router_is_promoted_step_by_step(deployment, traffic):
    controller = start(deployment)
    result = replay(controller, "intent", traffic(20_000, 0.8, 0.9))
    assert [ruling.action for ruling in result.rulings] == ["advance"] * 4 + ["promote"]
    assert [ruling.release.weight for ruling in result.rulings[:4]] == [0.01, 0.05, 0.25, 0.5]
    assert deployment.replica().registry.current("intent") == deployment.versions["new"]
    assert controller.release("intent").stage == "full"
    assert "no guardrail is worse than its margin" in result.ruling.reason
    assert result.ruling.figures["guardrails"]["success"]["promote_e"] >= 20
    assert result.sessions < 15_000


def test_a_damaged_router_is_rolled_back_before_many_saw_it(deployment, traffic):
    controller = start(deployment)
    result = replay(controller, "intent", traffic(20_000, 0.9, 0.7))
    assert result.ruling.action == "roll_back"
    assert "success is worse" in result.ruling.reason
    assert result.candidate_sessions < 200
    assert controller.registry.current("intent") == deployment.versions["old"]
    assert controller.release("intent").stage == "rolled_back"
    assert {controller.assign("intent", f"x{index}").version for index in range(100)} == {deployment.versions["old"]}


def test_a_slower_router_is_rolled_back_though_its_answers_are_better(local, traffic):
    result = replay(start(local), "intent", traffic(20_000, 0.8, 0.9, slow=2.0))
    assert result.ruling.action == "roll_back"
    assert "latency is worse" in result.ruling.reason


def test_a_denying_router_is_rolled_back(local, traffic):
    units = (
        changed(unit, candidate=changed(unit.candidate, denied=index % 3 == 0))
        for index, unit in enumerate(traffic(20_000))
    )
    assert "denied is worse" in replay(start(local), "intent", units).ruling.reason


def test_every_decision_is_in_the_audit_log_with_its_figures(local, traffic):
    result = replay(start(local), "intent", traffic(20_000, 0.8, 0.9))
    kinds = [record["type"] for record in local.audit.records]
    assert kinds == ["release.pointer", "release.start", *["release.advance"] * 4, "release.promote", "release.pointer"]
    promoted = local.audit.records[-2]
    assert promoted["figures"] == result.ruling.figures
    assert promoted["reason"] == result.ruling.reason
    assert local.replica().registry.history("intent")[-1]["release"] == result.ruling.release.id


@pytest.mark.parametrize("stage", ["shadow", "canary"])
def test_a_hard_failure_rolls_back_within_one_observation(deployment, stage, traffic):
    controller = start(deployment)
    if stage == "canary":
        replay(controller, "intent", traffic(700))
    release = controller.release("intent")
    assert release.stage == stage
    session = next(
        name
        for name in map(str, itertools.count())
        if stage == "shadow" or controller.assign("intent", name).arm == "canary"
    )
    controller.observe("intent", session, controller.assign("intent", session), Metrics(hard="leak"))
    assert controller.release("intent").stage == "rolled_back"
    assert deployment.audit.records[-1]["reason"] == "hard failure of the candidate: leak"


def test_a_hard_failure_of_the_incumbent_is_not_the_candidates_fault(local, traffic):
    controller = start(local)
    replay(controller, "intent", traffic(700))
    session = next(name for name in map(str, itertools.count()) if controller.assign("intent", name).arm == "stable")
    controller.observe("intent", session, controller.assign("intent", session), Metrics(hard="crash"))
    controller.decide("intent")
    assert controller.release("intent").stage == "canary"


def test_without_a_metric_nothing_moves(local, traffic):
    controller = start(local)
    units = (
        changed(unit, stable=changed(unit.stable, latency_s=None), candidate=changed(unit.candidate, latency_s=None))
        for unit in traffic(6000, 0.8, 0.9)
    )
    result = replay(controller, "intent", units)
    assert result.ruling.action == "hold"
    assert "no comparison of latency yet" in result.ruling.reason
    assert controller.release("intent").weight == 0.05


def test_no_traffic_is_no_verdict(local):
    controller = start(local)
    for _ in range(3):
        assert controller.decide("intent").action == "hold"
    assert controller.release("intent").stage == "shadow"


def test_sessions_that_do_not_fit_the_split_freeze_the_release(local, traffic):
    controller = start(local)
    replay(controller, "intent", traffic(600))
    moved = []
    for index, unit in enumerate(traffic(20_000, seed=5)):
        assignment = controller.assign("intent", unit.session)
        if assignment.arm == "canary" and index % 2:
            continue  # half of the candidate's sessions lose their records
        mine = unit.candidate if assignment.arm == "canary" else unit.stable
        controller.observe("intent", unit.session, assignment, changed(mine, complete=True))
        if index % 500 == 0 and (ruling := controller.decide("intent")).action != "hold":
            moved.append(ruling)
            if ruling.action == "freeze":
                break
    assert "sample-ratio mismatch" in moved[-1].reason
    assert controller.release("intent").stage == "held"
    with pytest.raises(ReleaseError, match="is open"):
        controller.start("intent", local.versions["newer"], **GOOD)
    assert controller.decide("intent").action == "hold"
    resumed = controller.resume("intent", by="bo", reason="the collector is repaired")
    assert resumed.stage == "canary"
    assert controller.decide("intent").action != "freeze"


def test_outcomes_missing_on_one_side_freeze_the_release(local, traffic):
    units = (
        changed(unit, candidate=changed(unit.candidate, success=None)) if index % 5 == 0 else unit
        for index, unit in enumerate(traffic(20_000))
    )
    result = replay(start(local), "intent", units)
    assert result.ruling.action == "freeze"
    assert "missing" in result.ruling.reason
    assert result.ruling.release.stage == "held"


def test_versions_that_never_disagree_are_left_to_a_person(local, traffic):
    controller = start(local)
    units = (changed(unit, disagreed=False) for unit in traffic(2000))
    result = replay(controller, "intent", units)
    assert "no behavioural change" in result.ruling.reason
    assert controller.release("intent").stage == "held"
    assert controller.assign("intent", "anyone").version == local.versions["old"]
    assert controller.promote("intent", by="bo", reason="smaller").stage == "full"
    assert controller.registry.current("intent") == local.versions["new"]


def test_the_triggered_design_spreads_the_exposure_over_disagreeing_sessions(local, traffic):
    """10 % of sessions disagree: 1 % of exposed traffic is a split of 10 %, and a fall there is seen sooner."""
    units = (
        changed(unit, disagreed=index % 10 == 0, candidate=unit.candidate if index % 10 == 0 else unit.stable)
        for index, unit in enumerate(traffic(20_000, 0.9, 0.5))
    )
    result = replay(start(local), "intent", units)
    assert result.rulings[0].release.weight == pytest.approx(0.1, rel=0.01)
    assert result.ruling.action == "roll_back"
    assert result.sessions < 4000


def test_a_restart_at_every_decision_changes_nothing(deployment, traffic, monkeypatch):
    fixed = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex="5a17" * 8))  # the same salt for both releases
    monkeypatch.setattr("agentops.release.controller.uuid", fixed)
    one = start(deployment)
    one.registry.set("other", deployment.versions["old"], by="ana", reason="first version")
    one.start("other", deployment.versions["new"], **GOOD)
    serve(one, traffic(3000, 0.9, 0.85, seed=3), 250)
    for block in range(12):
        fresh = deployment.replica()  # a new process each time
        units = itertools.islice(traffic(3000, 0.9, 0.85, seed=3), block * 250, (block + 1) * 250)
        serve(fresh, units, 250, "other")
    assert deployment.replica().status("other").figures == one.status("intent").figures
    assert one.status("intent").figures["units"] > 20


def test_replicas_that_observe_and_decide_at_once_lose_nothing(deployment, traffic):
    start(deployment)
    units = list(traffic(1200, 0.8, 0.9, seed=9))
    replicas = [deployment.replica() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda pair: serve(pair[1], units[pair[0] :: 3], 40), enumerate(replicas)))
    figures = replicas[0].status("intent").figures
    assert (figures["sessions"], figures["late"], figures["switched"]) == (1200, 0, 0)
    steps = [entry["step"] for entry in replicas[1].release("intent").history if "step" in entry]
    assert steps == sorted(set(steps))  # each step was entered once, by one of them
    assert replicas[2].status("intent").figures == figures


def test_of_two_concurrent_starts_one_wins(deployment):
    replicas = [deployment.replica(), deployment.replica()]

    def attempt(pair):
        controller, name = pair
        try:
            return controller.start("intent", deployment.versions[name], **GOOD).id
        except ReleaseError as error:
            return str(error)

    with ThreadPoolExecutor(2) as pool:
        got = list(pool.map(attempt, zip(replicas, ("new", "newer"), strict=True)))
    running = replicas[0].release("intent").id
    assert running in got
    lost = next(answer for answer in got if answer != running)
    assert "is open" in lost or "at the same time" in lost


def test_a_decision_is_carried_out_even_if_its_author_dies_before_doing_it(local, monkeypatch, traffic):
    controller = start(local)

    def crash(*arguments, **named):
        raise StoreError("power is gone")

    monkeypatch.setattr(controller.registry, "set", crash)
    with pytest.raises(StoreError):
        replay(controller, "intent", traffic(20_000, 0.8, 0.9))
    assert controller.registry.current("intent") == local.versions["old"]
    other = local.replica()
    assert other.release("intent").stage == "full"
    other.decide("intent")
    assert other.registry.current("intent") == local.versions["new"]


def test_a_pointer_moved_by_hand_ends_the_release_instead_of_being_overwritten(local, traffic):
    controller = start(local)
    replay(controller, "intent", traffic(700))
    controller.registry.set("intent", local.versions["newer"], by="bo", reason="emergency")
    assert controller.assign("intent", "x").version == local.versions["newer"]
    controller.promote("intent", by="ana", reason="did not look")
    assert controller.registry.current("intent") == local.versions["newer"]
    assert controller.release("intent").stage == "rolled_back"
    assert controller.release("intent").history[-1]["action"] == "superseded"


def test_abort_holds_from_the_next_request_on_every_replica(deployment, traffic):
    controller = start(deployment)
    other = deployment.replica()
    replay(controller, "intent", traffic(700))
    assert other.release("intent").stage == "canary"
    controller.abort("intent", by="bo", reason="customers complain")
    assert {other.assign("intent", f"x{index}").version for index in range(300)} == {deployment.versions["old"]}
    with pytest.raises(ReleaseError, match="nothing to roll back"):
        controller.abort("intent", by="bo", reason="again")
    assert deployment.audit.records[-1]["by"] == "bo"


def test_a_fall_after_promotion_is_seen_by_the_hold_back_and_rolled_back(local, traffic):
    controller = start(local)
    replay(controller, "intent", traffic(20_000, 0.8, 0.9))
    assert controller.assign("intent", "x").weight == pytest.approx(0.9)
    moved = serve(controller, traffic(9000, 0.85, 0.45, seed=4, tag="later"), 500)
    assert moved[-1].action == "roll_back"
    assert "fell after promotion" in moved[-1].reason
    assert controller.registry.current("intent") == local.versions["old"]


def test_the_hold_back_ends_after_its_days(local, rules, traffic):
    controller = start(local)
    replay(controller, "intent", traffic(20_000, 0.8, 0.9))
    local.clock._now += rules.hold_back.days * 86400 + 1
    assert controller.decide("intent").action == "finish"
    assert {controller.assign("intent", f"x{index}").version for index in range(200)} == {local.versions["new"]}
    controller.start("intent", local.versions["newer"], **GOOD)


def test_a_release_keeps_the_rules_it_began_with(local, rules_with, traffic):
    start(local, rules=rules_with(shadow={"sessions": 200}))
    other = local.replica(rules_with(shadow={"sessions": 5000}))
    result = replay(other, "intent", traffic(400))
    assert result.rulings[0].reason.startswith("shadow complete: 200")


def report(local, **fields) -> Report:
    given = {"candidate": local.versions["new"], "baseline": local.versions["old"], "passed": True, **fields}
    return Report(suite="frozen", suite_digest="sha256:s", **given)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"passed": None, "reasons": ("too few tasks",)}, "inconclusive, which is not a pass: too few tasks"),
        ({"passed": False, "reasons": ("accuracy is below",)}, "did not pass: accuracy is below"),
        ({"candidate": "sha256:other"}, "not about"),
        ({"baseline": ""}, "compares with nothing"),
    ],
)
def test_a_release_needs_a_report_that_passed_about_this_pair(local, fields, says):
    controller = local.replica()
    with pytest.raises(ReleaseError, match=says):
        controller.start("intent", local.versions["new"], by="ana", report=report(local, **fields))
    with pytest.raises(ReleaseError, match="run `agentops evaluate` first"):
        controller.start("intent", local.versions["new"], by="ana")
    assert controller.release("intent") is None


def test_a_passed_report_opens_a_release_and_its_approver_reaches_the_pointer(local):
    controller = local.replica()
    controller.start("intent", local.versions["new"], by="ana", approved_by="bo", report=report(local))
    controller.promote("intent", by="ana", reason="now")
    assert controller.registry.serving("intent")["approved_by"] == "bo"


def test_impossible_starts_say_why(local, traffic):
    controller = local.replica()
    with pytest.raises(ReleaseError, match="already serves"):
        controller.start("intent", local.versions["old"], **GOOD)
    with pytest.raises(ReleaseError, match="set its first version by hand"):
        controller.start("other", local.versions["new"], **GOOD)
    with pytest.raises(StoreError):
        controller.start("intent", "sha256:" + "f" * 64, **GOOD)
    for call in (controller.decide, controller.status):
        with pytest.raises(ReleaseError, match="has no release"):
            call("intent")
    with pytest.raises(ReleaseError, match="no open release to replay"):
        replay(controller, "intent", traffic(1))


def test_observations_of_an_older_release_do_not_count_for_the_new_one(local):
    controller = start(local)
    old = controller.assign("intent", "x")
    controller.abort("intent", by="ana", reason="again")
    start(local, "newer")
    controller.observe("intent", "x", old, Metrics(success=0.0, hard="crash"))
    controller.decide("intent")
    assert controller.release("intent").stage == "shadow"
    assert controller.status("intent").figures["sessions"] == 0


def test_late_feedback_joins_its_session_and_no_session_name_is_stored(local):
    controller = start(local)
    assignment = controller.assign("intent", "ana@example.com")
    controller.observe("intent", "ana@example.com", assignment, Metrics(latency_s=0.01, denied=False))
    controller.decide("intent")
    controller.observe("intent", "ana@example.com", assignment, Metrics(success=1.0))
    figures = controller.status("intent").figures
    assert (figures["sessions"], figures["open_sessions"], figures["late"]) == (1, 1, 0)
    for _, value, _ in controller.state.scan("release/"):
        assert b"ana@example" not in value
    release = controller.release("intent")
    for _, value in controller.state.read(f"release/intent/{release.id}/log"):
        assert b"ana@example" not in value


def test_a_damaged_saved_release_says_what_to_do(local):
    controller = start(local)
    controller.state.put("release/intent", b'{"release": 1')
    for call in (controller.decide, controller.release, controller.status):
        with pytest.raises(ReleaseError, match="cannot be read"):
            call("intent")


def test_replay_shows_the_controller_only_the_arm_a_session_fell_into(local, traffic):
    """Metrics of the other arm are poisoned: were one read, the release would end at once."""
    controller = start(local)
    replay(controller, "intent", traffic(700))

    def poisoned():
        for unit in traffic(400, seed=8):
            arm = controller.assign("intent", unit.session).arm
            poison = Metrics(success=0.0, hard="crash")
            yield changed(unit, stable=poison) if arm == "canary" else changed(unit, candidate=poison)

    assert replay(controller, "intent", poisoned()).ruling.release.stage == "canary"


def test_a_replay_unit_may_say_nothing_about_disagreement():
    assert ReplayUnit("s", Metrics(), Metrics()).disagreed is None
