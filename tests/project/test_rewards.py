"""Reward terms: bounded, honest about what is unknown, and sensitive to waste."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentops.types import StepRecord, Task, Trajectory, Verdict

TASK = Task(
    "t", "x", ("damaged_item",), "C-1001", plan='a = get_order("SO-12345") & b = check_refund("SO-12345")\nsay "x"'
)


@pytest.fixture(scope="session")
def terms(part):
    return part("pipelines.support.rewards").TERMS


def _episode(*steps: StepRecord, seconds: float = 1.0, error: str = "") -> Trajectory:
    return Trajectory("t", "s", 10.0, 10.0 + seconds, (), steps=steps, error=error)


def _step(tool: str, status="ok", error: str = "") -> StepRecord:
    return StepRecord(tool, tool, {}, status, error=error)


@given(
    success=st.sampled_from([True, False, None]),
    seconds=st.floats(0, 1e6),
    tools=st.lists(st.sampled_from(["get_order", "check_refund", "cancel_order"]), max_size=6),
    status=st.sampled_from(["ok", "error", "denied", "pending", "timeout", "skipped"]),
)
def test_every_term_is_a_share_or_unknown(terms, success, seconds, tools, status) -> None:
    episode = _episode(*(_step(tool, status) for tool in tools), seconds=seconds)
    verdict = Verdict("t", "v", success)
    for name, term in terms.items():
        value = term(TASK, episode, verdict)
        assert (value is None) == (success is None), name
        assert value is None or 0.0 <= value <= 1.0, name


def test_missing_and_wasted_calls_both_cost(terms) -> None:
    good = Verdict("t", "v", True)
    exact = terms["process"](TASK, _episode(_step("get_order"), _step("check_refund")), good)
    missing = terms["process"](TASK, _episode(_step("get_order")), good)
    wasted = terms["process"](TASK, _episode(*[_step("get_order")] * 4, _step("check_refund")), good)
    assert exact == 1.0 > max(missing, wasted)
    assert terms["process"](TASK, _episode(_step("get_order", "skipped")), good) == 0.0


def test_no_plan_is_wholly_invalid_and_a_clean_refusal_is_not(terms) -> None:
    bad = Verdict("t", "v", False)
    assert terms["invalid"](TASK, _episode(error="PlanError: line 1: …"), bad) == 1.0
    assert terms["invalid"](TASK, _episode(_step("get_order", "denied"), _step("get_order")), bad) == 0.5
    assert terms["invalid"](TASK, _episode(_step("get_order", "error", "I cannot find order SO-1.")), bad) == 0.0
    malformed = _step("get_order", "error", "get_order: order_id: String should match pattern")
    assert terms["invalid"](TASK, _episode(malformed), bad) == 1.0


def test_latency_is_measured_against_the_kind_of_request(terms, part) -> None:
    rewards = part("pipelines.support.rewards")
    good = Verdict("t", "v", True)
    free, most = rewards.pace(TASK.labels)
    assert 0 < free < most
    assert terms["latency"](TASK, _episode(seconds=free), good) == 0.0
    assert terms["latency"](TASK, _episode(seconds=most), good) == pytest.approx(1.0)
    assert terms["latency"](TASK, replace(_episode(), timed=False), good) is None
    single = rewards.pace(("stock_check",))
    both = rewards.pace(("stock_check", "damaged_item"))
    assert both[0] == free
    assert both[1] == pytest.approx(single[1] + most)


def test_every_intent_that_calls_tools_has_a_pace(part, project) -> None:
    labels = set(project.routers["intent"].table["labels"]) - {"human_agent"}
    assert set(part("pipelines.support.rewards").paces()) == labels
