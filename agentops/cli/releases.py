"""Commands of releases: start, status, promote, abort, history."""

import getpass
from typing import Annotated

import typer

from agentops.cli.app import AsJson, ProjectDir, moment, show, table
from agentops.errors import ReleaseError
from agentops.release import Controller, Ruling, load_rules
from agentops.workspace import Workspace, open_workspace

release = typer.Typer(no_args_is_help=True, help="A retrained router on its way into service.")

RouterName = Annotated[str, typer.Option("--router", help="Which router.")]


def controller(workspace: Workspace) -> Controller:
    return Controller(workspace.registry, load_rules(workspace.project.policies), workspace.clock)


@release.command()
def start(
    candidate: Annotated[str, typer.Argument(help="Artifact digest of the candidate (a prefix will do).")],
    router: RouterName = "intent",
    override: Annotated[str, typer.Option(help="Start without a passed gate, for this recorded reason.")] = "",
    project: ProjectDir = None,
    as_json: AsJson = False,
) -> None:
    """Gate a candidate and open a release in shadow."""
    from agentops.improve import evaluate_version
    from agentops.labelled import find_suite

    with open_workspace(project) as workspace:
        candidate = workspace.artifacts.resolve(candidate)
        if workspace.artifacts.manifest(candidate).get("router") != router:
            raise ReleaseError(f"artifact {candidate[:19]} is no version of router {router!r}: train one on its labels")
        report = None
        if not override:
            report = evaluate_version(
                workspace, candidate, find_suite(workspace.project), workspace.registry.current(router)
            )
        opened = controller(workspace).start(router, candidate, by=getpass.getuser(), report=report, override=override)
    show(opened, as_json, [f"release {opened.id} of {router}: {opened.candidate[:19]} in {opened.stage}"])


@release.command()
def status(router: RouterName = "intent", project: ProjectDir = None, as_json: AsJson = False) -> None:
    """What serves, and where an open release stands. Since when, trained on what, approved by whom."""
    with open_workspace(project) as workspace:
        serving = workspace.registry.serving(router)
        opened = controller(workspace).status(router) if workspace.registry.release(router) else None
    made = serving.get("manifest") or {}
    rows = [
        ("serves", serving.get("digest")),
        ("since", moment(serving.get("since"))),
        ("by", serving.get("by")),
        ("because", serving.get("reason")),
        ("trained on", f"{made.get('rows', '?')} rows of {made.get('data', 'unknown data')}"),
        ("approved by", serving.get("approved_by") or "nobody: decided by the rules"),
        ("before it", serving.get("previous")),
    ]
    lines = [
        table(f"router {router}", ("", ""), rows),
        *(_ruling(opened) if opened else ["no release was ever started"]),
    ]
    show({"serving": serving, "release": opened}, as_json, lines)


@release.command()
def promote(reason: str, router: RouterName = "intent", project: ProjectDir = None, as_json: AsJson = False) -> None:
    """Put the candidate into service now, by hand. Recorded with the reason."""
    with open_workspace(project) as workspace:
        done = controller(workspace).promote(router, by=getpass.getuser(), reason=reason)
    show(done, as_json, [f"release {done.id}: {done.candidate[:19]} serves all of {router}"])


@release.command()
def abort(reason: str, router: RouterName = "intent", project: ProjectDir = None, as_json: AsJson = False) -> None:
    """End the open or just promoted release. The old version serves from the next request on."""
    with open_workspace(project) as workspace:
        done = controller(workspace).abort(router, by=getpass.getuser(), reason=reason)
    show(done, as_json, [f"release {done.id}: {done.stable[:19]} serves all of {router} again"])


@release.command()
def history(router: RouterName = "intent", project: ProjectDir = None, as_json: AsJson = False) -> None:
    """Every change of what serves. And every decision of the newest release."""
    with open_workspace(project) as workspace:
        moves = workspace.registry.history(router)
        newest = workspace.registry.release(router)
    changes = [(m.get("number"), str(m.get("digest", ""))[:19], m.get("by"), m.get("reason")) for m in moves]
    lines = [table("versions", ("#", "digest", "by", "reason"), changes)]
    if newest is not None:
        decided = [(d.get("action"), f"{d.get('weight') or 0:.0%}", d.get("reason")) for d in newest.history]
        lines.append(table(f"release {newest.id} ({newest.stage})", ("action", "share", "reason"), decided))
    show({"versions": moves, "release": newest}, as_json, lines)


def _ruling(ruling: Ruling) -> list:
    return [f"release {ruling.release.id}: {ruling.release.stage}, share {ruling.release.weight:.0%}", ruling.reason]


def register(app: typer.Typer) -> None:
    app.add_typer(release, name="release")
