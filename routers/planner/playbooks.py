"""Slots of a message: order, refund, product and document numbers, quantities, amounts, addresses, search words.

Invariant: `extract` never raises on content and takes time linear in the (bounded) text. It reads what people write
("so 12345", "order #12345", "12,50 €") and returns the canonical form the tools take. It looks nothing up but the
catalogue's product names; whether a number exists is for the tools to say.
"""

import csv
import functools
import re
import unicodedata
from collections.abc import Callable
from difflib import SequenceMatcher
from pathlib import Path

from agentops.types import Json, Request

CATALOGUE = Path(__file__).parents[2] / "tools" / "inventory" / "products.csv"
MOST_CHARACTERS = 4_000
ORDERS, REFUNDS, PRODUCTS = (10_000, 50_000), (70_000, 80_000), (1_001, 2_000)  # ranges of bare numbers
MOST_QUANTITY = 99


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
_DASHES = re.compile("[\u2010-\u2015\u2212]")
_EMAIL = re.compile(r"[\w.%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,5}")
_PLACE = re.compile(
    r"(?P<street>(?:[^\W\d_][\w.'’-]{0,30}[ ]){0,3}[^\W\d_][\w.'’-]{1,30})[ ](?P<number>\d{1,4}[ ]?[a-z]?)"
    r"[ ]?(?:,|\bin\b|\n)?\s{0,2}(?P<code>\d{5})[ ](?P<city>(?:Bad |Sankt |St\. )?[^\W\d_][\w'’-]{1,30})",
    re.IGNORECASE,
)
_BEFORE_STREET = _words(
    "to is at it in instead use address now here with live the and be go goes ship send deliver delivered home"
    " for us me my our place office straight stay must should put bring take replace reroute forward"
)
_PERIODS = _words("day days week weeks month months year years hour hours times")
_PREFIXES = _words("am an im in auf alte alter neue neuer obere untere grosse kleine hohe lange zum zur")
_REFUND = re.compile(r"\brf[\s\-_:#.]{0,3}(\d{5})\b", re.IGNORECASE)
_ORDER = re.compile(r"\bs[o0][\s\-_:#.]{0,3}(\d{5})\b", re.IGNORECASE)
_SKU = re.compile(r"\bsk[uo][\s\-_:#.]{0,3}(\d{4})\b", re.IGNORECASE)
_DOCUMENT = re.compile(r"\bdoc[\s\-_:#.]{0,3}(\d{6})\b", re.IGNORECASE)
_MONEY = re.compile(
    r"(?:(?:€|\beur\b|\beuros?\b)\s?(\d{1,5})(?:[.,](\d{2}))?\b)"
    r"|(?:\b(\d{1,5})(?:[.,](\d{2}))?\s?(?:€|eur\b|euros?\b))(?:\s(\d{2})\b(?!\s?%))?",
    re.IGNORECASE,
)
_CENTS = re.compile(r"\b(\d{1,4})\s?cents?\b", re.IGNORECASE)
_BARE = re.compile(r"(?<![\w.,-])#?(\d{4,5})(?![\w-]|[.,]\d)")
_PRODUCT_WORD = re.compile(r"(?:product|item|article|model|number|no\.?|nr\.?|#)\s{0,2}#?$", re.IGNORECASE)
_QUANTITY = re.compile(
    r"(?<![\w.,-])(\d{1,2})(?!\s?(?:%|percent|days?\b|weeks?\b|months?\b|hours?\b|years?\b|o'clock))"
    r"(?:\s?(?:x|×|pcs|pieces|units|of)\b|(?=\s|[,.!?;:)]|$))",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W\d_]{2,30}")
