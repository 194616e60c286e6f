"""Commands of the offline loop: harvest, train, evaluate, improve."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from agentops.cli.app import AsJson, ProjectDir, errors, show, table
from agentops.errors import GateFailed, TrainError
from agentops.types import Report
from agentops.workspace import open_workspace


class Bar:
    """A training stage's progress bar: call it as progress(step, total, values)."""

    def __init__(self, title: str) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(
            *columns, TextColumn("{task.fields[shown]}"), console=errors, transient=not errors.is_terminal
        )
        self._task = self._progress.add_task(title, total=None, shown="")

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, step: int, total: int, values: Any) -> None:
        shown = "  ".join(f"{name} {value:.3f}" for name, value in values.items() if isinstance(value, float))[:60]
        self._progress.update(self._task, completed=step, total=total, shown=shown)


def harvest(
    kind: Annotated[str, typer.Argument(help="sft, dpo, grpo, distill or router.")],
    out: Annotated[Path, typer.Option(help="New folder for rows, manifest and data card.")],
    where: Annotated[str, typer.Option(help="SQL condition on the spans view: which traces.")] = "",
    include_inaction: Annotated[
        bool, typer.Option("--include-inaction", help="Keep rewards earned by doing nothing.")
    ] = False,
    include_undecided: Annotated[
        bool | None,
        typer.Option(
            "--include-undecided/--judged-only",
            help="sft: also episodes nobody judged that ended without an error; default: only when none was judged.",
        ),
    ] = None,
    project: ProjectDir = None,
    as_json: AsJson = False,
) -> None:
    """Turn recorded traces into a data set. Every row of it can be explained."""
    from agentops.improve import harvest_dataset

    options: dict[str, Any] = {"include_inaction": True} if include_inaction else {}
    if include_undecided is not None:
        options["include_undecided"] = include_undecided
    with open_workspace(project) as workspace:
        made = harvest_dataset(workspace, kind, out, where=where, options=options)
    card = (made.path / "card.md").read_text(encoding="utf-8")
    show(made, as_json, [f"{made.rows} rows in {made.path}", "", card])


def train(
    recipe: Annotated[str, typer.Argument(help="Pipeline whose recipe to use; default: the only one.")] = "",
    data: Annotated[
        Path | None, typer.Option(help="Folder of a harvest, or a CSV text,label for --stage router.")
    ] = None,
    stage: Annotated[str, typer.Option(help="router, sft, dpo or grpo.")] = "router",
    causal: Annotated[
        bool, typer.Option("--causal", help="With --stage router: also tune the small language model.")
    ] = False,
    own_labels: Annotated[
        bool, typer.Option("--own-labels", help="With --stage router: the data has its own labels, not the project's.")
    ] = False,
    base: Annotated[Path | None, typer.Option(help="Base model folder for sft, dpo and grpo.")] = None,
    project: ProjectDir = None,
    as_json: AsJson = False,
) -> None:
    """Retrain a model inside the agent. Prints the artifact's digest."""
    from agentops.improve import train_stage

    if data is None:
        raise TrainError("--data is missing: name a folder made by `agentops harvest`, or a CSV with text,label")
    with open_workspace(project) as workspace, Bar(f"train {stage}") as bar:
        made = train_stage(
            workspace, stage, data, pipeline=recipe, causal=causal, own_labels=own_labels, base=base, progress=bar
        )
    shown = {key: value for key, value in made.manifest.items() if isinstance(value, str | int | float)}
    lines = [
        f"artifact {made.digest}",
        table("", ("", ""), shown.items()),
        *([f"next: agentops evaluate --candidate {made.digest[:19]}"] if stage == "router" and not own_labels else []),
    ]
    show({"digest": made.digest, "manifest": made.manifest}, as_json, lines)


def evaluate(
    suite: Annotated[
        str, typer.Argument(help="Suite name or file (.jsonl, or .csv with text,label); default: the frozen one.")
    ] = "",
    candidate: Annotated[str, typer.Option(help="Artifact digest (a prefix will do); default: what serves.")] = "",
    baseline: Annotated[str, typer.Option(help="Compare with this version; default: what serves.")] = "",
    limit: Annotated[int | None, typer.Option(min=10, help="At most this many cases.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Also write JUnit XML here, for a CI job.")] = None,
    project: ProjectDir = None,
    as_json: AsJson = False,
) -> None:
    """Measure a router version on a suite, and gate it. Exit 1 when the gate fails."""
    from agentops.evaluate import junit as junit_xml
    from agentops.evaluate import to_json
    from agentops.improve import ensure_router, evaluate_version
    from agentops.labelled import find_suite

    with open_workspace(project) as workspace:
        ensure_router(workspace)
        serving = workspace.registry.current("intent")
        chosen = workspace.artifacts.resolve(candidate) if candidate else serving
        other = workspace.artifacts.resolve(baseline) if baseline else serving
        report = evaluate_version(workspace, chosen, find_suite(workspace.project, suite), other, limit=limit)
    if junit is not None:
        junit.write_text(junit_xml(report), encoding="utf-8")
    show(to_json(report), as_json, report_lines(report))
    if report.passed is False:
        raise GateFailed("the gate failed: " + "; ".join(report.reasons[:3]))


def report_lines(report: Report) -> list[Any]:
    """A report for a person: its metrics with intervals, then the gate's sentences."""
    rows = [
        (name, f"{m.value:.3f}", f"{m.low:.3f} to {m.high:.3f}", m.n)
        for name, m in report.metrics.items()
        if "/" not in name
    ]
    verdict = {True: "passed", False: "failed", None: "inconclusive"}[report.passed]
    return [
        table(f"{report.suite} ({report.suite_digest[:19]})", ("metric", "value", "95 % interval", "n"), rows),
        f"gate: {verdict}",
        *(f"  {reason}" for reason in report.reasons),
    ]


def improve(
    recipe: Annotated[str, typer.Argument(help="Pipeline whose recipe to use; default: the only one.")] = "",
    causal: Annotated[bool, typer.Option("--causal", help="Also tune the small language model.")] = False,
    project: ProjectDir = None,
    as_json: AsJson = False,
) -> None:
    """The whole offline loop at once. Harvest router rows, retrain, gate, release on replayed labelled traffic."""
    from agentops.improve import improve as run

    with open_workspace(project) as workspace, Bar("improve") as bar:
        steps = list(run(workspace, recipe, causal=causal, progress=bar))
    show(steps, as_json, [f"{step['step']:<9} {step['summary']}" for step in steps])
    if steps and steps[-1].get("failed"):
        raise GateFailed(steps[-1]["summary"])


def register(app: typer.Typer) -> None:
    for command in (harvest, train, evaluate, improve):
        app.command()(command)
