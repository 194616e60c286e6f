"""Slots of a message: which book, and how many copies."""

import csv
import functools
import re

from agentops.types import Json, Request

from ...tools.world import CATALOGUE

MOST_CHARACTERS = 2_000
_QUOTED = re.compile(r"[\"“”«»']([^\"“”«»']{2,80})[\"“”«»']")
_COUNT = re.compile(r"\b([1-5]|one|two|three|four|five)\b", re.IGNORECASE)
_NUMBERS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5}


def extract(request: Request) -> dict[str, Json]:
    """`query`: a title or author of the catalogue, else what is in quotes; `quantity`: 1 when nothing is said."""
    text = request.text[:MOST_CHARACTERS]
    lowered = text.lower().replace("-", " ")
    named = next((name for name in _names() if name.lower().replace("-", " ") in lowered), "")
    quoted = _QUOTED.search(text)
    found: dict[str, Json] = {"quantity": _quantity(lowered.replace(named.lower(), ""))}
    if named or quoted:
        found["query"] = named or (quoted[1] if quoted else "")
    return found


def _quantity(text: str) -> int:
    count = _COUNT.search(text)
    return _NUMBERS.get(count[1].lower()) or int(count[1]) if count else 1


@functools.cache
def _names() -> list[str]:
    """Titles, authors and their last names; longest first, so that "Jane Eyre" is not taken for a "Jane"."""
    with open(CATALOGUE, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    names = {row["title"] for row in rows} | {row["author"] for row in rows}
    names |= {row["author"].split()[-1] for row in rows}
    return sorted(names, key=lambda name: (-len(name), name))