_COUNTED = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
    "pair": 2, "couple": 2, "dozen": 12,
}  # fmt: skip
_COMMON = _words(
    "a about above advance again all allowed am an and any anyone are article as asked at be been before begin best"
    " booklet bother break breaking brevity but by call called can cheers colleague could dear describe did"
    " difficult do does doesn doing don done euros evening ever every excuse explain failed find first for from get"
    " give good grateful greetings guide had hand has have hello help here hey hi hope how i idea if in instructions"
    " is isn it its itself just kind know last latest let like lindenhof line looking madam many materials may me"
    " mentioned method might miserably moin more morning most much must my name need needed never new no noon not"
    " now of on once one only or order orders other our out over partner people phone please pls professional"
    " question quick recommend regards request right say says see should show shows sir so some somebody someone"
    " soon sorry step steps such sure take team tell thank thanks that the their them then there they thing this"
    " through time tips to today tools trick tried try use used using very walk want was watch way we weekend well"
    " were what when where which who will with without won would write wrong yes you your yours"
)


def extract(request: Request) -> dict[str, Json]:
    """Slots found in the text of a request.

    Returns:
        canonical values for `order_id`, `order_ids`, `refund_id`, `reference` (refund, else order), `sku`, `skus`,
        `document_id`, `quantity` (1 when none is said), `amount_cents`, `email`, `address`, `search` (content words).
        A slot that was not found is absent; of several values the first one mentioned is taken.
    """
    text = _clean(request.text)
    found: dict[str, Json] = {}
    text, emails = _take(_EMAIL, text, lambda match: match[0])
    text, place = _address(text)
    text, amount = _amount(text)
    text, documents = _take(_DOCUMENT, text, lambda match: f"DOC-{match[1]}")
    text, refunds = _take(_REFUND, text, lambda match: f"RF-{match[1]}")
    text, orders = _take(_ORDER, text, lambda match: f"SO-{match[1]}")
    text, skus = _take(_SKU, text, lambda match: f"SKU-{match[1]}")
    text, bare = _bare(text)
    refunds += [one for one in bare if one.startswith("RF-")]
    orders += [one for one in bare if one.startswith("SO-")]
    skus += [one for one in bare if one.startswith("SKU-")]
    words = _search_words(text)
    text, named = _named_products(text)
    skus += named
    _put(found, "order_id", orders)
    _put(found, "refund_id", refunds)
    _put(found, "reference", refunds + orders)
    _put(found, "sku", skus)
    _put(found, "document_id", documents)
    _put(found, "email", emails)
    if orders:
        found["order_ids"] = list(dict.fromkeys(orders))
    if skus:
        found["skus"] = list(dict.fromkeys(skus))
    if place:
        found["address"] = place
    if amount is not None:
        found["amount_cents"] = amount
    if words:
        found["search"] = " ".join(words)
    found["quantity"] = _quantity(text)
    return found


def _clean(text: str) -> str:
    text = unicodedata.normalize("NFKC", text[:MOST_CHARACTERS])
    text = _DASHES.sub("-", _INVISIBLE.sub("", text))
    return "\n".join(re.sub(r"[^\S\n]+", " ", line) for line in text.split("\n"))


def _put(found: dict[str, Json], slot: str, values: list[str]) -> None:
    if values:
        found[slot] = values[0]


def _take(pattern: re.Pattern[str], text: str, shape: Callable[[re.Match[str]], str]) -> tuple[str, list[str]]:
    """`text` without the matches (so that no number is read twice), and the matches in their canonical shape."""
    found = [shape(match) for match in pattern.finditer(text)]
    return (pattern.sub(" \x00 ", text) if found else text), found


def _address(text: str) -> tuple[str, str]:
    """`text` without its first postal address, and that address as "Street 12, 12345 Town"."""
    match = _PLACE.search(text)
    if match is None:
        return text, ""
    words = match["street"].split(" ")
    start = len(words) - 1
    while start > 0 and words[start - 1].lower() not in _BEFORE_STREET:
        before = words[start - 1]
        if before.lower() not in _PREFIXES and not before[0].isupper():
            break
        start -= 1
    street = " ".join(word if word[0].isupper() else word.capitalize() for word in words[start:])
    city = match["city"] if match["city"][0].isupper() else match["city"].capitalize()
    shown = f"{street} {match['number'].replace(' ', '')}, {match['code']} {city}"
    left = match.start() + len(" ".join(words[:start]))
    return f"{text[:left]} \x00 {text[match.end() :]}", shown


