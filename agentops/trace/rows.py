"""A span as plain data, and as a redacted row of the lake.

Invariant: nothing reaches a row (and so a segment, or another collector) that the redactor has not seen: names, error
texts, attribute keys' values, events, links and resource. Identifiers of the trace stay as they are.
It knows no dialect; reading rows back is `agentops.trace.assemble`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agentops.redact import Redactor
from agentops.trace import names
from agentops.trace.jsontext import dumps, integer, loads, text
from agentops.types import Json

MAX_VALUE_CHARS = 1_000_000  # of one attribute value; longer ones are cut and counted
MAX_ATTRIBUTES = 1024  # of one span, event or resource
USER_KEYS = ("user.id", "enduser.id", "user_id", "langfuse.user.id", "traceloop.association.properties.user_id")
_MODEL_KEYS = (names.RESPONSE_MODEL, names.REQUEST_MODEL, "llm.model_name", "ai.model.id", "model_name")
_SESSION_KEYS = (
    names.CONVERSATION,
    "session.id",
    "traceloop.association.properties.session_id",
    "langfuse.session.id",
    "thread_id",
)
_TOOL_KEYS = (names.TOOL, "tool.name", "ai.toolCall.name")
_AGENT_KEYS = (names.AGENT, "agent.name", "graph.node.id")
_INPUT_KEYS = (names.INPUT_TOKENS, "llm.token_count.prompt", "gen_ai.usage.prompt_tokens", "ai.usage.promptTokens")
_OUTPUT_KEYS = (
    names.OUTPUT_TOKENS,
    "llm.token_count.completion",
    "gen_ai.usage.completion_tokens",
    "ai.usage.completionTokens",
)
_OPERATIONS = {
    "AGENT": names.INVOKE_AGENT,
    "LLM": names.CHAT,
    "TOOL": names.EXECUTE_TOOL,
    "agent": names.INVOKE_AGENT,
    "workflow": names.INVOKE_AGENT,
    "tool": names.EXECUTE_TOOL,
    "text_completion": names.CHAT,
    "generate_content": names.CHAT,
    "completion": names.CHAT,
    "ai.toolCall": names.EXECUTE_TOOL,
    "ai.generateText.doGenerate": names.CHAT,
    "ai.streamText.doStream": names.CHAT,
    "ai.generateText": names.INVOKE_AGENT,
    "ai.streamText": names.INVOKE_AGENT,
}


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """One span, from this process or from a file. Times are nanoseconds since the epoch."""

    trace_id: str  # 32 hex digits
    span_id: str  # 16 hex digits
    parent_id: str  # "" at a root
    name: str
    start_ns: int
    end_ns: int
    kind: str = "internal"
    status: str = "unset"  # unset, ok, error
    status_message: str = ""
    attributes: Mapping[str, Json] = field(default_factory=dict)
    events: tuple[Mapping[str, Json], ...] = ()  # {"name", "time_ns", "attributes"}
    links: tuple[Mapping[str, Json], ...] = ()  # {"trace_id", "span_id", "attributes"}
    scope: str = ""
    resource: Mapping[str, Json] = field(default_factory=dict)


def redacted(span: SpanRecord, redactor: Redactor, tenant: str = "") -> SpanRecord:
    """`span` with every text redacted and every value bounded. Never raises on content."""
    tenant = tenant or text(span.attributes.get(names.TENANT))
    cut = [0]
    attributes = _clean(span.attributes, redactor, tenant, cut)
    events = tuple(
        {
            "name": redactor.text(text(event.get("name")), tenant),
            "time_ns": integer(event.get("time_ns")) or 0,
            "attributes": _clean(event.get("attributes") or {}, redactor, tenant, cut),
        }
        for event in span.events
    )
    links = tuple(
        {
            "trace_id": text(link.get("trace_id")),
            "span_id": text(link.get("span_id")),
            "attributes": _clean(link.get("attributes") or {}, redactor, tenant, cut),
        }
        for link in span.links
    )
    if cut[0]:
        attributes[names.TRUNCATED] = cut[0]
    return replace(
        span,
        name=redactor.text(_bounded(span.name, cut)[:1000], tenant),
        status_message=redactor.text(_bounded(span.status_message, cut), tenant),
        attributes=attributes,
        events=events,
        links=links,
        resource=_clean(span.resource, redactor, tenant, cut),
    )


def row(span: SpanRecord, service: str, source: str = "live", tenant: str = "") -> dict[str, Any]:
    """A row of the lake's `spans` table from a span that was redacted."""
    attributes = span.attributes
    return {
        "trace_id": span.trace_id,
        "span_id": span.span_id,
        "parent_id": span.parent_id,
        "name": span.name,
        "kind": span.kind,
        "service": service,
        "start_ns": span.start_ns,
        "end_ns": span.end_ns,
        "status": span.status,
        "status_message": span.status_message,
        "attributes": dumps(attributes),
        "events": dumps(list(span.events)),
        "links": dumps(list(span.links)),
        "scope": span.scope,
        "resource": dumps(span.resource),
        "tenant": tenant or text(attributes.get(names.TENANT)),
        "operation": operation(span),
        "agent": _first(attributes, _AGENT_KEYS),
        "tool": _first(attributes, _TOOL_KEYS),
        "session": _first(attributes, _SESSION_KEYS),
        "model": _first(attributes, _MODEL_KEYS),
        "route": _routes(attributes.get(names.ROUTES)),
        "source": text(attributes.get(names.SOURCE)) or source,
        "input_tokens": _first_integer(attributes, _INPUT_KEYS),
        "output_tokens": _first_integer(attributes, _OUTPUT_KEYS),
        "cached": bool(attributes.get(names.CACHED, False)),
    }


