"""The demo's cast: simulated customers, an approver, and what each stage of the loop measured.

Invariant: customers know only what a suite's task says (text, right routes, right plan); the engine sees their requests
and their judgement as it would see anybody's. Requests are drawn by wording: those that are served and harvested share
none with those the release is decided on.
"""

import asyncio
import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from agentops import audit as auditing
from agentops import improve, labelled
from agentops.cli.offline import Bar
from agentops.evaluate import load_suite
from agentops.improve import Trained
from agentops.plan import parse
from agentops.release import Replay
from agentops.runtime import Answer, Runtime, new_request, open_runtime
from agentops.simulate import compare
from agentops.trace import write_feedback, write_verdicts
from agentops.train.recipe import read as read_recipe
from agentops.types import Feedback, Interval, Outcome, Report, Request, Run, Task, ToolCall, Trajectory, Verdict
from agentops.workspace import Workspace, local_principal

SEED = 0
CONCURRENCY = 8
PATIENCE = 0.7  # share of unhappy customers whose case a colleague looks at, naming the right route and answer
UNSURE = 160  # frozen requests the encoder is least sure of, on which the language model is measured
REPLAYED = 300  # distinct requests that releases are decided on, drawn again and again
CUSTOMER = "C-1001"
HIJACKED: tuple[tuple[str, str, dict[str, Any]], ...] = (  # calls that injected text might talk a sub-agent into
    ("help", "create_refund", {"order_id": "SO-31455", "amount_cents": 4480, "reason": "damaged"}),
    ("billing", "create_refund", {"order_id": "SO-31455", "amount_cents": 999_900, "reason": "damaged"}),
    ("orders", "send_document", {"document_id": "DOC-303172", "email": "thief@elsewhere.test"}),
)
PAIRS = 40  # requests whose right and wrong plans are compared in simulation


@dataclass(frozen=True, slots=True)
class Served:
    """One request, what the agent made of it, and what it became after an approval."""

    task: Task
    request: Request
    first: Answer
    resumed: Answer | None = None

    @property
    def answer(self) -> Answer:
        return self.resumed or self.first


