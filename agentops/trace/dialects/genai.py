"""OpenTelemetry's GenAI semantic conventions, as this engine, pydantic-ai, Google ADK, Strands and others write them.

Reads the attribute form, the older event form, and pydantic-ai's whole-conversation attribute. Invariant: see the
package. The older indexed form (`gen_ai.prompt.0.…`) is OpenLLMetry's and read there.
"""

from collections.abc import Mapping
from typing import Any

from agentops.trace import messages, names
from agentops.trace.dialects.node import Node
from agentops.trace.jsontext import loads, parse, text
from agentops.types import Json

_MARKS = (names.SOURCE, names.TIMED, names.TASK_ID, names.TRIAL, names.TRUNCATED, names.TENANT)
_EVENT_ROLES = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}


def read(node: Node) -> None:
    """Fill `node` from `gen_ai.*` (and pydantic-ai's, and our own) attributes and events."""
    attributes = node.span.attributes
    if not any(key.startswith(("gen_ai.", "agentops.", "pydantic_ai.")) for key in attributes):
        return
    node.dialect = node.dialect or ("agentops" if _ours(node) else "genai")
    node.used.update(key for key in attributes if key.startswith("agentops."))
    node.get(names.OPERATION, names.PROVIDER, "gen_ai.system", names.FINISH_REASONS, "gen_ai.response.id")
    node.fill("agent", node.get(names.AGENT, "agent_name"))
    node.fill("session", node.get(names.CONVERSATION))
    node.fill("user", node.get(names.USER, "user.id", "enduser.id"))
    node.fill("model", node.get(names.RESPONSE_MODEL, names.REQUEST_MODEL, "model_name"))
    node.fill("input_tokens", node.get(names.INPUT_TOKENS, "gen_ai.usage.prompt_tokens"))
    node.fill("output_tokens", node.get(names.OUTPUT_TOKENS, "gen_ai.usage.completion_tokens"))
    node.get(names.MAX_TOKENS, names.TEMPERATURE, names.ERROR_TYPE, names.TOOL_DESCRIPTION)
    _messages(node)
    _tools(node)
    if node.operation == names.EXECUTE_TOOL:
        node.fill("tool", node.get(names.TOOL))
        node.fill("call_id", node.get(names.TOOL_CALL_ID))
        node.argue(node.get(names.TOOL_ARGUMENTS, "tool_arguments", "gcp.vertex.agent.tool_call_args"))
        result = node.get(names.TOOL_RESULT, "tool_response", "gcp.vertex.agent.tool_response")
        if node.dialect == "agentops" and isinstance(result, str):
            result = _json(result)  # this engine writes every result as JSON
        node.answer(result)
        node.fill("error", node.get(names.CALL_ERROR))


def _json(value: str) -> Json:
    try:
        return parse(value)
    except ValueError:
        return value


def _ours(node: Node) -> bool:
    """Recorded by this engine, not only marked by it on import."""
    return any(key.startswith("agentops.") and key not in _MARKS for key in node.span.attributes)


def _messages(node: Node) -> None:
    system = loads(node.get(names.SYSTEM_INSTRUCTIONS))
    if system and not node.system:
        found = messages.decode(system if not _parts(system) else [{"role": "system", "parts": system}])
        node.system = found[0]["content"] if found else text(system)
    if not node.conversation:
        node.conversation = messages.decode(node.get("pydantic_ai.all_messages", "all_messages_events", "all_messages"))
    if not node.inputs:
        node.inputs = messages.decode(node.get(names.INPUT_MESSAGES, "events"))
    if not node.outputs:
        node.outputs = messages.decode(node.get(names.OUTPUT_MESSAGES))
    final = node.get("final_result")
    if final is not None and not node.outputs:
        node.outputs = [{"role": "assistant", "content": text(final)}]
    _events(node)


def _events(node: Node) -> None:
    """Messages written as span events: one a message (v1.27 to v1.36), or all in one (after)."""
    inputs: list[dict[str, Any]] = []
    outputs: list[dict[str, Any]] = []
    for event in node.span.events:
        name, given = text(event.get("name")), event.get("attributes")
        if not isinstance(given, Mapping):
            continue
        if name in _EVENT_ROLES:
            body = {"role": _EVENT_ROLES[name], **given}
            body["tool_call_id"] = given.get("tool_call_id") or (given.get("id") if body["role"] == "tool" else None)
            body["tool_calls"] = loads(given.get("tool_calls"))
            body["content"] = loads(given.get("content"))
            inputs += messages.normal([body])
        elif name == "gen_ai.choice":
            inner = loads(given.get("message"))
            inner = (
                inner
                if isinstance(inner, Mapping)
                else {"content": inner, "tool_calls": loads(given.get("tool_calls"))}
            )
            outputs += messages.normal([{"role": "assistant", **inner}])
        elif name == "gen_ai.content.prompt":
            inputs += messages.decode(given.get("gen_ai.prompt"))
        elif name == "gen_ai.content.completion":
            outputs += messages.decode(given.get("gen_ai.completion"))
        elif name == "gen_ai.client.inference.operation.details":
            inputs += messages.decode(given.get(names.INPUT_MESSAGES))
            outputs += messages.decode(given.get(names.OUTPUT_MESSAGES))
    node.inputs = node.inputs or inputs
    node.outputs = node.outputs or outputs


def _tools(node: Node) -> None:
    definitions = loads(node.get(names.TOOL_DEFINITIONS))
    if isinstance(definitions, list):
        node.offer(definitions)
    parameters = loads(node.span.attributes.get("model_request_parameters"))
    if not node.tools and isinstance(parameters, Mapping) and isinstance(parameters.get("function_tools"), list):
        node.get("model_request_parameters")
        node.offer(parameters["function_tools"])


def _parts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(part, Mapping) and "role" not in part for part in value)
