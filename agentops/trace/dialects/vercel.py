"""Vercel's AI SDK (`ai.*`).

Invariant: see the package.
"""

from collections.abc import Mapping

from agentops.trace import messages, names
from agentops.trace.dialects.node import Node
from agentops.trace.jsontext import loads, text


def read(node: Node) -> None:
    """Fill `node` from `ai.*` attributes."""
    if "ai.operationId" not in node.span.attributes:
        return
    node.dialect = node.dialect if node.dialect not in ("", "genai") else "vercel"
    node.get(
        "ai.operationId", "operation.name", "ai.response.finishReason", "ai.model.provider", "ai.settings.maxRetries"
    )
    node.fill("model", node.get("ai.response.model", "ai.model.id"))
    node.fill("input_tokens", node.get("ai.usage.promptTokens", "ai.usage.inputTokens"))
    node.fill("output_tokens", node.get("ai.usage.completionTokens", "ai.usage.outputTokens"))
    node.fill("session", node.get("ai.telemetry.metadata.sessionId", "ai.telemetry.metadata.threadId"))
    node.fill("user", node.get("ai.telemetry.metadata.userId"))
    if node.operation == names.EXECUTE_TOOL:
        node.fill("tool", node.get("ai.toolCall.name"))
        node.fill("call_id", node.get("ai.toolCall.id"))
        node.argue(node.get("ai.toolCall.args", "ai.toolCall.input"))
        node.answer(node.get("ai.toolCall.result", "ai.toolCall.output"))
        return
    prompt = loads(node.get("ai.prompt"))
    if not node.inputs:
        node.inputs = messages.decode(node.get("ai.prompt.messages"))
    if not node.inputs and isinstance(prompt, Mapping):
        node.inputs = messages.decode(prompt.get("messages"))
        if not node.inputs and prompt.get("prompt"):
            node.inputs = [{"role": "user", "content": text(prompt["prompt"])}]
    if isinstance(prompt, Mapping) and prompt.get("system"):
        node.system = node.system or text(prompt["system"])
    said, calls = node.get("ai.response.text"), loads(node.get("ai.response.toolCalls"))
    if not node.outputs and (said or calls):
        node.outputs = messages.normal([{"role": "assistant", "content": said or "", "tool_calls": calls}])
    tools = node.get("ai.prompt.tools")
    node.offer([loads(item) for item in tools] if isinstance(tools, list | tuple) else [])
