"""The only door to a tool. Every call takes the same path:

    canonicalise -> stopped? -> label arguments -> reserve budget -> [look up hosts] -> decide -> approval -> [cache]
        -> record -> run -> label -> record -> settle

Invariant: the tool receives exactly the arguments the decision was made on, after a durable record of the intent when
it changes anything (a read's record is handed in first and durable with the log's next flush). Whatever fails on the
way is a refusal with a safe text, never an exception and never an allow. A cached result is decided on and recorded
like any other. An effect whose end is unknown stays recorded as an intent without outcome, or with outcome "cancelled",
and stays charged; nothing repeats it.
"""

import asyncio
import functools
import hashlib
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import orjson

from agentops.act import bounds, records
from agentops.act.deciding import Allowed, Deciding, Refused
from agentops.act.invoke import Outcome, internal_error, invoke
from agentops.act.lookup import Resolver, system_resolver
from agentops.act.protocols import DecisionRecords, KillSwitch, Workers
from agentops.act.tool import Context
from agentops.act.tool import arguments as canonical_arguments
from agentops.cache import Cache, CacheKey, scope
from agentops.errors import AgentopsError, AuditError, StoreError, ToolError
from agentops.graph import Clock
from agentops.types import Decision, Json, Labels, Run, Tool, ToolCall, ToolResult

if TYPE_CHECKING:  # built by the conductors; a tool's module must not load Cedar, OpenTelemetry and DuckDB
    from agentops.audit import Audit
    from agentops.policy import Approvals, Budgets, Effects, LivePolicy, PolicySet, Readings, Reservation
    from agentops.redact import Redactor
    from agentops.trace import Tracing

TURNS = 8  # calls of one event loop between the kill switch and their tool
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_LOG = logging.getLogger(__name__)


