import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentops.errors import ModelError
from agentops.models import encoder as module
from agentops.models import weights
from agentops.models.encoder import Encoder, load


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return load()


def test_paraphrases_are_nearer_than_strangers(encoder: Encoder) -> None:
    first, same, other = encoder.embed(["where is my parcel", "when will my package arrive", "I love cooking pasta"])
    assert first @ same > 0.4 > 0.2 > first @ other


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(max_size=60), max_size=6))
def test_any_text_gives_a_unit_vector_that_its_neighbours_do_not_change(texts: list[str]) -> None:
    encoder = load()
    together = encoder._compute(texts) if texts else encoder.embed(texts)
    assert together.shape == (len(texts), 384)
    assert together.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    for row, text in enumerate(texts):
        np.testing.assert_allclose(encoder._compute([text])[0], together[row], atol=2e-5)


@pytest.mark.parametrize("text", ["", " ", "\x00\x01", "\ud800 lone", "a" * 1_000_000, "语" * 100_000, "🙂" * 5000])
def test_hostile_text_is_bounded_work(encoder: Encoder, text: str) -> None:
    vector = encoder.embed([text])[0]
    assert np.isfinite(vector).all()


def test_only_the_beginning_of_a_long_text_counts(encoder: Encoder) -> None:
    long = "where is my order " * 2000
    np.testing.assert_array_equal(encoder._compute([long[: module.MAX_CHARACTERS]]), encoder.embed([long]))


def test_repeated_texts_are_computed_once(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[str] = []
    real = encoder._compute
    monkeypatch.setattr(encoder, "_compute", lambda texts: (computed.extend(texts), real(texts))[1])
    first, second, again = encoder.embed(["only once 1", "only once 2", "only once 1"])
    assert computed == ["only once 1", "only once 2"]
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)


def test_threads_agree(encoder: Encoder) -> None:
    texts = [f"order number {number} please" for number in range(40)]
    expected = encoder._compute(texts)
    results: list[np.ndarray] = []
    threads = [threading.Thread(target=lambda: results.append(encoder.embed(texts))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        np.testing.assert_allclose(result, expected, atol=2e-5)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    good = weights.encoder()
    (tmp_path / "model.onnx").write_bytes(good.onnx.read_bytes()[:1000])
    (tmp_path / "tokenizer.json").write_text("{")
    for files in (
        weights.EncoderFiles(tmp_path / "model.onnx", good.tokenizer),
        weights.EncoderFiles(good.onnx, tmp_path / "tokenizer.json"),
    ):
        with pytest.raises(ModelError, match=str(tmp_path)):
            Encoder(files)


def test_the_digest_changes_with_the_files(tmp_path: Path, encoder: Encoder) -> None:
    good = weights.encoder()
    (tmp_path / "tokenizer.json").write_bytes(good.tokenizer.read_bytes() + b"\n")
    other = Encoder(weights.EncoderFiles(good.onnx, tmp_path / "tokenizer.json"))
    assert other.digest != encoder.digest
    assert encoder.digest.startswith("sha256:")


def test_serving_needs_neither_torch_nor_sklearn() -> None:
    code = (
        "import sys; from agentops.models.encoder import load; from agentops.route import TextRouter\n"
        "load().embed(['hello'])\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'torch', 'sklearn', 'datasets', 'transformers',"
        " 'litellm'}))"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "[]"
