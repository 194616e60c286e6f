"""What the audit log gets of a call, what its records say is unfinished, and the cache tags of its arguments.

Invariant: a record holds digests where a value is personal, and no argument or result itself. It writes nothing.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from agentops.errors import StoreError
from agentops.types import Decision, Json, Labels, Run, ToolCall, ToolSpec

if TYPE_CHECKING:  # built by the conductors
    from agentops.audit import Audit

_HOLE = re.compile(r"\{(\w+)\}")
UNKNOWN = ("cancelled", "timeout", "unknown")  # outcomes after which nobody knows whether the effect happened


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An effect that was begun and of which nobody knows whether it happened."""

    at: float  # when it was begun, seconds since the epoch
    tenant: str
    tool: str
    effect: str
    agent: str
    run: str
    trace: str
    key: str  # the idempotency key: the same for every attempt at this effect
    ended: str  # "" = no outcome was recorded, else "cancelled", "timeout" or "unknown"
    log: str  # where the intent is: `agentops audit prove LOG INDEX`
    index: int


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


def unfinished(found: Iterable[Mapping[str, Any]], before: float) -> list[Unfinished]:
    """Effects whose end nobody knows, oldest first: what a person must look at after a crash.

    An outcome ends its own intent; an outcome "ok" ends every earlier intent with the same key, because an idempotent
    tool does one key's effect once.

    Args:
        found: records of an audit log, in order of time.
        before: seconds since the epoch; what began later may still run.
    """
    begun: dict[tuple[str, str], list[tuple[Mapping[str, Any], str]]] = {}
    for record in found:
        which = (str(record.get("tenant", "")), str(record.get("key", "")))
        if record.get("type") == "tool.intent":
            begun.setdefault(which, []).append((record, ""))
        elif record.get("type") == "tool.outcome" and begun.get(which):
            status = str(record.get("status", ""))
            if status == "ok":
                del begun[which]
            else:
                last = begun[which].pop()[0]
                if status in UNKNOWN:
                    begun[which].append((last, status))
    rows = [
        Unfinished(
            ended=ended,
            **{name: record[name] for name in Unfinished.__dataclass_fields__ if name != "ended"},
        )
        for attempts in begun.values()
        for record, ended in attempts
        if record["at"] < before
    ]
    return sorted(rows, key=lambda row: row.at)


def shape(template: str) -> str:
    """A tag template whatever its arguments are called: what a write and a read of the same thing have in common."""
    return _HOLE.sub("{}", template)


def tags(templates: tuple[str, ...], arguments: Mapping[str, Json]) -> tuple[str, ...]:
    """Tag templates filled in: `order:{order_id}` -> `order:SO-10001`; other values as JSON."""

    def fill(match: re.Match[str]) -> str:
        value = arguments.get(match[1])
        return value if isinstance(value, str) else orjson.dumps(value).decode()

    return tuple(_HOLE.sub(fill, template) for template in templates)
