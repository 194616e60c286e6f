import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agentops.errors import ModelError
from agentops.models.head import Head


def unit(values: np.ndarray) -> np.ndarray:
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(params=[False, True], ids=["without outside rows", "with outside rows"])
def head(request: pytest.FixtureRequest) -> Head:
    generator = np.random.default_rng(0)
    centres = unit(generator.normal(size=(3, 16)))
    rows = unit(np.repeat(centres, 7, axis=0) + 0.1 * generator.normal(size=(21, 16)))
    weight = np.concatenate([centres * 8, -centres.mean(axis=0, keepdims=True)]) if request.param else centres * 8
    signals = 3 if request.param else 2
    return Head(
        labels=("a", "b", "c"),
        encoder="sha256:0",
        weight=weight.astype(np.float32),
        bias=np.zeros(len(weight), np.float32),
        rows=rows,
        starts=np.array([0, 7, 14, 21]),
        means=np.array([8.0, 0.9, 8.0])[:signals],
        deviations=np.array([0.5, 0.1, 0.5])[:signals],
        threshold=-6.0,
        temperature=0.7,
        outside=request.param,
    )


def test_a_rows_result_does_not_depend_on_the_batch(head: Head) -> None:
    vectors = unit(np.random.default_rng(1).normal(size=(30, 16)))
    probabilities, outside = head.decide(vectors)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    assert ((outside >= 0) & (outside <= 1)).all()
    for row in range(30):
        one, out = head.decide(vectors[row : row + 1])
        np.testing.assert_allclose(one[0], probabilities[row], rtol=1e-4)
        np.testing.assert_allclose(out[0], outside[row], rtol=1e-3, atol=1e-6)
    assert head.decide(vectors[:0])[0].shape == (0, 3)


def test_near_its_rows_it_answers_and_far_from_them_it_does_not(head: Head) -> None:
    probabilities, outside = head.decide(head.rows)
    assert (probabilities.argmax(axis=1) == np.repeat([0, 1, 2], 7)).all()
    assert outside.max() < 0.5
    _, far = head.decide(unit(-head.rows))
    assert far.min() > 0.5


def test_saved_and_loaded_it_decides_the_same_and_equal_heads_give_equal_bytes(head: Head, tmp_path: Path) -> None:
    head.save(tmp_path / "one")
    loaded = Head.load(tmp_path / "one")
    vectors = unit(np.random.default_rng(2).normal(size=(9, 16)))
    for before, after in zip(head.decide(vectors), loaded.decide(vectors), strict=True):
        np.testing.assert_allclose(before, after, atol=2e-3)
    loaded.save(tmp_path / "two")
    for name in ("head.npz", "head.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_what_is_damaged_is_named(head: Head, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=str(tmp_path)):
        Head.load(tmp_path / "nothing")
    head.save(tmp_path / "torn")
    data = (tmp_path / "torn" / "head.npz").read_bytes()
    (tmp_path / "torn" / "head.npz").write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelError, match="train the router again"):
        Head.load(tmp_path / "torn")
    for name, change in {
        "format": {"format": 99},
        "labels": {"labels": ["a", "b"]},
        "twice": {"labels": ["a", "a", "b"]},
        "temperature": {"temperature": 0.0},
        "threshold": {"threshold": float("nan")},
        "unknown": {"surprise": 1},
    }.items():
        folder = tmp_path / name
        head.save(folder)
        fields = json.loads((folder / "head.json").read_text())
        (folder / "head.json").write_text(json.dumps({**fields, **change}))
        with pytest.raises(ModelError, match=name):
            Head.load(folder)
    replace(head, weight=head.weight * np.nan).save(tmp_path / "nan")
    with pytest.raises(ModelError, match="NaN"):
        Head.load(tmp_path / "nan")
