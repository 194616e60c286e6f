"""Slots out of what people write."""

import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentops.types import Principal, Request


@pytest.fixture(scope="session")
def extract(part):
    function = part("routers.planner.playbooks").extract
    return lambda text: function(Request("r", text, Principal("t", "u"), "s"))


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("Where is SO-12345?", {"order_id": "SO-12345", "reference": "SO-12345"}),
        ("where is so 12345", {"order_id": "SO-12345"}),
        ("where is SO12345", {"order_id": "SO-12345"}),
        ("order #12345 is late", {"order_id": "SO-12345"}),
        ("order number: 12345", {"order_id": "SO-12345"}),
        ("s0-12345 (zero for O)", {"order_id": "SO-12345"}),
        ("SO\u201312345 with a dash from a word processor", {"order_id": "SO-12345"}),
        ("\uff33\uff2f-\uff11\uff12\uff13\uff14\uff15 in full width", {"order_id": "SO-12345"}),
        ("SO-1\u200b2345 with an invisible space", {"order_id": "SO-12345"}),
        ("ordr 12345 plese", {"order_id": "SO-12345"}),
        ("first SO-11111, then SO-22222", {"order_id": "SO-11111", "order_ids": ["SO-11111", "SO-22222"]}),
        ("refund rf 70123?", {"refund_id": "RF-70123", "reference": "RF-70123"}),
        ("refund 70123?", {"refund_id": "RF-70123"}),
        ("refund RF-70123 of order SO-12345", {"reference": "RF-70123", "order_id": "SO-12345"}),
        ("open DOC-300001 please", {"document_id": "DOC-300001"}),
        ("is sku 1042 there", {"sku": "SKU-1042"}),
        ("is item 1042 there", {"sku": "SKU-1042"}),
        ("Is the walnut desk lamp in stock?", {"sku": "SKU-1001"}),
        ("Put two Walnut Desk Lamps aside", {"sku": "SKU-1001", "quantity": 2}),
        ("a Walnt Desk Lamp, please", {"sku": "SKU-1001"}),
        ("reserve 3 x SKU-1042", {"sku": "SKU-1042", "quantity": 3}),
        ("SKU-1042, qty 4", {"quantity": 4}),
        ("hold 3 of SKU-1042 for 5 days", {"quantity": 3}),
        ("One more thing. I would like three Oslo Writing Desk for two weeks", {"quantity": 3}),
        ("hang on to SKU-1042 for three days", {"quantity": 1}),
        ("with 19 percent VAT, for 14 days: 2 SKU-1042", {"quantity": 2}),
        ("hold SKU-1042", {"quantity": 1}),
        ("12.50 EUR too much for SO-12345", {"amount_cents": 1250, "order_id": "SO-12345"}),
        ("12,50 \u20ac too much", {"amount_cents": 1250}),
        ("\u20ac12.50 too much", {"amount_cents": 1250}),
        ("EUR 12 too much", {"amount_cents": 1200}),
        ("12 euros 50 too much", {"amount_cents": 1250}),
        ("90 cents too much", {"amount_cents": 90}),
        ("mail it to me@shop.example.com", {"email": "me@shop.example.com"}),
        ("send SO-12345 to Lindenweg 12, 53113 Bonn instead", {"address": "Lindenweg 12, 53113 Bonn"}),
        ("send it to Am Stadtpark 3, 20095 Hamburg. Thanks", {"address": "Am Stadtpark 3, 20095 Hamburg"}),
        ("ship to lindenweg 12 in 53113 bonn", {"address": "Lindenweg 12, 53113 Bonn"}),
        ("Put Rosengasse 3, 04109 Leipzig on it", {"address": "Rosengasse 3, 04109 Leipzig"}),
        ("I moved to Alte Landstrasse 12a, 53113 Bonn", {"address": "Alte Landstrasse 12a, 53113 Bonn"}),
        ("Neue Gasse 7, 10115 Berlin for 12345", {"address": "Neue Gasse 7, 10115 Berlin", "order_id": "SO-12345"}),
    ],
)
def test_what_people_write(extract, text, slots) -> None:
    found = extract(text)
    assert {key: found.get(key) for key in slots} == slots


@pytest.mark.parametrize(
    "text", ["", "Hello", "in 2026", "my postcode is 123456", "I paid 12345 euros", "call 0171 1234567"]
)
def test_no_number_is_made_up(extract, text) -> None:
    assert not {"order_id", "refund_id", "sku", "document_id"} & extract(text).keys()


@given(number=st.integers(10_000, 49_999), data=st.data())
def test_every_way_to_write_an_order_number_is_read(extract, number, data) -> None:
    shape = data.draw(st.sampled_from(["SO-{}", "so-{}", "SO{}", "so {}", "#{}", "{}", "SO - {}", "So_{}"]))
    before = data.draw(st.sampled_from(["", "Where is ", "It's about order ", "Cancel (", "RE: "]))
    after = data.draw(st.sampled_from(["", "?", "!", ".", ")", " please", ", thanks", "\n"]))
    assert extract(before + shape.format(number) + after)["order_id"] == f"SO-{number}"


@given(cents=st.integers(1, 999_999), data=st.data())
def test_amounts_are_read_to_the_cent(extract, cents, data) -> None:
    shape = data.draw(
        st.sampled_from(["{e}.{c:02d} EUR", "{e},{c:02d} \u20ac", "\u20ac{e}.{c:02d}", "{e}.{c:02d} euros"])
    )
    text = f"You took {shape.format(e=cents // 100, c=cents % 100)} too much"
    assert extract(text)["amount_cents"] == cents


@given(st.text(max_size=300))
def test_nothing_a_customer_types_breaks_it(extract, text) -> None:
    found = extract(text)
    assert 1 <= found["quantity"] <= 99
    assert set(found) <= {
        "order_id", "order_ids", "refund_id", "reference", "sku", "skus", "document_id", "quantity", "amount_cents",
        "email", "address", "search",
    }  # fmt: skip


@pytest.mark.parametrize("unit", ["a", "1", "Aa ", "Lamp desk 1 ", "a@b.", "12, ", "SO-", "\u200b", "Am Am 1, ", "€"])
def test_long_messages_take_milliseconds(extract, unit) -> None:
    extract("warm")
    began = time.thread_time()
    extract(unit * (200_000 // len(unit)))
    assert time.thread_time() - began < 0.5


def test_search_words_leave_courtesies_out(extract) -> None:
    words = extract("Hello team, how do I oil my wooden table? Thanks in advance!")["search"].split()
    assert words == ["oil", "wooden", "table"]
    assert all(word in string.printable or word.isalpha() for word in words)
