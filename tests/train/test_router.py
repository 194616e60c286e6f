import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from agentops.errors import TrainError
from agentops.models.encoder import Encoder, load
from agentops.models.head import Head
from agentops.train import fit_head
from agentops.train.router import _folds
from agentops.types import OUT_OF_SCOPE

TEXTS = {
    "cancel": "cancel my order|please stop the order|I do not want it any more, undo it|call off the purchase|"
    "withdraw what I bought before it ships|annul the order|abort my order today|no longer needed, cancel it",
    "refund": "I want my money back|pay me back|refund the amount|return the goods and get the price back|"
    "credit me what I paid|reimburse me please|give back my money|when is my refund paid",
    "stock": "is it available|do you have it in stock|how many are left|when is it back in the shop|"
    "is the chair sold out|availability of the lamp|can I still buy this rug|any left in the warehouse",
    OUT_OF_SCOPE: "tell me a joke|what is the weather|who won the football game|write a poem|capital of France|"
    "solve this equation|sing a song|best film of the year|how old is the universe|translate this to Latin|"
    "recommend a dentist|what is love",
}
ROWS = [(text, label) for label, texts in TEXTS.items() for text in texts.split("|")]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return load()


def test_a_fitted_head_answers_abstains_and_says_what_it_was_fitted_on(encoder: Encoder, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    manifest = fit_head(ROWS, encoder, tmp_path / "out", progress=lambda step, total, _: seen.append((step, total)))
    head = Head.load(tmp_path / "out" / "head")
    asked = ["please cancel order 12", "I would like to be refunded", "are there any lamps left", "sing me a sad song"]
    probabilities, outside = head.decide(encoder.embed(asked))
    assert [head.labels[best] for best in probabilities.argmax(axis=1)[:3]] == ["cancel", "refund", "stock"]
    assert (outside[:3] < 0.5).all()
    assert outside[3] >= 0.5
    assert head.encoder == encoder.digest == manifest["encoder"]
    assert manifest["rows_by_label"] == {"cancel": 8, OUT_OF_SCOPE: 12, "refund": 8, "stock": 8}
    assert manifest["labels"] == ["cancel", "refund", "stock"]
    assert json.loads((tmp_path / "out" / "router.json").read_text()) == manifest
    assert seen[-1] == (seen[-1][1], seen[-1][1])
    assert [step for step, _ in seen] == list(range(1, len(seen) + 1))


def test_equal_rows_give_equal_bytes_and_no_text_is_kept(encoder: Encoder, tmp_path: Path) -> None:
    rows = [(f"{text} qwertz", label) for text, label in ROWS]
    for name in ("one", "two"):
        fit_head(rows, encoder, tmp_path / name, seed=3)
    files = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert len(files) == 3
    for file in files:
        data = (tmp_path / "one" / file).read_bytes()
        assert data == (tmp_path / "two" / file).read_bytes()
        assert b"qwertz" not in data


def test_nonsense_is_out_of_scope(encoder: Encoder, tmp_path: Path) -> None:
    fit_head(ROWS, encoder, tmp_path / "out")
    head = Head.load(tmp_path / "out" / "head")
    generator = np.random.default_rng(0)
    words = ["".join(generator.choice(list("bcdfghjklmnpqrstvwxz"), 7)) for _ in range(400)]
    nonsense = [" ".join(generator.choice(words, 6)) for _ in range(100)]
    _, outside = head.decide(encoder.embed(nonsense))
    assert (outside >= 0.5).mean() >= 0.95


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_handful_of_rows_is_enough_to_start_and_the_manifest_says_so(
    encoder: Encoder, tmp_path: Path, count: int
) -> None:
    rows = [(text, label) for label, texts in TEXTS.items() for text in texts.split("|")[:count]]
    manifest = fit_head(rows, encoder, tmp_path / "out")
    assert any("not calibrated" in note for note in manifest["notes"])
    head = Head.load(tmp_path / "out" / "head")
    probabilities, outside = head.decide(encoder.embed(["cancel my order", "refund the amount", "sing a song"]))
    if count == 4:
        assert [head.labels[best] for best in probabilities.argmax(axis=1)[:2]] == ["cancel", "refund"]
    assert (outside[:2] < 0.5).any()


def test_two_labels_without_out_of_scope_rows(encoder: Encoder, tmp_path: Path) -> None:
    rows = [row for row in ROWS if row[1] in ("cancel", "stock")]
    fit_head(rows, encoder, tmp_path / "out")
    head = Head.load(tmp_path / "out" / "head")
    probabilities, _ = head.decide(encoder.embed(["please cancel the order", "is it in stock"]))
    assert [head.labels[best] for best in probabilities.argmax(axis=1)] == ["cancel", "stock"]


def test_repeated_rows_count_once(encoder: Encoder, tmp_path: Path) -> None:
    manifest = fit_head([*ROWS, *[(f"  {text.upper()} ", label) for text, label in ROWS]], encoder, tmp_path / "out")
    assert (manifest["rows"], manifest["repeated_rows"]) == (len(ROWS), len(ROWS))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no rows"),
        ([*ROWS, (" \n", "cancel")], f"row {len(ROWS) + 1} has an empty text"),
        ([*ROWS, ("hello", " ")], f"row {len(ROWS) + 1} has no label"),
        ([*ROWS, ("hello", "cancle")], f"row {len(ROWS) + 1} has the unknown label 'cancle'"),
        ([*ROWS, ("Cancel my  order", "refund")], f"rows 1 and {len(ROWS) + 1} are the same text with two labels"),
        ([row for row in ROWS if row[1] in ("cancel", OUT_OF_SCOPE)], "at least two"),
    ],
)
def test_a_wrong_row_is_named_and_nothing_is_written(
    encoder: Encoder, tmp_path: Path, rows: list[tuple[str, str]], message: str
) -> None:
    with pytest.raises(TrainError, match=message):
        fit_head(rows, encoder, tmp_path / "out", labels=("cancel", "refund", "stock"))
    assert not (tmp_path / "out").exists()


