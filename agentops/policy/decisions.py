"""`policies/decisions.toml`: requests with the decision they must get, and every problem of the folder at once.

Invariant: a case passes only when the effect is the expected one and, where it names policies, exactly those determined
it. Checks read files and ask the policy set; no tool runs.
"""

import contextlib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentops.errors import PolicyError
from agentops.policy.arguments import arguments_of, spelled
from agentops.policy.cedar import Policy, read_policies
from agentops.policy.identity import identities, identity_problems, principal
from agentops.policy.policyset import PolicySet
from agentops.policy.schema import generate_schema
from agentops.types import AgentSpec, Decision, Json, Labels, Problem, Run, ToolCall, ToolSpec

FILE = "decisions.toml"
SCHEMA_FILE = "schema.cedarschema"
SHADOW = "shadow"  # folder beside them with a complete candidate set, which decides nothing
EXPECTED = ("allow", "deny", "approve")
_TYPES: dict[str, type] = {
    "name": str,
    "tool": str,
    "agent": str,
    "arguments": dict,
    "user": str,
    "tenant": str,
    "roles": list,
    "facts": dict,
    "expect": str,
    "policies": list,
    "approver": str,
}
_REQUIRED = ("name", "tool", "agent", "expect")


@dataclass(frozen=True, slots=True)
class Case:
    """One `[[decision]]`: a request and what must come of it."""

    line: int
    name: str
    tool: str
    agent: str
    expect: str
    arguments: Mapping[str, Json] = field(default_factory=dict)
    user: str = "C-1"
    tenant: str = "default"
    roles: tuple[str, ...] = ()  # empty: the default roles of identities.toml
    facts: Mapping[str, Json] = field(default_factory=dict)  # as for `decide`, and `args_untrusted`
    policies: tuple[str, ...] = ()  # empty: not compared
    approver: str = ""


def policy_problems(folder: Path, tools: Mapping[str, ToolSpec], agents: Mapping[str, AgentSpec]) -> list[Problem]:
    """Everything wrong in a project's policies: Cedar files, schema, identities, decisions that come out otherwise."""
    try:
        schema = generate_schema(tools, agents)
    except PolicyError as error:
        return [Problem(folder.name, 0, str(error))]
    policies, problems = read_policies(folder, tools, schema)
    broken = bool(problems)
    problems += _schema_problems(folder, schema)
    needed = {scope for spec in tools.values() for scope in spec.scopes}
    people = identity_problems(folder, needed)
    problems += people
    shadow = folder / SHADOW
    candidates = read_policies(shadow, tools, schema) if any(shadow.glob("*.cedar")) else ([], [])
    problems += candidates[1]
    if not people:
        problems += approver_problems(folder, [*policies, *candidates[0]])
    cases, more = read_cases(folder)
    problems += more
    if not broken and not people:
        loaded = PolicySet.load(folder, tools, agents)
        for case in cases:
            wrong = check_case(case, loaded, folder, tools, agents)
            if wrong:
                problems.append(Problem(f"{folder.name}/{FILE}", case.line, f"decision {case.name!r}: {wrong}"))
    return problems


def approver_problems(folder: Path, policies: Iterable[Policy]) -> list[Problem]:
    """Policies that wait for a role whose people decide nothing. identities.toml itself must be usable."""
    roles = identities(folder).roles
    return [
        Problem(
            policy.file,
            policy.line,
            f"policy {policy.id!r} waits for role {role!r}, which identities.toml does not make an approver",
        )
        for policy in policies
        for role in filter(None, policy.advice.split("+"))
        if role not in roles or not roles[role].approver
    ]


def write_schema(folder: Path, tools: Mapping[str, ToolSpec], agents: Mapping[str, AgentSpec]) -> Path:
    """Write `folder`/schema.cedarschema anew: for editors and reviewers; loading generates its own."""
    path = folder / SCHEMA_FILE
    path.write_text(generate_schema(tools, agents), encoding="utf-8")
    return path


def read_cases(folder: Path) -> tuple[list[Case], list[Problem]]:
    """The cases of decisions.toml, and what is wrong with the file. No file is no case."""
    file, shown = folder / FILE, f"{folder.name}/{FILE}"
    if not file.exists():
        return [], []
    text = file.read_text(encoding="utf-8", errors="replace")
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"line (\d+)", str(error))
        return [], [Problem(shown, int(at[1]) if at else 0, f"not valid TOML: {error}")]
    entries = table.pop("decision", [])
    problems = [Problem(shown, 0, f"{key!r} is not known: write [[decision]] tables") for key in sorted(table)]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return [], [*problems, Problem(shown, 0, "write [[decision]] tables, one for each case")]
    lines = [number for number, line in enumerate(text.splitlines(), 1) if re.match(r"\s*\[\[\s*decision\s*\]\]", line)]
    lines += [0] * (len(entries) - len(lines))  # written in another form: the file is named without a line
    cases: list[Case] = []
    names: set[str] = set()
    for line, entry in zip(lines, entries, strict=False):
        fault = _fault(entry) or (f"name {entry['name']!r} is used twice" if entry["name"] in names else "")
        if fault:
            problems.append(Problem(shown, line, fault))
            continue
        names.add(entry["name"])
        given: dict[str, Any] = dict(entry)
        for key in ("roles", "policies"):
            given[key] = tuple(given.get(key, ()))
        cases.append(Case(line=line, **given))
    return cases, problems


