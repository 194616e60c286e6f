"""Conductor 2, the offline loop: harvest -> train -> evaluate -> gate -> release, on one project's own traces.

Invariant: a router reaches service only as an artifact with lineage (data set, parent, recipe), through a gate on the
frozen suite and a release the controller decided; nothing of a frozen or sealed suite enters a data set. Stages do not
know each other: everything that joins them is here.
"""

import hashlib
import itertools
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from agentops import harvest as harvesting
from agentops import project as projects
from agentops.act import ToolGateway, execute
from agentops.act.lookup import simulated_resolver
from agentops.audit import MemoryAudit
from agentops.cache import MemoryCache
from agentops.errors import HarvestError, ReleaseError, TrainError
from agentops.evaluate import Suite, evaluate_router, gate, latencies, load_suite
from agentops.evaluate.statistics import proportion
from agentops.graph import Clock
from agentops.harvest import Exclusion
from agentops.labelled import ROUTER, find_suite, labelled, labels_of, seed_rows, suite_path, with_seed
from agentops.models.encoder import load as load_encoder
from agentops.plan import answer, parse
from agentops.policy import Approvals, Budgets, Effects, Readings, identities, principal
from agentops.project import Definition, Project
from agentops.protocols import Gateway, Router
from agentops.release import OPEN, Controller, Metrics, Replay, ReplayUnit, load_rules, replay
from agentops.runtime import OWN_LABELS, load_router
from agentops.simulate import ProjectEnvironment
from agentops.store import MemoryState
from agentops.trace import trajectories
from agentops.train import fit_head
from agentops.train.recipe import CausalRecipe, Machine
from agentops.train.recipe import read as read_recipe
from agentops.types import OUT_OF_SCOPE, Dataset, Interval, Report, Route, Task, Trajectory
from agentops.workspace import Workspace

Progress = Callable[[int, int, Mapping[str, float]], None]


# ------------------------------------------------------------------ suites


def exclusion(project: Project, pipeline: str = "") -> Exclusion:
    """What no data set may contain or come close to: the recipe's frozen and sealed suites."""
    definition = project.pipeline(pipeline)
    held = {key: load_suite(suite_path(definition, key)) for key in ("suite", "sealed") if _names(definition, key)}
    return Exclusion({suite.name: [task.text for task in suite.tasks] for suite in held.values()})


def _names(definition: Definition, key: str) -> bool:
    return bool(definition.table.get("evaluate", {}).get(key))


# ------------------------------------------------------------------ routers as artifacts


@dataclass(frozen=True, slots=True)
class Trained:
    """A router version: where it is and what its manifest says."""

    digest: str
    manifest: Mapping[str, Any]


def ensure_router(workspace: Workspace, router: str = ROUTER) -> str:
    """Put the shipped router into service when nothing is: fitted on the definition's seed rows, in seconds.

    Returns:
        a sentence about what was done, "" when a version was in service already.
    """
    if workspace.registry.current(router):
        return ""
    rows = seed_rows(workspace.project, router)
    made = train_router(workspace, rows, {"data": "seed rows", "shipped": True}, router=router)
    workspace.registry.set(router, made.digest, by="agentops", reason=f"first version, fitted on {len(rows)} seed rows")
    return (
        f"router {router!r}: first version fitted on {len(rows)} seed rows; expect it to be weak until it is retrained"
    )


def train_router(
    workspace: Workspace,
    rows: Sequence[tuple[str, str]],
    lineage: Mapping[str, Any],
    *,
    router: str = ROUTER,
    causal: CausalRecipe | None = None,
    machine: Machine = Machine(),
    progress: Progress | None = None,
    seed: int = 0,
) -> Trained:
    """Fit the encoder's head, and with `causal` a LoRA adapter of the small language model; store both as one artifact.

    Args:
        workspace: where the artifact goes.
        rows: (text, label).
        router: whose labels are allowed.
        seed: of the folds.
        lineage: goes into the manifest: data set digest, recipe, parent.
        causal: the recipe's `[router.causal]`; None leaves the adapter out.
        machine: the recipe's `[machine]`.
        progress: called as (step, steps, values) while the adapter trains.
    """
    settings = workspace.project.settings
    labels = None if router == OWN_LABELS else labels_of(workspace.project, router)
    with tempfile.TemporaryDirectory(prefix="agentops-train-") as folder:
        out = Path(folder) / "router"
        manifest: dict[str, Any] = fit_head(rows, load_encoder(settings.encoder), out, labels=labels, seed=seed)
        if causal is not None:
            from agentops.models import weights
            from agentops.train.causal_router import fit_causal

            used = sorted({label for _, label in rows} - {OUT_OF_SCOPE})
            base = weights.causal(settings.causal_model)
            manifest["causal"] = fit_causal(rows, used, base, out / "causal", causal, progress=progress, on=machine)
        manifest = {
            **manifest,
            **lineage,
            "router": router,
            "rows_digest": rows_digest(rows),
            "project": workspace.project.digest,
        }
        digest = workspace.artifacts.put(out, manifest)
    return Trained(digest, manifest)


