"""What the audit log gets of a call, and the cache tags of its arguments.

Invariant: a record holds digests where a value is personal, and no argument or result itself. It writes nothing.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import orjson

from agentops.errors import StoreError
from agentops.types import Decision, Json, Labels, Run, ToolCall, ToolSpec

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
        StoreError: the subjects' keys cannot be used.
    """
    tenant, user = run.principal.tenant, run.principal.user
    return {
        "type": kind,
        "tenant": tenant,
        "subject": audit.subject(tenant, user),
        "user": audit.digest(user, tenant, user),
        "agent": run.agent.name,
        "run": run.id,
        "trace": run.trace_id,
        "call": call.id,
        "key": call.idempotency_key,
        "tool": call.tool,
        "tool_digest": spec.digest,
        "effect": spec.effect,
        "arguments": audit.digest(dict(call.arguments), tenant, user),
        "decision": decision.effect,
        "policies": list(decision.policies),
        "policy": decision.policy_digest,
        "approval": approval_id,
    }


def ended(audit: "Audit", run: Run, call: ToolCall, status: str, cached: bool, result: bytes) -> dict[str, Json]:
    """The record of how a call ended; `result` is its JSON, empty when there is none.

    Never raises: what was done is recorded also while the subjects' keys cannot be read, then without the digest.
    """
    tenant, user = run.principal.tenant, run.principal.user
    try:
        subject = audit.subject(tenant, user)
        shown = audit.digest(hashlib.sha256(result).hexdigest(), tenant, user) if result else ""
    except StoreError:
        subject, shown = "", "unknown"
    return {
        "type": "tool.outcome",
        "tenant": tenant,
        "subject": subject,
        "run": run.id,
        "trace": run.trace_id,
        "call": call.id,
        "key": call.idempotency_key,
        "tool": call.tool,
        "status": status,
        "cached": cached,
        "result": shown,
    }


def declassified(run: Run, call: ToolCall, labels: Labels) -> dict[str, Json]:
    """The record of a result that has weaker labels than the arguments it was made from."""
    return {
        "type": "label.declassified",
        "tenant": run.principal.tenant,
        "agent": run.agent.name,
        "run": run.id,
        "trace": run.trace_id,
        "call": call.id,
        "tool": call.tool,
        "from": [call.labels.integrity, call.labels.confidentiality],
        "to": [labels.integrity, labels.confidentiality],
    }


def tags(templates: tuple[str, ...], arguments: Mapping[str, Json]) -> tuple[str, ...]:
    """Tag templates filled in: `order:{order_id}` -> `order:SO-10001`; other values as JSON."""

    def fill(match: re.Match[str]) -> str:
        value = arguments.get(match[1])
        return value if isinstance(value, str) else orjson.dumps(value).decode()

    return tuple(_HOLE.sub(fill, template) for template in templates)
