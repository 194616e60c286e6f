"""The traffic split: sticky, monotone, fair."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agentops.release import assign
from agentops.release.assignment import position
from agentops.types import Release

RELEASE = Release("r1", "intent", "sha256:old", "sha256:new", "canary", 0.05, "salt", 0.0)
sessions = st.text(max_size=40)
weights = st.floats(0.001, 0.5)


@given(sessions, weights, weights)
def test_a_session_never_leaves_the_candidate_when_the_weight_grows(session, one, other):
    small, large = sorted((one, other))
    before = assign(replace(RELEASE, weight=small), "sha256:old", session)
    after = assign(replace(RELEASE, weight=large), "sha256:old", session)
    assert before == assign(replace(RELEASE, weight=small), "sha256:old", session)
    if before.arm == "canary":
        assert after.arm == "canary"
        full = assign(replace(RELEASE, stage="full", weight=0.9), "sha256:new", session)
        assert full.version == "sha256:new"


@given(sessions, weights)
def test_propensity_is_that_of_the_arm_and_version_follows_the_arm(session, weight):
    got = assign(replace(RELEASE, weight=weight), "sha256:old", session)
    assert got.version == {"canary": "sha256:new", "stable": "sha256:old"}[got.arm]
    assert got.propensity == (weight if got.arm == "canary" else 1 - weight)
    assert (got.weight, got.salt) == (weight, "salt")


def test_the_split_has_its_weight_and_other_salts_split_otherwise():
    release = replace(RELEASE, weight=0.25)
    chosen = [assign(release, "sha256:old", f"s{index}").arm == "canary" for index in range(20_000)]
    assert abs(sum(chosen) / 20_000 - 0.25) < 0.012
    other = [
        assign(replace(release, salt="other"), "sha256:old", f"s{index}").arm == "canary" for index in range(20_000)
    ]
    both = sum(a and b for a, b in zip(chosen, other, strict=True)) / 20_000
    assert abs(both - 0.25 * 0.25) < 0.008


@given(sessions)
def test_nothing_else_than_a_running_release_splits_traffic(session):
    alone = assign(None, "sha256:old", session)
    assert (alone.arm, alone.version, alone.propensity) == ("stable", "sha256:old", 1.0)
    for stage in ("shadow", "rolled_back"):
        assert assign(replace(RELEASE, stage=stage), "sha256:old", session).version == "sha256:old"


@given(sessions)
def test_a_pointer_moved_by_hand_wins_over_the_release(session):
    assert assign(RELEASE, "sha256:third", session).version == "sha256:third"
    done = replace(RELEASE, stage="full", weight=1.0)
    assert assign(done, "sha256:third", session).version == "sha256:third"


def test_hold_back_keeps_the_old_version_for_its_share():
    release = replace(RELEASE, stage="full", weight=0.9)
    arms = [assign(release, "sha256:new", f"s{index}") for index in range(10_000)]
    kept = [arm for arm in arms if arm.arm == "hold_back"]
    assert abs(len(kept) / 10_000 - 0.1) < 0.012
    assert {arm.version for arm in kept} == {"sha256:old"}
    assert {arm.version for arm in arms if arm.arm == "stable"} == {"sha256:new"}


@given(st.text(max_size=10), sessions)
def test_positions_are_in_the_unit_interval(salt, session):
    assert 0 <= position(salt, session) < 1
