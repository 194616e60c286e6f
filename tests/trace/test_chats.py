"""Chat logs: the conversation and what was thought of it, never the answer key."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentops.redact import Redactor
from agentops.store import Lake
from agentops.trace import import_files, summaries, trajectories
from agentops.types import Outcome, Trajectory

CALL = {"id": "c1", "type": "function", "function": {"name": "get_order", "arguments": '{"order_id": "W1"}'}}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "You help."},
    {"role": "user", "content": "Where is W1? I'm Dana"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": '{"status": "sent", "email": "dana@example.org"}'},
    {"role": "assistant", "content": "It was sent."},
]
TOOL = {
    "type": "function",
    "function": {"name": "get_order", "description": "Look up.", "parameters": {"type": "object"}},
}


def one(lake: Lake, redactor: Redactor, tmp_path: Path, value: object) -> Trajectory:
    (tmp_path / "log.json").write_text(json.dumps(value))
    report = import_files(lake, redactor, [tmp_path / "log.json"])
    assert (report.trajectories, report.failed, report.refused) == (1, {}, {})
    [found] = trajectories(lake)
    return found


def test_a_conversation_with_a_tool_call_comes_back_whole(lake: Lake, redactor: Redactor, tmp_path: Path) -> None:
    row = {"messages": TALK, "tools": [TOOL], "model": "gpt-x", "reward": 1, "session_id": "s1", "user": "u-17"}
    found = one(lake, redactor, tmp_path, row)
    assert [turn["role"] for turn in found.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert found.messages[2] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{**CALL, "function": {"name": "get_order", "arguments": {"order_id": "W1"}}}],
    }
    assert found.request.startswith("Where is W1? I'm <NAME:")
    [step] = found.steps
    assert (step.tool, step.arguments, step.status, step.started_at) == ("get_order", {"order_id": "W1"}, "ok", 0.0)
    assert step.result["email"].startswith("<EMAIL:")
    assert (found.answer, found.session, found.timed, found.source) == ("It was sent.", "s1", False, "import:chat")
    assert found.user.startswith("<USER:")
    assert found.tools == (TOOL,)
    assert [call.model for call in found.model_calls] == ["gpt-x", "gpt-x"]
    assert found.outcome == Outcome(1, "verdict:import:reward")
    assert summaries(lake)[0] | {"start": "", "id": "", "duration_ms": 0} == {
        "id": "", "service": "imported", "start": "", "duration_ms": 0, "status": "ok", "route": "", "model_calls": 2,
        "tool_calls": 1, "errors": 0, "input_tokens": 0, "output_tokens": 0, "feedback": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "outcome", "score"),
    [
        ({"reward": 0.0}, Outcome(0, "verdict:import:reward"), None),
        ({"reward": True}, Outcome(1, "verdict:import:reward"), None),
        ({"score": 0.5}, Outcome(None), None),
        ({"reward": 17}, Outcome(None), None),
        ({"reward": "high"}, Outcome(None), None),
        ({"feedback": "up"}, Outcome(1, "feedback"), 1),
        ({"feedback": -1}, Outcome(0, "feedback"), -1),
        ({"feedback": {"score": 0, "comment": "call dana@example.org"}}, Outcome(None), 0),
        ({"feedback": "five stars"}, Outcome(None), None),
        ({}, Outcome(None), None),
    ],
)
def test_rewards_and_feedback(
    lake: Lake, redactor: Redactor, tmp_path: Path, given: dict[str, Any], outcome: Outcome, score: int | None
) -> None:
    found = one(lake, redactor, tmp_path, {"messages": TALK, **given})
    assert found.outcome == outcome
    assert [feedback.score for feedback in found.feedback] == ([] if score is None else [score])
    assert all("@" not in feedback.comment for feedback in found.feedback)


@pytest.mark.parametrize(
    "value",
    [
        TALK,
        [{"messages": TALK}],
        {"data": [{"messages": TALK}]},
        {"request": {"messages": TALK[:-1], "model": "m"}, "response": {"choices": [{"message": TALK[-1]}]}},
        {"traj": TALK, "reward": 0.0, "task_id": 3, "trial": 1, "info": {"task": {"actions": ["the answer key"]}}},
    ],
)
def test_shapes_of_logs(lake: Lake, redactor: Redactor, tmp_path: Path, value: object) -> None:
    found = one(lake, redactor, tmp_path, value)
    assert found.answer == "It was sent."
    assert len(found.messages) == 5
    assert len(found.steps) == 1


def test_lines_with_one_broken_and_a_repeated_import(lake: Lake, redactor: Redactor, tmp_path: Path) -> None:
    rows = [json.dumps({"messages": TALK, "id": number, "feedback": 1}) for number in range(3)]
    (tmp_path / "log.jsonl").write_text("\n".join([*rows, "{broken", json.dumps({"messages": []}), "7", ""]))
    report = import_files(lake, redactor, [tmp_path / "log.jsonl"])
    assert (report.trajectories, report.feedback) == (3, 3)
    assert report.refused == {
        "line is not valid JSON": 1,
        "no user message": 1,
        "not a conversation: no messages": 1,
    }
    again = import_files(lake, redactor, [tmp_path / "log.jsonl"])
    assert (again.trajectories, again.spans, again.feedback, again.duplicates) == (0, 0, 0, report.spans)
    assert [len(found.feedback) for found in trajectories(lake)] == [1, 1, 1]


def test_calls_without_ids_or_with_one_id_for_all_are_paired_in_order(
    lake: Lake, redactor: Redactor, tmp_path: Path
) -> None:
    def call(number: int, **more: str) -> dict[str, Any]:
        return {"function": {"name": "add", "arguments": {"n": number}}, **more}

    talk = [
        {"role": "user", "content": "add"},
        {"role": "assistant", "content": "", "tool_calls": [call(1), call(2)]},
        {"role": "tool", "content": "one"},
        {"role": "tool", "content": "two"},
        {"role": "assistant", "content": "", "tool_calls": [call(3, id="x")]},
        {"role": "tool", "tool_call_id": "x", "content": "three"},
        {"role": "assistant", "content": "", "tool_calls": [call(4, id="x")]},
        {"role": "tool", "tool_call_id": "x", "content": "four"},
        {"role": "assistant", "content": "", "tool_calls": [call(5, id="y")]},
    ]
    found = one(lake, redactor, tmp_path, talk)
    assert [(step.arguments["n"], step.result) for step in found.steps] == [
        (1, "one"), (2, "two"), (3, "three"), (4, "four"), (5, None),
    ]  # fmt: skip
    assert len({step.call_id for step in found.steps}) == 5
    assert found.steps[-1].status == "skipped"
    asked = [call["id"] for turn in found.messages for call in turn.get("tool_calls", ())]
    assert asked == [step.call_id for step in found.steps]


@pytest.mark.data
def test_two_hundred_recorded_episodes(lake: Lake, redactor: Redactor, data_dir: Path) -> None:
    report = import_files(lake, redactor, [data_dir / "tau_airline" / "gpt-4o-airline.json"], "airline")
    assert (report.trajectories, report.verdicts, report.refused, report.failed) == (200, 200, {}, {})
    assert report.unknown == {"tau:info": 200}
    found = list(trajectories(lake))
    assert [one.outcome.success for one in found].count(1) == 84
    assert [one.outcome.success for one in found].count(0) == 116
    assert sum(len(one.steps) for one in found) == 1164
    assert {one.source for one in found} == {"import:tau"}
    raw = json.loads((data_dir / "tau_airline" / "gpt-4o-airline.json").read_text())
    for one, episode in zip(found, raw, strict=True):  # in the order of the log
        assert one.unknown["agentops.task.id"] == str(episode["task_id"])
        assert one.unknown["agentops.task.trial"] == str(episode["trial"])
        assert [turn["role"] for turn in one.messages] == [turn["role"] for turn in episode["traj"]]
        told = [call["function"]["name"] for turn in episode["traj"] for call in turn.get("tool_calls") or ()]
        assert [step.tool for step in one.steps] == told
    everything = json.dumps(lake.sql("SELECT attributes, events, resource FROM spans"))
    for episode in raw:
        assert episode["info"]["task"]["instruction"][:60] not in everything, "the answer key stays out"
    assert "@example.com" not in everything
    assert '\\"kwargs\\"' not in everything