def check_case(
    case: Case,
    policies: PolicySet,
    folder: Path,
    tools: Mapping[str, ToolSpec],
    agents: Mapping[str, AgentSpec],
) -> str:
    """What is wrong with the decision that a case gets, or ""."""
    if case.tool not in tools:
        return f"tool {case.tool!r} does not exist; tools: {', '.join(sorted(tools))}"
    if case.agent not in agents:
        return f"agent {case.agent!r} does not exist; agents: {', '.join(sorted(agents))}"
    unknown = sorted(set(case.policies) - set(policies.policies) - {"default-deny", "malformed-call"})
    if unknown:
        return f"policy {unknown[0]!r} does not exist"
    try:
        decision = decide_case(case, policies, folder, tools[case.tool], agents[case.agent])
    except PolicyError as error:
        return str(error)
    by = ", ".join(decision.policies)
    if decision.effect != case.expect:
        return f"expected {case.expect}, got {decision.effect} by {by} ({decision.reason})"
    if case.policies and set(case.policies) != set(decision.policies):
        return f"expected {case.expect} by {', '.join(case.policies)}, got it by {by}"
    if case.approver and case.approver != decision.approver:
        return f"expected {case.approver!r} to be asked, got {decision.approver!r}"
    return ""


def decide_case(case: Case, policies: PolicySet, folder: Path, spec: ToolSpec, agent: AgentSpec) -> Decision:
    """The decision a case gets. Facts it does not give are those of a first call, whose arguments the user named.

    Raises:
        PolicyError: the case names an unknown role or a user that is not allowed.
    """
    facts = {"sources": dict.fromkeys(spec.parameters.get("properties", {}), "request"), **case.facts}
    untrusted = facts.pop("args_untrusted", False) is True
    amount = case.arguments.get(spec.amount_arg, 0) if spec.amount_arg else 0
    first = {"calls_used": 1, "money_used_cents": max(0, amount) if type(amount) is int else 0, "untrusted_seen": False}
    first |= {"seen_confidentiality": "public"}
    who = principal(folder, case.tenant, case.user, case.roles)
    arguments = case.arguments
    run = Run("decision", "decision", who, agent, deadline=0.0)
    with contextlib.suppress(PolicyError):  # an ambiguous value stays as it is and is denied
        arguments = spelled(arguments_of(spec), arguments)
    call = ToolCall("1", spec.name, arguments, Labels("untrusted") if untrusted else Labels())
    return policies.decide(run, call, spec, {**first, **facts})


def _fault(entry: Mapping[str, Any]) -> str:
    unknown = sorted(set(entry) - set(_TYPES))
    if unknown:
        return f"{unknown[0]!r} is not known: a decision has {', '.join(_TYPES)}"
    for key in _REQUIRED:
        if key not in entry:
            return f"has no {key!r}: a decision needs {', '.join(_REQUIRED)}"
    for key, value in entry.items():
        if not isinstance(value, _TYPES[key]):
            return f"{key} = {value!r} must be of type {_TYPES[key].__name__}"
    for key in ("roles", "policies"):
        if not all(isinstance(item, str) for item in entry.get(key, ())):
            return f"{key} must be a list of names"
    if entry["expect"] not in EXPECTED:
        return f"expect = {entry['expect']!r} must be one of {', '.join(EXPECTED)}"
    return ""


def _schema_problems(folder: Path, schema: str) -> list[Problem]:
    path, shown = folder / SCHEMA_FILE, f"{folder.name}/{SCHEMA_FILE}"
    advice = "write it anew with `agentops policy schema --write`"
    if not path.exists():
        return [Problem(shown, 0, f"is missing: {advice}")]
    committed = path.read_text(encoding="utf-8", errors="replace")
    if committed == schema:
        return []
    pairs = zip([*committed.splitlines(), ""], [*schema.splitlines(), ""], strict=False)
    line = next((number for number, (old, new) in enumerate(pairs, 1) if old != new), 0)
    return [Problem(shown, line, f"does not fit the tools and agents any more: {advice}")]
