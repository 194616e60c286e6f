"""What a call is decided on, and the decision: sources and labels of arguments, counters, hosts, approvals.

Invariant: a call gets on only with an "allow" of the policies for exactly its canonical arguments, and may connect only
to the addresses that the allow was made on; all else is a `Refused`, which is recorded. It reserves and runs nothing,
and an approval it rests on is used by the gateway.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from agentops.act.lookup import Resolver, look_up, pins
from agentops.act.protocols import DecisionRecords, Workers
from agentops.errors import PolicyError
from agentops.types import CallStatus, Decision, Json, Labels, Run, Tool, ToolCall

if TYPE_CHECKING:  # built by the conductors; a tool's module must not load Cedar
    from agentops.policy import Approvals, Budgets, LivePolicy, PolicySet, Readings


class Refused(Exception):
    """Why a call does not get on."""

    def __init__(self, status: CallStatus, error: str, decision: Decision | None = None, approval_id: str = "") -> None:
        super().__init__(error)
        self.status, self.error, self.decision, self.approval_id = status, error, decision, approval_id


@dataclass(frozen=True, slots=True)
class Allowed:
    """An allowing decision and what it rests on."""

    decision: Decision
    approval_id: str = ""  # "" = none was needed
    pins: Mapping[str, str] = field(default_factory=dict)  # "host:port" -> the address the decision was made on


class Deciding:
    """Decides calls for a gateway.

    Args:
        policy, approvals, budgets, readings, decisions, workers, resolver: as of `ToolGateway`.
        tell: records a decision that is no allow: run, tool, call, decision, approval it waits for.
    """

    def __init__(
        self,
        policy: "PolicySet | LivePolicy",
        approvals: "Approvals",
        budgets: "Budgets",
        readings: "Readings",
        decisions: DecisionRecords | None,
        workers: Workers | None,
        resolver: Resolver,
        tell: Callable[[Run, Tool, ToolCall, Decision, str], None],
    ) -> None:
        self._policy, self._approvals, self._budgets, self._readings = policy, approvals, budgets, readings
        self._decisions, self._workers, self._resolver, self._tell = decisions, workers, resolver, tell

    def labelled(
        self, run: Run, tool: Tool, call: ToolCall, said: Mapping[str, Json]
    ) -> tuple[ToolCall, dict[str, Json]]:
        """The call with the labels of its arguments, and what the policies may know of where they come from.

        `said`: texts among the arguments as they were given: `https://shop.example` stands in the request, its
        canonical spelling may not.
        """
        seen = self._readings.seen(run, effect=tool.spec.effect != "read")
        sources = dict(call.sources)
        if seen.integrity == "untrusted" or self._policy.mentions("source"):
            sources = self._readings.sources(
                run, {**call.arguments, **said}, tool.defaults, call.sources, tool.spec.amount_arg
            )
        labels = call.labels
        composed = seen.integrity == "untrusted" and "derived" in sources.values()
        if composed or "untrusted" in sources.values():  # what a model composes after outsiders spoke may be theirs
            labels = labels.join(Labels("untrusted", "public"))
        facts: dict[str, Json] = {
            "untrusted_seen": "untrusted" in (seen.integrity, call.labels.integrity),
            "seen_confidentiality": seen.join(call.labels).confidentiality,
            "sources": sources,
            "isolation": self._workers.level if tool.spec.isolation is not None and self._workers else "none",
            "approved": False,
        }
        return ToolCall(call.id, call.tool, call.arguments, labels, call.idempotency_key, sources), facts

    async def decide(self, run: Run, tool: Tool, call: ToolCall, known: Mapping[str, Json]) -> Allowed:
        """An allowing decision.

        Raises:
            Refused: denied, or a person must decide first.
            StoreError: the shared state cannot answer.
        """
        calls, money = self._budgets.used(run)
        facts = {**known, "calls_used": calls, "money_used_cents": money}
        pinned = await self._look_up(run, tool, call, facts)
        decision = self._policy.decide(run, call, tool.spec, facts)
        if decision.effect == "approve":
            return await self._approved(run, tool, call, decision, facts, pinned)
        if self._decisions is not None:
            self._decisions.post(run, call, tool.spec, facts, decision)
        return self._allowed(run, tool, call, Allowed(decision, "", pinned))

    async def _look_up(self, run: Run, tool: Tool, call: ToolCall, facts: dict[str, Json]) -> dict[str, str]:
        """Add the addresses of hosts that the decision depends on to `facts`; returns what the call may connect to."""
        hosts = self._policy.hosts(run, call, tool.spec, facts)
        if not hosts:
            return {}
        facts["addresses"] = addresses = await look_up(hosts, self._resolver)
        return pins(hosts, addresses)

    async def _approved(
        self, run: Run, tool: Tool, call: ToolCall, asked: Decision, facts: dict[str, Json], pinned: dict[str, str]
    ) -> Allowed:
        """The decision under the approval of this very call; asks for one when there is none.

        `pinned`: addresses that are in `facts` already, because whether to ask depended on them.
        """
        try:
            approval = self._approvals.request(run, call, tool.spec, asked)
        except PolicyError as error:  # too much to be shown to a person, or too many wait already
            denied = replace(asked, effect="deny", reason=str(error))
            self._tell(run, tool, call, denied, "")
            raise Refused("denied", denied.reason, denied) from None
        decision = asked
        if approval.status == "approved":
            facts = {**facts, "approved": approval.approver}
            pinned = {**pinned, **await self._look_up(run, tool, call, facts)}
            decision = self._policy.decide(run, call, tool.spec, facts)
        if self._decisions is not None:
            self._decisions.post(run, call, tool.spec, facts, decision)
        if approval.status == "approved":
            denied = replace(decision, effect="deny")  # it asks for more than was approved
            decision = decision if decision.effect == "allow" else denied
            return self._allowed(run, tool, call, Allowed(decision, approval.id, pinned))
        self._tell(run, tool, call, asked, approval.id)
        if approval.status == "denied":
            raise Refused("denied", f"{call.tool}: a colleague declined this", asked)
        if approval.status == "consumed":
            raise Refused(
                "denied", f"{call.tool}: this was approved and carried out already, and is not repeated", asked
            )
        raise Refused("pending", asked.reason, asked, approval.id)

    def _allowed(self, run: Run, tool: Tool, call: ToolCall, found: Allowed) -> Allowed:
        if found.decision.effect != "allow":
            self._tell(run, tool, call, found.decision, "")
            raise Refused("denied", found.decision.reason, found.decision)
        return found
