"""What the verifier accepts, refuses, and does not judge."""

from dataclasses import replace

import pytest

from agentops.types import StepRecord, Task, Trajectory


@pytest.fixture
def verify(part):
    return part("pipelines.support.verify").verify


TASK = Task(
    id="t",
    text="refund SO-12345",
    labels=("refund_request",),
    user="C-1001",
    plan='r = create_refund("SO-12345", 1990, "damaged")\nsay "{r.summary}"',
    changes=(
        {
            "table": "refunds",
            "key": "SO-12345",
            "op": "insert",
            "columns": {"amount_cents": 1990, "reason": "damaged", "status": "approved"},
        },
    ),
    answer_facts=("19.90 EUR", "3 June 2026"),
)
EPISODE = Trajectory("trace", "test", 0.0, 1.0, (), plan=TASK.plan, answer="We pay 19.90 EUR back on 3 June 2026.")


def test_right_state_and_right_answer_succeed(verify) -> None:
    found = verify(TASK, EPISODE, TASK.changes)
    assert (found.success, found.score, found.trace_id) == (True, 1.0, "trace")


@pytest.mark.parametrize(
    "answer",
    [
        "WE PAY 19.90 eur BACK\non  3   JUNE 2026",
        "You get €19.90 on 2026-06-03.",
        "19,90 € will come on June 3, 2026",
        "EUR 19.90, 3 June 2026",
    ],
)
def test_usual_ways_to_write_a_fact_count(verify, answer) -> None:
    assert verify(TASK, replace(EPISODE, answer=answer), TASK.changes).success is True


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "119.90 EUR on 3 June 2026",
        "19.90 EUR on 13 June 2026",
        "19.901 EUR on 3 June 2026",
        "19.90 EUR soon",
        "19.00 EUR on 3 June 2026",
    ],
)
def test_wrong_or_missing_facts_fail(verify, answer) -> None:
    assert verify(TASK, replace(EPISODE, answer=answer), TASK.changes).success is False


def test_a_reason_is_a_matter_of_opinion_an_amount_is_not(verify) -> None:
    change = dict(TASK.changes[0])
    other_reason = {**change, "columns": {**change["columns"], "reason": "other"}}
    other_amount = {**change, "columns": {**change["columns"], "amount_cents": 1991}}
    assert verify(TASK, EPISODE, [other_reason]).success is True
    assert verify(TASK, EPISODE, [other_amount]).success is False
    assert verify(TASK, EPISODE, [change, change]).success is False
    assert verify(TASK, EPISODE, []).success is False


def test_what_cannot_be_judged_is_unknown_not_a_failure(verify) -> None:
    assert verify(TASK, EPISODE, None).success is None
    assert verify(replace(TASK, plan=""), EPISODE, TASK.changes).success is None
    never_ran = replace(EPISODE, plan="", answer="", status="error", error="the sandbox did not start")
    assert verify(TASK, never_ran, []).success is None
    not_a_plan = replace(EPISODE, plan="bla", answer="", status="error", error="PlanError: line 1")
    assert verify(TASK, not_a_plan, []).success is False


def test_waiting_for_an_approval_needs_the_right_call_pending(verify) -> None:
    task = replace(TASK, changes=(), answer_facts=())
    step = StepRecord("c", "create_refund", {"order_id": "SO-12345"}, "pending")
    assert verify(task, replace(EPISODE, steps=(step,)), []).success is True
    assert (
        verify(task, replace(EPISODE, steps=(replace(step, arguments={"order_id": "SO-54321"}),)), []).success is False
    )
    assert verify(task, replace(EPISODE, steps=(replace(step, status="denied"),)), []).success is False
    assert verify(task, replace(EPISODE, steps=(step,)), TASK.changes).success is False, "paid without asking"


def test_out_of_scope_means_a_person_and_no_tool(verify) -> None:
    task = Task("t", "tell me a joke", ("out_of_scope",), "C-1001")
    handed = replace(EPISODE, plan='handoff "x"', answer="")
    assert verify(task, handed, []).success is True
    assert verify(task, replace(handed, steps=(StepRecord("c", "get_order", {}, "ok"),)), []).success is False
    assert verify(task, replace(EPISODE, answer="Which order do you mean?"), []).success is False
    assert verify(task, replace(EPISODE, plan="", answer=""), []).success is False
