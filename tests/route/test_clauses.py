import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentops.route.clauses import MAX_CHARACTERS, MAX_PIECES, pieces

words = st.sampled_from(
    ["cancel", "my order.", "also", "and", "\n", "1)", "2.", ";", "besides that,", "P.S.", "  ", "ok?"]
)


def split(text: str) -> list[tuple[bool, str]]:
    return [(piece.strong, text[piece.start : piece.end]) for piece in pieces(text)]


@given(st.one_of(st.text(), st.lists(words, max_size=60).map(" ".join)))
def test_pieces_are_ordered_parts_of_the_message(text: str) -> None:
    found = pieces(text)
    assert len(found) <= MAX_PIECES
    assert not found or text[:MAX_CHARACTERS].strip()
    end = 0
    for piece in found:
        assert end <= piece.start < piece.end <= len(text)
        assert text[piece.start : piece.end].strip()
        end = piece.end


@pytest.mark.parametrize(
    ("text", "second"),
    [
        ("Cancel my order 12. Also where is the other one?", "where is the other one?"),
        ("Cancel my order 12.\nWhere is the other one?", "Where is the other one?"),
        ("1) Cancel my order 12. 2) Where is the other one?", "Where is the other one?"),
        ("First: cancel my order 12. Second: where is the other one?", "where is the other one?"),
        ("cancel my order pls besides that, where is the other one", "where is the other one"),
        ("Cancel my order 12. While you are at it: where is the other one?", "where is the other one?"),
        ("Cancel my order 12, and also where is the other one?", "where is the other one?"),
        ("- cancel my order 12\n- where is the other one?", "where is the other one?"),
    ],
)
def test_a_second_matter_that_is_announced(text: str, second: str) -> None:
    assert split(text)[-1] == (True, second)


@pytest.mark.parametrize(
    "text",
    [
        "Refund 4.90 EUR for order no. 12 please",
        "I ordered 2) lamps",
        "It also arrived broken",
        "I would like to order the first and second part",
    ],
)
def test_what_announces_nothing(text: str) -> None:
    assert not any(strong for strong, _ in split(text)[1:])


def test_short_pieces_belong_to_their_neighbour() -> None:
    assert split("Hi there! Where is my order? Thanks!") == [(False, "Hi there! Where is my order? Thanks!")]


def test_hostile_length_is_bounded_work() -> None:
    for text in ("a. " * 400_000, "\n" * 1_000_000, " " * 1_000_000, "also, " * 200_000):
        started = time.thread_time()
        pieces(text)
        assert time.thread_time() - started < 0.5
