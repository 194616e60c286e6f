"""Commands for approvers and for housekeeping: approvals, prune."""

import asyncio
import getpass
from typing import Annotated

import typer

from agentops import threads
from agentops.cli.app import AsJson, ProjectDir, show, table
from agentops.errors import PolicyError
from agentops.policy import Approval
from agentops.runtime import Answer, open_runtime
from agentops.types import Json, Principal
from agentops.workspace import Workspace, local_principal, open_workspace

approvals = typer.Typer(no_args_is_help=True, help="Calls that wait for a person.")

By = Annotated[str, typer.Option("--as", help="Who decides; must not be who asked.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="As `agentops approvals list` shows it.")]
Reason = Annotated[str, typer.Option(help="Why; kept with the approval.")]
Role = Annotated[list[str] | None, typer.Option("--role", help="Roles of the approver; default: finance.")]


@approvals.command("list")
def list_(
    status: Annotated[str, typer.Option(help="pending, approved, denied, expired, or consumed: used.")] = "pending",
    project: ProjectDir = None,
    as_json: AsJson = False,
) -> None:
    """What waits, for whom, and why the policies ask."""
    with open_workspace(project) as workspace:
        found = workspace.approvals.list(status, workspace.project.settings.tenant)
        now = workspace.clock.now()
    rows = [(a.id, a.tool, _short(a.arguments), a.user, a.approver, a.reason, f"{a.age(now):.0f} s") for a in found]
    columns = ("id", "tool", "arguments", "asked by", "needs", "why", "age")
    show(found, as_json, [table("", columns, rows)] if rows else [f"nothing is {status}"])


@approvals.command()
def approve(
    approval: Id, by: By, role: Role = None, reason: Reason = "", project: ProjectDir = None, as_json: AsJson = False
) -> None:
    """Approve a call; the waiting request goes on at once."""
    _decide(approval, True, by, role, reason, project, as_json)


@approvals.command()
def deny(
    approval: Id, by: By, role: Role = None, reason: Reason = "", project: ProjectDir = None, as_json: AsJson = False
) -> None:
    """Deny a call; the waiting request is answered without it."""
    _decide(approval, False, by, role, reason, project, as_json)


def _decide(id: str, yes: bool, by: str, role: list[str] | None, reason: str, project, as_json: bool) -> None:
    with open_workspace(project) as workspace:
        who = local_principal(workspace, by, tuple(role or ("finance",)))
        said = f"{reason} (local user {getpass.getuser()})".strip()
        decided, answer = asyncio.run(_decide_and_resume(workspace, id, yes, who, said))
    what = "approved" if yes else "denied"
    if answer is None:
        again = "the agent that asked has to call again"
        show({"approval": decided, "answer": "", "status": "recalled"}, as_json, [f"{what} {id}: {again}"])
        return
    show({"approval": decided, "answer": answer.text, "status": answer.status}, as_json, [f"{what} {id}", answer.text])


async def _decide_and_resume(
    workspace: Workspace, id: str, yes: bool, who: Principal, said: str
) -> tuple[Approval, Answer | None]:
    if workspace.approvals.get(id, who.tenant).recalled:
        return workspace.approvals.decide(id, yes, who, said), None
    async with open_runtime(workspace) as runtime:
        found = workspace.approvals.get(id, who.tenant)
        if found.status == "pending" and not await runtime.waits(found.run):
            raise PolicyError(
                f"the request of approval {id} does not wait on this machine: decide it where it was asked"
            )
        decided = workspace.approvals.decide(id, yes, who, said)
        return decided, await runtime.resume(decided.run)


def prune(
    days: Annotated[int, typer.Option(min=1, max=3650, help="What ended at least so many days ago is removed.")] = 30,
    project: ProjectDir = None,
    as_json: AsJson = False,
) -> None:
    """Remove old state: approvals, conversations, marks.

    Approvals that ended, requests that waited in vain, labels of conversations and marks of effects. Records in the
    audit log stay. Of recorded decisions go those older than decision_days, whatever --days says.
    """
    with open_workspace(project) as workspace:
        before = workspace.clock.now() - days * 86_400
        removed = {
            "approvals": workspace.approvals.prune(before),
            "waiting_requests": threads.prune(workspace.home, before),
            "conversations": workspace.readings.prune(before),
            "effects": workspace.effects.prune(before),
        }
        kept, gone = workspace.project.settings.decision_days, workspace.decisions.prune()
    shown = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in removed.items())
    lines = [f"removed {shown}, each over for {days} days or more"]
    lines.append(f"removed {gone} days of recorded decisions: {kept} days are kept")
    show({**removed, "days_of_decisions": gone}, as_json, lines)


def _short(arguments: Json) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())[:120]


def register(app: typer.Typer) -> None:
    app.add_typer(approvals, name="approvals")
    app.command()(prune)