def test_a_used_folder_and_wrong_numbers_are_refused(encoder: Encoder, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainError, match="never written over"):
        fit_head(ROWS, encoder, tmp_path)
    for wrong in ({"calibration_share": 0.9}, {"keep": 0}):
        with pytest.raises(TrainError, match="must be in"):
            fit_head(ROWS, encoder, tmp_path / "out", **wrong)


@given(
    hnp.arrays(np.float32, st.tuples(st.integers(4, 40), st.just(4)), elements=st.floats(-1, 1, width=16)),
    st.data(),
    st.integers(2, 6),
)
def test_near_copies_share_a_fold_and_every_label_stays_in_training(
    vectors: np.ndarray, data: st.DataObject, count: int
) -> None:
    vectors = np.concatenate([vectors, vectors[:2]])  # two exact copies
    vectors = vectors + np.float32(1e-3)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    labels = data.draw(st.lists(st.integers(0, 2), min_size=len(vectors) - 2, max_size=len(vectors) - 2))
    truth = np.array([*labels, *labels[:2]])
    folds = _folds(vectors, truth, count, seed=0)
    assert (folds[:2] == folds[-2:]).all()
    for fold in range(count):
        assert set(truth[folds != fold]) == set(truth)


@pytest.mark.data
def test_ten_rows_of_each_banking_intent(encoder: Encoder, data_dir: Path, tmp_path: Path) -> None:
    """One in five test rows, to keep it short; the whole set is a benchmark."""
    import csv

    def rows(name: str) -> list[tuple[str, str]]:
        with (data_dir / "banking77" / name).open(encoding="utf-8", newline="") as handle:
            return [(row["text"], row["category"]) for row in csv.DictReader(handle)]

    taken: dict[str, int] = {}
    few = []
    for text, label in rows("train.csv"):
        taken[label] = taken.get(label, 0) + 1
        if taken[label] <= 10:
            few.append((text, label))
    manifest = fit_head(few, encoder, tmp_path / "out")
    head = Head.load(tmp_path / "out" / "head")
    test = rows("test.csv")[::10]
    probabilities, _ = head.decide(encoder.embed([text for text, _ in test]))
    right = np.array(head.labels)[probabilities.argmax(axis=1)] == [label for _, label in test]
    assert right.mean() > 0.8
    assert abs(manifest["validation"]["accuracy"] - right.mean()) < 0.12
