"""Near copies: what counts as the same text, and that similar ones are found."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from agentops.harvest.similar import clusters, jaccard, keep_first, normal, shingles

WORDS = [f"word{chr(97 + a)}{chr(97 + b)}" for a in range(20) for b in range(20)]
sentences = st.lists(st.sampled_from(WORDS), min_size=1, max_size=40).map(" ".join)


def test_form_does_not_matter() -> None:
    assert normal("Where's  my\tORDER?") == normal("wheres my order") == "wheres my order"
    assert normal("ｗｈｅｒｅ is it") == normal("whe\u200bre is it")
    assert normal("mail <EMAIL:7f3a9c> now") == "mail email now"
    assert normal("order SO-12345", mask=True) == normal("Order so 77", mask=True)
    assert normal("order 1") != normal("order 2")
    assert normal("?!") == ""


@given(sentences, sentences)
def test_jaccard_is_that_of_the_word_triples(one: str, other: str) -> None:
    def triples(text: str) -> set[tuple[str, ...]]:
        words = text.split()
        size = min(3, len(words))
        return {tuple(words[at : at + size]) for at in range(len(words) - size + 1)}

    a, b = triples(one), triples(other)
    assert jaccard(shingles(one), shingles(other)) == len(a & b) / len(a | b)


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.integers(2, 30))
def test_no_two_kept_texts_are_near_copies(seed: int, count: int) -> None:
    rng = random.Random(seed)
    texts = [rng.choices(WORDS, k=rng.randint(1, 40))]
    while len(texts) < count:
        copy = list(rng.choice(texts))
        for _ in range(rng.randint(0, 2)):
            copy[rng.randrange(len(copy))] = rng.choice(WORDS)
        texts.append(copy)
    sets = [shingles(" ".join(text)) for text in texts]
    found = keep_first(sets)
    kept = [at for at, copy_of in enumerate(found) if copy_of < 0]
    for at, copy_of in enumerate(found):
        if copy_of >= 0:
            assert copy_of < at
            assert copy_of in kept
            assert jaccard(sets[at], sets[copy_of]) >= 0.8
    # Nearer than .85 the bands miss one pair in a hundred thousand.
    assert not any(jaccard(sets[a], sets[b]) >= 0.85 for a in kept for b in kept if a < b)


def test_clusters_follow_chains_of_near_copies() -> None:
    base = WORDS[:60]
    chain = [base, [*base[:58], "x", "y"], [*base[:56], "v", "w", "x", "y"], WORDS[100:160]]
    sets = [shingles(" ".join(text)) for text in chain]
    assert clusters(sets) == [0, 0, 0, 3]
    assert clusters([shingles(""), shingles("")]) == [0, 1]  # nothing said is not the same thing said


def test_thousands_of_templated_texts_stay_cheap() -> None:
    rng = random.Random(1)
    template = rng.choices(WORDS, k=30)
    sets = []
    for number in range(4_000):
        text = list(template)
        for at in rng.sample(range(30), 8):
            text[at] = f"n{number}{at}"
        sets.append(shingles(" ".join(text)))
    assert len(keep_first(sets)) == 4_000
