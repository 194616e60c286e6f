"""The causal router stage: LoRA on a small language model so that one token names a message's label.

Invariant: what is trained is what is scored: prompts and answer tokens come from `agentops.models.causal`, the loss is
on the one answer token, and the adapter's folder loads in CausalLabels as it is. Batches are balanced over the labels.
"""

import random
import tempfile
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from agentops.errors import TrainError, require
from agentops.models import causal, weights
from agentops.train import artifact, machine
from agentops.train.progress import Progress, callback, train
from agentops.train.recipe import CausalRecipe, Machine, settings
from agentops.types import OUT_OF_SCOPE

HELD_OUT = 96  # rows at most, and a tenth at most, that set the temperature and the validation accuracy


def fit_causal(
    rows: Sequence[tuple[str, str]],
    labels: Sequence[str],
    base: Path,
    out: Path,
    recipe: Mapping[str, Any] | CausalRecipe | None = None,
    *,
    progress: Progress | None = None,
    on: Machine = Machine(),
    **changes: Any,
) -> dict[str, Any]:
    """Fit an adapter on labelled messages and write it, with labels.json and manifest.json, to `out`.

    Args:
        rows: (text, label) pairs.
        labels: the router's labels; OUT_OF_SCOPE is always one.
        base: Hugging Face folder of the model.
        out: folder of the artifact; must not exist.
        recipe: the `[router.causal]` table.
        progress: called after each step with (step, total, values).
        on: the `[machine]` table.
        **changes: settings that override the recipe's, for example `steps=20`.

    Returns:
        The manifest; "validation" holds accuracy and temperature on held-out rows, or None with too few rows.

    Raises:
        TrainError: recipe, rows or base are unusable, or the loss is not a number.
    """
    given = recipe.model_dump() if isinstance(recipe, CausalRecipe) else dict(recipe or {})
    recipe = settings(CausalRecipe, {**given, **changes})
    if recipe.lora_r == 0:
        raise TrainError(
            "[router.causal] lora_r = 0: a router's language model is shared, only an adapter may be fitted"
        )
    artifact.must_be_new(out)
    names = [*sorted(set(labels) - {OUT_OF_SCOPE}), OUT_OF_SCOPE]
    found = _checked(rows, set(names))
    learn, held_out = _split(found, recipe.seed)
    require("trl", "train")
    from datasets import Dataset as Table
    from trl import SFTConfig

    device = machine.resolve(on)
    with machine.running(device), tempfile.TemporaryDirectory() as scratch:
        base_digest = weights.digest(base)
        model, tokenizer = artifact.load(base)
        words = causal.verbalisers(names, tokenizer)
        drawn = _balanced(learn, recipe.steps * recipe.batch_size * recipe.gradient_accumulation, recipe.seed)
        tokens = [_tokens(tokenizer, text, label, words) for text, label in drawn]
        curve: list[dict[str, float]] = []
        trainer = _trainer_class()(
            answers=[_tokens(tokenizer, "hello", label, words)["input_ids"][-1] for label in words],
            shared=_shared([row["input_ids"] for row in tokens]),
            model=model,
            args=SFTConfig(
                **machine.arguments(recipe, device, scratch),
                max_length=None,  # a prompt is bounded by its format
                train_sampling_strategy="sequential",  # the draw is already shuffled and balanced
            ),
            train_dataset=Table.from_list(tokens),
            processing_class=tokenizer,
            peft_config=machine.lora(recipe, model),
            callbacks=[callback(progress, curve)],
        )
        before = artifact.trainable_digest(trainer.model)
        train(trainer)
        artifact.must_differ(before, trainer.model)
        fitted = trainer.model.get_base_model().eval()
        scorer = causal.CausalLabels(fitted, tokenizer, words, np.zeros(len(words)))
        validation, temperature = _calibrate(scorer, held_out)
        return artifact.save(
            trainer.model,
            tokenizer,
            out,
            artifact.manifest(
                "router.causal",
                recipe,
                base_digest=base_digest,
                dataset={"kind": "router", "rows": len(found), "labels": _counts(found), "digest": _digest(found)},
                machine=device,
                curve=curve,
                labels=list(words),
                validation=validation,
            ),
            lambda folder: causal.save_labels(folder, words, (), temperature),
        )


def _checked(rows: Sequence[tuple[str, str]], labels: set[str]) -> list[tuple[str, str]]:
    """Cleaned, unique rows. A text that the prompt format cuts is learned as it will be seen."""
    if not rows:
        raise TrainError("there are no rows to fit the causal router on: harvest router rows or give a labelled CSV")
    seen: dict[str, tuple[str, int]] = {}
    for number, (text, label) in enumerate(rows, 1):
        if label not in labels:
            raise TrainError(f"row {number}: label {label!r} is unknown; labels: {', '.join(sorted(labels))}")
        text = causal.clean(text)
        if not text:
            raise TrainError(f"row {number}: the text is empty")
        earlier = seen.setdefault(text, (label, number))
        if earlier[0] != label:
            raise TrainError(
                f"row {number}: labelled {label!r}, but row {earlier[1]} has the same text labelled {earlier[0]!r}"
            )
    found = [(text, label) for text, (label, _) in seen.items()]
    if len({label for _, label in found}) < 2:
        raise TrainError(f"all {len(found)} rows have the label {found[0][1]!r}: a router needs rows of two labels")
    return found


