"""What the recorded traffic used of what is granted: tools, scopes, permits and limits that could be smaller.

Invariant: everything said is counted in the records it was given, with the numbers beside it; below `MIN_DECISIONS`
nothing is said of an agent, and below it in all nothing at all. It changes no file. What was not used in a week may
still be needed in the next: `proposal` turns findings into a patch that a person reads.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from agentops.errors import PolicyError
from agentops.policy.cedar import Policy
from agentops.policy.identity import Identities
from agentops.policy.replay import Recorded
from agentops.types import AgentSpec, ToolSpec

MIN_DECISIONS = 100  # of an agent, and of a role or policy set as a whole
LOOSE = 0.75  # a ceiling is loose when this share of it would do
SPARE = 1.25  # of the 99th percentile, when a ceiling is proposed

Kind = Literal["unused-tool", "unused-scope", "unused-role-scope", "idle-permit", "idle-forbid", "loose-limit", "few"]


@dataclass(slots=True)
class AgentTraffic:
    """Decisions under one agent's ceiling."""

    decisions: int = 0
    used: Counter[str] = field(default_factory=Counter)  # tools of calls that were allowed, or that a person was asked
    calls: dict[str, int] = field(default_factory=dict)  # run -> most calls counted in it
    money: dict[str, int] = field(default_factory=dict)  # run -> most cents counted in it


@dataclass(slots=True)
class Traffic:
    """What was observed."""

    decisions: int = 0
    first: float = math.inf  # Unix times
    last: float = 0.0
    agents: dict[str, AgentTraffic] = field(default_factory=dict)
    role_decisions: Counter[str] = field(default_factory=Counter)
    role_scopes: dict[str, Counter[str]] = field(default_factory=dict)  # role -> scopes that its calls needed
    determined: Counter[str] = field(default_factory=Counter)  # policy id -> decisions it determined
    permitted: dict[str, Counter[str]] = field(default_factory=dict)  # policy id -> tools of the calls it allowed


@dataclass(frozen=True, slots=True)
class Finding:
    """One grant that the traffic did not need."""

    kind: Kind
    subject: str  # agent, role or policy
    what: str  # tool, scope or limit; "" = the subject itself
    message: str
    decisions: int  # that were looked at for it


@dataclass(frozen=True, slots=True)
class Needs:
    """The smallest grants under which all that was recorded would have come out the same, where there is evidence."""

    agents: Mapping[str, AgentSpec]
    role_scopes: Mapping[str, frozenset[str]]
    permit_tools: Mapping[str, frozenset[str]]  # permit -> tools it was needed for


def observe(recorded: Iterable[Recorded], tools: Mapping[str, ToolSpec]) -> Traffic:
    """Count what was asked for and what it needed."""
    seen = Traffic()
    for one in recorded:
        seen.decisions += 1
        seen.first, seen.last = min(seen.first, one.at), max(seen.last, one.at)
        agent = seen.agents.setdefault(one.run.agent.name, AgentTraffic())
        agent.decisions += 1
        roles = one.run.principal.roles
        seen.role_decisions.update(roles)
        seen.determined.update(one.decision.policies)
        spec = tools.get(one.call.tool)
        if one.decision.effect == "deny" or spec is None:
            continue
        agent.used[spec.name] += 1
        run = f"{one.run.principal.tenant}/{one.run.id}"
        for counts, fact in ((agent.calls, "calls_used"), (agent.money, "money_used_cents")):
            value = one.facts.get(fact)
            counts[run] = max(counts.get(run, 0), value if isinstance(value, int) else 0)
        for role in roles:
            seen.role_scopes.setdefault(role, Counter()).update(spec.scopes)
        if one.decision.effect == "allow":
            for policy in one.decision.policies:
                seen.permitted.setdefault(policy, Counter())[spec.name] += 1
    return seen


