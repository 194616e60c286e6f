"""Group-relative policy optimisation on plans: TRL's GRPOTrainer, rewarded by the project's own environment.

One prompt is a request, one completion a plan; the plan is run on virtual time under the real policy, verified, and
scored by `rewards`. Loss `dapo` (arXiv 2503.14476), no scaling within groups, temperature 1, no sampling cut-offs.
Invariant: a completion's reward is a function of (task, plan, seed, step); what could not be scored is None, never 0,
and a group without two different rewards moves nothing. Simpler than the papers: one turn, no staleness, no reference
by default.
"""

import asyncio
import contextlib
import hashlib
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentops.errors import TrainError, require
from agentops.models import weights
from agentops.protocols import Environment
from agentops.train import artifact, machine, rewards, rows
from agentops.train.progress import Progress, callback, train
from agentops.train.recipe import GrpoRecipe, Machine, settings
from agentops.types import Dataset, Task, Trajectory, Verdict

Term = Callable[[Task, Trajectory, Verdict], float | None]
OWN = ("process", "invalid")  # the terms a pipeline may define; outcome and latency are the verdict's and the clock's
_LOG = logging.getLogger(__name__)
ATTEMPTS = 2  # an episode that broke is tried once more in a fresh world before it counts as unscorable


def run(
    dataset: Dataset | Path,
    recipe: Mapping[str, Any] | GrpoRecipe,
    base: Path,
    out: Path,
    environment: Callable[[], Environment] | None = None,
    progress: Progress | None = None,
    *,
    tasks: Mapping[str, Task] | None = None,
    terms: Mapping[str, Term] | None = None,
    pace: Callable[[tuple[str, ...]], tuple[float, float]] | None = None,
    adapter: Path | None = None,
    on: Machine = Machine(),
) -> dict[str, Any]:
    """Train a planner by trial in the environment and write the adapter (or the model) to `out`.

    Args:
        dataset: rows {"prompt": [messages], "task_id": …}; other columns are dropped.
        recipe: the `[grpo]` table.
        base: Hugging Face folder of the model to start from.
        out: folder of the artifact; must not exist.
        environment: makes a fresh environment for one episode.
        progress: called after each step with (step, total, values); values hold outcome, latency_s, invalid.
        tasks: task id -> task; rows of other tasks are left out and counted, because nothing could judge them.
        terms: the pipeline's own "process" and "invalid" by name, each in [0, 1]; default: `rewards.signals`.
        pace: a task's labels -> (free, max) simulated seconds it is measured against; default: the recipe's.
        adapter: an earlier adapter (usually the SFT one) to train on.
        on: the `[machine]` table.

    Returns:
        The manifest written to `out`.

    Raises:
        TrainError: recipe, rows, tasks or base are unusable; no episode could be scored; nothing was learned.
    """
    recipe = settings(GrpoRecipe, recipe)
    artifact.must_be_new(out)
    if recipe.batch_size % recipe.generations:
        raise TrainError(
            f"[grpo] batch_size = {recipe.batch_size!r} counts completions: make it a multiple of "
            f"generations = {recipe.generations!r}"
        )
    if environment is None:
        raise TrainError("grpo needs an environment: it learns from what plans do, not from recorded answers")
    data = rows.read(dataset, "grpo")
    scorer = Scorer(environment, tasks or {}, recipe, terms or {}, pace)
    known = [
        _prompt(row, f"row {number}")
        for number, row in enumerate(data.rows, 1)
        if isinstance(row.get("task_id"), str) and row["task_id"] in scorer.tasks
    ]
    if not known:
        raise TrainError(
            f"none of {len(data.rows)} rows has a task_id of the {len(scorer.tasks)} tasks given: their plans could "
            "never be scored"
        )
    require("trl", "train")
    from datasets import Dataset as Table
    from trl import GRPOConfig

    device = machine.resolve(on)
    with machine.running(device), tempfile.TemporaryDirectory() as scratch:
        base_digest = weights.digest(base)
        model, tokenizer = artifact.load(base, adapter)
        lengths = [rows.length(tokenizer, one["prompt"], None, f"task {one['task_id']}") for one in known]
        room = model.config.max_position_embeddings - recipe.max_completion_length
        limit, keep = rows.fit(lengths, recipe.max_prompt_length, room, lambda index: f"task {known[index]['task_id']}")
        curve: list[dict[str, float]] = []
        try:
            trainer = _trainer_class()(
                resamples=recipe.resamples,
                model=model,
                reward_funcs=scorer.score,
                args=GRPOConfig(
                    **machine.arguments(recipe, device, scratch),
                    num_generations=recipe.generations,
                    max_completion_length=recipe.max_completion_length,
                    temperature=1.0,
                    top_p=1.0,
                    top_k=0,
                    loss_type="dapo",
                    scale_rewards=recipe.scale_rewards,
                    beta=recipe.beta,
                ),
                train_dataset=Table.from_list([known[index] for index in keep]),
                processing_class=tokenizer,
                peft_config=machine.lora(recipe, model, adapter),
                callbacks=[callback(progress, curve)],
            )
        except ValueError as error:
            raise TrainError(f"TRL refuses the data or the base: {error}") from error
        before = artifact.trainable_digest(trainer.model)
        train(trainer)
        if not trainer.informative:
            raise TrainError(
                f"nothing was learned: in {trainer.groups} groups of {recipe.generations} plans no two rewards "
                "differed (all right, all wrong, or none a plan); train with sft first, or take harder or easier tasks"
            )
        artifact.must_differ(before, trainer.model)
        return artifact.save(
            trainer.model,
            tokenizer,
            out,
            artifact.manifest(
                "grpo",
                recipe,
                base_digest=base_digest,
                dataset=data.about(
                    trained_on=len(keep),
                    too_long=len(lengths) - len(keep),
                    without_task=len(data.rows) - len(known),
                ),
                machine=device,
                curve=curve,
                max_prompt_length=limit,
                adapter=weights.digest(adapter) if adapter else "",
                episodes={
                    "run": scorer.episodes,
                    "unscorable": scorer.unscorable,
                    "groups": trainer.groups,
                    "informative_groups": trainer.informative,
                },
                outcome=[round(entry["outcome"], 6) for entry in curve if "outcome" in entry],
            ),
        )


