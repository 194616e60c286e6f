"""Traces read back: live turns whole, hostile ones readable, each once, in order and fast."""

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentops.errors import StoreError, TraceError
from agentops.redact import Redactor
from agentops.store import Lake
from agentops.trace import (
    Tracing,
    continued,
    names,
    set_attributes,
    summaries,
    trajectories,
    trajectory,
    write_feedback,
    write_verdicts,
)
from agentops.trace.assemble import assemble
from agentops.trace.rows import SpanRecord, row
from agentops.types import Assignment, Feedback, Outcome, Route, Trajectory, Verdict

ROUTES = [{"label": "refund", "confidence": 0.9, "stage": "encoder", "agent": "billing", "scores": [["refund", 0.9]]}]
ASSIGNMENT = {"arm": "canary", "version": "sha256:1", "weight": 0.25, "salt": "s", "propensity": 0.25}
TOOL = {"type": "function", "function": {"name": "get_order", "description": "d", "parameters": {"type": "object"}}}


@pytest.fixture
def traced(lake: Lake, redactor: Redactor) -> Iterator[Tracing]:
    made = Tracing(lake, "shop", redactor)
    yield made
    made.close()


def turn(traced: Tracing, text: str, status: str = "ok", refund: str = "ok") -> str:
    """One turn as the runtime records it: two reads at once, then a refund."""
    root = {
        names.TENANT: "acme",
        names.CONVERSATION: "c1",
        names.USER: "<USER:1a2b3c4d>",
        names.AGENT: "shop",
        names.INPUT_MESSAGES: [
            {"role": "user", "content": "earlier"},
            {"role": "assistant", "content": "yes?"},
            {"role": "user", "content": text},
        ],
        names.ASSIGNMENT: ASSIGNMENT,
        names.POLICY_DIGEST: "sha256:p",
        names.PROJECT_DIGEST: "sha256:q",
    }
    with traced.span("invoke_agent shop", "invoke_agent", root) as span:
        with traced.span("route", "route"):
            pass
        with traced.span(
            "chat planner", "chat", {names.REQUEST_MODEL: "m", names.INPUT_TOKENS: 9, names.OUTPUT_TOKENS: 2}
        ) as chat:
            asked = [{"role": "system", "content": "plan!"}, *({"role": "user", "content": str(i)} for i in range(9))]
            set_attributes(chat, {names.INPUT_MESSAGES: asked})
        for tool, given, result, end in (
            ("get_order", {"order_id": "W1"}, {"status": "sent"}, "ok"),
            ("issue_refund", {"order_id": "W1", "amount_cents": 5}, None, refund),
        ):
            with traced.span(
                f"execute_tool {tool}", "execute_tool", {names.TOOL: tool, names.TOOL_CALL_ID: tool}
            ) as step:
                set_attributes(
                    step, {names.TOOL_ARGUMENTS: given, names.CALL_STATUS: end, names.CACHED: tool == "get_order"}
                )
                set_attributes(step, {names.POLICIES: ["allow-reads"], names.TOOL_RESULT: result})
                set_attributes(step, {names.CALL_ERROR: None if end == "ok" else "not allowed"})
        set_attributes(
            span,
            {
                names.OUTPUT_MESSAGES: [{"role": "assistant", "content": "Done."}],
                names.TOOL_DEFINITIONS: [TOOL],
                names.ROUTES: ROUTES,
                names.PLAN: "o = get_order(W1)",
                names.STATUS: status,
                names.ERROR: "it broke" if status == "error" else None,
            },
        )
        return format(span.get_span_context().trace_id, "032x")


