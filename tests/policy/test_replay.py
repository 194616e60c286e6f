"""Recorded decisions come back exactly, repeat under the same policies, and tell what others would change."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from policy_world import AGENTS, CALM, CEDAR, SCOPES, TOOLS, call_of, run_of, spec_of

from agentops.audit.subjects import SubjectKeys
from agentops.graph import VirtualClock
from agentops.policy import PolicySet
from agentops.policy.replay import DecisionRecords, Recorded, diff
from agentops.types import Labels, Run, ToolCall

NOW = 1_800_014_400.0


@pytest.fixture
def keys(tmp_path: Path) -> SubjectKeys:
    return SubjectKeys(tmp_path / "audit" / "subjects.db")


@pytest.fixture
def kept(tmp_path: Path, keys: SubjectKeys) -> DecisionRecords:
    return DecisionRecords(tmp_path / "decisions", keys, VirtualClock(NOW))


def post(kept: DecisionRecords, policies: PolicySet, run: Run, call: ToolCall, facts: dict) -> None:
    kept.post(run, call, spec_of(call.tool), facts, policies.decide(run, call, spec_of(call.tool), facts))


def variant(policies: Path, name: str, old: str, new: str) -> PolicySet:
    folder = policies.parent / name
    folder.mkdir()
    assert old in CEDAR
    (folder / "base.cedar").write_text(CEDAR.replace(old, new))
    return PolicySet.load(folder, TOOLS, AGENTS)


ARGUMENTS = {
    "get_order": st.fixed_dictionaries({"order_id": st.text(max_size=12)}, optional={"verbose": st.booleans()}),
    "cancel_order": st.fixed_dictionaries({"order_id": st.text(max_size=12)}, optional={"note": st.none() | st.text()}),
    "create_refund": st.fixed_dictionaries(
        {"order_id": st.text(max_size=12), "amount_cents": st.integers(-10, 60_000)},
        optional={"tags": st.lists(st.text(max_size=4), max_size=3)},
    ),
    "send_document": st.fixed_dictionaries(
        {"document_id": st.text(max_size=5), "email": st.sampled_from(["a@b.example", "a@b@c.example", "é@x.test"])}
    ),
    "forgotten": st.just({}),
}
CALLS = st.sampled_from(sorted(ARGUMENTS)).flatmap(
    lambda name: st.tuples(st.just(name), ARGUMENTS[name], st.sampled_from(["trusted", "untrusted"]))
)
FACTS = st.fixed_dictionaries(
    {},
    optional={
        "calls_used": st.integers(0, 12),
        "money_used_cents": st.integers(0, 60_000),
        "untrusted_seen": st.booleans(),
        "approved": st.booleans() | st.sampled_from(["finance", "staff", "finance+staff"]),
    },
)
PEOPLE = st.tuples(
    st.sampled_from(["default", "other"]),
    st.sampled_from(["C-1", "C-2"]),
    st.frozensets(st.sampled_from(sorted(SCOPES))),
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked=st.lists(st.tuples(CALLS, FACTS, PEOPLE, st.sampled_from(sorted(AGENTS))), max_size=8))
def test_what_was_decided_comes_back_and_decides_itself_again(
    loaded: PolicySet, keys: SubjectKeys, tmp_path: Path, asked: list
) -> None:
    kept = DecisionRecords(tmp_path / f"decisions-{time.monotonic_ns()}", keys, VirtualClock(NOW))
    expected = []
    for (name, arguments, integrity), facts, (tenant, user, scopes), agent in asked:
        run = run_of(agent, user, tenant=tenant)
        run = replace(run, principal=replace(run.principal, scopes=scopes), request="my own words")
        call = ToolCall("call-1", name, arguments, Labels(integrity), "key-1", {"order_id": "request"})
        decision = loaded.decide(run, call, spec_of(name), facts)
        kept.post(run, call, spec_of(name), facts, decision)
        expected.append(Recorded(NOW, replace(run, request=""), call, spec_of(name).digest, facts, decision))
    kept.close()
    found = list(kept.recorded(0, 1e12))
    assert found == expected
    for one in found:
        assert loaded.decide(one.run, one.call, spec_of(one.call.tool), one.facts) == one.decision
    again = diff(found, loaded, TOOLS)
    assert (again.decisions, again.changes, again.gone, again.changed) == (len(asked), (), {}, {})


def test_changes_are_grouped_with_counts_and_examples(kept: DecisionRecords, loaded: PolicySet, policies: Path) -> None:
    for n in range(8):
        call = replace(call_of("create_refund", order_id="SO-1", amount_cents=5_000 + n * 1_000), id=f"c{n}")
        post(kept, loaded, run_of(), call, CALM)
    post(kept, loaded, run_of("help"), call_of("get_order", order_id="SO-1"), {**CALM, "calls_used": 4})
    kept.flush()
    tighter = variant(policies, "tighter", "amount_cents > 10000", "amount_cents > 6000")
    found = diff(kept.recorded(0, 1e12), tighter, TOOLS)
    [change] = found.changes
    assert found.decisions == 9
    assert (change.tool, change.agent, change.before, change.after) == (
        "create_refund", "billing", "allow", "approve by finance",
    )  # fmt: skip
    assert (change.policies_before, change.policies_after) == (("effects",), ("large",))
    assert (change.count, change.examples) == (4, ("trace-1/c2", "trace-1/c3", "trace-1/c4", "trace-1/c5"))
    assert not change.denied


def test_denials_of_what_was_allowed_come_first(kept: DecisionRecords, loaded: PolicySet, policies: Path) -> None:
    post(kept, loaded, run_of(), call_of("create_refund", order_id="SO-1", amount_cents=20_000), CALM)
    post(kept, loaded, run_of(), call_of("create_refund", order_id="SO-1", amount_cents=21_000), CALM)
    post(kept, loaded, run_of(), call_of("get_order", order_id="SO-1"), {**CALM, "calls_used": 10})
    kept.flush()
    other = variant(policies, "other", "calls_used > principal.max_calls", "calls_used > 9")
    [denied] = diff(kept.recorded(0, 1e12), other, TOOLS).changes
    assert denied.denied
    everything = policies.parent / "both"
    everything.mkdir()
    text = CEDAR.replace("calls_used > principal.max_calls", "calls_used > 9").replace("> 10000", "> 30000")
    (everything / "base.cedar").write_text(text)
    found = diff(kept.recorded(0, 1e12), PolicySet.load(everything, TOOLS, AGENTS), TOOLS)
    assert [(one.before, one.after, one.count) for one in found.changes] == [
        ("allow", "deny", 1),
        ("approve by finance", "allow", 2),
    ]


def test_tools_that_went_or_changed_are_told(kept: DecisionRecords, loaded: PolicySet, policies: Path) -> None:
    post(kept, loaded, run_of(), call_of("get_order", order_id="SO-1"), CALM)
    post(kept, loaded, run_of(), call_of("cancel_order", order_id="SO-1"), CALM)
    kept.flush()
    tools = {name: spec for name, spec in TOOLS.items() if name != "cancel_order"}
    tools["get_order"] = replace(tools["get_order"], timeout_s=9.0, digest="sha256:other")
    now = PolicySet.load(policies, tools, AGENTS)
    found = diff(kept.recorded(0, 1e12), now, tools)
    assert (found.decisions, found.changes) == (1, ())
    assert (found.gone, found.changed) == ({"cancel_order": 1}, {"get_order": 1})


def test_erased_people_are_missing_and_counted(
    kept: DecisionRecords, loaded: PolicySet, keys: SubjectKeys, tmp_path: Path
) -> None:
    for user in ("C-1", "C-2", "C-1"):
        post(kept, loaded, run_of(user=user), call_of("get_order", order_id="SO-1"), CALM)
    kept.flush()
    keys.erase("default", "C-1")
    decisions = kept.recorded(0, 1e12)
    assert [one.run.principal.user for one in decisions] == ["C-2"]
    assert decisions.missing == {"their person was erased": 2}
    assert list(kept.recorded(0, NOW)) == []
    assert len(list(kept.recorded(0, 1e12, "default"))) == 1
    assert list(kept.recorded(0, 1e12, "other")) == []
    stored = b"".join(file.read_bytes() for file in (tmp_path / "decisions").rglob("*.sealed"))
    assert b"SO-1" not in stored
    assert b"C-2" not in stored


def test_posting_never_raises(kept: DecisionRecords, loaded: PolicySet) -> None:
    decision = loaded.decide(run_of(), call_of("forgotten"), spec_of("forgotten"), CALM)
    kept.post(run_of(user="\ud800"), call_of("forgotten"), spec_of("forgotten"), CALM, decision)
    kept.post(run_of(), call_of("forgotten", x=object()), spec_of("forgotten"), CALM, decision)
    kept.post(run_of(), call_of("forgotten"), spec_of("forgotten"), {"calls_used": 2**70}, decision)
    kept.post(run_of(), call_of("forgotten"), spec_of("forgotten"), CALM, decision)
    kept.close()
    decisions = kept.recorded(0, 1e12)
    assert len(list(decisions)) == 1
    assert decisions.missing == {"not kept: too many at once, or the disk failed": 3}
