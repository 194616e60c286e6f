"""Readers of span dialects: what one span says about the conversation, whoever wrote it.

Invariant: a reader only reads; it consumes attributes it understands and leaves the rest, which stays visible as
`Trajectory.unknown`. One span may mix dialects (GenAI names beside OpenInference ones): the earlier reader wins.
"""

from agentops.trace.dialects import genai, openinference, openllmetry, vercel
from agentops.trace.dialects.node import Node
from agentops.trace.rows import SpanRecord, operation

_READERS = (genai.read, openinference.read, openllmetry.read, vercel.read)
_BORING = (
    "telemetry.", "logfire.", "otel.", "service.", "thread.", "code.", "agentops.truncated", "openinference.span.kind",
    "traceloop.span.kind", "input.mime_type", "output.mime_type",
)  # fmt: skip  # how a span was made, not what happened


def read(span: SpanRecord) -> Node:
    """Everything the known dialects find in `span`."""
    node = Node(span, operation(span))
    for reader in _READERS:
        reader(node)
    node.finish()
    return node


def unknown(node: Node) -> list[str]:
    """Names of the attributes no reader understood."""
    return [key for key in node.span.attributes if key not in node.used and not key.startswith(_BORING)]


__all__ = ["Node", "read", "unknown"]