def test_a_live_turn_comes_back_whole(lake: Lake, traced: Tracing) -> None:
    trace_id = turn(traced, "refund W1 please")
    traced.flush()
    found = trajectory(lake, trace_id)
    assert found is not None
    assert found == next(trajectories(lake))
    assert (found.status, found.source, found.timed, found.service, found.agent) == ("ok", "live", True, "shop", "shop")
    assert (found.tenant, found.session, found.user, found.plan) == (
        "acme",
        "c1",
        "<USER:1a2b3c4d>",
        "o = get_order(W1)",
    )
    assert found.assignment == Assignment(**ASSIGNMENT)  # type: ignore[arg-type]
    assert found.routes == (Route("refund", 0.9, "encoder", "billing", scores=(("refund", 0.9),)),)
    assert (found.policy_digest, found.project_digest) == ("sha256:p", "sha256:q")
    assert found.tools == (TOOL,)
    assert [(step.tool, step.status, step.cached, step.policies) for step in found.steps] == [
        ("get_order", "ok", True, ("allow-reads",)),
        ("issue_refund", "ok", False, ("allow-reads",)),
    ]
    assert [turn["role"] for turn in found.messages] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]
    assert found.messages[3]["tool_calls"][0]["function"] == {"name": "get_order", "arguments": {"order_id": "W1"}}
    assert found.messages[4]["content"] == '{"status":"sent"}'
    assert found.answer == "Done."
    assert [(call.model, call.input_tokens) for call in found.model_calls] == [("m", 9)]
    assert found.unknown == {}
    assert found.outcome == Outcome(None)
    assert trajectory(lake, "0" * 32) is None


@pytest.mark.parametrize("status", ["denied", "timeout", "error", "pending"])
def test_a_call_that_did_not_succeed_is_told_as_such(lake: Lake, traced: Tracing, status: str) -> None:
    trace_id = turn(traced, "refund", refund=status)
    traced.flush()
    found = trajectory(lake, trace_id)
    assert found is not None
    step = found.steps[1]
    assert (step.status, step.error, step.result) == (status, "not allowed", None)
    told = json.loads(found.messages[-2]["content"])
    assert told == {"status": status, "error": "not allowed"}
    assert found.status == "ok", "the turn itself went well"


def test_a_turn_that_failed_says_why(lake: Lake, traced: Tracing) -> None:
    trace_id = turn(traced, "refund", status="error")
    traced.flush()
    found = trajectory(lake, trace_id)
    assert found is not None
    assert (found.status, found.error) == ("error", "it broke")


def test_a_turn_that_waited_for_an_approval_is_one_episode(lake: Lake, traced: Tracing) -> None:
    call = {names.TOOL: "issue_refund", names.TOOL_CALL_ID: "r", names.TOOL_ARGUMENTS: {"n": 1}}
    asked = {names.INPUT_MESSAGES: [{"role": "user", "content": "refund"}], names.TENANT: "acme"}
    with traced.span("invoke_agent shop", "invoke_agent", asked) as span:
        context = span.get_span_context()
        with traced.span("execute_tool issue_refund", "execute_tool", {**call, names.CALL_STATUS: "pending"}):
            pass
        said = [{"role": "assistant", "content": "Please wait."}]
        set_attributes(span, {names.STATUS: "pending", names.OUTPUT_MESSAGES: said})
    where = (format(context.trace_id, "032x"), format(context.span_id, "016x"))
    with continued(*where), traced.span("invoke_agent shop", "invoke_agent", asked) as span:
        done = {**call, names.CALL_STATUS: "ok", names.TOOL_RESULT: {"id": "R1"}}
        with traced.span("execute_tool issue_refund", "execute_tool", done):
            pass
        said = [{"role": "assistant", "content": "Refunded."}]
        set_attributes(span, {names.STATUS: "ok", names.OUTPUT_MESSAGES: said, names.PLAN: "the plan"})
    traced.flush()
    [found] = trajectories(lake)
    assert [(step.status, step.result) for step in found.steps] == [("ok", {"id": "R1"})]
    assert (found.answer, found.plan, found.status) == ("Refunded.", "the plan", "ok")
    assert [turn["role"] for turn in found.messages] == ["user", "assistant", "tool", "assistant"]


