"""Commands over recorded traces: import, list, show, sql, compact, feedback."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from agentops.cli.app import AsJson, ProjectDir, printable, show, table
from agentops.errors import TraceError
from agentops.store import Lake
from agentops.types import Trajectory
from agentops.workspace import open_workspace

traces = typer.Typer(no_args_is_help=True, help="Recorded traces: import, look, query.")


@traces.command("import")
def import_(
    files: Annotated[list[Path], typer.Argument(help="OTLP exports (.pb, .json) or chat logs (.json, .jsonl).")],
    service: Annotated[str, typer.Option(help="Store under this service name; default: the one recorded.")] = "",
    project: ProjectDir = None,
    as_json: AsJson = False,
) -> None:
    """Bring in traces of others and chat logs. They are redacted on the way in."""
    from agentops.trace import import_files

    with open_workspace(project) as workspace:
        report = import_files(workspace.lake, workspace.redactor, files, service)
    show(report, as_json, report.lines())
    if not report.trajectories and not report.duplicates:
        raise TraceError(f"nothing in {len(files)} file(s) was a trace: {report.summary()}")


@traces.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 20,
    where: Annotated[str, typer.Option(help="SQL condition over the spans view.")] = "",
    project: ProjectDir = None,
    as_json: AsJson = False,
) -> None:
    """The newest traces, a row each."""
    from agentops.trace import summaries

    with open_workspace(project) as workspace:
        rows = summaries(workspace.lake, limit, where)
    names = ("duration_ms", "status", "route", "model_calls", "tool_calls", "errors", "feedback")
    shown = [
        (row["id"][:12], row["service"], str(row["start"])[:19].replace("T", " "), *(row[name] for name in names))
        for row in rows
    ]
    columns = ("id", "service", "start", "ms", "status", "route", "models", "tools", "errors", "feedback")
    show(rows, as_json, [table("", columns, shown)] if rows else ["no traces yet: serve requests or import some"])


def found_by(lake: Lake, prefix: str) -> Trajectory:
    """The one trace whose id starts with `prefix`.

    Raises:
        TraceError: none, or several.
    """
    from agentops.trace import trajectory

    query = "SELECT DISTINCT trace_id FROM spans WHERE starts_with(trace_id, ?) LIMIT 2"
    ids = [row["trace_id"] for row in lake.sql(query, [prefix])] if prefix.strip() else []
    found = trajectory(lake, ids[0]) if len(ids) == 1 else None
    if found is None:
        raise TraceError(f"{len(ids) or 'no'} trace starts with {prefix!r}: `agentops traces list` shows the ids")
    return found


@traces.command("show")
def show_(trace_id: str, project: ProjectDir = None, as_json: AsJson = False) -> None:
    """One trace as the trajectory every later stage reads."""
    with open_workspace(project) as workspace:
        found = found_by(workspace.lake, trace_id)
    show(found, as_json, _trajectory(found))


def _trajectory(found: Trajectory) -> list:
    lines: list = [f"{found.trace_id}  {found.service}  {found.status}  {found.source}"]
    for message in found.messages:
        content = str(message.get("content") or "")
        calls = ", ".join(call["function"]["name"] for call in message.get("tool_calls", ()))
        said = printable(f"{content[:400]}{f'  -> {calls}' if calls else ''}")
        lines.append(Text.assemble((f"{message['role']:>9}", "dim"), "  ", said))
    begin = found.started_at
    rows = [
        (
            step.tool,
            step.status,
            1000 * (step.started_at - begin),
            1000 * (step.ended_at - step.started_at),
            step.cached,
            step.error,
        )
        for step in found.steps
    ]
    if rows:
        lines += ["", table("", ("tool", "status", "at ms", "took ms", "cached", "error"), rows)]
    lines.append(f"outcome {found.outcome.success} ({found.outcome.source}); feedback {len(found.feedback)}")
    return lines


@traces.command()
def sql(query: str, project: ProjectDir = None, as_json: AsJson = False) -> None:
    """Read-only SQL over the views spans, feedback and verdicts."""
    with open_workspace(project) as workspace:
        rows = workspace.lake.sql(query)
    columns = list(rows[0]) if rows else ["(no rows)"]
    show(rows, as_json, [table("", columns, ([row[name] for name in columns] for row in rows))])


@traces.command()
def compact(project: ProjectDir = None, as_json: AsJson = False) -> None:
    """Merge small segments of each day and service."""
    with open_workspace(project) as workspace:
        merged = {name: workspace.lake.compact(name) for name in ("spans", "feedback", "verdicts")}
    show(merged, as_json, [f"{name}: {count} segments merged" for name, count in merged.items()])


@traces.command()
def feedback(
    trace_id: str,
    up: Annotated[bool, typer.Option("--up", help="Thumbs up.")] = False,
    down: Annotated[bool, typer.Option("--down", help="Thumbs down.")] = False,
    comment: str = "",
    answer: Annotated[str, typer.Option(help="What should have been answered.")] = "",
    label: Annotated[list[str] | None, typer.Option(help="The right route; repeat for several.")] = None,
    user: Annotated[str, typer.Option("--as")] = "operator",
    project: ProjectDir = None,
    as_json: AsJson = False,
) -> None:
    """Attach a judgement, a comment or a correction to a trace."""
    from agentops.trace import write_feedback
    from agentops.types import Feedback

    if up and down:
        raise TraceError("--up and --down contradict each other: give one")
    if not (up or down or comment or answer or label):
        raise TraceError("nothing to store: give --up, --down, --comment, --answer or --label")
    with open_workspace(project) as workspace:
        found = found_by(workspace.lake, trace_id)
        who = workspace.redactor.pseudonym("USER", user, found.tenant)
        score = 1 if up else -1 if down else 0
        given = Feedback(found.trace_id, score, workspace.clock.now(), who, comment, answer, tuple(label or ()))
        write_feedback(workspace.lake, [given], workspace.project.settings.service, workspace.redactor, found.tenant)
    show(given, as_json, [f"stored on {found.trace_id}"])


def register(app: typer.Typer) -> None:
    app.add_typer(traces, name="traces")