class Rehearsal:
    """The stages in order; each returns what it measured."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.project = workspace.project
        definition = self.project.pipeline()
        self.recipe = read_recipe(definition.file)
        tasks = load_suite(labelled.suite_path(definition, "replay")).tasks
        self.served_tasks = [task for task in tasks if _half(task.template)]
        self.replay_tasks = [task for task in tasks if not _half(task.template)][:REPLAYED]
        self.frozen = labelled.find_suite(workspace.project)
        self.stopped: list[str] = []  # what became of HIJACKED
        self._simulated: list[Trajectory] = []
        self._datasets = workspace.home / "datasets"

    # -------------------------------------------------------------- online

    def deploy(self) -> list[str]:
        """Load everything that serves; put the shipped router into service."""
        note = improve.ensure_router(self.workspace)
        specs = self.workspace.specs.values()
        effects = sorted({spec.effect for spec in specs})
        counts = ", ".join(f"{sum(spec.effect == effect for spec in specs)} {effect}" for effect in effects)
        return [
            f"{len(self.workspace.specs)} tools in {len(self.project.packs)} packs ({counts}), "
            f"{len(self.project.agents)} sub-agents, policy {self.workspace.policy.digest[:19]}",
            note,
        ]

    async def serve(self, count: int) -> list[Served]:
        """Serve `count` requests, `CONCURRENCY` at a time; a person with the right role approves what waits."""
        rng = random.Random(SEED)
        chosen = rng.sample(self.served_tasks, min(count, len(self.served_tasks)))
        slots = asyncio.Semaphore(CONCURRENCY)
        async with open_runtime(self.workspace) as runtime:

            async def one(task: Task) -> Served:
                async with slots:
                    request = new_request(task.text, local_principal(self.workspace, task.user))
                    return Served(task, request, await runtime.ask(request))

            served = await asyncio.gather(*map(one, chosen))
            self.stopped = [await self._hijacked(runtime, *attempt) for attempt in HIJACKED]
            return [await self._approved(runtime, one) for one in served]

    async def _hijacked(self, runtime: Runtime, agent: str, tool: str, arguments: dict[str, Any]) -> str:
        """What a sub-agent that was talked into a call gets from the gateway."""
        who = local_principal(self.workspace, CUSTOMER)
        deadline = self.workspace.clock.now() + 10
        run = Run("hijacked", "hijacked", who, self.project.agents[agent], deadline)
        result = await runtime.gateway.call(run, ToolCall(f"hijacked-{agent}-{tool}", tool, arguments))
        return f"{agent} agent calls {tool}: {result.status}. {result.error}"

    async def _approved(self, runtime: Runtime, served: Served) -> Served:
        if served.first.status != "pending":
            return served
        for approval in served.first.approvals:
            found = self.workspace.approvals.get(approval, served.request.principal.tenant)
            approver = local_principal(self.workspace, "E-approver", tuple(found.approver.split("+")))
            self.workspace.approvals.decide(approval, True, approver, "the order and the amount are right")
        return replace(served, resumed=await runtime.resume(served.request.id))

    def serving_figures(self, served: Sequence[Served]) -> dict[str, Any]:
        """Latency, parallelism, cache and policy over all served requests. Times are of requests that did not wait."""
        results = [result for one in served for result in one.answer.results]
        took = [1000 * (one.first.ended_at - one.first.started_at) for one in served if one.resumed is None]
        sequential = parallel = 0.0
        for one in served:
            steps = parse(one.first.plan, self.workspace.specs).steps if one.first.results else ()
            ran = {step.id: result for step, result in zip(steps, one.first.results, strict=False)}
            live = {name: r.ended_at - r.started_at for name, r in ran.items() if r.status == "ok" and not r.cached}
            if len(live) > 1:
                sequential += sum(live.values())
                parallel += max(ran[n].ended_at for n in live) - min(ran[n].started_at for n in live)
        reads = [result for result in results if self.workspace.specs[result.tool].effect == "read"]
        return {
            "requests": len(served),
            "failed": sum(one.answer.status == "error" for one in served),
            "p50_ms": float(np.percentile(took, 50)),
            "p95_ms": float(np.percentile(took, 95)),
            "parallel_speed_up": sequential / parallel if parallel else 1.0,
            "reads": len(reads),
            "cache_hits": sum(result.cached for result in reads),
            "denied": sum(result.status == "denied" for one in served for result in one.first.results)
            + sum(": denied. " in line for line in self.stopped),
            "approved": sum(one.resumed is not None for one in served),
        }

    async def judge(self, served: Sequence[Served]) -> dict[str, Any]:
        """Customers judge by the task's labels; a colleague looks at some of the unhappy cases and corrects them."""
        rng = random.Random(SEED + 1)
        environment = improve.environment(self.workspace)
        now = self.workspace.clock.now()
        feedback: list[Feedback] = []
        verdicts: list[Verdict] = []
        for one in served:
            right = {route.label for route in one.answer.routes} == set(one.task.labels)
            fine = right and one.answer.status != "error"
            corrected = not fine and rng.random() < PATIENCE
            answer = ""
            if corrected and one.task.plan:
                best = (await compare(environment, one.task, [one.task.plan]))[0]
                answer = best.trajectory.answer
                if len(self._simulated) < 2 * PAIRS:
                    both = await compare(environment, one.task, [one.task.plan, one.first.plan])
                    self._simulated += [_judged(found.trajectory, found.verdict, one.task) for found in both]
            user = self.workspace.redactor.pseudonym("USER", one.task.user, one.request.principal.tenant)
            labels = one.task.labels if corrected else ()
            feedback.append(Feedback(one.answer.trace_id, 1 if fine else -1, now, user, "", answer, labels))
            verdicts.append(Verdict(one.answer.trace_id, "customer", fine, at=now))
        self.workspace.tracing.flush()
        lake, redactor, settings = self.workspace.lake, self.workspace.redactor, self.project.settings
        write_feedback(lake, feedback, settings.service, redactor, settings.tenant)
        write_verdicts(lake, verdicts, settings.service, redactor, settings.tenant)
        return {
            "thumbs_up": sum(one.score > 0 for one in feedback),
            "thumbs_down": sum(one.score < 0 for one in feedback),
            "corrected": sum(bool(one.corrected_labels) for one in feedback),
        }

    def verify_audit(self) -> dict[str, Any]:
        """Verify the log as an outsider would, after a signed checkpoint."""
        self.workspace.audit.checkpoint()
        report = auditing.verify(self.workspace.home / "audit")
        return {"audit_records": report.records, "audit_verified": report.ok}

    # -------------------------------------------------------------- offline

    def harvest(self) -> dict[str, int]:
        """The four kinds of data set, each with its manifest and card."""
        made = {}
        for kind in ("router", "sft", "dpo", "grpo"):
            data = improve.harvest_dataset(self.workspace, kind, self._datasets / kind, also=self._simulated)
            made[kind] = data.rows
        return made

    def train(self, steps: int, bar: Bar) -> Trained:
        """Refit the head on the harvested rows and the seed rows; tune the language model for `steps` LoRA steps."""
        rows = labelled.with_seed(self.project, labelled.labelled(self._datasets / "router"))
        causal = replace_steps(self.recipe.causal, steps) if steps and self.recipe.causal else None
        lineage = {
            "data": improve.dataset_digest(self._datasets / "router"),
            "parent": self.workspace.registry.current(labelled.ROUTER),
        }
        return improve.train_router(
            self.workspace, rows, lineage, causal=causal, machine=self.recipe.machine, progress=bar
        )

    def evaluate(self, trained: Trained) -> Report:
        """The retrained router against the one in service, encoder stage, on the frozen suite; gated."""
        serving = self.workspace.registry.current(labelled.ROUTER)
        return improve.evaluate_version(self.workspace, trained.digest, self.frozen, serving)

    def accuracies(self, report: Report, trained: Trained, causal: bool) -> dict[str, tuple[str, str]]:
        """Accuracy of each stage before and after, with its interval."""
        before, after = report.metrics["baseline/accuracy"], report.metrics["accuracy"]
        found = {f"encoder + head, {after.n} frozen requests": (_percent(before), _percent(after))}
        if causal:
            serving = self.workspace.registry.current(labelled.ROUTER)
            one, two = improve.causal_accuracy(self.workspace, serving, trained.digest, self.frozen, UNSURE)
            found[f"language model, {two.n} the encoder is least sure of"] = (_percent(one), _percent(two))
        return found

    def release(self, trained: Trained, report: Report) -> dict[str, Any]:
        """The gated release of the retrained router, decided on replayed traffic."""
        ended = improve.release_on_replay(
            self.workspace, trained.digest, self.replay_tasks, report=report, by="demo", seed=SEED
        )
        return _story(ended)

    def release_damaged(self) -> dict[str, Any]:
        """A router whose labels were shuffled in its data, released without a gate: a drill."""
        rows = labelled.with_seed(self.project, labelled.labelled(self._datasets / "router"))
        rng = random.Random(SEED + 2)
        labels = sorted({label for _, label in rows})
        wrong = [(text, rng.choice(labels) if rng.random() < 0.6 else label) for text, label in rows]
        made = improve.train_router(self.workspace, wrong, {"data": "damaged on purpose"})
        ended = improve.release_on_replay(
            self.workspace,
            made.digest,
            self.replay_tasks,
            report=None,
            by="demo",
            override="drill: does the canary take a damaged router back?",
            seed=SEED + 1,
        )
        return _story(ended)