@dataclass
class Scorer:
    """Runs plans and rewards them. `score` is the function TRL calls; the rest counts what happened."""

    environment: Callable[[], Environment]
    tasks: Mapping[str, Task]
    recipe: GrpoRecipe
    terms: Mapping[str, Term] = field(default_factory=dict)
    pace: Callable[[tuple[str, ...]], tuple[float, float]] | None = None
    episodes: int = 0
    unscorable: int = 0
    _seen: dict[tuple[str, int, str], Any] = field(default_factory=dict)

    def score(self, **columns: Any) -> list[float | None]:
        """One reward per completion, as TRL asks for them; see `scored`.

        The episodes run in a thread of their own, because the caller may be inside a running event loop; TRL's own
        loop for asynchronous rewards is never closed.
        """
        with ThreadPoolExecutor(1, "episodes") as pool:
            return pool.submit(asyncio.run, self.scored(**columns)).result()

    async def scored(
        self,
        completions: Sequence[Sequence[Mapping[str, Any]]],
        completion_ids: Sequence[Sequence[int]],
        task_id: Sequence[str],
        trainer_state: Any = None,
        log_metric: Callable[[str, float], None] | None = None,
        **_: Any,
    ) -> list[float | None]:
        """One reward per completion; None where the environment could not say.

        Raises:
            TrainError: not one episode of the batch could be scored.
        """
        step = int(getattr(trainer_state, "global_step", 0))
        found: list[rewards.Signals | None] = []
        self._seen.clear()  # equal plans of one group are one episode
        for completion, ids, task in zip(completions, completion_ids, task_id, strict=True):
            text = str(completion[0].get("content") or "")
            found.append(await self._signals(task, step, text, len(ids)))
        scored = [one for one in found if one is not None]
        if not scored:
            raise TrainError(
                f"step {step}: none of {len(found)} episodes could be scored, so there is nothing to learn from: "
                "run one task of the data set through the environment by hand"
            )
        if log_metric is not None:
            for name in ("outcome", "latency_s", "process", "invalid"):
                log_metric(name, sum(getattr(one, name) for one in scored) / len(scored))
            log_metric("unscorable", (len(found) - len(scored)) / len(found))
        rates = {
            task: sum(one.outcome for one in group) / len(group)
            for task in set(task_id)
            if (group := [one for one, at in zip(found, task_id, strict=True) if at == task and one is not None])
        }
        bounds = rewards.Weights(self.recipe.latency_weight, self.recipe.process_weight, self.recipe.invalid_weight)
        return [
            None
            if one is None
            else rewards.reward(
                one,
                self._pace(task),
                bounds,
                rewards.latency_scale(rates[task], step, self.recipe.latency_warmup_steps),
            )
            for one, task in zip(found, task_id, strict=True)
        ]

    async def _signals(self, task_id: str, step: int, text: str, tokens: int) -> rewards.Signals | None:
        """Signals of one episode, or None after it broke in two fresh worlds."""
        word = hashlib.sha256(f"{self.recipe.seed}\0{task_id}\0{step}".encode()).digest()
        seed = int.from_bytes(word[:4], "big")  # the same for a whole group: a difference is then the plan's
        if (key := (task_id, seed, text)) not in self._seen:
            self._seen[key] = await self._episode(task_id, seed, text)
        self.episodes += 1
        if self._seen[key] is None:
            self.unscorable += 1
            return None
        trajectory, verdict = self._seen[key]
        shown = rewards.signals(trajectory, verdict, tokens, self.recipe.ms_per_token)
        own: dict[str, Any] = {
            name: term(self.tasks[task_id], trajectory, verdict) for name, term in self.terms.items() if name in OWN
        }
        return replace(shown, **own)  # a term that is None is refused when the reward is computed

    def _pace(self, task_id: str) -> rewards.Pace:
        recipe = self.recipe
        free_s, max_s = self.pace(self.tasks[task_id].labels) if self.pace else (recipe.free_s, recipe.max_s)
        return rewards.Pace(free_s, max_s, recipe.deadline_s)

    async def _episode(self, task_id: str, seed: int, text: str) -> Any:
        for _ in range(ATTEMPTS):
            try:
                with contextlib.closing(self.environment()) as environment:
                    environment.reset(seed, self.tasks[task_id])
                    trajectory = await environment.run(text)
                    verdict = environment.verify(trajectory)
                if verdict.success is not None:
                    return trajectory, verdict
            except Exception as error:  # noqa: BLE001 - whatever broke, the plan is not to blame: unscorable, and counted
                _LOG.warning("an episode of task %s could not be scored: %s: %s", task_id, type(error).__name__, error)
        return None


