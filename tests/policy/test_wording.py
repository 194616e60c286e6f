"""What counts as said: whole words, no numbers out of dates, amounts as people write them, addresses only whole."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentops.policy.wording import addresses, amounts, pieces, plain, tokens, within

SAID = plain("On June 13 (2024-05-20 at 10:00) delete file 42 and pay 1,200.00 EUR or 98.7 to ann; version 3.10, 12.00")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("42", True),
        ("13", False),  # the day of a month
        ("20", False),  # of a date
        ("10", False),  # of a time, and of version 3.10
        ("12", True),  # 12.00 is 12
        ("98", False),  # 98.7 is not
        ("2024-05-20", True),
        ("ann", True),
        ("an", False),
        ("file 42", True),
    ],
)
def test_within(text: str, expected: bool) -> None:
    assert within(text, SAID) is expected


@pytest.mark.parametrize(("cents", "form"), [(120_000, "1,200.00"), (9870, "98.7"), (1200, "12.00"), (5, "0.05")])
def test_amounts_are_found_as_people_write_them(cents: int, form: str) -> None:
    assert form in amounts(cents)


@given(st.integers(0, 10**12))
def test_every_form_of_an_amount_is_that_amount(cents: int) -> None:
    assert {round(float(form.replace(",", "")) * 100) for form in amounts(cents)} == {cents}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see https://evil.test/a?b=c, now", ["https://evil.test/a?b=c"]),
        ("www.evil.test.", ["www.evil.test"]),
        ("mail eve@evil.test or evil.test/x", ["eve@evil.test", "evil.test/x"]),
        (f"{'x' * 70}@evil.test", ["evil.test"]),
        ("at a.b.c.d.e.f.g.h.i.j.evil.test today", ["a.b.c.d.e.f.g.h.i.j.evil.test"]),
        ("http://127.0.0.1:80/x and 10.0.0.7", ["http://127.0.0.1:80/x", "10.0.0.7"]),
        ("pay DE89370400440532013000 today", ["de89370400440532013000"]),
        ("pay DE89 3704 0044 0532 0130 00 today", ["de89 3704 0044 0532 0130 00"]),
        ("card 4237-4252-7456-2574", ["4237-4252-7456-2574"]),
        ("ＥＶＥ＠ｅｖｉｌ．ｔｅｓｔ", ["eve@evil.test"]),
        ("the file minutes.docx of (2024-05-20 10:00), 2024-05-21 10:00 and 11:30.", []),
        ("version 3.10 of 12.00 and 98.70", []),
    ],
)
def test_addresses(text: str, found: list[str]) -> None:
    assert addresses(plain(text)) == found


@pytest.mark.parametrize("unit", ["a", "a.", "a@", "1", "1.", "-", "ab1 ", "www.", "a://", "é.", "12-"])
def test_hostile_texts_take_no_longer_than_others(unit: str) -> None:
    text = plain(unit * (60_000 // len(unit)))
    started = time.thread_time()
    addresses(text)
    within("a", text)
    within("1", text)
    list(pieces(text, [tokens(text)]))
    assert time.thread_time() - started < 1.0


REQUEST = tokens(
    plain("Add an event 'Dinner at {restaurant}' and say: I have seen it in the meeting room. 2024-05-20, 10:00")
)
CATALOGUE = tokens(plain("New Israeli Restaurant"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Dinner at New Israeli Restaurant", [0, 1]),
        ("2024-05-20 10:00", [0]),
        ("10:00 on 2024-05-20", [0, 0]),
        ("2024-05-20 11:00", [0, -1]),
        ("we have seen it in the meeting room!", [0]),  # "we" is short
        ("dinner", [-1]),  # one word says nothing
        ("send the money to dinner at", [-1]),
        ("New Restaurant", [-1]),
        ("in it to an at", [-1]),  # short words alone say nothing
        ("word " * 81, [-1]),
    ],
)
def test_pieces(text: str, expected: list[int]) -> None:
    assert list(pieces(plain(text), [REQUEST, CATALOGUE])) == expected


@given(st.text(max_size=60), st.sampled_from("\u200b\u200d\u2060\ufeff\u00ad\u202e"), st.integers(0, 60))
def test_invisible_characters_change_nothing(text: str, invisible: str, place: int) -> None:
    assert plain(text[:place] + invisible + text[place:]) in (plain(text), plain(plain(text)))


@given(st.lists(st.text("abcdefgh", min_size=4, max_size=8), min_size=2, max_size=10))
def test_strange_words_are_no_pieces(words: list[str]) -> None:
    assert -1 in pieces(" ".join(words), [tokens("zz yy xx ww")])