def train_stage(
    workspace: Workspace,
    stage: str,
    data: Path,
    *,
    pipeline: str = "",
    causal: bool = False,
    own_labels: bool = False,
    base: Path | None = None,
    progress: Progress | None = None,
) -> Trained:
    """One stage of a pipeline's recipe on a data set; the artifact's manifest names data, recipe, base and parent.

    Args:
        workspace: the project.
        stage: "router", "sft", "dpo" or "grpo".
        data: a harvested folder; for "router" also a labelled CSV.
        pipeline: whose recipe; "" = the only one.
        causal: with "router", also train the small language model's adapter.
        own_labels: with "router", the labels are the data's and not the project's: a router to measure, not to release.
        base: base model folder of sft, dpo and grpo; default: the recipe's, then the packaged SmolLM2.
        progress: called as (step, steps, values).

    Raises:
        TrainError: unknown stage, a recipe without it, or unusable data.
    """
    definition = workspace.project.pipeline(pipeline)
    recipe = read_recipe(definition.file)
    lineage = {"data": dataset_digest(data), "recipe": _file_digest(definition.file), "stage": stage}
    if stage == "router":
        router = recipe.router.router
        tuned = (recipe.causal or CausalRecipe()) if causal else None
        if own_labels:
            router = OWN_LABELS
        else:
            lineage["parent"] = workspace.registry.current(router)
        rows = labelled(data, None if own_labels else labels_of(workspace.project, router))
        if not own_labels:
            rows = with_seed(workspace.project, rows, router)
        how = {"causal": tuned, "machine": recipe.machine, "progress": progress, "seed": recipe.router.seed}
        return train_router(workspace, rows, lineage, router=router, **how)
    settings = {"sft": recipe.sft, "dpo": recipe.dpo, "grpo": recipe.grpo}.get(stage)
    if settings is None:
        raise TrainError(
            f"stage {stage!r} cannot be trained: {definition.file.name} has no [{stage}] (router, sft, dpo, grpo)"
        )
    from agentops.models import weights
    from agentops.train import dpo, grpo, sft

    folder = base or weights.causal(settings.base or workspace.project.settings.causal_model)
    more: dict[str, Any] = {}
    if stage == "grpo":
        terms = projects.module(workspace.project.root, f"pipelines.{definition.name}.rewards")
        more["tasks"] = {task.id: task for task in find_suite(workspace.project, "replay", pipeline).tasks}
        more["terms"] = {name: getattr(terms, name) for name in ("process", "invalid") if hasattr(terms, name)}
        more["pace"] = getattr(terms, "pace", None)
        more["environment"] = lambda: environment(workspace, pipeline)
    with tempfile.TemporaryDirectory(prefix="agentops-train-") as scratch:
        out = Path(scratch) / stage
        run: Any = {"sft": sft.run, "dpo": dpo.run, "grpo": grpo.run}[stage]
        manifest = {**run(data, settings, folder, out, progress=progress, on=recipe.machine, **more), **lineage}
        return Trained(workspace.artifacts.put(out, manifest), manifest)


def dataset_digest(data: Path) -> str:
    """The content hash a harvest wrote into its manifest; of a single file, the file's."""
    manifest = data / "manifest.json"
    if manifest.is_file():
        return str(orjson.loads(manifest.read_bytes()).get("digest", ""))
    return _file_digest(data) if data.is_file() else ""


def _file_digest(file: Path) -> str:
    return "sha256:" + hashlib.sha256(file.read_bytes()).hexdigest()


def rows_digest(rows: Sequence[tuple[str, str]]) -> str:
    """Content hash of labelled rows."""
    return "sha256:" + hashlib.sha256(orjson.dumps([list(row) for row in rows])).hexdigest()


# ------------------------------------------------------------------ harvest