def _prompt(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    prompt = rows.messages(row.get("prompt"), f"{where}, prompt")
    if prompt[-1]["role"] == "assistant":
        raise TrainError(f"{where}: the prompt ends with an assistant message: nothing is left to write")
    if any("tool_calls" in message for message in prompt):
        raise TrainError(f"{where}: a prompt with tool calls is a started episode; plans are written from the request")
    return {"prompt": prompt, "task_id": row["task_id"]}


def _trainer_class() -> type:
    """GRPOTrainer that draws again when a step would teach nothing, and leaves out groups that teach nothing."""
    import torch
    from trl import GRPOTrainer

    class PlanTrainer(GRPOTrainer):
        def __init__(self, *, resamples: int, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.resamples = resamples
            self.size: int = kwargs["args"].num_generations
            self.whole = self.accelerator.num_processes > 1 or kwargs["args"].steps_per_generation > 1
            self.groups = 0
            self.informative = 0

        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
            batch: dict[str, Any] = {}
            keep = torch.zeros(0, dtype=torch.bool)
            for _ in range(1 + self.resamples):
                batch = super()._generate_and_score_completions(inputs)
                groups = batch["advantages"].view(-1, self.size)
                keep = (groups.abs() > 1e-6).any(dim=1)
                self.groups += len(keep)
                self.informative += int(keep.sum())
                if keep.any():
                    break
            # Whole groups only: dropping rows would leave a baseline that no longer fits its group. With several
            # processes or accumulation the batch must keep its size; there zero advantages do the same, slower.
            if self.whole or keep.all() or not keep.any():
                return batch
            select = keep.repeat_interleave(self.size)
            kept = {
                name: value[select] if isinstance(value, torch.Tensor) and value.dim() else value
                for name, value in batch.items()
            }
            kept["num_items_in_batch"] = kept["completion_mask"].sum()  # what `dapo` divides by
            return kept

    return PlanTrainer
