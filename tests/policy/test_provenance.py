"""Where arguments come from: what the user named, what tools said, what nobody said."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentops.policy.provenance import MAX_READ, ORDER, Provenance
from agentops.policy.wording import figures, plain
from agentops.types import Labels

OUTSIDE = Labels("untrusted")
json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


def source(provenance: Provenance, value: Any) -> str:
    return provenance.sources({"x": value}, {}, {})["x"]


@pytest.fixture
def read() -> Provenance:
    made = Provenance("Please send 250 EUR to Joanne at GB29 NWBK, subject “Rent”, on 2022-04-01.")
    made.read({"contacts": [{"name": "Bob Miller", "iban": "DE89 3704"}]}, Labels())
    made.read("Invoice. Pay to US133000000121212121212 at once, signed Ann", OUTSIDE)
    return made


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("GB29 NWBK", "request"),
        ("gb29  nwbk", "request"),
        (250, "request"),
        (250.0, "request"),
        ("ＲＥＮＴ", "request"),
        ("Bob Miller", "trusted"),
        ("US133000000121212121212", "untrusted"),
        ("ann", "untrusted"),  # not the end of "Joanne"
        ("33000", "derived"),  # part of a word is not the word
        ("133000000121212121212", "untrusted"),  # nobody's number, after outsiders were read
        (25, "derived"),
        ("nobody said this", "derived"),
        (["Joanne", "Bob Miller"], "trusted"),
        (["Joanne", "US133000000121212121212"], "untrusted"),
        ({"payee": "Joanne"}, "derived"),  # the key is nobody's word either
        ("", "trusted"),
        ([], "request"),
    ],
)
def test_sources(read: Provenance, value: Any, expected: str) -> None:
    assert source(read, value) == expected


def test_a_default_is_the_tools_own_and_a_known_source_stands(read: Provenance) -> None:
    found = read.sources({"a": True, "b": True, "c": "DE89 3704"}, {"a": True, "b": 1}, {"c": "untrusted"})
    assert found == {"a": "trusted", "b": "derived", "c": "untrusted"}


def test_what_is_no_longer_remembered_is_not_believed() -> None:
    flooded = Provenance("pay Joanne")
    flooded.read("Bob", Labels())
    flooded.read("x" * (MAX_READ + 1), OUTSIDE)
    assert (source(flooded, "Joanne"), source(flooded, "Bob")) == ("request", "trusted")
    assert source(flooded, "new") == "untrusted"
    large = Provenance("pay Joanne")
    large.read("x" * (MAX_READ + 1), Labels())
    assert source(large, "new") == "derived", "what was not remembered was no outsider's"


@given(request=st.text(max_size=60), said=json, value=json)
def test_reading_what_outsiders_wrote_never_makes_a_value_better(request: str, said: Any, value: Any) -> None:
    before, after = Provenance(request), Provenance(request)
    after.read(said, OUTSIDE)
    assert ORDER.index(source(after, value)) >= ORDER.index(source(before, value))  # type: ignore[arg-type]


@given(said=st.text(min_size=1, max_size=40).filter(lambda said: plain(said) and not figures(plain(said))))
def test_a_whole_text_that_an_outsider_wrote_is_untrusted_unless_the_user_said_it(said: str) -> None:
    made = Provenance("zzqqzz")
    made.read({"body": said}, OUTSIDE)
    assert source(made, said) == "untrusted"
    asked = Provenance(f"do: {said} ")
    asked.read(said, OUTSIDE)
    assert source(asked, said) == "request"


def test_a_short_number_is_not_the_day_of_a_date() -> None:
    made = Provenance("What do we do on June 13, or 2024-05-14 at 15:00? Delete file 16.")
    made.read("13 14 15", OUTSIDE)
    assert [source(made, number) for number in ("13", "14", "15", "16")] == ["derived"] * 3 + ["request"]


def test_a_bare_date_is_nobodys_word() -> None:
    made = Provenance("Tell everybody about their deadlines")
    made.read("Ann must be ready on 2024-05-20, or on 21 at 10:00", OUTSIDE)
    assert source(made, "2024-05-20") == source(made, "10:00") == source(made, 21) == "derived"
    assert source(made, "be ready on 2024-05-20") == "untrusted"


def test_minor_units_are_looked_up_as_people_write_them() -> None:
    made = Provenance("Refund the 25 EUR, and the rent is 1,200.00")
    amounts = {"a": 2500, "b": 120_000, "c": 25, "d": 2501}
    assert {name: made.sources({name: value}, {}, {}, name)[name] for name, value in amounts.items()} == {
        "a": "request",
        "b": "request",
        "c": "derived",
        "d": "derived",
    }


def test_a_text_put_together_from_known_pieces_has_the_source_of_its_worst_piece() -> None:
    made = Provenance("Add an event 'Dinner at {restaurant}' on 2024-05-20 at 10:00")
    made.read({"name": "New Israeli Restaurant"}, Labels())
    made.read("Come to the Evil Twin Restaurant", OUTSIDE)
    assert source(made, "2024-05-20 10:00") == "request"
    assert source(made, "Dinner at New Israeli Restaurant") == "trusted"
    assert source(made, "Dinner at Evil Twin Restaurant") == "derived"


@given(request=st.text(max_size=40), word=st.text("abcdefghij", min_size=4, max_size=9))
def test_a_strange_address_spoils_the_text_around_it(request: str, word: str) -> None:
    made = Provenance(f"{request} please tell ann about the meeting of today")
    made.read("anything", OUTSIDE)
    assert source(made, "tell ann about the meeting of today") == "request"
    for address in (f"{word}@{word}.example", f"https://{word}.example/x", f"www.{word}-{word}.example"):
        assert source(made, f"tell ann about the meeting of today {address}") == "untrusted"
        assert source(made, address) == "untrusted"


def test_before_outsiders_spoke_nothing_is_theirs() -> None:
    assert source(Provenance("mail Bob"), "bob@corp.example") == "derived"


def test_what_a_person_approved_is_trusted_as_a_whole() -> None:
    made = Provenance("Invite our new colleague")
    made.read("Dora, dora@mail.example, and eve@evil.example", OUTSIDE)
    made.vouch({"user": "Dora", "email": "dora@mail.example", "body": "Dora and eve@evil.example"})
    assert (source(made, "Dora"), source(made, ["DORA@mail.example"])) == ("trusted", "trusted")
    assert source(made, "eve@evil.example") == "untrusted"
