"""Commands for operators: stop a tool, an agent, a user, a tenant or everything at once, and let it go on.

Invariant: a tool or agent that the project does not have is refused, so that a misspelt name is not taken for stopped.
"""

from typing import Annotated

import typer

from agentops.cli.app import AsJson, ProjectDir, moment, show, table
from agentops.errors import PolicyError
from agentops.workspace import Workspace, local_principal, open_workspace

By = Annotated[str, typer.Option("--as", help="Who does it; needs the role operator.")]
Role = Annotated[list[str] | None, typer.Option("--role", help="Your roles; default: operator.")]
Reason = Annotated[str, typer.Option(help="Why, in one line. Shown to whoever is refused: name no person.")]
Cleared = Annotated[str, typer.Option(help="Why it may go on, in one line. Recorded: name no person.")]
FORMS = "all, tool:NAME, agent:NAME, user:TENANT/USER or tenant:NAME"


def kill(
    target: Annotated[str, typer.Argument(help=f"{FORMS}.")] = "",
    by: By = "",
    role: Role = None,
    reason: Reason = "",
    list_: Annotated[bool, typer.Option("--list", help="Show what is stopped.")] = False,
    project: ProjectDir = None,
    as_json: AsJson = False,
) -> None:
    """Stop a tool, an agent, a user, a tenant or everything.

    Every replica refuses its calls from the next one on. Calls that run already end by themselves.
    """
    with open_workspace(project) as workspace:
        if list_:
            found = workspace.kill.active()
            rows = [(one.target, moment(one.at), one.by, one.reason) for one in found]
            lines = [table("", ("target", "since", "by", "reason"), rows)] if rows else ["nothing is stopped"]
            show(found, as_json, lines)
            return
        if not target:
            raise PolicyError(f"nothing is named: stop {FORMS}, or see what is stopped with --list")
        _known(workspace, target)
        who = local_principal(workspace, by, tuple(role or ("operator",)))
        stopped = workspace.kill.kill(target, who, reason)
    show(stopped, as_json, [f"{target} is stopped; go on with: agentops revive {target} --as {by} --reason TEXT"])


def revive(
    target: Annotated[str, typer.Argument(help="As `agentops kill --list` shows it.")],
    by: By,
    reason: Cleared,
    role: Role = None,
    project: ProjectDir = None,
    as_json: AsJson = False,
) -> None:
    """Let a stopped target go on."""
    with open_workspace(project) as workspace:
        workspace.kill.revive(target, local_principal(workspace, by, tuple(role or ("operator",))), reason)
    show({"target": target, "stopped": False}, as_json, [f"{target} goes on"])


def _known(workspace: Workspace, target: str) -> None:
    kind, _, name = target.partition(":")
    choices = {"tool": workspace.specs, "agent": workspace.project.agents}.get(kind)
    if choices is not None and name not in choices:
        raise PolicyError(f"there is no {kind} {name[:80]!r}; the project has: {', '.join(sorted(choices))}")


def register(app: typer.Typer) -> None:
    app.command()(kill)
    app.command()(revive)
