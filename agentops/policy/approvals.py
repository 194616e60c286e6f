"""Approvals: a suspended call, what a person must see to decide it, and the one use of their yes.

Invariant: an approval is valid for exactly one call: same tenant and user, same session and idempotency key, same tool
digest, same canonical arguments, same policies. It is decided once, by someone else, and consumed once, over any
number of processes and restarts. It runs nothing. The arguments lie in the state; audit records hold their digests.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import orjson
from pydantic import TypeAdapter, ValidationError

from agentops.audit import Audit, canonical, digest
from agentops.errors import PolicyError, StoreError
from agentops.graph import Clock
from agentops.store import State
from agentops.types import Decision, Json, Principal, Run, ToolCall, ToolSpec

VALID_S = 24 * 3600.0  # from the request to the use
MAX_REASON = 2_000  # characters
MAX_ARGUMENTS = 256 * 1024  # bytes, canonical
MAX_OPEN = 100  # that one user may have waiting: more would bury what matters, and be waved through
ATTEMPTS = 20
Status = Literal["pending", "approved", "denied", "expired", "consumed"]
RECALLED = "mcp-"  # begins the runs of other agents' calls
_ITEM = "approvals/item/"
_CALL = "approvals/call/"
_OPEN = "approvals/open/"


@dataclass(frozen=True, slots=True)
class Approval:
    """One call that waits, or waited, for a person."""

    id: str
    status: Status
    tool: str
    arguments: Mapping[str, Json]  # canonical, as the tool would receive them
    reason: str  # why the policies ask
    approver: str  # roles that must approve, joined with "+"
    tenant: str
    user: str  # who asked
    agent: str
    run: str
    session: str
    trace_id: str
    call_id: str
    idempotency_key: str
    tool_digest: str
    arguments_digest: str
    policy_digest: str
    policies: tuple[str, ...]
    requested_at: float
    expires_at: float
    decided_by: str = ""
    decided_at: float = 0.0
    decision_reason: str = ""
    consumed_at: float = 0.0
    actors: tuple[str, ...] = ()  # services through which it was asked

    @property
    def recalled(self) -> bool:
        """Whether who asked has to call again: no request waits for the decision."""
        return self.run.startswith(RECALLED)

    def age(self, now: float) -> float:
        """Seconds since the request."""
        return max(0.0, now - self.requested_at)


_STORED = TypeAdapter(Approval)


class Approvals:
    """Request, list, decide, consume. Every change is one compare-and-set on the shared state."""

    def __init__(self, state: State, clock: Clock, audit: Audit | None = None) -> None:
        """`audit`: where decisions are recorded before they count; None: the caller records them."""
        self._state = state
        self._clock = clock
        self._audit = audit

    def request(self, run: Run, call: ToolCall, spec: ToolSpec, decision: Decision) -> Approval:
        """The approval of this call, made if there is none: the same call in the same session gives the same one.

        Other arguments, another tool version or other policies give another one; an expired one is asked for again.

        Raises:
            PolicyError: the decision does not ask for approval, the call has no idempotency key or is too large, or
                `MAX_OPEN` calls of this user wait already.
            StoreError: the shared state cannot answer.
        """
        if decision.effect != "approve" or not decision.approver:
            raise PolicyError(f"{spec.name}: the policies ask for no approval (decision {decision.effect!r})")
        if not call.idempotency_key:
            raise PolicyError(f"{spec.name}: a call without idempotency key cannot wait for approval")
        if len(canonical(dict(call.arguments))) > MAX_ARGUMENTS:
            raise PolicyError(f"{spec.name}: arguments above {MAX_ARGUMENTS} bytes cannot be shown to a person")
        now = self._clock.now()
        fresh = _fresh(run, call, spec, decision, now)
        for _ in range(ATTEMPTS):
            found = self._read(fresh.id)
            known = found is not None and self._seen(found[0]).status != "expired"
            if not known:
                self._counted(fresh)
            if found is not None and known:
                approval = found[0]
            elif self._write(fresh, 0 if found is None else found[1]):
                approval = fresh
            else:
                continue
            pointer, target = _CALL + _call_key(run, call), approval.id.encode()
            known = self._state.get(pointer)
            if known is None or known[0] != target:
                self._state.put(pointer, target)
            return approval
        raise StoreError("the approval was changed by others again and again: try again")

    def find(self, run: Run, call: ToolCall) -> Approval | None:
        """The latest approval asked for this call by this user in this session."""
        pointer = self._state.get(_CALL + _call_key(run, call))
        found = self._read(pointer[0].decode()) if pointer else None
        return self._seen(found[0]) if found else None

    def get(self, id: str, tenant: str) -> Approval:
        """One approval.

        Raises:
            PolicyError: there is none with this id in this tenant.
        """
        return self._seen(self._of_tenant(id, tenant)[0])

    def list(self, status: str = "pending", tenant: str = "") -> list[Approval]:
        """Approvals with a status ("" = all), oldest first; of one tenant, when one is named.

        Raises:
            PolicyError: there is no such status.
        """
        if status and status not in get_args(Status):
            raise PolicyError(f"status {status!r} does not exist: use {', '.join(get_args(Status))}, or none for all")
        found = [self._seen(_decoded(key, value)) for key, value, _ in self._state.scan(_ITEM)]
        chosen = [one for one in found if (not status or one.status == status) and (not tenant or one.tenant == tenant)]
        return sorted(chosen, key=lambda one: (one.requested_at, one.id))

    def decide(self, id: str, approve: bool, by: Principal, reason: str = "") -> Approval:
        """Approve or deny, once. The same again by the same person changes nothing: what waits may go on then, when
        carrying it on failed the first time.

        Args:
            id: as `list` shows it.
            approve: True lets the call run once, False refuses it.
            by: the person; needs every role the approval names, must be of the same tenant, and neither the requester
                nor a service that asked for them.
            reason: kept with the decision, at most 2,000 characters.

        Raises:
            PolicyError: not found, not allowed, expired, or decided already.
        """
        if len(reason) > MAX_REASON:
            raise PolicyError(f"the reason has {len(reason)} characters: at most {MAX_REASON}")
        for _ in range(ATTEMPTS):
            stored, version = self._of_tenant(id, by.tenant)
            approval = self._seen(stored)
            if approval.status == "expired":
                raise PolicyError(f"approval {id} has expired: the customer must ask again")
            if (approval.status, approval.decided_by) == ("approved" if approve else "denied", by.user):
                return approval
            if approval.status != "pending":
                raise PolicyError(f"approval {id} is already {approval.status}: a decision is made once")
            if by.tenant == approval.tenant and by.user in (approval.user, *approval.actors):
                raise PolicyError(f"approval {id} was asked for by {by.user!r}: another person must decide")
            missing = sorted(set(approval.approver.split("+")) - by.roles)
            if missing:
                raise PolicyError(f"approval {id} needs role {', '.join(missing)}: {by.user!r} does not have it")
            decided = replace(
                stored,
                status="approved" if approve else "denied",
                decided_by=by.user,
                decided_at=self._clock.now(),
                decision_reason=reason,
            )
            if self._audit is not None:  # durable before it counts: no yes without a record
                self._audit.append_now(approval_record(decided, "approval.decided", self._audit))
            if self._write(decided, version):
                return decided
        raise StoreError("the approval was changed by others again and again: try again")

    def consume(self, id: str, call: ToolCall, spec: ToolSpec, policy_digest: str, run: Run | None = None) -> bool:
        """Use an approved approval: True exactly once, and only for the very call that was approved.

        Args:
            id: of the approval.
            call: canonical arguments, exactly what the tool will receive.
            spec: the tool as it is now.
            policy_digest: of the policies as they are now.
            run: when given, must be of the tenant, user, agent and session that asked.
        """
        found = self._read(id)
        if found is None:
            return False
        stored, version = found
        approval = self._seen(stored)
        same = (
            approval.status == "approved"
            and approval.tool == spec.name == call.tool
            and approval.tool_digest == spec.digest
            and approval.arguments_digest == digest(dict(call.arguments))
            and approval.policy_digest == policy_digest
            and approval.idempotency_key == call.idempotency_key
            and (run is None or _asker(run) == (approval.tenant, approval.user, approval.agent, approval.session))
        )
        # One compare-and-set decides between any number of workers; the loser sees another version.
        return same and self._write(replace(stored, status="consumed", consumed_at=self._clock.now()), version)

    def prune(self, before: float) -> int:
        """Remove approvals that nobody can use any more: denied, used or expired before a time (seconds, epoch).

        The audit log keeps what was asked and decided. Returns how many were removed.
        """
        removed = 0
        for key, value, version in self._state.scan(_ITEM):
            approval = self._seen(_decoded(key, value))
            ended = approval.consumed_at or approval.decided_at or approval.expires_at
            useless = approval.status in ("denied", "expired", "consumed") and ended < before
            if useless and self._state.compare_and_set(key, None, version):
                removed += 1
        for key, value, version in self._state.scan(_OPEN):
            if max(_until(value).values(), default=0.0) < before:
                self._state.compare_and_set(key, None, version)
        for key, value, version in self._state.scan(_CALL):
            if self._state.get(_ITEM + value.decode()) is None:
                self._state.compare_and_set(key, None, version)
        return removed

    def _counted(self, fresh: Approval) -> None:
        """Count an approval that is about to be asked for among those of its user."""
        key = _OPEN + hashlib.sha256(canonical([fresh.tenant, fresh.user])).hexdigest()
        for _ in range(ATTEMPTS):
            found = self._state.get(key)
            listed = _until(found[0]) if found else {}
            kept = {id: until for id, until in listed.items() if until > fresh.requested_at and id != fresh.id}
            if len(kept) >= MAX_OPEN:
                kept = {id: until for id, until in kept.items() if self._waits(id)}
            if len(kept) >= MAX_OPEN:
                raise PolicyError(
                    f"{fresh.tool}: {MAX_OPEN} calls of this user wait for approval already: no more is asked for "
                    "until some are decided"
                )
            data = orjson.dumps({**kept, fresh.id: fresh.expires_at})
            if self._state.compare_and_set(key, data, found[1] if found else 0):
                return
        raise StoreError("the user's approvals were changed by others again and again: try again")

    def _waits(self, id: str) -> bool:
        found = self._read(id)
        return found is not None and self._seen(found[0]).status == "pending"

    def _seen(self, approval: Approval) -> Approval:
        """The approval as of now: what was not used in time has expired."""
        open_still = approval.status in ("pending", "approved")
        return (
            replace(approval, status="expired") if open_still and self._clock.now() >= approval.expires_at else approval
        )

    def _of_tenant(self, id: str, tenant: str) -> tuple[Approval, int]:
        found = self._read(id)
        if found is None or found[0].tenant != tenant:
            raise PolicyError(f"there is no approval {id[:80]!r}: `agentops approvals list` shows what waits")
        return found

    def _read(self, id: str) -> tuple[Approval, int] | None:
        if not id.isascii() or not id.isalnum() or len(id) > 64:
            return None
        found = self._state.get(_ITEM + id)
        return (_decoded(id, found[0]), found[1]) if found else None

    def _write(self, approval: Approval, version: int) -> bool:
        return self._state.compare_and_set(_ITEM + approval.id, _STORED.dump_json(approval), version)


def approval_record(approval: Approval, kind: str, audit: Audit) -> dict[str, Json]:
    """An audit record of an approval: digests where the values are personal, under the key of whose they are.

    Raises:
        StoreError: the subjects' keys cannot be used.
    """
    tenant, asked, decided = approval.tenant, approval.user, approval.decided_by
    return {
        "type": kind,
        "approval": approval.id,
        "status": approval.status,
        "tool": approval.tool,
        "tool_digest": approval.tool_digest,
        "arguments": audit.digest(dict(approval.arguments), tenant, asked),
        "policy": approval.policy_digest,
        "policies": list(approval.policies),
        "tenant": tenant,
        "subject": audit.subject(tenant, asked),
        "user": audit.digest(asked, tenant, asked),
        "decider": audit.subject(tenant, decided) if decided else "",
        "decided_by": audit.digest(decided, tenant, decided) if decided else "",
        "decision_reason": audit.digest(approval.decision_reason, tenant, asked),
        "run": approval.run,
        "trace": approval.trace_id,
        "call": approval.call_id,
    }


def _fresh(run: Run, call: ToolCall, spec: ToolSpec, decision: Decision, now: float) -> Approval:
    arguments_digest = digest(dict(call.arguments))
    tenant, user, agent, session = _asker(run)
    bound = [_call_key(run, call), spec.name, spec.digest, arguments_digest, decision.policy_digest, agent]
    return Approval(
        id="a" + hashlib.sha256(canonical(bound)).hexdigest()[:20],
        status="pending",
        tool=spec.name,
        arguments=dict(call.arguments),
        reason=decision.reason,
        approver=decision.approver,
        tenant=tenant,
        user=user,
        agent=agent,
        run=run.id,
        session=session,
        trace_id=run.trace_id,
        call_id=call.id,
        idempotency_key=call.idempotency_key,
        tool_digest=spec.digest,
        arguments_digest=arguments_digest,
        policy_digest=decision.policy_digest,
        policies=decision.policies,
        requested_at=now,
        expires_at=now + VALID_S,
        actors=run.principal.actors,
    )


def _asker(run: Run) -> tuple[str, str, str, str]:
    return run.principal.tenant, run.principal.user, run.agent.name, run.session


def _call_key(run: Run, call: ToolCall) -> str:
    parts = [run.principal.tenant, run.principal.user, run.session, call.idempotency_key]
    return hashlib.sha256(canonical(parts)).hexdigest()


def _until(data: bytes) -> dict[str, float]:
    """When each listed approval expires, by id."""
    try:
        listed = orjson.loads(data)
        if isinstance(listed, dict) and all(isinstance(until, int | float) for until in listed.values()):
            return listed
    except orjson.JSONDecodeError:
        pass  # told below, like every other form that is not ours
    raise StoreError("the list of a user's approvals in the shared state is damaged: remove it")


def _decoded(name: str, data: bytes) -> Approval:
    try:
        return _STORED.validate_json(data)
    except ValidationError:
        raise StoreError(f"approval {name[-24:]!r} in the shared state is damaged: nobody can decide it") from None
