"""Decisions kept with everything they were made on, and what another policy set would have said of them.

Invariant: a replay asks exactly what was asked: the same principal and ceiling, canonical arguments, labels, counters
and approvals; under the set that decided, it gives the same decisions. `post` never waits and never raises. The user's
words are not kept, and what is kept is encrypted under the user's key (`agentops.audit.sealed`).

It knows calls as they were: it cannot know what an agent would have done after another answer.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from agentops.audit.sealed import KEEP_DAYS, Reading, SealedRecords
from agentops.audit.subjects import SubjectKeys
from agentops.graph import Clock, RealClock
from agentops.policy.policyset import PolicySet
from agentops.types import Decision, Json, Run, ToolCall, ToolSpec

EXAMPLES = 5  # ids kept of each group


@dataclass(frozen=True, slots=True)
class Recorded:
    """One decision and what it was made on."""

    at: float
    run: Run
    call: ToolCall
    tool_digest: str
    facts: Mapping[str, Json]
    decision: Decision

    @property
    def id(self) -> str:
        """Trace and call: what `agentops traces show` and the audit log know it by."""
        return f"{self.run.trace_id}/{self.call.id}"


_RECORDED = TypeAdapter(Recorded)
_Group = tuple[str, str, str, str, tuple[str, ...], tuple[str, ...]]


class DecisionRecords:
    """Implements `act.protocols.DecisionRecords` over encrypted files."""

    def __init__(
        self, folder: Path, subjects: SubjectKeys, clock: Clock = RealClock(), keep_days: int = KEEP_DAYS
    ) -> None:
        """As `SealedRecords`, which keeps them."""
        self._sealed = SealedRecords(folder, subjects, clock, keep_days)

    def post(self, run: Run, call: ToolCall, spec: ToolSpec, facts: Mapping[str, Json], decision: Decision) -> None:
        """Keep a decision with everything it was made on. Never raises and never waits."""
        record = {
            "run": replace(run, request=""),
            "call": call,
            "tool_digest": spec.digest,
            "facts": facts,
            "decision": decision,
        }
        self._sealed.post(run.principal.tenant, run.principal.user, record)

    def recorded(self, since: float, until: float, tenant: str = "") -> "Decisions":
        """Decisions of `since` <= time < `until` (Unix seconds), of one tenant when it is named; may be iterated once.

        Raises:
            StoreError: while iterating, when the subjects' keys cannot be read.
        """
        return Decisions(self._sealed.read(since, until, tenant))

    def flush(self) -> None:
        """Return when everything posted so far is on disk."""
        self._sealed.flush()

    def prune(self) -> int:
        """Remove the days that are older than is kept; returns how many."""
        return self._sealed.prune()

    def close(self) -> None:
        """Write what waits. Safe to call twice."""
        self._sealed.close()


class Decisions:
    """Iterates over `Recorded`; meanwhile `missing` grows."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._unfit = 0

    def __iter__(self) -> Iterator[Recorded]:
        for one in self._reading:
            try:
                yield _RECORDED.validate_python({"at": one["at"], **one["record"]})
            except ValidationError:
                self._unfit += 1  # of another version of the product

    @property
    def missing(self) -> dict[str, int]:
        """Why decisions of this time cannot be replayed, with counts; empty when none is missing."""
        found = {
            "their person was erased": self._reading.erased,
            "not kept: too many at once, or the disk failed": self._reading.lost,
            "changed or damaged": self._reading.damaged,
            "written by another version": self._unfit,
        }
        return {why: count for why, count in found.items() if count}


@dataclass(frozen=True, slots=True)
class Change:
    """Decisions that would come out otherwise, all in the same way."""

    tool: str
    agent: str
    before: str  # allow, deny, or approve by whom
    after: str
    policies_before: tuple[str, ...]
    policies_after: tuple[str, ...]
    count: int
    examples: tuple[str, ...]  # at most 5 ids

    @property
    def denied(self) -> bool:
        """Whether something that was allowed would now be denied."""
        return self.before == "allow" and self.after == "deny"


@dataclass(frozen=True, slots=True)
class Diff:
    """What a policy set would have decided otherwise. Changes: denials of what was allowed first, then by count."""

    decisions: int
    changes: tuple[Change, ...]
    gone: Mapping[str, int] = field(default_factory=dict)  # tools that do not exist any more: not replayed
    changed: Mapping[str, int] = field(default_factory=dict)  # tools with another contract since: replayed under it


def diff(recorded: Iterable[Recorded], policies: PolicySet, tools: Mapping[str, ToolSpec]) -> Diff:
    """Ask `policies` what they say of each recorded decision.

    Args:
        recorded: the decisions.
        policies: another set, loaded for `tools`.
        tools: the tools as they are now.
    """
    count = 0
    gone: dict[str, int] = {}
    changed: dict[str, int] = {}
    groups: dict[_Group, list[str]] = {}
    for one in recorded:
        spec = tools.get(one.call.tool)
        if spec is None:
            gone[one.call.tool] = gone.get(one.call.tool, 0) + 1
            continue
        count += 1
        if spec.digest != one.tool_digest:
            changed[spec.name] = changed.get(spec.name, 0) + 1
        before, after = one.decision, policies.decide(one.run, one.call, spec, one.facts)
        if (before.effect, before.approver) == (after.effect, after.approver):
            continue
        key = (spec.name, one.run.agent.name, _shown(before), _shown(after), before.policies, after.policies)
        groups.setdefault(key, []).append(one.id)
    changes = [Change(*key, len(ids), tuple(ids[:EXAMPLES])) for key, ids in groups.items()]
    changes.sort(key=lambda one: (not one.denied, -one.count, one.tool, one.agent, one.before, one.after))
    return Diff(count, tuple(changes), gone, changed)


def _shown(decision: Decision) -> str:
    return f"approve by {decision.approver}" if decision.effect == "approve" else decision.effect
