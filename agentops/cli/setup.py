"""Commands about the project itself: init, check, doctor."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from agentops import project as projects
from agentops.cli.app import AsJson, ProjectDir, console, show, table
from agentops.errors import GateFailed


def init(directory: Annotated[Path, typer.Argument(help="New project folder.")], as_json: AsJson = False) -> None:
    """Lay out a small working project. It has tools, a router, a pipeline and policies."""
    from agentops.cli.scaffold import scaffold

    done = scaffold(directory)
    written = [f"  {what:<6} {path}" for what, path in done]
    steps = ["", "next:", f"  cd {directory}", "  agentops check"]
    show([{"action": what, "path": path} for what, path in done], as_json, [*written, *steps])


def check(project: ProjectDir = None, as_json: AsJson = False) -> None:
    """Every problem of the project at once, with file and line. Exit 1 when there is one."""
    from agentops.check import check as find_problems

    root = project or projects.find()
    problems = find_problems(root)
    rows = [{"path": p.path, "line": p.line, "message": p.message} for p in problems]
    show({"project": root.name, "problems": rows}, as_json, map(str, problems))
    if problems:
        raise GateFailed(
            f"{len(problems)} problem(s) in project {root.name!r}: mend the lines above and run the check again"
        )
    if not as_json:
        console.print(f"project {root.name!r} is clean")


def doctor(project: ProjectDir = None, as_json: AsJson = False) -> None:
    """Is this machine ready, and what is lost without what it lacks. Exit 1 when serving would fail."""
    from agentops.cli.doctor import examine

    findings = examine(project)
    colours = {"ok": "green", "info": "yellow", "fail": "red"}
    rows = [(f.what, Text(f.status, colours[f.status]), f.detail) for f in findings]
    show(findings, as_json, [table("", ("", "", ""), rows)])
    failed = [finding.what for finding in findings if finding.status == "fail"]
    if failed:
        raise GateFailed(f"not ready: {', '.join(failed)}")


def register(app: typer.Typer) -> None:
    for command in (init, check, doctor):
        app.command()(command)