def operation(span: SpanRecord) -> str:
    """What a span did, in GenAI terms, whichever dialect says so; "" when none does."""
    given = text(span.attributes.get(names.OPERATION))
    if given:
        return _OPERATIONS.get(given, given)
    for key in ("openinference.span.kind", "traceloop.span.kind", "ai.operationId", "llm.request.type"):
        value = text(span.attributes.get(key))
        if value == "chat":
            return names.CHAT
        if value in _OPERATIONS:
            return _OPERATIONS[value]
    return ""


def _clean(values: Mapping[str, Json], redactor: Redactor, tenant: str, cut: list[int]) -> dict[str, Json]:
    items = list(values.items())
    cut[0] += max(0, len(items) - MAX_ATTRIBUTES)
    bounded = {text(key)[:500]: _bounded(value, cut) for key, value in items[:MAX_ATTRIBUTES]}
    for key in USER_KEYS:
        if bounded.get(key):
            bounded[key] = redactor.pseudonym("USER", text(bounded[key]), tenant)
    metadata = loads(bounded.get("metadata"))
    if isinstance(metadata, dict) and isinstance(metadata.get("user_id"), str):  # LangChain's place for it
        bounded["metadata"] = dumps({**metadata, "user_id": redactor.pseudonym("USER", metadata["user_id"], tenant)})
    clean = redactor.value(bounded, tenant)
    return clean if isinstance(clean, dict) else {"agentops.redaction": clean}


def _bounded(value: Json, cut: list[int]) -> Any:
    if isinstance(value, str) and len(value) > MAX_VALUE_CHARS:
        cut[0] += 1
        return value[:MAX_VALUE_CHARS] + names.CUT_MARK
    if isinstance(value, bytes):
        cut[0] += 1
        return f"<{len(value)} bytes>"
    return value


def _first(attributes: Mapping[str, Json], keys: tuple[str, ...]) -> str:
    for key in keys:
        if attributes.get(key):
            return text(attributes[key])
    return ""


def _first_integer(attributes: Mapping[str, Json], keys: tuple[str, ...]) -> int | None:
    for key in keys:
        if key in attributes:
            return integer(attributes[key])
    return None


def _routes(value: Json) -> str:
    routes = loads(value)
    if not isinstance(routes, list):
        return ""
    return ",".join(text(route.get("label")) for route in routes if isinstance(route, Mapping))
