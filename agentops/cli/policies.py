"""Commands for whoever writes policies: policy test | schema | diff | advise.

Invariant: nothing here changes a policy. Recorded decisions hold what people asked for: only the role auditor reads
them, the reading is in the audit log first, and what is printed are counts and ids, never an argument or a name.
"""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from agentops.cli.app import AsJson, ProjectDir, Since, Until, instant, moment, show, table
from agentops.errors import GateFailed, PolicyError
from agentops.policy import PolicySet, generate_schema, identities, write_schema
from agentops.policy.advise import Traffic, findings, needs, observe
from agentops.policy.decisions import FILE, check_case, read_cases
from agentops.policy.proposal import Proposal, propose
from agentops.policy.replay import Change, Decisions, Diff, diff
from agentops.workspace import Workspace, local_principal, open_workspace

AUDITOR = "auditor"  # the role that may read recorded decisions
policy = typer.Typer(no_args_is_help=True, help="Try, compare and tighten policies.")

By = Annotated[str, typer.Option("--as", help="Who reads the recorded decisions; needs the role auditor.")]
Role = Annotated[list[str] | None, typer.Option("--role", help="Your roles; default: auditor.")]


@policy.command("test")
def decisions(project: ProjectDir = None, as_json: AsJson = False) -> None:
    """Ask for every decision in policies/decisions.toml. Exit 1 when one comes out otherwise."""
    with open_workspace(project) as workspace:
        folder, specs, agents = workspace.project.policies, workspace.specs, workspace.project.agents
        loaded = PolicySet.load(folder, specs, agents)
        cases, problems = read_cases(folder)
        wrong = [str(problem) for problem in problems]
        for case in cases:
            fault = check_case(case, loaded, folder, specs, agents)
            if fault:
                wrong.append(f"{folder.name}/{FILE}:{case.line}: decision {case.name!r}: {fault}")
    show({"cases": len(cases), "wrong": wrong}, as_json, [*wrong, f"{len(cases)} decisions, {len(wrong)} wrong"])
    if wrong:
        raise GateFailed(f"{len(wrong)} decisions are not as {FILE} says")


@policy.command()
def schema(
    write: Annotated[bool, typer.Option("--write", help="Write policies/schema.cedarschema.")] = False,
    project: ProjectDir = None,
    as_json: AsJson = False,
) -> None:
    """What policies may name: a Cedar schema. Tools and agents give it."""
    with open_workspace(project) as workspace:
        specs, agents = workspace.specs, workspace.project.agents
        if write:
            path = str(write_schema(workspace.project.policies, specs, agents).relative_to(workspace.project.root))
            show({"written": path}, as_json, [f"wrote {path}"])
            return
        text = generate_schema(specs, agents)
    show({"schema": text}, as_json, [text.rstrip("\n")])


@policy.command("diff")
def diff_(
    folder: Annotated[Path, typer.Argument(help="A complete set of Cedar files, for example policies/shadow.")],
    by: By,
    role: Role = None,
    since: Since = "24h",
    until: Until = "",
    strict: Annotated[bool, typer.Option(help="Exit 1 when something that was allowed would be denied.")] = False,
    project: ProjectDir = None,
    as_json: AsJson = False,
) -> None:
    """Which recorded decisions another set would make otherwise."""
    with open_workspace(project) as workspace:
        if not folder.is_dir():
            raise PolicyError(f"{str(folder)!r} is no folder: name one with a complete set of Cedar files")
        candidate = PolicySet.load(folder, workspace.specs, workspace.project.agents)
        bounds = _read_by(workspace, by, role, since, until, "policy diff")
        recorded = workspace.decisions.recorded(*bounds)
        found = diff(recorded, candidate, workspace.specs)
    show(_as_json(found, recorded), as_json, _diff_lines(found, recorded))
    denied = sum(change.count for change in found.changes if change.denied)
    if strict and denied:
        raise GateFailed(f"{denied} calls that were allowed would be denied under {str(folder)!r}")


