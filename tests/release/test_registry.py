"""Pointers: what serves, since when, by whom; only real artifacts, one mover at a time."""

import pytest

from agentops.errors import ReleaseError, StoreError


def test_one_question_answers_what_serves_since_when_trained_on_what_approved_by_whom(deployment):
    registry = deployment.replica().registry
    deployment.clock._now += 60
    registry.set("intent", deployment.versions["new"], by="ana", approved_by="bo", reason="better", release="r1")
    serving = registry.serving("intent")
    assert serving["digest"] == deployment.versions["new"] == deployment.replica().registry.current("intent")
    assert serving["since"] == deployment.clock.now()
    assert serving["manifest"]["dataset"] == "sha256:new"
    assert (serving["by"], serving["approved_by"], serving["previous"]) == ("ana", "bo", deployment.versions["old"])


def test_history_keeps_every_move_and_the_audit_log_has_it_before_it_happened(local):
    registry = local.replica().registry
    registry.set("intent", local.versions["new"], by="ana", reason="better")
    registry.set("intent", local.versions["new"], by="ana", reason="again")  # no move
    registry.set("intent", local.versions["old"], by="bo", reason="back")
    assert [entry["number"] for entry in registry.history("intent")] == [1, 2, 3]
    assert [entry["digest"] for entry in registry.history("intent")][1:] == [
        local.versions["new"],
        local.versions["old"],
    ]
    assert [record["type"] for record in local.audit.records] == ["release.pointer"] * 3


def test_a_history_line_lost_in_a_crash_is_still_shown(local, monkeypatch):
    registry = local.replica().registry

    def crash(*_):
        raise StoreError("power is gone")

    monkeypatch.setattr(registry.state, "append", crash)
    with pytest.raises(StoreError):
        registry.set("intent", local.versions["new"], by="ana", reason="better")
    assert local.replica().registry.history("intent")[-1]["digest"] == local.versions["new"]


def test_only_artifacts_that_are_here_can_serve(local):
    registry = local.replica().registry
    with pytest.raises(StoreError, match="is not in"):
        registry.set("intent", "sha256:" + "0" * 64, by="ana", reason="oops")
    assert registry.current("intent") == local.versions["old"]


def test_a_pointer_that_moved_meanwhile_is_not_overwritten(local):
    registry = local.replica().registry
    registry.set("intent", local.versions["new"], by="ana", reason="better")
    with pytest.raises(ReleaseError, match="somebody moved it"):
        registry.set("intent", local.versions["newer"], by="bo", reason="x", expected=local.versions["old"])
    assert registry.current("intent") == local.versions["new"]


def test_what_never_served_says_so(local):
    registry = local.replica().registry
    assert registry.current("other") == ""
    assert registry.history("other") == []
    assert registry.release("other") is None
    with pytest.raises(ReleaseError, match="no version in service"):
        registry.serving("other")
