"""Preference training on step-level pairs: TRL's DPOTrainer with a length-normalised margin and a little SFT.

Invariant: chosen and rejected are one assistant message each after the same prompt, so no tool output is ever trained
on; the reference is the model the run starts from, its log-probabilities computed once before the first step.
Loss: `sigmoid_norm` (DPO, Rafailov et al. 2023, arXiv 2305.18290, on per-token averages) + w * SFT on the chosen side.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentops.errors import TrainError, require
from agentops.models import weights
from agentops.train import artifact, machine, rows
from agentops.train.progress import Progress, callback, train
from agentops.train.recipe import DpoRecipe, Machine, settings
from agentops.types import Dataset


def run(
    dataset: Dataset | Path,
    recipe: Mapping[str, Any] | DpoRecipe,
    base: Path,
    out: Path,
    environment: Any = None,
    progress: Progress | None = None,
    *,
    adapter: Path | None = None,
    on: Machine = Machine(),
) -> dict[str, Any]:
    """Train on better/worse pairs and write the adapter (or, with `lora_r = 0`, the model) to `out`.

    Args:
        dataset: rows {"prompt": [messages], "chosen": [message], "rejected": [message], "tools"?: […]}.
        recipe: the `[dpo]` table.
        base: Hugging Face folder of the model to start from.
        out: folder of the artifact; must not exist.
        environment: not used; every stage is called the same way.
        progress: called after each step with (step, total, values).
        adapter: an earlier adapter (usually the SFT one): trained on, and frozen as the reference.
        on: the `[machine]` table.

    Returns:
        The manifest written to `out`.

    Raises:
        TrainError: recipe, rows or base are unusable, or the loss is not a number.
    """
    recipe = settings(DpoRecipe, recipe)
    artifact.must_be_new(out)
    data = rows.read(dataset, "dpo")
    pairs = [_pair(row, f"row {number}") for number, row in enumerate(data.rows, 1)]
    require("trl", "train")
    from datasets import Dataset as Table
    from trl import DPOConfig, DPOTrainer

    device = machine.resolve(on)
    with machine.running(device), tempfile.TemporaryDirectory() as scratch:
        base_digest = weights.digest(base)
        model, tokenizer = artifact.load(base, adapter)
        lengths = [
            max(
                rows.length(tokenizer, [*pair["prompt"], *pair[side]], pair["tools"], f"row {number}, {side}")
                for side in ("chosen", "rejected")
            )
            for number, pair in enumerate(pairs, 1)
        ]
        limit, keep = rows.fit(
            lengths, recipe.max_length, model.config.max_position_embeddings, lambda index: f"row {index + 1}"
        )
        table = Table.from_list(
            [{**pairs[index], "tools": json.dumps(pairs[index]["tools"])} for index in keep], on_mixed_types="use_json"
        )
        curve: list[dict[str, float]] = []
        try:
            trainer = DPOTrainer(
                model=model,
                args=DPOConfig(
                    **machine.arguments(recipe, device, scratch),
                    max_length=limit,
                    beta=recipe.beta,
                    loss_type=["sigmoid_norm", "sft"],
                    loss_weights=[1.0, recipe.sft_weight],
                    precompute_ref_log_probs=True,
                ),
                train_dataset=table,
                processing_class=tokenizer,
                peft_config=machine.lora(recipe, model, adapter),
                callbacks=[callback(progress, curve)],
            )
        except (RuntimeError, ValueError) as error:
            raise TrainError(f"TRL refuses the data or the base: {error}") from error
        before = artifact.trainable_digest(trainer.model)
        train(trainer)
        artifact.must_differ(before, trainer.model)
        return artifact.save(
            trainer.model,
            tokenizer,
            out,
            artifact.manifest(
                "dpo",
                recipe,
                base_digest=base_digest,
                dataset=data.about(trained_on=len(keep), too_long=len(lengths) - len(keep)),
                machine=device,
                curve=curve,
                max_length=limit,
                adapter=weights.digest(adapter) if adapter else "",
            ),
        )


def _pair(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    pair: dict[str, Any] = {"prompt": rows.messages(row.get("prompt"), f"{where}, prompt")}
    for side in ("chosen", "rejected"):
        value = row.get(side)
        if not isinstance(value, list) or len(value) != 1:
            count = len(value) if isinstance(value, list) else type(value).__name__
            raise TrainError(f"{where}: {side} must be a list of one message, got {count}: pairs are step-level")
        pair[side] = [rows.message(value[0], f"{where}, {side}")]
        if pair[side][0]["role"] != "assistant":
            raise TrainError(f"{where}: {side} has role {pair[side][0]['role']!r}: only assistant turns are trained on")
    if pair["chosen"] == pair["rejected"]:
        raise TrainError(f"{where}: chosen and rejected are the same, a pair without a preference")
    if pair["prompt"][-1]["role"] == "assistant":
        raise TrainError(f"{where}: the prompt ends with an assistant message: nothing is left to answer")
    pair["tools"] = rows.tools(row, where)
    return pair