def test_feedback_and_verdicts_join_and_the_newest_counts(lake: Lake, traced: Tracing, redactor: Redactor) -> None:
    ids = [turn(traced, text) for text in ("a", "b", "c")]
    traced.flush()
    liked = [
        Feedback(ids[0], 1, 1.0, "u", "ring dana@example.org"),
        Feedback(ids[0], -1, 2.0, "u", corrected_labels=("x",)),
    ]
    write_feedback(lake, liked, "shop")
    write_feedback(lake, [Feedback(ids[1], 1, 1.0, "u"), Feedback(ids[0], 1, 0.5, "v")], "shop", redactor, "acme")
    write_feedback(lake, [], "shop")
    write_verdicts(lake, [Verdict(ids[1], "end-state", False, 0.0, "saw dana@example.org", 3.0)], "shop")
    write_verdicts(
        lake, [Verdict(ids[2], "end-state", True, at=1.0), Verdict(ids[2], "end-state", None, at=2.0)], "shop"
    )
    first, second, third = trajectories(lake)
    assert [(one.user, one.score, one.corrected_labels) for one in first.feedback] == [("v", 1, ()), ("u", -1, ("x",))]
    assert first.outcome == Outcome(0, "feedback")
    assert second.outcome == Outcome(0, "verdict:end-state"), "a verdict outweighs thumbs"
    assert "<EMAIL:" in second.verdicts[0].evidence
    assert third.outcome == Outcome(None), "the verifier's newest word is that it cannot tell"
    assert [row["feedback"] for row in summaries(lake)] == [None, 1, -1]
    assert "dana@example.org" not in str(lake.sql("SELECT * FROM feedback UNION ALL BY NAME SELECT * FROM verdicts"))
    ruled = trajectories(lake, outcome=lambda one: Outcome(1, "mine"))
    assert {one.outcome for one in ruled} == {Outcome(1, "mine")}


def test_where_and_limit(lake: Lake, traced: Tracing) -> None:
    ids = [turn(traced, str(number)) for number in range(5)]
    with traced.span("other", attributes={names.TENANT: "other"}):
        pass
    traced.flush()
    assert [one.trace_id for one in trajectories(lake, "tenant = 'acme'")] == ids
    assert [one.trace_id for one in trajectories(lake, "tenant = 'acme'", limit=2)] == ids[-2:], (
        "the newest, oldest first"
    )
    assert [one.trace_id for one in trajectories(lake, "tool = 'get_order' AND cached -- yes", limit=1)] == ids[-1:]
    assert [row["id"] for row in summaries(lake, 2, "tenant = 'acme'")] == ids[:-3:-1]
    assert list(trajectories(lake, limit=0)) == []
    for bad in ("nosuch = 1", "1; DROP VIEW spans", "tenant = 'a') FROM feedback --", ")", "true) UNION SELECT (true"):
        with pytest.raises(TraceError, match="where ="):
            list(trajectories(lake, bad))
        with pytest.raises(TraceError, match="where ="):
            summaries(lake, 5, bad)


def test_a_span_written_twice_counts_once(lake: Lake) -> None:
    spans = [
        SpanRecord("1" * 32, "a" * 16, "", "root", 10, 20, attributes={names.OPERATION: "invoke_agent"}),
        SpanRecord(
            "1" * 32, "b" * 16, "a" * 16, "tool", 11, 12, attributes={names.OPERATION: "execute_tool", names.TOOL: "t"}
        ),
    ]
    for _ in range(2):
        lake.write("spans", [row(span, "s") for span in spans], "s")
    [found] = trajectories(lake)
    assert len(found.steps) == 1
    assert summaries(lake)[0]["tool_calls"] == 1


def test_a_torn_segment_is_named(lake: Lake, traced: Tracing) -> None:
    turn(traced, "x")
    traced.flush()
    torn = next(lake.root.rglob("*.parquet"))
    torn.write_bytes(torn.read_bytes()[:-20])
    with pytest.raises(StoreError, match=torn.name):
        list(trajectories(lake))
    with pytest.raises(StoreError, match=torn.name):
        summaries(lake)