def _amount(text: str) -> tuple[str, int | None]:
    """`text` without its first amount of money, and the amount in cents."""
    match = _MONEY.search(text)
    if match is None:
        cents = _CENTS.search(text)
        return (text, None) if cents is None else (text.replace(cents[0], " \x00 ", 1), int(cents[1]))
    whole, fraction = match[1] or match[3], match[2] or match[4] or match[5] or "0"
    return f"{text[: match.start()]} \x00 {text[match.end() :]}", int(whole) * 100 + int(fraction)


def _bare(text: str) -> tuple[str, list[str]]:
    """Numbers without a prefix, told apart by their ranges; four digits count only after a word like "item"."""
    found: list[str] = []

    def one(match: re.Match[str]) -> str:
        number = int(match[1])
        shape = ""
        if ORDERS[0] <= number < ORDERS[1]:
            shape = f"SO-{number}"
        elif REFUNDS[0] <= number < REFUNDS[1]:
            shape = f"RF-{number}"
        elif PRODUCTS[0] <= number < PRODUCTS[1] and _PRODUCT_WORD.search(
            text[max(0, match.start() - 12) : match.start()]
        ):
            shape = f"SKU-{number}"
        if not shape:
            return match[0]
        found.append(shape)
        return " \x00 "

    return _BARE.sub(one, text), found


def _quantity(text: str) -> int:
    for match in _QUANTITY.finditer(text):
        if 1 <= int(match[1]) <= MOST_QUANTITY:
            return int(match[1])
    words = _WORD.findall(text.lower())
    for word, after in zip(words, [*words[1:], ""], strict=False):  # no words: no pairs
        if word in _COUNTED and after not in _PERIODS:  # "one" is what is meant when no number is said
            return _COUNTED[word]
    return 1


def _search_words(text: str) -> list[str]:
    words = [word for word in _WORD.findall(text.lower()) if word not in _COMMON]
    return list(dict.fromkeys(words))[:8]


@functools.cache
def _catalogue() -> dict[str, str]:
    """Lower-case product name -> sku, longest names first."""
    with open(CATALOGUE, encoding="utf-8", newline="") as file:
        names = {row["name"].lower(): row["sku"] for row in csv.DictReader(file)}
    return dict(sorted(names.items(), key=lambda item: -len(item[0])))


def _named_products(text: str) -> tuple[str, list[str]]:
    """`text` without product names, and their skus in order of mention; one misspelt name is forgiven."""
    lowered = text.lower()
    found: list[tuple[int, str]] = []
    for name, sku in _catalogue().items():
        at = lowered.find(name)
        if at >= 0:
            found.append((at, sku))
            blank = "\x00" * len(name)
            lowered = lowered[:at] + blank + lowered[at + len(name) :]
            text = text[:at] + blank + text[at + len(name) :]
    if not found and (near := _misspelt(lowered)):
        found.append((0, near))
    return text, [sku for _, sku in sorted(found)]


def _misspelt(text: str) -> str:
    """The sku of the product whose name is nearest to some words of `text`, at least 85 % alike; else ""."""
    words = re.findall(r"[^\W_][\w'-]*", text)[:80]
    best, sku = 0.85, ""
    for name, candidate in _catalogue().items():
        parts = name.split()
        for at in range(len(words) - len(parts) + 1):
            window = words[at : at + len(parts)]
            # A cheap filter first: some word is right or starts alike, before letters are compared one by one.
            if not any(a == b or (a[:3] == b[:3] and len(b) > 4) for a, b in zip(window, parts, strict=True)):
                continue
            alike = SequenceMatcher(None, " ".join(window), name).ratio()
            if alike > best:
                best, sku = alike, candidate
    return sku