def harvest_dataset(
    workspace: Workspace,
    kind: str,
    out: Path,
    *,
    where: str = "",
    options: Mapping[str, Any] | None = None,
    pipeline: str = "",
    also: Iterable[Trajectory] = (),
) -> Dataset:
    """A data set from the recorded traces (and simulated episodes in `also`), with the recipe's `[harvest]` options."""
    recipe = dict(workspace.project.pipeline(pipeline).table.get("harvest", {}))
    recipe.pop("exclude", None)  # the suites named in [evaluate] are excluded whatever a recipe says
    given = {**recipe, "effects": {name: spec.effect for name, spec in workspace.specs.items()}, **(options or {})}
    if kind == "router":
        given.setdefault("labels", sorted(labels_of(workspace.project)))
    if kind == "sft" and "include_undecided" not in given:
        # Traces of which nobody ever judged any: the choice is between rows marked as unjudged and none at all.
        judged = any(one.outcome.success is not None for one in trajectories(workspace.lake, where))
        given["include_undecided"] = not judged
    return harvesting.harvest(
        kind,
        itertools.chain(trajectories(workspace.lake, where), also),
        out,
        exclude=exclusion(workspace.project, pipeline),
        redactor=workspace.redactor,
        options=given,
    )


# ------------------------------------------------------------------ evaluate and release


def evaluate_version(
    workspace: Workspace,
    digest: str,
    suite: Suite,
    baseline: str = "",
    *,
    limit: int | None = None,
    router: str = ROUTER,
) -> Report:
    """Evaluate a router version on a suite, against a baseline version when given, and gate it."""
    candidate = load_router(workspace, digest, router)
    other = load_router(workspace, baseline, router) if baseline and baseline != digest else None
    report = evaluate_router(suite, candidate, other, limit=limit)
    return gate(report, load_rules(workspace.project.policies).gate)


def causal_accuracy(
    workspace: Workspace, serving: str, candidate: str, suite: Suite, count: int
) -> tuple[Interval, Interval]:
    """Accuracy of the language-model stage alone, without and with the candidate's adapter.

    Measured on the `count` single-route requests of the suite that the serving version's encoder is least sure of: the
    ones this stage is for. Both see the same requests; neither sees the encoder's opinion.
    """
    from agentops.models.causal import CausalLabels

    one = [task for task in suite.tasks if len(task.labels) == 1]
    routed = load_router(workspace, serving).route([task.text for task in one])
    unsure = sorted(zip(one, routed, strict=True), key=lambda pair: _sureness(pair[1]))[:count]
    tasks = [task for task, _ in unsure]
    adapter = workspace.artifacts.path(candidate) / "causal"
    base = workspace.project.settings.causal_model
    tuned = CausalLabels.load(base, adapter)
    plain = CausalLabels.load(base, None, tuned.labels)
    found = []
    for model in (plain, tuned):
        scores = model.scores([task.text for task in tasks])
        right = [model.labels[int(row.argmax())] == task.labels[0] for row, task in zip(scores, tasks, strict=True)]
        found.append(proportion([float(ok) for ok in right], [task.template or task.id for task in tasks]))
    return found[0], found[1]


def _sureness(routes: Sequence[Route]) -> float:
    best = min(routes, key=lambda route: route.confidence)
    return best.scores[0][1] if best.scores else 0.0


def unseen(tasks: Sequence[Task], texts: Iterable[str]) -> list[Task]:
    """Tasks of wordings that none of the training `texts` has: a release is decided on what its candidate never saw.

    Raises:
        ReleaseError: fewer than 100 are left; they could not tell two versions apart.
    """
    trained = {" ".join(text.split()).casefold() for text in texts}
    seen = {task.template for task in tasks if " ".join(task.text.split()).casefold() in trained}
    left = [task for task in tasks if not task.template or task.template not in seen]
    if len(left) < 100:
        raise ReleaseError(f"only {len(left)} of {len(tasks)} replay requests have a wording the candidate never saw")
    return left


def replay_units(
    stable: Router, candidate: Router, tasks: Sequence[Task], sessions: int, seed: int = 0, repeats: int = 2
) -> Iterator[ReplayUnit]:
    """Labelled requests drawn with replacement as one-request sessions: what both versions make of each.

    Each request is routed by both versions once, and timed `repeats` times by each in turn, so that both latencies are
    measured side by side. Routing only: no tool runs. A session succeeds when the set of routes is the labelled one.
    """
    rng = random.Random(seed)
    texts = [task.text for task in tasks]
    times = latencies([stable, candidate], texts, repeats)
    answers = [
        [frozenset(route.label for route in routes) for routes in one.route(texts)] for one in (stable, candidate)
    ]
    for number in range(sessions):
        at = rng.randrange(len(tasks))
        right = frozenset(tasks[at].labels)
        served, other = (
            Metrics(success=int(found[at] == right), latency_s=took[at], cost=0.0)
            for found, took in zip(answers, times, strict=True)
        )
        yield ReplayUnit(f"replay-{seed}-{number}", served, other, answers[0][at] != answers[1][at])