@policy.command()
def advise(
    by: By,
    role: Role = None,
    since: Since = "30d",
    until: Until = "",
    out: Annotated[Path | None, typer.Option(help="Write the proposed patch here; must not exist.")] = None,
    project: ProjectDir = None,
    as_json: AsJson = False,
) -> None:
    """What was granted and never needed, as a patch. Nothing is changed."""
    with open_workspace(project) as workspace:
        loaded = PolicySet.load(workspace.project.policies, workspace.specs, workspace.project.agents)
        people = identities(workspace.project.policies)
        bounds = _read_by(workspace, by, role, since, until, "policy advise")
        recorded = workspace.decisions.recorded(*bounds)
        seen = observe(recorded, workspace.specs)
        found = findings(seen, workspace.specs, workspace.project.agents, people, loaded.policies)
        proposal = propose(
            workspace.project,
            workspace.specs,
            needs(seen, workspace.specs, workspace.project.agents, people),
            people,
            loaded,
            lambda: workspace.decisions.recorded(*bounds),
        )
    summary = _summary(seen, proposal)
    if out is not None:
        with out.open("x", encoding="utf-8") as file:
            file.write("".join(f"# {line}\n" for line in summary) + proposal.patch)
    value = {
        "decisions": seen.decisions,
        "first": seen.first,
        "last": seen.last,
        "missing": recorded.missing,
        "findings": found,
        "patch": proposal.patch,
        "replayed": proposal.replayed,
        "refused": proposal.refused,
        "skipped": list(proposal.skipped),
    }
    lines: list[Any] = [*_missing(recorded), table("", ("kind", "what"), [(one.kind, one.message) for one in found])]
    lines += [*summary, f"wrote {out}" if out is not None else proposal.patch.rstrip("\n")]
    show(value, as_json, lines)


def _read_by(
    workspace: Workspace, by: str, role: list[str] | None, since: str, until: str, purpose: str
) -> tuple[float, float]:
    """The times to read; recorded durably, with who reads and why, before anything is read."""
    who = local_principal(workspace, by, tuple(role or (AUDITOR,)))
    if AUDITOR not in who.roles:
        raise PolicyError(f"recorded decisions hold what people asked for: reading them needs the role {AUDITOR!r}")
    start, end = instant(since), instant(until) if until else time.time() + 1
    audit = workspace.audit
    audit.append_now(
        {
            "type": "decisions.read",
            "tenant": who.tenant,
            "subject": audit.subject(who.tenant, who.user),
            "user": audit.digest(who.user, who.tenant, who.user),
            "purpose": purpose,
            "since": int(start),
            "until": int(end),
        }
    )
    return start, end


def _as_json(found: Diff, recorded: Decisions) -> dict[str, Any]:
    return {
        "decisions": found.decisions,
        "changes": found.changes,
        "gone": found.gone,
        "changed": found.changed,
        "missing": recorded.missing,
    }


def _diff_lines(found: Diff, recorded: Decisions) -> list[Any]:
    lines: list[Any] = _missing(recorded)
    lines += [f"{count} calls of {tool}, which does not exist any more: left out" for tool, count in found.gone.items()]
    lines += [
        f"{count} calls of {tool}, which changed since: decided as it is now" for tool, count in found.changed.items()
    ]
    if found.changes:
        columns = ("calls", "tool", "agent", "was", "would be", "by", "instead of", "for example")
        lines.append(table("", columns, [_row(change) for change in found.changes]))
    changed = sum(change.count for change in found.changes)
    return [*lines, f"{found.decisions} decisions replayed, {changed} would be others"]


def _row(change: Change) -> tuple[Any, ...]:
    return (
        change.count,
        change.tool,
        change.agent,
        change.before,
        change.after,
        ", ".join(change.policies_after),
        ", ".join(change.policies_before),
        change.examples[0],
    )


def _missing(recorded: Decisions) -> list[str]:
    return [f"{count} decisions are missing: {why}" for why, count in recorded.missing.items()]


def _summary(seen: Traffic, proposal: Proposal) -> list[str]:
    lines = [f"from {seen.decisions} decisions between {moment(seen.first)} and {moment(seen.last)}"]
    if not proposal.patch:
        return [*lines, "nothing to take away"]
    refused = f"{proposal.refused} of {proposal.replayed} recorded decisions would come out otherwise"
    lines.append(f"tried on this traffic: {refused}")
    lines += [f"cannot be edited safely, left as it is: {what}" for what in proposal.skipped]
    return [*lines, "what is rare is not in it: read it, `git apply` it, then run `agentops check`"]


def register(app: typer.Typer) -> None:
    app.add_typer(policy, name="policy")