def findings(
    seen: Traffic,
    tools: Mapping[str, ToolSpec],
    agents: Mapping[str, AgentSpec],
    people: Identities,
    policies: Mapping[str, Policy],
) -> list[Finding]:
    """Everything granted that `seen` did not need.

    Raises:
        PolicyError: fewer than 100 decisions.
    """
    if seen.decisions < MIN_DECISIONS:
        raise PolicyError(
            f"{seen.decisions} decisions are recorded in this time: advice needs at least {MIN_DECISIONS}; "
            "name a longer time with --since, or wait for more traffic"
        )
    found: list[Finding] = []
    for name, agent in sorted(agents.items()):
        found += _of_agent(agent, seen.agents.get(name, AgentTraffic()), tools)
    for name, role in sorted(people.roles.items()):
        count = seen.role_decisions[name]
        if count < MIN_DECISIONS:
            if role.scopes:
                found.append(_few("role", name, count))
            continue
        for scope in sorted(role.scopes - set(seen.role_scopes.get(name, ()))):
            found.append(
                Finding(
                    "unused-role-scope", name, scope, f"role {name} needed scope {scope} in 0 of {count} calls", count
                )
            )
    for name, policy in sorted(policies.items()):
        if policy.effect == "permit" and name not in seen.permitted:
            found.append(
                Finding("idle-permit", name, "", f"permit {name} allowed 0 of {seen.decisions} calls", seen.decisions)
            )
        elif policy.effect == "forbid" and name not in seen.determined:
            message = f"forbid {name} stopped 0 of {seen.decisions} calls (no reason to remove a guard)"
            found.append(Finding("idle-forbid", name, "", message, seen.decisions))
    return found


def needs(seen: Traffic, tools: Mapping[str, ToolSpec], agents: Mapping[str, AgentSpec], people: Identities) -> Needs:
    """The smallest grants for what was seen; an agent or role with little traffic keeps what it has."""
    smaller: dict[str, AgentSpec] = {}
    for name, agent in agents.items():
        traffic = seen.agents.get(name, AgentTraffic())
        if traffic.decisions < MIN_DECISIONS:
            smaller[name] = agent
            continue
        used = agent.tools & set(traffic.used)
        smaller[name] = replace(
            agent,
            tools=used,
            scopes=agent.scopes & frozenset().union(*(tools[tool].scopes for tool in used)),
            max_calls=_ceiling(traffic.calls.values(), agent.max_calls, 1),
            max_money_cents=_ceiling(traffic.money.values(), agent.max_money_cents, 100),
        )
    enough = {name: role for name, role in people.roles.items() if seen.role_decisions[name] >= MIN_DECISIONS}
    scopes = {name: role.scopes & set(seen.role_scopes.get(name, ())) for name, role in enough.items()}
    return Needs(smaller, scopes, {name: frozenset(used) for name, used in seen.permitted.items()})


def percentile(values: Iterable[int], share: float) -> int:
    """The smallest value that at least `share` of the values do not exceed; 0 when there are none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0


def _of_agent(agent: AgentSpec, traffic: AgentTraffic, tools: Mapping[str, ToolSpec]) -> list[Finding]:
    count = traffic.decisions
    if count < MIN_DECISIONS:
        return [_few("agent", agent.name, count)]
    found: list[Finding] = []
    for tool in sorted(agent.tools - set(traffic.used)):
        found.append(
            Finding(
                "unused-tool", agent.name, tool, f"agent {agent.name} used tool {tool} in 0 of {count} calls", count
            )
        )
    needed = frozenset().union(*(tools[tool].scopes for tool in traffic.used if tool in tools))
    for scope in sorted(agent.scopes - needed):
        found.append(
            Finding(
                "unused-scope",
                agent.name,
                scope,
                f"agent {agent.name} needed scope {scope} in 0 of {count} calls",
                count,
            )
        )
    limits = (
        ("max_calls", traffic.calls, agent.max_calls, 1),
        ("max_money_cents", traffic.money, agent.max_money_cents, 100),
    )
    for limit, runs, ceiling, step in limits:
        if _ceiling(runs.values(), ceiling, step) < ceiling:
            message = (
                f"agent {agent.name}: {limit} is {ceiling}; of {len(runs)} requests 99 % used at most "
                f"{percentile(runs.values(), 0.99)}, the largest {max(runs.values(), default=0)}"
            )
            found.append(Finding("loose-limit", agent.name, limit, message, count))
    return found


def _ceiling(values: Iterable[int], ceiling: int, step: int) -> int:
    """A tighter ceiling in whole steps: above all that was seen and with room over the usual; else the present one."""
    seen = list(values)
    enough = max(max(seen, default=0), math.ceil(percentile(seen, 0.99) * SPARE))
    enough = math.ceil(enough / step) * step
    return enough if enough <= LOOSE * ceiling else ceiling


def _few(kind: str, name: str, count: int) -> Finding:
    return Finding("few", name, kind, f"{kind} {name}: {count} decisions, too few to say anything", count)