class _Failed(Exception):
    """How a shared read ended, for all who wait for it."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.status)
        self.outcome = outcome


class ToolGateway:
    """Implements `protocols.Gateway`.

    Args:
        tools: every tool of the project, by name.
        policy: decides; default deny.
        audit: where decisions, intents and outcomes are recorded.
        approvals: what waits for a person.
        budgets: calls and money per run and per user and day.
        readings: what conversations have read: labels, and values that later arguments may come from.
        effects: which effects were begun, for tools that would repeat one.
        cache: results of reads that may be reused.
        world: what the tools work on, handed to them as `ctx.world`.
        clock: deadlines are measured on it.
        tracing: one `execute_tool` span per call; None: no spans.
        redactor: for texts of errors.
        kill: stops tools, agents or users at once; None: nothing can be stopped (simulation).
        decisions: keeps what was decided on, encrypted, so that another policy can be tried on it; None: nothing.
        workers: runs isolated tools in processes of their own; None: such a tool is refused.
        resolver: finds the addresses of hosts in arguments.
    """

    def __init__(
        self,
        tools: Mapping[str, Tool],
        policy: "PolicySet | LivePolicy",
        audit: "Audit",
        approvals: "Approvals",
        budgets: "Budgets",
        readings: "Readings",
        effects: "Effects",
        cache: Cache,
        world: Any,
        clock: Clock,
        tracing: "Tracing | None",
        redactor: "Redactor",
        *,
        kill: KillSwitch | None = None,
        decisions: DecisionRecords | None = None,
        workers: Workers | None = None,
        resolver: Resolver = system_resolver,
    ) -> None:
        self._tools = dict(tools)
        self._kill, self._workers = kill, workers
        self._audit = audit
        self._approvals = approvals
        self._budgets = budgets
        self._readings = readings
        self._effects = effects
        self._cache = cache
        self._world = world
        self._clock = clock
        self._tracing = tracing
        self._redactor = redactor
        self._deciding = Deciding(policy, approvals, budgets, readings, decisions, workers, resolver, self._tell)
        self._read = {records.shape(template) for tool in self._tools.values() for template in tool.spec.reads}
        self._lookers = {name for name, one in self._tools.items() if '"uri"' in json.dumps(dict(one.spec.parameters))}
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        self._background: set[asyncio.Future[None]] = set()

    async def call(self, run: Run, call: ToolCall) -> ToolResult:
        """Run one tool call, or say why not.

        Returns:
            status "ok" with the value; "denied" by policy or budget; "pending" with the approval to wait for;
            "timeout"; "error". `error` is safe to show to model and customer.

        Raises:
            asyncio.CancelledError: the caller was cancelled; the call's end is recorded all the same.
        """
        if self._tracing is None:
            return await self._call(run, call)
        from agentops.trace import names
        from agentops.trace.tracing import set_attributes

        known = call.tool if call.tool in self._tools else "unknown"
        given = {names.TOOL: known, names.TOOL_CALL_ID: call.id}
        with self._tracing.span(f"{names.EXECUTE_TOOL} {known}", names.EXECUTE_TOOL, given) as span:
            result = await self._call(run, call, lambda encoded: span.set_attribute(names.TOOL_ARGUMENTS, encoded))
            set_attributes(
                span,
                {
                    names.CALL_STATUS: result.status,
                    names.CALL_ERROR: result.error or None,
                    names.CACHED: result.cached,
                    names.POLICIES: list(result.decision.policies) if result.decision else None,
                    names.APPROVAL_ID: result.approval_id or None,
                },
            )
            if result.status == "ok":
                span.set_attribute(names.TOOL_RESULT, orjson.dumps(result.value).decode())
            elif result.status in ("error", "timeout"):
                from opentelemetry.trace import Status, StatusCode

                span.set_attribute(names.ERROR_TYPE, result.status)
                span.set_status(Status(StatusCode.ERROR, result.error))
            return result

    async def _call(self, run: Run, call: ToolCall, tell: Callable[[str], object] | None = None) -> ToolResult:
        started = self._clock.now()
        labels = call.labels
        decision: Decision | None = None
        approval_id, cached = "", False
        try:
            given = call.arguments
            tool, call = self._canonical(run, call, tell)
            said = {name: value for name, value in given.items() if isinstance(value, str)}
            await self._stopped(run, tool, call)
            reservation, spent, moved = None, False, False
            try:
                async with self._turn(tool):
                    call, facts = self._deciding.labelled(run, tool, call, said)
                    labels = tool.spec.labels.join(call.labels)
                    reservation = self._reserve(run, tool, call)
                    allowed = await self._deciding.decide(run, tool, call, facts)
                    decision = allowed.decision
                    await self._admit(run, tool, call, allowed)
                    spent = moved = True  # from here on its end may be unknown
                outcome, cached = await self._carry_out(run, tool, call, allowed)
                moved = not outcome.refused
                labels = self._remember(run, tool, call, outcome, labels)
            finally:
                if reservation is not None:
                    self._settle(reservation, spent, moved, self._clock.now() - started)
        except Refused as refused:
            outcome = Outcome(refused.status, error=refused.error)
            decision, approval_id = refused.decision or decision, refused.approval_id
        except StoreError as error:  # before the tool runs, or its labels cannot be kept: then its result stays here
            _LOG.warning("a call was refused: %s", error)
            outcome = Outcome(
                "error",
                error=f"{call.tool}: whether this may be done cannot be checked now; try again later",
            )
        except Exception as error:  # noqa: BLE001 - fail closed: nothing unforeseen may pass or reach the caller
            outcome = internal_error(call.tool if call.tool in self._tools else "unknown", error, self._redactor)
        return ToolResult(
            call.id,
            call.tool,
            outcome.status,
            outcome.value,
            outcome.error,
            cached,
            started,
            self._clock.now(),
            labels,
            decision,
            approval_id if outcome.status == "pending" else "",
        )

    def _turn(self, tool: Tool) -> AbstractAsyncContextManager[object]:
        """A turn to be decided on: a few calls at a time, so that of many that come at once the first tools run early.

        Calls in one event loop share the processor step by step: without turns all of them would be through only when
        the last one is. Looking a host up takes long, so a call that may do so takes no turn from others.
        """
        if tool.spec.name in self._lookers:
            return nullcontext()
        return self._turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(TURNS))

    # ---------------------------------------------------------------- before the decision

    def _canonical(self, run: Run, call: ToolCall, tell: Callable[[str], object] | None) -> tuple[Tool, ToolCall]:
        """The tool and the call with the very arguments it will get: validated, completed, private.

        `tell` gets the arguments as JSON: as they were given, then as they will be.
        """
        tool = self._tools.get(call.tool)
        if tool is None:
            shown = call.tool if _NAME.fullmatch(call.tool) else "?"
            self._post(
                {
                    "type": "tool.decision",
                    "tenant": run.principal.tenant,
                    "run": run.id,
                    "tool": shown,
                    "decision": "unknown-tool",
                }
            )
            raise Refused("denied", f"there is no tool {shown!r}")
        excess = bounds.excess(call.arguments)
        if excess:
            raise Refused("error", f"{call.tool}: the arguments are {excess}")
        try:
            if tell is not None:
                tell(_encoded(call.arguments).decode())
            encoded = _encoded(canonical_arguments(tool, call.arguments))
        except ToolError as error:
            raise Refused("error", self._redactor.text(str(error), run.principal.tenant)) from None
        except ValueError:  # half a surrogate pair
            raise Refused("error", f"{call.tool}: the arguments are not JSON") from None
        if len(encoded) > bounds.MAX_ARGUMENTS:
            raise Refused("error", f"{call.tool}: the arguments are more than {bounds.MAX_ARGUMENTS} bytes")
        if tell is not None:
            tell(encoded.decode())
        given = orjson.loads(encoded)
        key = call.idempotency_key or hashlib.sha256(f"{run.id}\n{call.id}".encode()).hexdigest()
        return tool, ToolCall(call.id, call.tool, given, call.labels, key, call.sources)

    async def _stopped(self, run: Run, tool: Tool, call: ToolCall) -> None:
        reason = await self._kill.stopped(run, tool.spec) if self._kill is not None else ""
        if reason:
            raise self._denied(run, tool, call, reason, "kill-switch")

    def _reserve(self, run: Run, tool: Tool, call: ToolCall) -> "Reservation":
        from agentops.policy import counters  # loaded by whoever built the budgets

        if run.deadline <= self._clock.now():
            raise Refused("timeout", f"{call.tool}: the time for this request is over")
        money = call.arguments[tool.spec.amount_arg] if tool.spec.effect == "money" else 0
        if type(money) is not int or not 0 <= money < 2**53:
            raise Refused(
                "denied", f"{call.tool}: {tool.spec.amount_arg} must be a whole number, not negative, below 2^53"
            )
        reserved = self._budgets.reserve(run, 1, money, effect=tool.spec.effect)
        if isinstance(reserved, counters.Refused):
            raise self._denied(run, tool, call, reserved.reason, f"budget:{reserved.owner}:{reserved.kind}")
        return reserved

    # ---------------------------------------------------------------- the call

    async def _admit(self, run: Run, tool: Tool, call: ToolCall, allowed: Allowed) -> None:
        """All that must hold before the tool runs. When this returns, an effect is marked as begun and on record.

        When it does not return, nothing ran, and nothing stays marked as begun.
        """
        effect, once = tool.spec.effect != "read", _once(tool)
        kind = "tool.intent" if effect else "tool.decision"
        record = self._record(run, tool, call, kind, allowed.decision, allowed.approval_id)
        stored = tuple(template for template in tool.spec.invalidates if records.shape(template) in self._read)
        if stored:  # before it is written: no reader may find it without its labels
            self._readings.store(run.principal.tenant, records.tags(stored, call.arguments), call.labels)
        if once:
            self._begin(run, tool, call, allowed.decision)
        try:
            self._use_approval(run, tool, call, allowed)
            if effect:
                await self._audit.append(record)
            else:
                self._audit.post(record)
        except BaseException as failed:
            if once:
                self._forget(run, call)
            if isinstance(failed, AuditError):
                reason = f"{call.tool}: it cannot be recorded, so it was not done"
                raise Refused("error", reason, allowed.decision) from None
            if isinstance(failed, asyncio.CancelledError) and effect:  # the intent may be on disk
                self._post(records.ended(self._audit, run, call, "skipped", False, b""))
            raise
        if allowed.approval_id:
            self._readings.vouch(run, call.arguments)

    def _use_approval(self, run: Run, tool: Tool, call: ToolCall, allowed: Allowed) -> None:
        id, decision = allowed.approval_id, allowed.decision
        if id and not self._approvals.consume(id, call, tool.spec, decision.policy_digest, run):
            raise self._denied(run, tool, call, "its approval does not hold any more", "approval-used", decision)

    async def _carry_out(self, run: Run, tool: Tool, call: ToolCall, allowed: Allowed) -> tuple[Outcome, bool]:
        """Run or reuse, record. Returns the outcome and whether it came from the cache."""
        outcome, cached, status = Outcome("error"), False, "cancelled"
        try:
            if tool.spec.cache is not None and tool.spec.effect == "read" and not allowed.approval_id:
                outcome, cached = await self._cached(run, tool, call, allowed)
            else:
                outcome = await self._invoke(run, tool, call, allowed)
            status = outcome.status
        except Exception:
            status = "error"
            raise
        finally:
            shown = _shown(tool, status, outcome)
            self._post(records.ended(self._audit, run, call, shown, cached, outcome.encoded))
            if _once(tool) and outcome.refused:  # the tool said no cleanly: nothing was done
                self._forget(run, call)
            if tool.spec.invalidates:  # also when its end is unknown, and when the caller is cancelled
                stale = records.tags(tool.spec.invalidates, call.arguments)
                await self._apart(self._cache.invalidate(run.principal.tenant, stale))
        return outcome, cached

    def _begin(self, run: Run, tool: Tool, call: ToolCall, decision: Decision) -> None:
        if not self._effects.begin(run.principal.tenant, call.idempotency_key):
            reason = "this was begun before and is not repeated; the audit log has how it ended, if anybody knows"
            raise self._denied(run, tool, call, reason, "effect-begun", decision)

    def _forget(self, run: Run, call: ToolCall) -> None:
        try:
            self._effects.forget(run.principal.tenant, call.idempotency_key)
        except StoreError as error:
            _LOG.warning("an effect stays marked as begun: %s", error)

    async def _cached(self, run: Run, tool: Tool, call: ToolCall, allowed: Allowed) -> tuple[Outcome, bool]:
        rule = tool.spec.cache
        assert rule is not None
        who = run.principal
        rights = [*run.scopes, *(f"role:{role}" for role in who.roles), *(f"actor:{actor}" for actor in who.actors)]
        asker = scope("" if rule.shared else who.user, rights)
        key = CacheKey(who.tenant, asker, tool.spec.digest, allowed.decision.policy_digest, call.arguments)

        async def read() -> Json:
            outcome = await self._invoke(run, tool, call, allowed)
            if outcome.status != "ok":
                raise _Failed(outcome)
            return outcome.stored()

        try:
            value, hit = await self._cache.get_or_call(key, rule, records.tags(rule.tags, call.arguments), read)
        except _Failed as failed:
            return failed.outcome, False
        return Outcome.restored(value), hit

    async def _invoke(self, run: Run, tool: Tool, call: ToolCall, allowed: Allowed) -> Outcome:
        context = Context(run, self._world, self._clock, call.id, call.idempotency_key, allowed.pins)
        return await invoke(tool, context, call.arguments, self._redactor, self._workers)

    # ---------------------------------------------------------------- records and bookkeeping

    def _record(
        self, run: Run, tool: Tool, call: ToolCall, kind: str, decision: Decision, approval_id: str = ""
    ) -> dict[str, Json]:
        try:
            record = records.decided(self._audit, kind, run, tool.spec, call, decision, approval_id)
        except AuditError:
            raise Refused("error", f"{call.tool}: the arguments have no canonical form, so nothing was done") from None
        if tool.spec.isolation is not None:
            record["isolation"] = self._workers.level if self._workers is not None else "none"
        return record

    def _tell(self, run: Run, tool: Tool, call: ToolCall, decision: Decision, approval_id: str = "") -> None:
        self._post(self._record(run, tool, call, "tool.decision", decision, approval_id))

    def _denied(
        self, run: Run, tool: Tool, call: ToolCall, reason: str, rule: str, allowed: Decision | None = None
    ) -> Refused:
        """A recorded denial that is the gateway's own, also of what the policies allowed."""
        digest = allowed.policy_digest if allowed else ""
        denied = Decision("deny", f"{call.tool}: {reason}", (rule,), digest)
        self._tell(run, tool, call, denied)
        return Refused("denied", denied.reason, denied)

    def _post(self, record: dict[str, Json]) -> None:
        """Record what is decided or over already. A log that fails refuses the next call, not this one's result."""
        try:
            self._audit.post(record)
        except AuditError as error:
            _LOG.error("the audit record %s was not written: %s", record["type"], error)

    def _settle(self, reservation: "Reservation", spent: bool, moved: bool, seconds: float) -> None:
        try:
            self._budgets.settle(reservation, spent, milliseconds=int(seconds * 1000), moved=moved)
        except AgentopsError as error:
            _LOG.warning("a reservation stays counted as spent: %s", error)

    def _remember(self, run: Run, tool: Tool, call: ToolCall, outcome: Outcome, labels: Labels) -> Labels:
        """Join what was returned into what the conversation has read; the labels of the whole result.

        `labels`: of the tool and the call's arguments. A declassifier's refusal keeps them: its text may repeat those.
        """
        if tool.spec.declassifies and outcome.status == "ok":
            labels = tool.spec.labels
        if tool.spec.reads:
            labels = labels.join(
                self._readings.stored(run.principal.tenant, records.tags(tool.spec.reads, call.arguments))
            )
        if tool.spec.declassifies and labels != labels.join(call.labels):
            self._post(records.declassified(run, call, labels))
        # Also an error's text is what the tool's sources wrote.
        marked = [(value, labels.join(marks)) for value, marks in outcome.marked]
        parts = [(outcome.plain or outcome.error, labels), *marked]
        self._readings.remember(run, parts, effect=tool.spec.effect != "read")
        return functools.reduce(Labels.join, (marks for _, marks in marked), labels)

    async def _apart(self, work: Awaitable[None]) -> None:
        """Wait for `work`, which goes on when the caller is cancelled."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        await asyncio.shield(task)


def _shown(tool: Tool, status: str, outcome: Outcome) -> str:
    """How an effect ended as the audit log has it: whether it happened is more than whether it answered."""
    if tool.spec.effect == "read":
        return status
    if outcome.refused:
        return "skipped" if status == "timeout" else status
    return "unknown" if status == "error" else status


def _once(tool: Tool) -> bool:
    """Whether the gateway must see to it that an effect is not repeated, because the tool does not."""
    return tool.spec.effect != "read" and not tool.spec.idempotent


def _encoded(arguments: Mapping[str, Json]) -> bytes:
    """As JSON. The standard encoder: orjson would turn NaN into null, and the decision into one on something else."""
    return json.dumps(dict(arguments), allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
