"""What the audit log gets of a call, and the cache tags of its arguments.

Invariant: a record holds digests where a value is personal, and no argument or result itself. It writes nothing.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import orjson

from agentops.types import Decision, Json, Run, ToolCall, ToolSpec

if TYPE_CHECKING:  # built by the conductors
    from agentops.audit import Audit

_HOLE = re.compile(r"\{(\w+)\}")


def decided(
    audit: "Audit", kind: str, run: Run, spec: ToolSpec, call: ToolCall, decision: Decision, approval_id: str
) -> dict[str, Json]:
    """The record of a decision, or of the intent it allows.

    Args:
        audit: digests personal values.
        kind: "tool.decision" or "tool.intent".
        run: for whom.
        spec: the tool's contract.
        call: with canonical arguments.
        decision: what the policies said.
        approval_id: what the decision rests on or waits for; "" = none.

    Raises:
        AuditError: the arguments have no canonical form.
    """
    return {
        "type": kind,
        "tenant": run.principal.tenant,
        "user": audit.digest(run.principal.user),
        "agent": run.agent.name,
        "run": run.id,
        "trace": run.trace_id,
        "call": call.id,
        "key": call.idempotency_key,
        "tool": call.tool,
        "tool_digest": spec.digest,
        "effect": spec.effect,
        "arguments": audit.digest(dict(call.arguments)),
        "decision": decision.effect,
        "policies": list(decision.policies),
        "policy": decision.policy_digest,
        "approval": approval_id,
    }


def ended(audit: "Audit", run: Run, call: ToolCall, status: str, cached: bool, result: bytes) -> dict[str, Json]:
    """The record of how a call ended; `result` is its JSON, empty when there is none."""
    return {
        "type": "tool.outcome",
        "run": run.id,
        "trace": run.trace_id,
        "call": call.id,
        "key": call.idempotency_key,
        "tool": call.tool,
        "status": status,
        "cached": cached,
        "result": audit.digest(hashlib.sha256(result).hexdigest()) if result else "",
    }


def tags(templates: tuple[str, ...], arguments: Mapping[str, Json]) -> tuple[str, ...]:
    """Tag templates filled in: `order:{order_id}` -> `order:SO-10001`; other values as JSON."""

    def fill(match: re.Match[str]) -> str:
        value = arguments.get(match[1])
        return value if isinstance(value, str) else orjson.dumps(value).decode()

    return tuple(_HOLE.sub(fill, template) for template in templates)
