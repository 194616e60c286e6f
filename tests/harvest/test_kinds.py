"""What each kind of data set takes from episodes, and what it refuses, with the reason."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest

from agentops.errors import HarvestError
from agentops.harvest import Exclusion, harvest
from agentops.redact import Redactor
from agentops.types import OUT_OF_SCOPE, Dataset, Feedback, ModelCall, Outcome, Route, Trajectory, Verdict

Make = Callable[..., Trajectory]
Harvested = Callable[..., tuple[list[dict[str, Any]], Dataset]]
GOOD, BAD, UNKNOWN = Outcome(1, "verdict:test"), Outcome(0, "verdict:test"), Outcome(None)
UP, DOWN = Outcome(1, "feedback"), Outcome(0, "feedback")


@pytest.fixture
def harvested(tmp_path: Path, redactor: Redactor) -> Harvested:
    def run(kind: str, trajectories: Iterable[Trajectory], **options: Any) -> tuple[list[dict[str, Any]], Dataset]:
        out = tmp_path / f"{kind}-{len(list(tmp_path.iterdir()))}"
        options = {"validation": 0.0, **options}
        made = harvest(kind, trajectories, out, exclude=Exclusion({}), redactor=redactor, options=options)
        return [orjson.loads(line) for line in (out / "rows.jsonl").read_bytes().splitlines()], made

    return run


def dropped(made: Dataset, stage: str) -> dict[str, int]:
    return next(one["dropped"] for one in made.manifest["funnel"] if one["filter"] == stage)


# ------------------------------------------------------------------ sft


def test_sft_rows_are_whole_successful_episodes(episode: Make, harvested: Harvested) -> None:
    tool = {"type": "function", "function": {"name": "get_order", "parameters": {"type": "object"}}}
    good = episode("a", "where is SO-1", ("get_order", {"order_id": "SO-1"}, {"status": "sent"}), tools=(tool,))
    rows, made = harvested("sft", [good, episode("b", outcome=BAD), episode("c", outcome=UNKNOWN)])
    [row] = rows
    assert [message["role"] for message in row["messages"]] == ["user", "assistant", "tool", "assistant"]
    call = row["messages"][1]["tool_calls"][0]
    assert call["function"] == {"name": "get_order", "arguments": {"order_id": "SO-1"}}
    assert row["messages"][1]["content"] == ""
    assert row["messages"][2]["tool_call_id"] == call["id"]
    assert row["tools"] == [tool]
    assert (row["trace_id"], row["outcome"]) == ("a", "verdict:test")
    assert dropped(made, "decidable") == {"outcome unknown": 1}
    assert dropped(made, "outcome") == {"failed": 1}
    assert made.manifest["sources"] == ["a"]


def test_sft_takes_what_nobody_judged_only_when_asked_and_only_when_it_went_through(
    episode: Make, harvested: Harvested
) -> None:
    smooth = episode("a", "one thing", ("get", {}, "ok"), outcome=UNKNOWN)
    rough = episode("b", "two things", ("get", {}, "no", "error"), outcome=UNKNOWN)
    with pytest.raises(HarvestError, match="2 outcome unknown"):
        harvested("sft", [smooth, rough])
    rows, made = harvested("sft", [smooth, rough, episode("c", "three things", outcome=BAD)], include_undecided=True)
    assert [(row["trace_id"], row["outcome"]) for row in rows] == [("a", "unknown")]
    assert dropped(made, "decidable") == {"outcome unknown, and it did not go through": 1}


def test_sft_brings_foreign_messages_into_form(harvested: Harvested, episode: Make) -> None:
    call = {"id": "1", "function": {"name": "look", "arguments": '{"x": [1, null]}'}}
    messages = (
        {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
        {"role": "user", "content": "look it up for me"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": {"found": True}},
        {"role": "assistant", "content": "Found."},
        {"role": "user", "content": "###STOP###"},
    )
    rows, _ = harvested("sft", [episode("a", messages=messages)])
    got = rows[0]["messages"]
    assert [one["role"] for one in got] == ["system", "user", "assistant", "tool", "assistant"]
    assert got[0]["content"] == "Be kind."
    assert got[2]["content"] == ""
    assert got[2]["tool_calls"][0]["function"]["arguments"] == {"x": [1, None]}
    assert got[3]["content"] == '{"found":true}'


USER = {"role": "user", "content": "please do it"}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"name": "do", "arguments": {}}}]}
DONE = {"role": "assistant", "content": "Done."}


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ((USER, CALL, DONE), "a tool call has no result"),
        ((USER, CALL), "a tool call has no result"),
        ((USER, {"role": "tool", "tool_call_id": "9", "content": ""}, DONE), "a tool result answers no call"),
        ((USER, {"role": "assistant", "content": None}, DONE), "an assistant message is empty"),
        ((DONE,), "no user message with an answer"),
        ((USER,), "no user message with an answer"),
        ((USER, {"role": "narrator", "content": "x"}), "a message has an unknown role"),
        (("what", DONE), "a message has an unknown role"),
        (({"role": "user", "content": [{"type": "image_url"}]}, DONE), "a message is not text only"),
        (
            (USER, {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "[1"}}]}),
            "tool arguments are not a JSON object",
        ),
        ((USER, {"role": "assistant", "tool_calls": [{"id": "1"}]}), "a tool call names no function"),
        (({"role": "user", "content": "half a pair \ud800"}, DONE), "holds what JSON cannot express"),
    ],
)
def test_sft_refuses_what_no_trainer_could_read(
    harvested: Harvested, episode: Make, messages: tuple[Any, ...], reason: str
) -> None:
    rows, made = harvested("sft", [episode("a", messages=messages), episode("b")])
    assert [row["trace_id"] for row in rows] == ["b"]
    assert dropped(made, "rows") == {reason: 1}


def test_sft_never_learns_a_denied_call(harvested: Harvested, episode: Make) -> None:
    rows, made = harvested("sft", [episode("a", "pay me", ("refund", {}, "no", "denied")), episode("b")])
    assert [row["trace_id"] for row in rows] == ["b"]
    assert dropped(made, "denied") == {"has a denied call": 1}


def test_rewards_for_doing_nothing_are_set_apart(harvested: Harvested, episode: Make) -> None:
    imported = {"outcome": Outcome(1, "verdict:import:reward"), "source": "import:chat"}
    idle = episode(
        "idle", "change my flight", ("get_user", {}, "{}"), ("transfer_to_human_agents", {}, "ok"), **imported
    )
    failed = episode("failed", "change my seat", ("update_seat", {}, "Error", "error"), **imported)
    acted = episode("acted", "change my bag", ("update_bag", {}, "ok"), **imported)
    read = episode("read", "where is it", ("get_order", {}, "{}"))  # a project's verifier also read the answer
    rows, made = harvested("sft", [idle, failed, acted, read])
    assert sorted(row["trace_id"] for row in rows) == ["acted", "read"]
    assert dropped(made, "inaction") == {"inaction": 2}
    rows, _ = harvested("sft", [idle, failed, acted, read], include_inaction=True)
    assert len(rows) == 4
    rows, _ = harvested("sft", [idle, acted], effects={"get_user": "write"})
    assert len(rows) == 2


def test_sft_writes_a_plan_in_the_rounds_in_which_its_values_were_known(harvested: Harvested, episode: Make) -> None:
    from agentops.types import StepRecord

    def call(id: str, tool: str) -> dict[str, Any]:
        return {"id": id, "type": "function", "function": {"name": tool, "arguments": {}}}

    calls = [call("1", "get_order"), call("2", "get_policy"), call("3", "create_refund")]
    messages = (
        {"role": "user", "content": "refund SO-1"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        *({"role": "tool", "tool_call_id": one["id"], "content": one["id"]} for one in calls),
        {"role": "assistant", "content": "Refunded."},
    )
    steps = (
        StepRecord("1", "get_order", {}, "ok", started_at=0.0, ended_at=1.0),
        StepRecord("2", "get_policy", {}, "ok", started_at=0.1, ended_at=3.0),
        StepRecord("3", "create_refund", {}, "ok", started_at=1.1, ended_at=2.0),
    )
    planned = episode("a", messages=messages, steps=steps, plan="o = get_order() & p = get_policy()\ncreate_refund(o)")
    rows, _ = harvested("sft", [planned])
    turns = [
        [one["function"]["name"] for one in message["tool_calls"]] if "tool_calls" in message else message["role"]
        for message in rows[0]["messages"]
    ]
    assert turns == ["user", ["get_order", "get_policy"], "tool", "tool", ["create_refund"], "tool", "assistant"]


# ------------------------------------------------------------------ router


def route(label: str, confidence: float = 0.95, text: str = "") -> Route:
    return Route(label, confidence, "encoder", text=text)


def fix(*labels: str, at: float = 1.0) -> tuple[Feedback, ...]:
    return (Feedback("t", -1, at, corrected_labels=labels),)


def labels(rows: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    return {row["text"]: (row["label"], row["source"]) for row in rows}


def test_router_rows_come_from_corrections_and_confirmations(harvested: Harvested, episode: Make) -> None:
    rows, made = harvested(
        "router",
        [
            episode("a", "where is it", routes=(route("status"),)),
            episode("b", "send it back", routes=(route("status"),), outcome=DOWN, feedback=fix("refund")),
            episode("c", "what is love", routes=(route("status"),), outcome=UNKNOWN, feedback=fix(OUT_OF_SCOPE)),
            episode("d", "unsure thing", routes=(route("status", 0.5),)),
            episode("e", "went wrong", routes=(route("status"),), outcome=BAD),
            episode("f", "who knows", routes=(route("status"),), outcome=UNKNOWN),
        ],
    )
    assert labels(rows) == {
        "where is it": ("status", "confirmed"),
        "send it back": ("refund", "correction"),
        "what is love": (OUT_OF_SCOPE, "correction"),
    }
    assert dropped(made, "rows") == {"confirmed with too little confidence": 1}
    assert made.manifest["counts"]["label"] == {OUT_OF_SCOPE: 1, "refund": 1, "status": 1}


def test_router_takes_clauses_one_by_one(harvested: Harvested, episode: Make) -> None:
    both = (route("status", text="where is it"), route("refund", text="send it back"))
    text = "where is it and send it back"
    rows, _ = harvested("router", [episode("a", text, routes=both)])
    assert labels(rows) == {"where is it": ("status", "confirmed"), "send it back": ("refund", "confirmed")}
    rows, _ = harvested("router", [episode("a", text, routes=both, outcome=BAD, feedback=fix("delay", "return"))])
    assert labels(rows) == {"where is it": ("delay", "correction"), "send it back": ("return", "correction")}
    with pytest.raises(HarvestError, match="names several labels"):
        harvested("router", [episode("a", text, routes=(route("x"),), feedback=fix("delay", "return"))])


def test_router_learns_the_last_turn_of_a_conversation(harvested: Harvested, episode: Make) -> None:
    history = (USER, DONE, {"role": "user", "content": "and send it back"}, DONE)
    rows, _ = harvested("router", [episode("a", messages=history, routes=(route("refund"),))])
    assert labels(rows) == {"and send it back": ("refund", "confirmed")}


def test_router_survives_what_is_not_text(harvested: Harvested, episode: Make) -> None:
    parts = ({"role": "user", "content": [{"type": "text", "text": "hello there"}]},)
    strange = [
        episode("a", messages=("what", {"role": "user", "content": [{"type": "image_url"}]}), routes=(route("x"),)),
        episode("b", messages=(), routes=(route("x"),)),
        episode("c", messages=parts, routes=(route("x"),)),
        episode("d", "long " * 2_000, routes=(route("x"),)),
        episode("e", "no route"),
    ]
    rows, made = harvested("router", strange)
    assert labels(rows) == {"hello there": ("x", "confirmed")}
    assert dropped(made, "rows") == {"longer than 4000 characters": 1, "no route recorded": 1, "no words": 2}


def test_router_settles_conflicts_by_the_newest_correction(harvested: Harvested, episode: Make) -> None:
    rows, made = harvested(
        "router",
        [
            episode("a", "where is it", routes=(route("status"),)),
            episode("b", "Where is it?", outcome=BAD, feedback=fix("delay", at=1.0)),
            episode("c", "where is it!", outcome=BAD, feedback=fix("lost", at=2.0)),
            episode("d", "send it back", routes=(route("refund"),)),
            episode("e", "send it back", routes=(route("return"),)),
            episode("f", "no idea", outcome=BAD, feedback=(*fix("a"), *fix("b"))),
        ],
    )
    assert [row["label"] for row in rows] == ["lost"]
    assert dropped(made, "merge") == {"same text again": 2, "same text, labels contradict each other": 2}
    assert dropped(made, "outcome") == {"corrections contradict each other": 1}


def test_router_refuses_labels_that_do_not_exist(harvested: Harvested, episode: Make) -> None:
    given = [episode("a", "x y", feedback=fix("sttus")), episode("b", "z", feedback=fix(OUT_OF_SCOPE))]
    rows, made = harvested("router", given, labels=["status"])
    assert [row["text"] for row in rows] == ["z"]
    assert dropped(made, "rows") == {"label is not one of the router's": 1}


# ------------------------------------------------------------------ dpo


def test_dpo_takes_a_correction(harvested: Harvested, episode: Make) -> None:
    said = (Feedback("a", -1, 1.0, corrected_answer="It left on Monday."),)
    rows, _ = harvested("dpo", [episode("a", "where is it", ("get", {"id": 1}, "sent"), outcome=DOWN, feedback=said)])
    [row] = rows
    assert [message["role"] for message in row["prompt"]] == ["user", "assistant", "tool"]
    assert row["chosen"] == [{"role": "assistant", "content": "It left on Monday."}]
    assert row["rejected"] == [{"role": "assistant", "content": "It is on its way."}]
    assert (row["source"], row["margin"], row["prefix"]) == ("correction", 1.0, "identical")


def test_dpo_pairs_thumbs_on_the_same_request(harvested: Harvested, episode: Make) -> None:
    up = episode("u", "what is your return policy", answer="30 days.", outcome=UP)
    down = episode("d", "What is your return policy", answer="No idea.", outcome=DOWN)
    down = episode("d", "what is your return policy", answer="No idea.", outcome=DOWN)
    other = episode("o", "what is your return policy", answer="Ask.", outcome=DOWN, tenant="umbrella")
    rows, made = harvested("dpo", [up, down, other])
    [row] = rows
    assert row["chosen"][0]["content"] == "30 days."
    assert row["rejected"][0]["content"] == "No idea."
    assert (row["source"], row["chosen_trace_id"], row["rejected_trace_id"]) == ("thumbs", "u", "d")
    assert dropped(made, "pair") == {"nothing to compare with": 1}  # another tenant's answer is not compared
    assert made.manifest["sources"] == ["d", "u"]


def test_dpo_pairs_are_steps_and_never_tool_results(harvested: Harvested, episode: Make) -> None:
    start = ("get_order", {"id": 1}, "sent")
    good = episode("g", "refund order 1", start, ("refund", {"cents": 5}, "ok"))
    bad = episode("b", "refund order 1", start, ("refund", {"cents": 500}, "too much", "error"), outcome=BAD)
    moved = episode("m", "refund order 1", ("get_order", {"id": 1}, "lost"), outcome=BAD)
    rows, _ = harvested("dpo", [good, bad, moved])
    [row] = rows
    assert [message["role"] for message in row["prompt"]] == ["user", "assistant", "tool"]
    assert row["chosen"][0]["tool_calls"][0]["function"]["arguments"] == {"cents": 5}
    assert row["rejected"][0]["tool_calls"][0]["function"]["arguments"] == {"cents": 500}
    assert [one["role"] for one in (*row["chosen"], *row["rejected"])] == ["assistant", "assistant"]


def test_dpo_pairs_plans_by_outcome_and_by_latency(harvested: Harvested, episode: Make) -> None:
    fast, slow, close, wrong = (
        episode("fast", "do both", plan="a = x() & b = y()", ended_at=6.0, source="simulated"),
        episode("slow", "do both", plan="a = x()\nb = y()", ended_at=10.0, source="simulated"),
        episode("close", "do both", plan="b = y() & a = x()", ended_at=9.0, source="simulated"),
        episode("wrong", "do both", plan="a = x()", ended_at=5.0, source="simulated", outcome=BAD),
    )
    rows, _ = harvested("dpo", [fast, slow], max_pairs=1)
    [row] = rows
    assert row["prompt"] == [{"role": "user", "content": "do both"}]
    assert row["chosen"] == [{"role": "assistant", "content": "a = x() & b = y()"}]
    assert (row["source"], row["margin"]) == ("latency", 0.4)
    rows, _ = harvested("dpo", [wrong, slow])
    assert (rows[0]["source"], rows[0]["rejected"][0]["content"]) == ("outcome", "a = x()")
    with pytest.raises(HarvestError, match="no difference to learn"):
        harvested("dpo", [slow, close])


@pytest.mark.parametrize("how", ["cached", "untimed", "other clock"])
def test_dpo_never_compares_times_that_are_not_comparable(harvested: Harvested, episode: Make, how: str) -> None:
    from dataclasses import replace

    slow = episode("slow", "do both", ("x", {}, 1), plan="a = x()", ended_at=10.0)
    fast = episode("fast", "do both", ("x", {}, 1), plan="b = x()", ended_at=1.0)
    if how == "cached":
        fast = replace(fast, steps=(replace(fast.steps[0], cached=True),))
    else:
        fast = replace(fast, timed=False) if how == "untimed" else replace(fast, source="simulated")
    with pytest.raises(HarvestError, match="no difference to learn"):
        harvested("dpo", [slow, fast])


def test_dpo_turns_a_denied_call_into_the_rejected_side(harvested: Harvested, episode: Make) -> None:
    refused = ("send_mail", {"to": "stranger"}, "denied", "denied")
    recovered = episode("a", "send my invoice", refused, ("send_mail", {"to": "me"}, "ok"))
    rows, made = harvested("dpo", [recovered, episode("b", "steal it", refused, answer="Done!", outcome=BAD)])
    [row] = rows
    assert row["rejected"][0]["tool_calls"][0]["function"]["arguments"] == {"to": "stranger"}
    assert row["chosen"][0]["tool_calls"][0]["function"]["arguments"] == {"to": "me"}
    assert row["source"] == "policy"
    assert dropped(made, "rows") == {"a denied call and nothing better known": 1}


def test_dpo_moves_a_step_only_to_the_same_state_and_known_values(harvested: Harvested, episode: Make) -> None:
    def trial(trace: str, text: str, cents: int, outcome: Outcome) -> Trajectory:
        steps = (("get_order", {"id": 7}, '{"paid": 500}'), ("refund", {"cents": cents}, "ok"))
        return episode(trace, text, *steps, outcome=outcome, unknown={"task_id": 3}, source="import:chat", timed=False)

    good, bad = trial("g", "I want 500 back for order 7", 500, GOOD), trial("b", "Order 7: money, please", 9, BAD)
    rows, _ = harvested("dpo", [good, bad])
    assert (rows[0]["prefix"], rows[0]["prompt"][0]["content"]) == ("same state", "Order 7: money, please")
    assert rows[0]["chosen"][0]["tool_calls"][0]["function"]["arguments"] == {"cents": 500}
    with pytest.raises(HarvestError, match="no shared prefix"):  # 600 is nowhere in the other conversation
        harvested("dpo", [trial("g", "I want 600 back for order 7", 600, GOOD), bad])


# ------------------------------------------------------------------ grpo and distill


def test_grpo_prompts_are_requests_with_their_pass_rate(harvested: Harvested, episode: Make) -> None:
    system = {"role": "system", "content": "Be kind."}
    trials = [
        episode(f"t{at}", messages=(system, USER, DONE), outcome=GOOD if at < 3 else BAD, unknown={"task_id": "T-1"})
        for at in range(4)
    ]
    rows, made = harvested("grpo", [*trials, episode("x", "undecided", outcome=UNKNOWN), episode("y", "solved")])
    by_task = {row["task_id"]: row for row in rows}
    assert by_task["T-1"]["prompt"] == [system, USER]
    assert (by_task["T-1"]["trials"], by_task["T-1"]["pass_rate"], by_task["T-1"]["band"]) == (4, 0.75, "trainable")
    assert next(row for row in rows if row["trace_id"] == "y")["band"] == "one trial"
    assert dropped(made, "decidable") == {"outcome unknown": 1}
    assert dropped(made, "merge") == {"another trial of the same request": 3}


def test_grpo_does_not_count_rewards_for_doing_nothing(harvested: Harvested, episode: Make) -> None:
    idle = {"outcome": Outcome(1, "verdict:import:reward"), "source": "import:chat"}
    rows, made = harvested(
        "grpo", [episode("a", "one", **idle), episode("b", "two", **idle), episode("c", "two", outcome=BAD)]
    )
    [row] = rows
    assert (row["prompt"][0]["content"], row["pass_rate"]) == ("two", 0.0)
    assert dropped(made, "merge")["inaction: every trial was rewarded for doing nothing"] == 1


def test_distill_rows_carry_a_successful_teachers_answer(harvested: Harvested, episode: Make) -> None:
    model = (ModelCall("big-model"),)
    rows, _ = harvested(
        "distill",
        [
            episode("a", "where is it", ("get", {"id": 1}, "sent"), model_calls=model),
            episode("b", "send it back", outcome=BAD, model_calls=model),
        ],
    )
    by_trace = {row["trace_id"]: row for row in rows}
    assert by_trace["a"]["prompt"] == [{"role": "user", "content": "where is it"}]
    assert by_trace["a"]["teacher"][0]["tool_calls"][0]["function"]["name"] == "get"
    assert (by_trace["a"]["answer"], by_trace["a"]["teacher_model"]) == ("It is on its way.", "big-model")
    assert (by_trace["b"]["teacher"], by_trace["b"]["answer"]) == ([], "")


@pytest.mark.parametrize("kind", ["sft", "grpo", "dpo", "distill"])
def test_answer_keys_that_imports_kept_aside_reach_no_row(harvested: Harvested, episode: Make, kind: str) -> None:
    key = {"task_id": "T", "info": {"task": {"actions": ["THE-KEY"]}}, "gold": "THE-KEY"}
    verdict = (Verdict("a", "import:reward", True, evidence="THE-KEY"),)
    good = episode("a", "cancel it", ("cancel", {"id": 1}, "ok"), unknown=key, verdicts=verdict)
    bad = episode("b", "cancel it", ("keep", {"id": 1}, "ok"), unknown=key, outcome=BAD)
    rows, made = harvested(kind, [good, bad])
    assert rows
    assert b"THE-KEY" not in (made.path / "rows.jsonl").read_bytes() + (made.path / "manifest.json").read_bytes()
