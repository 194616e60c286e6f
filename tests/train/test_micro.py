from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentops.train import micro


def test_equal_calls_give_equal_models(tmp_path: Path) -> None:
    for name in ("one", "two"):
        micro.make(tmp_path / name, ["where is order SO-10001?"] * 5, seed=3)
    files = sorted(file.name for file in (tmp_path / "one").iterdir())
    assert "model.safetensors" in files
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_any_text_survives_its_tokenizer(base: Path, text: str) -> None:
    tokenizer = _tokenizer(str(base))
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_identifiers_are_digits_so_that_they_can_be_copied(base: Path) -> None:
    tokens = _tokenizer(str(base)).tokenize("SO-10234")
    assert tokens[-5:] == ["1", "0", "2", "3", "4"]


def test_sizes_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="hidden 10"):
        micro.make(tmp_path, ["x"], hidden=10)


def _tokenizer(folder: str, _seen: dict = {}) -> object:  # noqa: B006 - loaded once for all examples
    from transformers import AutoTokenizer

    if folder not in _seen:
        _seen[folder] = AutoTokenizer.from_pretrained(folder)
    return _seen[folder]