IDS = st.sampled_from([f"{n:016x}" for n in range(1, 7)])


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    spans=st.lists(
        st.builds(
            SpanRecord,
            trace_id=st.just("1" * 32),
            span_id=IDS,
            parent_id=IDS | st.just(""),
            name=st.text(max_size=3),
            start_ns=st.integers(0, 50),
            end_ns=st.integers(0, 50),
            status=st.sampled_from(["ok", "error", "unset"]),
            attributes=st.dictionaries(
                st.sampled_from(
                    [
                        names.OPERATION,
                        names.TOOL,
                        names.TOOL_CALL_ID,
                        names.INPUT_MESSAGES,
                        names.ROUTES,
                        names.OUTPUT_MESSAGES,
                        names.ASSIGNMENT,
                        names.STATUS,
                        names.POLICIES,
                        "x.y",
                    ]
                ),
                st.sampled_from(
                    [
                        "invoke_agent",
                        "execute_tool",
                        "chat",
                        "t",
                        '[{"role":"user","content":"q"}]',
                        "[1]",
                        "{",
                        '[{"role":"assistant","tool_calls":[{"id":"t","function":{"name":"t"}}]}]',
                        5,
                        True,
                        None,
                    ]
                ),
                max_size=5,
            ),
        ),
        min_size=1,
        max_size=8,
        unique_by=lambda span: span.span_id,
    ),
    seed=st.integers(0, 99),
)
def test_any_spans_give_one_trajectory_whatever_their_order(spans: list[SpanRecord], seed: int) -> None:
    first = assemble(spans)
    shuffled = list(spans)
    random.Random(seed).shuffle(shuffled)
    assert assemble(shuffled) == first
    tools = sum(span.attributes.get(names.OPERATION) == "execute_tool" for span in spans)
    assert len(first.steps) <= max(tools, len(first.messages) * 2)
    assert first.trace_id == "1" * 32


def live_rows(count: int) -> list[dict[str, Any]]:
    rows = []
    for number in range(count):
        trace = f"{number:032x}"
        said = json.dumps([{"role": "user", "content": f"question {number}"}])
        rows.append(
            row(
                SpanRecord(
                    trace,
                    "1" * 16,
                    "",
                    "invoke_agent",
                    number * 1000,
                    number * 1000 + 900,
                    attributes={
                        names.OPERATION: "invoke_agent",
                        names.INPUT_MESSAGES: said,
                        names.OUTPUT_MESSAGES: said,
                        names.STATUS: "ok",
                    },
                ),
                "shop",
            )
        )
        rows += [
            row(
                SpanRecord(
                    trace,
                    f"{n:016x}",
                    "1" * 16,
                    "execute_tool t",
                    number * 1000 + n,
                    number * 1000 + n + 5,
                    attributes={
                        names.OPERATION: "execute_tool",
                        names.TOOL: "t",
                        names.TOOL_CALL_ID: str(n),
                        names.TOOL_RESULT: "{}",
                    },
                ),
                "shop",
            )
            for n in range(2, 5)
        ]
    return rows


def test_thousands_of_traces_are_read_as_one_stream(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentops.trace.reading.CHUNK", 700)
    lake.write("spans", live_rows(2000), "shop")
    start = time.process_time()
    stream = trajectories(lake)
    assert next(stream).request == "question 0"
    rest = list(stream)
    assert [one.request for one in rest] == [f"question {n}" for n in range(1, 2000)]
    assert time.process_time() - start < 10


@pytest.mark.data
def test_recorded_episodes_are_read_fast(lake: Lake, redactor: Redactor, data_dir: Path) -> None:
    from agentops.trace import import_files

    import_files(lake, redactor, [data_dir / "tau_airline"])
    start = time.process_time()
    found: list[Trajectory] = list(trajectories(lake))
    assert len(found) == 200
    assert time.process_time() - start < 5