def _split(rows: list[tuple[str, str]], seed: int) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Rows to learn from and rows held out. No label loses its last row."""
    shuffled = sorted(rows)
    random.Random(seed).shuffle(shuffled)
    left = _counts(rows)
    held_out, learn = [], []
    for text, label in shuffled:
        if len(held_out) < min(HELD_OUT, len(rows) // 10) and left[label] > 1:
            left[label] -= 1
            held_out.append((text, label))
        else:
            learn.append((text, label))
    return learn, held_out


def _balanced(rows: Sequence[tuple[str, str]], count: int, seed: int) -> list[tuple[str, str]]:
    """`count` rows, round robin over the labels; a label's rows come again only when all of them were drawn."""
    order = random.Random(seed)
    by_label: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        by_label.setdefault(row[1], []).append(row)

    def draws() -> Any:
        waiting: dict[str, list[tuple[str, str]]] = {label: [] for label in by_label}
        while True:
            round_of_labels = sorted(by_label)
            order.shuffle(round_of_labels)
            for label in round_of_labels:
                if not waiting[label]:
                    waiting[label] = by_label[label].copy()
                    order.shuffle(waiting[label])
                yield waiting[label].pop()

    return list(islice(draws(), count))


def _tokens(tokenizer: Any, text: str, label: str, words: Mapping[str, str]) -> dict[str, list[int]]:
    """Prompt and first answer token; only the answer token has a label."""
    prompt = causal.prompt_messages(text, words)
    apply = tokenizer.apply_chat_template
    before = apply(list(prompt), add_generation_prompt=True, tokenize=True, return_dict=False)
    answer = {"role": "assistant", "content": causal.completion(label, words)}
    whole = apply([*prompt, answer], tokenize=True, return_dict=False)
    ids = whole[: len(before) + 1]
    if ids[:-1] != before:
        raise TrainError(f"the chat template changes the prompt when the answer {answer['content']!r} follows it")
    return {"input_ids": ids, "labels": [-100] * len(before) + [ids[-1]]}


def _trainer_class() -> type:
    """SFTTrainer with the loss and the computation of the scorer.

    The loss is the cross-entropy over the labels' answer tokens at the answer's place. Over the whole vocabulary the
    first ten steps only teach the model that an answer is one of these words: its loss starts at 15.6, here at 4.

    What all prompts begin with is computed once a step, with gradient, and its keys and values serve every row: a step
    of 16 rows then has about 600 tokens instead of 1,500. One process only: the model's parts are called by themselves.
    """
    import torch
    from trl import SFTTrainer

    class LabelTrainer(SFTTrainer):
        def __init__(self, *, answers: Sequence[int], shared: int, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.answers = torch.tensor(answers, device=self.accelerator.device)
            self.shared = shared

        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            bare: Any = self.accelerator.unwrap_model(model)
            decoder = bare.get_base_model().get_decoder()
            ids, labels = inputs["input_ids"][:, self.shared :], inputs["labels"][:, self.shared :]
            with self.accelerator.autocast():
                cache = decoder(inputs["input_ids"][:1, : self.shared], use_cache=True).cache
                cache.batch_repeat_interleave(len(ids))
                # Padding is on the right: under causal attention no real token sees it, so no mask is needed.
                hidden = decoder(ids, cache=cache, use_cache=True).last_hidden_state
            answered = labels != -100
            before = answered.roll(-1, dims=1)  # the position that predicts the answer token
            logits = hidden[before].float() @ bare.get_output_embeddings().weight[self.answers].float().T
            target = (labels[answered].unsqueeze(1) == self.answers).int().argmax(dim=1)
            loss = torch.nn.functional.cross_entropy(logits, target) / self.current_gradient_accumulation_steps
            self._metrics["train"]["accuracy"].append((logits.argmax(dim=1) == target).float().mean().item())
            return (loss, {"logits": logits}) if return_outputs else loss

    return LabelTrainer


def _shared(rows: Sequence[list[int]]) -> int:
    """How many tokens all rows begin with, less one: the token before a text may merge with how the text begins."""
    one, other = min(rows), max(rows)  # in lexicographic order, so all others lie between
    places = (place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
    return max(1, next(places, len(one) - 2) - 1)  # a single row shares all but its answer with itself


def _calibrate(scorer: causal.CausalLabels, rows: Sequence[tuple[str, str]]) -> tuple[dict[str, Any] | None, float]:
    """Accuracy on held-out rows, and the temperature that makes their probabilities most likely."""
    if len(rows) < 10:
        return None, 1.0
    scores = np.log(np.clip(scorer.scores([text for text, _ in rows]), 1e-12, 1))
    truth = np.array([scorer.labels.index(label) for _, label in rows])

    def loss(temperature: float) -> float:
        scaled = scores / temperature
        log_sum = np.log(np.exp(scaled - scaled.max(axis=1, keepdims=True)).sum(axis=1)) + scaled.max(axis=1)
        return float((log_sum - scaled[np.arange(len(truth)), truth]).mean())

    temperature = min((round(0.5 * 1.1**step, 4) for step in range(24)), key=loss)
    accuracy = float((scores.argmax(axis=1) == truth).mean())
    return {"rows": len(rows), "accuracy": round(accuracy, 4), "temperature": temperature}, temperature


def _counts(rows: Sequence[tuple[str, str]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for _, label in sorted(rows):
        counts[label] = counts.get(label, 0) + 1
    return counts


def _digest(rows: Sequence[tuple[str, str]]) -> str:
    import hashlib
    import json

    return f"sha256:{hashlib.sha256(json.dumps(sorted(rows)).encode()).hexdigest()}"