def release_on_replay(
    workspace: Workspace,
    candidate: str,
    tasks: Sequence[Task],
    *,
    report: Report | None,
    by: str,
    override: str = "",
    sessions: int = 40_000,
    seed: int = 0,
    router: str = ROUTER,
) -> Replay:
    """Start a release of `candidate` and let the controller decide it on replayed labelled traffic."""
    controller = Controller(workspace.registry, load_rules(workspace.project.policies), workspace.clock)
    stable = workspace.registry.current(router)
    controller.start(router, candidate, by=by, report=report, override=override)
    routers = load_router(workspace, stable, router), load_router(workspace, candidate, router)
    return replay(controller, router, replay_units(*routers, tasks, sessions, seed))


# ------------------------------------------------------------------ simulation


def environment(workspace: Workspace, pipeline: str = "") -> ProjectEnvironment:
    """Episodes of this project in fresh worlds on virtual time, with the gateway, policy and scheduler of serving."""
    definition = workspace.project.pipeline(pipeline)
    verify = projects.module(workspace.project.root, f"pipelines.{definition.name}.verify").verify
    limits = identities(workspace.project.policies).limits
    policy = workspace.policy.current  # one set for all episodes, whatever is edited meanwhile

    def gateway(world: Any, clock: Clock, audit: MemoryAudit) -> Gateway:
        state = MemoryState()
        return ToolGateway(
            workspace.project.tools,
            policy,
            audit,
            Approvals(state, clock),
            Budgets(state, clock, limits),
            Readings(state, clock),
            Effects(state, clock),
            MemoryCache(),
            world,
            clock,
            None,
            workspace.redactor,
            resolver=simulated_resolver,
        )

    async def run(plan: Any, door: Gateway, as_run: Any, clock: Clock) -> Mapping[str, Any]:
        return await execute(plan, door, as_run, clock, agents=workspace.project.agents)

    return ProjectEnvironment(
        workspace.project,
        workspace.pristine_world,
        parse=parse,
        gateway=gateway,
        execute=run,
        verify=verify,
        principal=lambda task: principal(workspace.project.policies, workspace.project.settings.tenant, task.user),
        answer=answer,
        policy_digest=policy.digest,
    )


# ------------------------------------------------------------------ the whole loop


def improve(
    workspace: Workspace, pipeline: str = "", *, causal: bool = False, progress: Progress | None = None
) -> Iterator[dict[str, Any]]:
    """Harvest router rows, retrain, gate, and release on replayed labelled traffic; yields a summary of each step.

    A step that ends the loop (nothing to learn from, a gate that failed, a release that was not promoted) is the last
    one and has "failed": True.
    """
    project = workspace.project
    release = workspace.registry.release(ROUTER)
    if release is not None and release.stage in OPEN:  # before anything is trained that could not be released
        todo = "promote or abort it by hand" if release.stage == "held" else "wait for its decision, or abort it"
        yield {"step": "release", "summary": f"release {release.id} is open ({release.stage}): {todo}", "failed": True}
        return
    note = ensure_router(workspace)
    if note:
        yield {"step": "router", "summary": note}
    out = _next_folder(workspace.home / "datasets")
    try:
        made = harvest_dataset(workspace, "router", out, pipeline=pipeline)
    except HarvestError as error:
        yield {"step": "harvest", "summary": str(error), "failed": True}
        return
    yield {"step": "harvest", "summary": f"{made.rows} rows in {out.name}", "digest": made.digest}
    trained = train_stage(workspace, "router", out, pipeline=pipeline, causal=causal, progress=progress)
    yield {"step": "train", "summary": f"artifact {trained.digest[:19]}", "digest": trained.digest}
    serving = workspace.registry.current(ROUTER)
    report = evaluate_version(workspace, trained.digest, find_suite(project, "", pipeline), serving)
    accuracy = report.metrics["accuracy"]
    verdict = {True: "passed", False: "failed", None: "inconclusive"}[report.passed]
    yield {"step": "evaluate", "summary": f"accuracy {accuracy}, gate {verdict}", "failed": not report.passed}
    if not report.passed:
        return
    traffic = find_suite(project, "replay", pipeline).tasks
    tasks = unseen(traffic, [text for text, _ in labelled(out)])
    ended = release_on_replay(workspace, trained.digest, tasks, report=report, by="agentops improve")
    stage = ended.ruling.release.stage
    used = f"{ended.sessions} sessions, {ended.candidate_sessions} of them on the candidate"
    summary = f"{stage} after {used}: {ended.ruling.reason}"
    yield {"step": "release", "summary": summary, "failed": stage != "full"}


def _next_folder(datasets: Path) -> Path:
    """`datasets`/router-NNNN, one above the highest there: also after somebody removed an old one."""
    taken = [int(path.name[7:]) for path in datasets.glob("router-*") if path.name[7:].isdecimal()]
    return datasets / f"router-{max(taken, default=0) + 1:04d}"
