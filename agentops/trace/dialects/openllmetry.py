"""OpenLLMetry (Traceloop), and the indexed GenAI form LiteLLM and others copied from it.

Invariant: see the package.
"""

from collections.abc import Mapping
from typing import Any

from agentops.trace import messages, names
from agentops.trace.dialects.node import Node
from agentops.trace.jsontext import loads
from agentops.types import Json

_ASSOCIATED = "traceloop.association.properties."


def read(node: Node) -> None:
    """Fill `node` from `traceloop.*`, `gen_ai.prompt.N.*`, `gen_ai.completion.N.*` and `llm.*` attributes."""
    attributes = node.span.attributes
    indexed = any(key.startswith(("gen_ai.prompt.", "gen_ai.completion.", "llm.prompts.")) for key in attributes)
    if not indexed and not any(key.startswith("traceloop.") for key in attributes):
        return
    node.dialect = node.dialect if node.dialect not in ("", "genai") else "openllmetry"
    node.get("traceloop.span.kind", "traceloop.workflow.name", "traceloop.entity.path", "llm.request.type")
    node.get("llm.usage.total_tokens", "gen_ai.usage.total_tokens", "llm.is_streaming")
    node.fill("session", node.get(_ASSOCIATED + "session_id", _ASSOCIATED + "thread_id"))
    node.fill("user", node.get(_ASSOCIATED + "user_id"))
    node.fill("model", node.get("llm.response.model", "llm.request.model"))
    node.inputs = node.inputs or _messages(node, "gen_ai.prompt")
    node.outputs = node.outputs or _messages(node, "gen_ai.completion")
    node.offer(node.indexed("llm.request.functions"))
    if node.operation == names.EXECUTE_TOOL:
        node.fill("tool", node.get("traceloop.entity.name"))
        given = loads(node.get("traceloop.entity.input"))
        if isinstance(given, Mapping):
            kwargs = given.get("kwargs") or given.get("inputs")
            given = kwargs if isinstance(kwargs, Mapping) else loads(given.get("input_str", given))
        node.argue(given)
        output = loads(node.get("traceloop.entity.output"))
        node.answer(_output(output))
    elif node.operation == names.INVOKE_AGENT:
        node.fill("agent", node.get("traceloop.entity.name"))
        if not node.conversation:
            output = loads(node.get("traceloop.entity.output"))
            state = output.get("outputs", output) if isinstance(output, Mapping) else output
            found = state.get("messages") if isinstance(state, Mapping) else None
            node.conversation = messages.decode(found)
        node.get("traceloop.entity.input")


def _messages(node: Node, prefix: str) -> list[dict[str, Any]]:
    found = []
    for item in node.indexed(prefix):
        if isinstance(item, Mapping):
            found.append({**item, "content": loads(item.get("content"))})
    if prefix == "gen_ai.completion":
        found = [{**item, "role": item.get("role") or "assistant"} for item in found]
    return messages.normal(found)


def _output(value: Json) -> Json:
    """What a tool returned, inside LangChain's and Traceloop's wrappings."""
    while isinstance(value, Mapping) and isinstance(value.get("output"), Mapping | str):
        value = loads(value["output"])
    if isinstance(value, Mapping) and isinstance(value.get("kwargs"), Mapping) and "content" in value["kwargs"]:
        return value["kwargs"]["content"]
    return value
