"""`agentops demo`: both loops on the reference project, measured while they run.

Invariant: every figure it prints was measured in this run; nothing leaves the machine; its state is its own folder,
made anew each time. Customers are simulated: they ask requests of the traffic suite and judge by the suite's labels.
"""

import asyncio
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from agentops import project as projects
from agentops.cli.app import AsJson, ProjectDir, console, show, table
from agentops.cli.offline import Bar
from agentops.cli.rehearsal import Rehearsal, Served
from agentops.errors import ProjectError, available
from agentops.types import Report
from agentops.workspace import Workspace

FOLDER = ".agentops/demo"


class Narrator:
    """Prints stage by stage what happens and how long it took."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, title: str) -> Iterator[None]:
        if not self._quiet:
            console.print(f"\n[bold]{len(self.seconds) + 1}. {title}[/]")
        started = time.perf_counter()
        yield
        self.seconds[title] = time.perf_counter() - started
        self.say(f"[dim]{self.seconds[title]:.1f} s[/]")

    def say(self, *lines: Any) -> None:
        for line in lines:
            if not self._quiet:
                console.print(f"   {line}" if isinstance(line, str) else line)


def demo(
    requests: Annotated[int, typer.Option(min=50, max=2000, help="Requests to serve.")] = 600,
    steps: Annotated[
        int, typer.Option(min=0, max=20, help="LoRA steps of the small language model; 0 leaves it out.")
    ] = 20,
    project: ProjectDir = None,
    as_json: AsJson = False,
) -> None:
    """Show the whole loop, offline. Serve, trace, judge, harvest, retrain, evaluate, gate, canary, roll back."""
    root = project.resolve() if project else projects.find()
    loaded = projects.load(root, {**os.environ, "AGENTOPS_HOME": FOLDER})
    if not loaded.pipelines:
        raise ProjectError("the demo needs a pipeline with suites: run it in the reference project")
    shutil.rmtree(root / FOLDER, ignore_errors=True)
    narrator = Narrator(as_json)
    started = time.perf_counter()
    with Workspace(loaded) as workspace:
        figures = _run(workspace, narrator, requests, steps if available("trl") else 0)
    figures["seconds"] = round(time.perf_counter() - started, 1)
    show(figures, as_json, ["", table("What was measured in this run", ("", ""), _rows(figures))])


def _run(workspace: Workspace, narrator: Narrator, requests: int, steps: int) -> dict[str, Any]:
    rehearsal = Rehearsal(workspace)
    figures: dict[str, Any] = {}
    with narrator.stage("Deploy: tools, policies and the router that ships"):
        narrator.say(*rehearsal.deploy())
    with narrator.stage(f"Serve {requests} requests of simulated customers"):
        served = asyncio.run(rehearsal.serve(requests))
        narrator.say(*_examples(served))
        figures |= rehearsal.serving_figures(served)
        narrator.say(
            f"{figures['requests']} served, p50 {figures['p50_ms']:.0f} ms, p95 {figures['p95_ms']:.0f} ms; plans ran "
            f"{figures['parallel_speed_up']:.2f} times as fast as one call after the other",
            f"{figures['cache_hits']} cache hits, {figures['approved']} requests approved by a person",
            "[cyan]hijacked on purpose[/]",
            *(f"  {line}" for line in rehearsal.stopped),
        )
    with narrator.stage("Judge: verdicts and feedback join the traces"):
        figures |= asyncio.run(rehearsal.judge(served))
        narrator.say(
            f"{figures['thumbs_up']} thumbs up, {figures['thumbs_down']} down, {figures['corrected']} corrected"
        )
    with narrator.stage("Verify the audit log"):
        figures |= rehearsal.verify_audit()
        narrator.say(f"{figures['audit_records']} records, verified: {figures['audit_verified']}")
    with narrator.stage("Harvest: traces become data sets"):
        figures["datasets"] = rehearsal.harvest()
        narrator.say(", ".join(f"{kind} {rows} rows" for kind, rows in figures["datasets"].items()))
    with narrator.stage(
        "Retrain the router: the head in seconds" + (f", LoRA on SmolLM2 in {steps} steps" if steps else "")
    ):
        with Bar("   LoRA SFT") as bar:
            trained = rehearsal.train(steps, bar)
        narrator.say(f"artifact {trained.digest[:19]} from {trained.manifest['rows']} rows")
    with narrator.stage("Evaluate on the frozen suite, stage by stage, and gate"):
        report = rehearsal.evaluate(trained)
        figures["accuracy"] = rehearsal.accuracies(report, trained, steps > 0)
        narrator.say(*(f"{name}: {before} -> {after}" for name, (before, after) in figures["accuracy"].items()))
        figures["gain"] = report.metrics["difference"].value
        narrator.say(*_gate(report))
    with narrator.stage("Release: shadow, canary, promotion, on labelled traffic neither router was trained on"):
        figures["release"] = rehearsal.release(trained, report)
        narrator.say(*figures["release"]["story"])
    with narrator.stage("Release a damaged router: the canary takes it back"):
        figures["damaged"] = rehearsal.release_damaged()
        narrator.say(*figures["damaged"]["story"])
    figures["stage_seconds"] = {title: round(took, 1) for title, took in narrator.seconds.items()}
    return figures


def _examples(served: list[Served]) -> list[str]:
    """A plan that ran in parallel, a message with two requests, a call a policy stopped, one a person approved."""
    wanted = {
        "in parallel": lambda s: s.first.status == "ok" and " & " in s.first.plan,
        "two requests": lambda s: len(s.first.routes) > 1 and s.first.status == "ok",
        "denied": lambda s: any(result.status == "denied" for result in s.first.results),
        "approved": lambda s: s.resumed is not None,
    }
    lines = []
    for title, matches in wanted.items():
        found = next((one for one in served if matches(one)), None)
        if found is not None:
            routes = " + ".join(route.label for route in found.first.routes)
            last = found.answer.text.splitlines()
            lines += [f"[cyan]{title}[/]", f"  customer: {found.request.text[:110]!r}", f"  route:    {routes}"]
            lines += [f"  plan:     {line}" for line in found.first.plan.splitlines()[:-1]]
            lines += [f"  answer:   {line[:150]}" for line in last[:2]]
    return [line.replace("[", "\\[") if line.startswith("  ") else line for line in lines]


def _gate(report: Report) -> list[str]:
    verdict = {True: "[green]passed[/]", False: "[red]failed[/]", None: "[yellow]inconclusive[/]"}[report.passed]
    return [f"gate {verdict}", *(f"  {reason}" for reason in report.reasons)]


def _rows(figures: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("requests served", f"{figures['requests']} ({figures['failed']} failed)"),
        ("latency p50 / p95", f"{figures['p50_ms']:.0f} / {figures['p95_ms']:.0f} ms"),
        ("parallel speed-up", f"{figures['parallel_speed_up']:.2f}x over one call after the other"),
        ("cache hits", f"{figures['cache_hits']} of {figures['reads']} reads"),
        ("denied calls", f"{figures['denied']}; approved by a person: {figures['approved']}"),
        ("audit", f"{figures['audit_records']} records, verified: {figures['audit_verified']}"),
        ("data sets", ", ".join(f"{kind} {rows}" for kind, rows in figures["datasets"].items())),
    ]
    rows += [(f"accuracy, {name}", f"{before}  ->  {after}") for name, (before, after) in figures["accuracy"].items()]
    rows += [("retrained router", figures["release"]["ended"]), ("damaged router", figures["damaged"]["ended"])]
    return [*rows, ("all of it", f"{figures['seconds']:.0f} s")]


def register(app: typer.Typer) -> None:
    app.command()(demo)
