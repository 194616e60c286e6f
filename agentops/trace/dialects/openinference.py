"""OpenInference (Arize): LangGraph, LangChain, OpenAI, LlamaIndex, CrewAI, smolagents and others through it.

Invariant: see the package. Values of chains inside a run (graph nodes) repeat what model and tool spans say and are not
read, except for the tool call ids a LangGraph `tools` node received.
"""

import ast
from collections.abc import Mapping
from typing import Any

from agentops.trace import messages, names
from agentops.trace.dialects.node import Node
from agentops.trace.jsontext import loads, text
from agentops.types import Json


def read(node: Node) -> None:
    """Fill `node` from `openinference.*`, `llm.*`, `tool.*`, `input.*` and `output.*` attributes."""
    attributes = node.span.attributes
    if "openinference.span.kind" not in attributes:
        return
    node.dialect = node.dialect or "openinference"
    node.get("openinference.span.kind", "llm.system", "llm.provider", "llm.finish_reason", "llm.token_count.total")
    node.fill("session", node.get("session.id"))
    node.fill("user", node.get("user.id"))
    node.fill("agent", node.get("agent.name") or (node.span.name if node.operation == names.INVOKE_AGENT else ""))
    if not node.user:
        metadata = loads(attributes.get("metadata"))
        node.fill("user", metadata.get("user_id") if isinstance(metadata, Mapping) else None)
    if node.operation == names.CHAT:
        _model(node)
    elif node.operation == names.EXECUTE_TOOL:
        _tool(node)
    else:
        _chain(node)


def _model(node: Node) -> None:
    node.fill("model", node.get("llm.model_name"))
    node.fill("input_tokens", node.get("llm.token_count.prompt"))
    node.fill("output_tokens", node.get("llm.token_count.completion"))
    node.inputs = node.inputs or _indexed(node, "llm.input_messages")
    node.outputs = node.outputs or _indexed(node, "llm.output_messages")
    schemas = [
        item.get("tool", {}).get("json_schema") for item in node.indexed("llm.tools") if isinstance(item, Mapping)
    ]
    parameters = loads(node.get("llm.invocation_parameters"))
    node.offer(schemas or (parameters.get("tools", []) if isinstance(parameters, Mapping) else []))
    # The raw request and response hold the same; they are read when the messages were not written one by one.
    request, response = loads(node.get("input.value")), loads(node.get("output.value"))
    if not node.inputs and isinstance(request, Mapping):
        node.inputs = messages.decode(request.get("messages"))
    if (
        not node.inputs
        and isinstance(node.span.attributes.get("input.value"), str)
        and not isinstance(request, Mapping)
    ):
        node.inputs = [{"role": "user", "content": text(request)}]
    if not node.outputs and isinstance(response, Mapping) and isinstance(response.get("choices"), list):
        node.outputs = messages.decode([c.get("message") for c in response["choices"][:1] if isinstance(c, Mapping)])


def _tool(node: Node) -> None:
    node.fill("tool", node.get("tool.name", "tool_call.function.name") or node.span.name)
    node.fill("call_id", node.get("tool_call.id", "tool.id"))
    node.get("tool.description", "tool.parameters")
    given = loads(node.get("tool_call.function.arguments", "input.value"))
    if isinstance(given, str) and given.startswith("{"):
        given = _literal(given)
    node.argue(given if isinstance(given, Mapping) else None)
    output = loads(node.get("output.value"))
    message = _message(output)
    if message is not None:  # LangChain's ToolMessage
        node.fill("call_id", message.get("tool_call_id"))
        node.answer(messages.content_text(message.get("content")))
        if message.get("status") == "error":
            node.fill("error", messages.content_text(message.get("content")))
    else:
        node.answer(output)


def _chain(node: Node) -> None:
    """A run as a whole: its last state holds the conversation (LangGraph); else question and answer."""
    given, output = loads(node.get("input.value")), loads(node.get("output.value"))
    node.indexed("llm.input_messages")  # only the question again
    for value, field in ((output, "conversation"), (given, "inputs")):
        found = value.get("messages") if isinstance(value, Mapping) else None
        if isinstance(found, list) and not getattr(node, field):
            setattr(node, field, messages.decode(found))
    if isinstance(given, str) and not node.inputs:
        node.inputs = [{"role": "user", "content": given}]
    if isinstance(output, str) and not node.outputs and not node.conversation:
        node.outputs = [{"role": "assistant", "content": output}]
    # LangGraph's `tools` node: which call each tool span below it answers.
    if (
        isinstance(given, list)
        and len(given) == 1
        and isinstance(given[0], Mapping)
        and given[0].get("type") == "tool_call"
    ):
        node.fill("call_id", given[0].get("id"))
        node.argue(given[0].get("args"))
        node.fill("tool", given[0].get("name"))


def _indexed(node: Node, prefix: str) -> list[dict[str, Any]]:
    found = []
    for item in node.indexed(prefix):
        message = item.get("message") if isinstance(item, Mapping) else None
        if not isinstance(message, Mapping):
            continue
        calls = [call.get("tool_call") for call in _list(message.get("tool_calls")) if isinstance(call, Mapping)]
        parts = [part.get("message_content") for part in _list(message.get("contents")) if isinstance(part, Mapping)]
        found.append({**message, "tool_calls": calls, "content": message.get("content", parts or "")})
    return messages.normal(found)


def _message(value: Json) -> Mapping[str, Any] | None:
    """The inner message of LangChain's serialised ToolMessage."""
    if not isinstance(value, Mapping):
        return None
    for key in ("data", "kwargs"):
        inner = value.get(key)
        if isinstance(inner, Mapping) and "tool_call_id" in inner:
            return inner
    return value if "tool_call_id" in value and "content" in value else None


def _literal(value: str) -> Json:
    """LangChain writes some tool inputs as Python literals; `literal_eval` runs nothing."""
    if len(value) > 100_000:
        return value
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value


def _list(value: Json) -> list[Any]:
    return value if isinstance(value, list) else []
