"""Dialects that are not among the recorded files, from spans written as their instrumentations document them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentops.redact import Redactor
from agentops.store import Lake
from agentops.trace import import_files, trajectories
from agentops.types import Trajectory

Export = Callable[..., bytes]
SCHEMA = {"type": "object", "properties": {"order_id": {"type": "string"}}}
ARGUMENTS = '{"order_id": "W1"}'
ASKED = "Where is W1?"
SAID = "It was sent."


def openllmetry() -> list[dict[str, Any]]:
    tool = {
        "traceloop.entity.input": json.dumps({"args": [], "kwargs": {"order_id": "W1"}}),
        "traceloop.entity.output": '"sent"',
    }
    return [
        {
            "id": 1,
            "name": "agent",
            "attributes": {
                "traceloop.span.kind": "workflow",
                "traceloop.entity.name": "support",
                "traceloop.association.properties.session_id": "s1",
            },
        },
        {
            "id": 2,
            "parent": 1,
            "start": 1.1,
            "attributes": {
                "llm.request.type": "chat",
                "gen_ai.request.model": "m",
                "gen_ai.prompt.0.role": "system",
                "gen_ai.prompt.0.content": "You help.",
                "gen_ai.prompt.1.role": "user",
                "gen_ai.prompt.1.content": ASKED,
                "gen_ai.completion.0.role": "assistant",
                "gen_ai.completion.0.finish_reason": "tool_calls",
                "gen_ai.completion.0.tool_calls.0.id": "c1",
                "gen_ai.completion.0.tool_calls.0.name": "get_order",
                "gen_ai.completion.0.tool_calls.0.arguments": ARGUMENTS,
                "llm.request.functions.0.name": "get_order",
                "llm.request.functions.0.parameters": json.dumps(SCHEMA),
                "gen_ai.usage.prompt_tokens": 7,
                "gen_ai.usage.completion_tokens": 3,
            },
        },
        {
            "id": 3,
            "parent": 1,
            "start": 1.3,
            "end": 1.5,
            "attributes": {"traceloop.span.kind": "tool", "traceloop.entity.name": "get_order", **tool},
        },
        {
            "id": 4,
            "parent": 1,
            "start": 1.6,
            "attributes": {
                "llm.request.type": "chat",
                "gen_ai.request.model": "m",
                "gen_ai.prompt.0.role": "system",
                "gen_ai.prompt.0.content": "You help.",
                "gen_ai.prompt.1.role": "user",
                "gen_ai.prompt.1.content": ASKED,
                "gen_ai.prompt.2.role": "assistant",
                "gen_ai.prompt.2.tool_calls.0.id": "c1",
                "gen_ai.prompt.2.tool_calls.0.name": "get_order",
                "gen_ai.prompt.2.tool_calls.0.arguments": ARGUMENTS,
                "gen_ai.prompt.3.role": "tool",
                "gen_ai.prompt.3.content": "sent",
                "gen_ai.prompt.3.tool_call_id": "c1",
                "gen_ai.completion.0.role": "assistant",
                "gen_ai.completion.0.content": SAID,
                "gen_ai.usage.prompt_tokens": 9,
                "gen_ai.usage.completion_tokens": 4,
            },
        },
    ]


def vercel() -> list[dict[str, Any]]:
    user = {"role": "user", "content": [{"type": "text", "text": ASKED}]}
    call = {"type": "tool-call", "toolCallId": "c1", "toolName": "get_order", "args": {"order_id": "W1"}}
    result = {
        "type": "tool-result",
        "toolCallId": "c1",
        "toolName": "get_order",
        "output": {"type": "text", "value": "sent"},
    }
    later = [user, {"role": "assistant", "content": [call]}, {"role": "tool", "content": [result]}]
    return [
        {
            "id": 1,
            "attributes": {
                "ai.operationId": "ai.generateText",
                "ai.telemetry.metadata.sessionId": "s1",
                "ai.prompt": json.dumps({"system": "You help.", "prompt": ASKED}),
                "ai.response.text": SAID,
            },
        },
        {
            "id": 2,
            "parent": 1,
            "start": 1.1,
            "attributes": {
                "ai.operationId": "ai.generateText.doGenerate",
                "ai.model.id": "m",
                "ai.prompt.messages": json.dumps([user]),
                "ai.response.toolCalls": json.dumps([{**call, "args": ARGUMENTS}]),
                "ai.prompt.tools": [json.dumps({"type": "function", "name": "get_order", "inputSchema": SCHEMA})],
                "gen_ai.system": "openai",
                "gen_ai.usage.input_tokens": 7,
                "gen_ai.usage.output_tokens": 3,
            },
        },
        {
            "id": 3,
            "parent": 1,
            "start": 1.3,
            "end": 1.5,
            "attributes": {
                "ai.operationId": "ai.toolCall",
                "ai.toolCall.name": "get_order",
                "ai.toolCall.id": "c1",
                "ai.toolCall.args": ARGUMENTS,
                "ai.toolCall.result": '"sent"',
            },
        },
        {
            "id": 4,
            "parent": 1,
            "start": 1.6,
            "attributes": {
                "ai.operationId": "ai.generateText.doGenerate",
                "ai.model.id": "m",
                "ai.prompt.messages": json.dumps(later),
                "ai.response.text": SAID,
                "gen_ai.usage.input_tokens": 9,
                "gen_ai.usage.output_tokens": 4,
            },
        },
    ]


def genai_events() -> list[dict[str, Any]]:
    call = json.dumps([{"id": "c1", "type": "function", "function": {"name": "get_order", "arguments": ARGUMENTS}}])
    asked = [("gen_ai.system.message", {"content": "You help."}), ("gen_ai.user.message", {"content": ASKED})]
    chat = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
    return [
        {
            "id": 1,
            "attributes": {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": "support",
                "gen_ai.conversation.id": "s1",
            },
        },
        {
            "id": 2,
            "parent": 1,
            "start": 1.1,
            "attributes": {
                **chat,
                "gen_ai.usage.input_tokens": 7,
                "gen_ai.usage.output_tokens": 3,
                "gen_ai.tool.definitions": json.dumps(
                    [{"type": "function", "name": "get_order", "parameters": SCHEMA}]
                ),
            },
            "events": [
                *asked,
                ("gen_ai.choice", {"message": json.dumps({"content": None, "tool_calls": json.loads(call)})}),
            ],
        },
        {
            "id": 3,
            "parent": 1,
            "start": 1.3,
            "end": 1.5,
            "attributes": {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": "get_order",
                "gen_ai.tool.call.id": "c1",
            },
        },
        {
            "id": 4,
            "parent": 1,
            "start": 1.6,
            "attributes": {**chat, "gen_ai.usage.input_tokens": 9, "gen_ai.usage.output_tokens": 4},
            "events": [
                *asked,
                ("gen_ai.assistant.message", {"tool_calls": call}),
                ("gen_ai.tool.message", {"content": "sent", "id": "c1"}),
                ("gen_ai.choice", {"message": json.dumps({"content": SAID})}),
            ],
        },
    ]


@pytest.mark.parametrize("dialect", [openllmetry, vercel, genai_events])
def test_another_dialect_gives_the_same_conversation(
    lake: Lake, redactor: Redactor, export: Export, tmp_path: Path, dialect: Callable[[], list[dict[str, Any]]]
) -> None:
    (tmp_path / "x.pb").write_bytes(export(dialect()))
    import_files(lake, redactor, [tmp_path / "x.pb"])
    [found] = trajectories(lake)
    call = {"id": "c1", "type": "function", "function": {"name": "get_order", "arguments": {"order_id": "W1"}}}
    roles = [(turn["role"], turn["content"]) for turn in found.messages]
    assert roles == [("system", "You help."), ("user", ASKED), ("assistant", ""), ("tool", "sent"), ("assistant", SAID)]
    assert found.messages[2]["tool_calls"] == [call]
    [step] = found.steps
    assert (step.tool, step.call_id, step.arguments, step.result, step.status) == (
        "get_order",
        "c1",
        {"order_id": "W1"},
        "sent",
        "ok",
    )
    assert (round(step.started_at, 3), round(step.ended_at, 3)) == (1.3, 1.5)
    assert [(one.model, one.input_tokens, one.output_tokens) for one in found.model_calls] == [("m", 7, 3), ("m", 9, 4)]
    assert found.tools[0]["function"]["parameters"] == SCHEMA
    assert (found.answer, found.session, found.status) == (SAID, "s1", "ok")
    assert found.unknown == {}


def test_a_sub_agents_conversation_does_not_replace_the_main_one(
    lake: Lake, redactor: Redactor, export: Export, tmp_path: Path
) -> None:
    def said(*texts: str) -> str:
        return json.dumps([{"role": "user" if n % 2 == 0 else "assistant", "content": t} for n, t in enumerate(texts)])

    agent = {"gen_ai.operation.name": "invoke_agent"}
    chat = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
    spans = [
        {"id": 1, "attributes": {**agent, "gen_ai.agent.name": "main"}},
        {
            "id": 2,
            "parent": 1,
            "attributes": {**chat, "gen_ai.input.messages": said("q"), "gen_ai.output.messages": said("q", "a")},
        },
        {"id": 3, "parent": 1, "attributes": {**agent, "gen_ai.agent.name": "sub"}},
        {"id": 4, "parent": 3, "attributes": {**chat, "gen_ai.input.messages": said(*"abcdefgh")}},
    ]
    (tmp_path / "x.pb").write_bytes(export(spans))
    import_files(lake, redactor, [tmp_path / "x.pb"])
    [found] = trajectories(lake)
    assert [turn["content"] for turn in found.messages] == ["q", "a"]
    assert found.agent == "main"


def test_calls_only_a_model_span_tells_of_become_steps_without_times(
    lake: Lake, redactor: Redactor, export: Export, tmp_path: Path
) -> None:
    spans = [one for one in openllmetry() if one["id"] != 3]
    (tmp_path / "x.pb").write_bytes(export(spans))
    import_files(lake, redactor, [tmp_path / "x.pb"])
    found: Trajectory = next(trajectories(lake))
    assert [(step.tool, step.result, step.status, step.ended_at) for step in found.steps] == [
        ("get_order", "sent", "ok", 0.0)
    ]


def test_what_nobody_understands_is_kept_by_name(
    lake: Lake, redactor: Redactor, export: Export, tmp_path: Path
) -> None:
    attributes = {
        "acme.cost": 0.5,
        "acme.note": "to dana@example.org",
        "acme.long": "z " * 3000,
        "gen_ai.operation.name": "chat",
    }
    (tmp_path / "x.pb").write_bytes(export([{"id": 1, "attributes": attributes}]))
    report = import_files(lake, redactor, [tmp_path / "x.pb"])
    [found] = trajectories(lake)
    assert set(found.unknown) == {"acme.cost", "acme.note", "acme.long"} == set(report.unknown)
    assert found.unknown["acme.cost"] == 0.5
    assert "<EMAIL:" in found.unknown["acme.note"]
    assert len(found.unknown["acme.long"]) < 2100