def _half(template: str) -> bool:
    """Which half a wording belongs to, the same on every run."""
    return hashlib.sha256(template.encode()).digest()[0] < 128


def _judged(trajectory: Trajectory, verdict: Verdict, task: Task) -> Trajectory:
    success = None if verdict.success is None else int(verdict.success)
    return replace(
        trajectory,
        verdicts=(verdict,),
        outcome=Outcome(success, f"verdict:{verdict.verifier}"),  # pyrefly: ignore[bad-argument-type]
        unknown={**trajectory.unknown, "task_id": task.id},
    )


def _percent(value: Interval) -> str:
    return f"{100 * value.value:.1f} % [{100 * value.low:.1f}, {100 * value.high:.1f}]"


def _story(ended: Replay) -> dict[str, Any]:
    """How a release went, decision by decision."""
    story = [
        f"{ruling.action}: {ruling.release.stage} at {ruling.release.weight:.0%}. {ruling.reason}"
        for ruling in ended.rulings
    ]
    stage = {"full": "promoted", "rolled_back": "rolled back"}.get(
        ended.ruling.release.stage, ended.ruling.release.stage
    )
    summary = f"{stage} after {ended.sessions} sessions, {ended.candidate_sessions} of them on the candidate"
    return {"ended": summary, "stage": ended.ruling.release.stage, "sessions": ended.sessions, "story": story}


def replace_steps(recipe: Any, steps: int) -> Any:
    """The recipe with another number of steps."""
    return recipe.model_copy(update={"steps": steps})
