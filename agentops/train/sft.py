"""Supervised fine-tuning on harvested episodes: TRL's SFTTrainer, loss on the assistant's turns only.

Invariant: every row was applied to the chat template before the model was touched, nothing is cut silently, and the
folder that appears holds weights that differ from those it started from. It decides nothing about serving.
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
from agentops.train.recipe import Machine, SftRecipe, settings
from agentops.types import Dataset


def run(
    dataset: Dataset | Path,
    recipe: Mapping[str, Any] | SftRecipe,
    base: Path,
    out: Path,
    environment: Any = None,
    progress: Progress | None = None,
    *,
    adapter: Path | None = None,
    on: Machine = Machine(),
) -> dict[str, Any]:
    """Train on whole successful episodes and write the adapter (or, with `lora_r = 0`, the model) to `out`.

    Args:
        dataset: rows {"messages": […], "tools": […]}; other columns are dropped.
        recipe: the `[sft]` table.
        base: Hugging Face folder of the model to start from.
        out: folder of the artifact; must not exist.
        environment: not used; every stage is called the same way.
        progress: called after each step with (step, total, values).
        adapter: an earlier adapter of the same base to train on.
        on: the `[machine]` table.

    Returns:
        The manifest written to `out`.

    Raises:
        TrainError: recipe, rows or base are unusable, or the loss is not a number.
    """
    recipe = settings(SftRecipe, recipe)
    artifact.must_be_new(out)
    data = rows.read(dataset, "sft")
    examples = [_example(row, f"row {number}") for number, row in enumerate(data.rows, 1)]
    require("trl", "train")
    from datasets import Dataset as Table
    from trl import SFTConfig, SFTTrainer

    device = machine.resolve(on)
    with machine.running(device), tempfile.TemporaryDirectory() as scratch:
        base_digest = weights.digest(base)
        model, tokenizer = artifact.load(base, adapter)
        lengths = [
            rows.length(tokenizer, messages, schemas, f"row {number}")
            for number, (messages, schemas) in enumerate(examples, 1)
        ]
        limit, keep = rows.fit(
            lengths, recipe.max_length, model.config.max_position_embeddings, lambda index: f"row {index + 1}"
        )
        table = Table.from_list(  # TRL reads `tools` as JSON text; "use_json" keeps arguments free of null padding
            [{"messages": examples[index][0], "tools": json.dumps(examples[index][1])} for index in keep],
            on_mixed_types="use_json",
        )
        curve: list[dict[str, float]] = []
        try:
            trainer = SFTTrainer(
                model=model,
                args=SFTConfig(
                    **machine.arguments(recipe, device, scratch), max_length=limit, assistant_only_loss=True
                ),
                train_dataset=table,
                processing_class=tokenizer,
                peft_config=machine.lora(recipe, model, adapter),
                callbacks=[callback(progress, curve)],
            )
        except (RuntimeError, ValueError) as error:  # a template without assistant masks, a row without assistant turn
            raise TrainError(f"TRL refuses the data or the base: {error}") from error
        before = artifact.trainable_digest(trainer.model)
        train(trainer)
        artifact.must_differ(before, trainer.model)
        return artifact.save(
            trainer.model,
            tokenizer,
            out,
            artifact.manifest(
                "sft",
                recipe,
                base_digest=base_digest,
                dataset=data.about(trained_on=len(keep), too_long=len(lengths) - len(keep)),
                machine=device,
                curve=curve,
                max_length=limit,
                adapter=weights.digest(adapter) if adapter else "",
            ),
        )


def _example(row: Mapping[str, Any], where: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    messages = rows.messages(row.get("messages"), where)
    if not any(message["role"] == "assistant" for message in messages):
        raise TrainError(f"{where}: has no assistant message, so there is nothing to learn from it")
    return messages, rows.tools(row, where)
