"""Protected texts: no copy passes, and what merely shares words does."""

import random
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentops.harvest import Exclusion
from agentops.harvest.similar import jaccard, normal, shingles
from agentops.redact import Redactor

WORDS = "the parcel order arrived broken today please refund my card before friday or send another one at once"
texts = st.lists(st.sampled_from(WORDS.split()), min_size=3, max_size=25).map(" ".join)


def plain(text: str) -> str:
    return text


@given(st.lists(texts, min_size=1, max_size=8), st.integers(0, 2**32))
def test_every_near_copy_is_caught(protected: list[str], seed: int) -> None:
    match = Exclusion({"frozen": protected}).matcher(plain)
    rng = random.Random(seed)
    for text in protected:
        words = text.split()
        for _ in range(5):
            copy = list(words)
            copy[rng.randrange(len(copy))] = rng.choice(WORDS.split())
            edited = " ".join(copy)
            if jaccard(shingles(normal(edited, mask=True)), shingles(normal(text, mask=True))) >= 0.8:
                assert match(edited) == "frozen"
        assert match(text.upper() + "!!") == "frozen"


@pytest.mark.parametrize(
    "copy",
    [
        "Where is order SO-99999? I paid for express delivery and it was promised for Monday morning.",
        "where is order so-10001 i payed for express delivery and it was promised for monday morning",
        "Hello! Where is order SO-10001? I paid for express delivery and it was promised for Monday morning. Thanks",
        "Where is order SO-10001? I paid for express deliverry and it was promissed for Monday morning.",
    ],
)
def test_edits_do_not_hide_a_copy(copy: str) -> None:
    text = "Where is order SO-10001? I paid for express delivery and it was promised for Monday morning."
    assert Exclusion({"sealed": [text]}).matcher(plain)(copy) == "sealed"


def test_shared_words_are_no_copy() -> None:
    match = Exclusion({"frozen": ["cancel my order", "Where is my parcel?"]}).matcher(plain)
    assert match("Cancel my order!") == "frozen"
    assert match("please cancel my order SO-12345, I found the jacket cheaper in a shop near my office") == ""
    assert match("where is my refund") == ""
    assert match("") == ""


def test_a_redacted_copy_of_a_protected_text_is_caught(redactor: Redactor) -> None:
    text = "send the invoice to jo.doe@mail.example"
    match = Exclusion({"frozen": [text]}).matcher(redactor.text)
    assert match(redactor.text(text, "acme")) == "frozen"
    assert match(text) == "frozen"


def test_description_names_no_text() -> None:
    described = str(Exclusion({"frozen": ["a secret question"], "sealed": []}).describe())
    assert "secret" not in described
    assert "'texts': 1" in described


def test_the_support_desks_own_suites_do_not_overlap(repo: Path) -> None:
    """Wordings are split between the suites, so almost no row of traffic may be taken for a copy."""
    folder = repo / "pipelines" / "support" / "suites"
    texts = {
        name: [orjson.loads(line)["text"] for line in (folder / f"{name}.jsonl").read_bytes().splitlines()]
        for name in ("frozen", "sealed", "traffic")
    }
    match = Exclusion({"frozen": texts["frozen"], "sealed": texts["sealed"]}).matcher(plain)
    found = [text for text in texts["traffic"] if match(text)]
    assert len(found) <= len(texts["traffic"]) // 100
    assert all(match(text) for text in texts["sealed"])
