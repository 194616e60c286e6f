import csv
import random
from pathlib import Path

import pytest

from agentops.errors import TrainError
from agentops.models import causal
from agentops.train.causal_router import fit_causal
from agentops.types import OUT_OF_SCOPE

LABELS = ("order_status", "refund_request", "stock_check")
TEXTS = {
    "order_status": ("where is order", "track my order", "has my order left", "order not here yet"),
    "refund_request": ("money back please", "I want a refund", "refund me", "return and refund"),
    "stock_check": ("do you have it in stock", "is it available", "how many are left in stock", "stock of this"),
    OUT_OF_SCOPE: ("sing a song", "what is the weather", "who won the game", "tell me a joke"),
}
ROWS = [(f"{text} {number}", label) for label, texts in TEXTS.items() for text in texts for number in range(4)]


def test_the_adapter_learns_and_loads_where_it_is_used(base: Path, tmp_path: Path) -> None:
    seen = []
    manifest = fit_causal(
        ROWS,
        LABELS,
        base,
        tmp_path / "adapter",
        steps=40,
        batch_size=16,
        learning_rate=5e-3,
        schedule="constant",
        progress=lambda step, total, values: seen.append((step, total)),
    )
    assert seen == [(step, 40) for step in range(1, 41)]
    assert manifest["loss"][-1] < 0.6 * manifest["loss"][0]
    assert manifest["labels"] == [*LABELS, OUT_OF_SCOPE]
    assert manifest["dataset"]["labels"] == dict.fromkeys(sorted(TEXTS), 16)
    fitted = causal.CausalLabels.load(str(base), tmp_path / "adapter")
    texts = [text for text, _ in ROWS]
    right = [
        fitted.labels[best] == label for best, (_, label) in zip(fitted.scores(texts).argmax(1), ROWS, strict=True)
    ]
    assert sum(right) > 0.75 * len(ROWS)  # untrained: a quarter


def test_equal_rows_in_another_order_give_an_equal_adapter(base: Path, tmp_path: Path) -> None:
    shuffled = ROWS.copy()
    random.Random(1).shuffle(shuffled)
    for name, rows in (("one", ROWS), ("other", shuffled)):
        fit_causal(rows, LABELS, base, tmp_path / name, steps=2, batch_size=8)
    for file in ("adapter_model.safetensors", "manifest.json", "labels.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "other" / file).read_bytes()


def test_a_step_of_one_row_works(base: Path, tmp_path: Path) -> None:
    assert len(fit_causal(ROWS, LABELS, base, tmp_path / "out", steps=1, batch_size=1)["loss"]) == 1


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], "no rows"),
        ([("hello", "order_status"), ("hi", "oder_status")], "row 2: label 'oder_status' is unknown"),
        ([("hello", "order_status"), ("  hello ", "stock_check")], "row 2: labelled 'stock_check', but row 1"),
        ([("hello", "order_status"), (" \n", "stock_check")], "row 2: the text is empty"),
        ([("hello", "order_status"), ("hi", "order_status")], "a router needs rows of two labels"),
    ],
)
def test_unusable_rows_are_named(rows: list[tuple[str, str]], says: str, tmp_path: Path) -> None:
    with pytest.raises(TrainError, match=says):
        fit_causal(rows, LABELS, tmp_path, tmp_path / "adapter")


def test_a_shared_model_is_never_fitted_as_a_whole(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="lora_r = 0"):
        fit_causal(ROWS, LABELS, tmp_path, tmp_path / "adapter", lora_r=0)


@pytest.mark.slow
@pytest.mark.data
def test_twenty_steps_improve_the_shipped_model_on_held_out_rows(data_dir: Path, tmp_path: Path) -> None:
    from agentops.models import weights

    by_label: dict[str, list[tuple[str, str]]] = {}
    with (data_dir / "banking77" / "train.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            by_label.setdefault(row["category"], []).append((row["text"], row["category"]))
    labels = sorted(by_label)[:12]
    rows = [row for label in labels for row in by_label[label][:25]]
    held_out = [row for label in labels for row in by_label[label][25:33]]
    base = weights.smollm2()
    fit_causal(rows, labels, base, tmp_path / "adapter", steps=20)

    def accuracy(scorer: causal.CausalLabels) -> float:
        best = scorer.scores([text for text, _ in held_out]).argmax(1)
        return sum(scorer.labels[at] == label for at, (_, label) in zip(best, held_out, strict=True)) / len(held_out)

    untrained = accuracy(causal.CausalLabels.load(str(base), None, labels))
    trained = accuracy(causal.CausalLabels.load(str(base), tmp_path / "adapter"))
    assert trained > untrained + 0.25
