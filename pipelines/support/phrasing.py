"""From a wording to a message as a customer would type it: slots, courtesies, typing errors, capitals.

Invariant: a wording belongs to exactly one split, by its place in its file, so that a wording added at the end moves
none of the others. What stands in a slot (numbers, addresses) is never damaged by a typing error.
"""

import functools
import random
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "wordings"
SEED_WORDINGS = {"out_of_scope": 6}  # the first wordings of a file teach the shipped router
SEED_DEFAULT = 3
# What follows the seed wordings, over and over. "later" is training material that traffic brings only in its second
# part: the honest question to a retrained router is how it does on wordings it has not met.
CYCLE = ("train", "frozen", "sealed", "train", "frozen", "sealed", "train", "later")
_SLOT = re.compile(r"\{(\w+)\}")
_ARTICLE = re.compile(r"\b([Aa]) (?=\x00[AEIOU])")  # "a {product}" before a vowel
_KEYS = "qwertyuiop asdfghjkl zxcvbnm"


@dataclass(frozen=True, slots=True)
class Wording:
    """One way to say something. `split` is "seed", "train", "later", "frozen" or "sealed"."""

    id: str  # "cancel_order/07"
    label: str
    text: str
    split: str
    must_pass: bool = False

    @property
    def slots(self) -> frozenset[str]:
        return frozenset(_SLOT.findall(self.text))


@functools.cache
def wordings() -> tuple[Wording, ...]:
    """Every wording of every label, in the order of the files."""
    found: list[Wording] = []
    for file in sorted(FOLDER.glob("[a-z]*.toml")):
        table = tomllib.loads(file.read_text(encoding="utf-8"))
        label = table["label"]
        seeds = SEED_WORDINGS.get(label, SEED_DEFAULT)
        for index, text in enumerate(table["texts"]):
            split = "seed" if index < seeds else CYCLE[(index - seeds) % len(CYCLE)]
            found.append(Wording(f"{label}/{index:02d}", label, text, split))
        for index, text in enumerate(table.get("more", ())):  # more ways that traffic brings
            found.append(Wording(f"{label}/t{index:02d}", label, text, "later" if index % 5 == 4 else "train"))
        for index, text in enumerate(table.get("must_pass", ())):
            found.append(Wording(f"{label}/m{index}", label, text, "frozen", must_pass=True))
    return tuple(found)


@functools.cache
def topics() -> dict[str, tuple[str, str, str]]:
    """What `how_to` messages ask about: words of the message -> (search of the gold plan, article, its key fact)."""
    table = tomllib.loads((FOLDER / "how_to.toml").read_text(encoding="utf-8"))["topics"]
    return {words: (search, article, fact) for words, (search, article, fact) in table.items()}


@functools.cache
def _context() -> dict[str, Any]:
    return tomllib.loads((FOLDER / "_context.toml").read_text(encoding="utf-8"))


def surface(kind: str, value: str, rng: random.Random) -> str:
    """A canonical value as people write it: "SO-12345" may come as "so 12345", 1250 cents as "12,50 EUR"."""
    kind = kind.partition("_")[0]  # "order_1": the order of the second part of a message
    if kind in ("order", "refund"):
        digits, prefix = value[3:], value[:2]
        shapes = [value, value.lower(), prefix + digits, f"{prefix.lower()} {digits}", f"#{digits}", digits]
        return rng.choices(shapes, (50, 12, 12, 6, 10, 10))[0]
    if kind == "sku":
        name, _, number = value.partition("|")
        shapes = [name, number, f"{name} ({number})", number.lower(), number.replace("-", " ")]
        return rng.choices(shapes, (50, 22, 14, 8, 6))[0]
    if kind == "amount":
        euros, cents = divmod(int(value), 100)
        dotted, comma = f"{euros}.{cents:02d}", f"{euros},{cents:02d}"
        shapes = [f"{dotted} EUR", f"€{dotted}", f"{comma} €", f"{comma} EUR", f"{dotted} euros"]
        return rng.choice([f"{euros} euros", f"{euros} EUR"] if not cents and rng.random() < 0.5 else shapes)
    if kind == "quantity":
        words = ("", "one", "two", "three", "four", "five", "six", "seven", "eight")
        return words[int(value)] if int(value) < len(words) and rng.random() < 0.4 else value
    return value


def message(text: str, slots: Mapping[str, str], rng: random.Random, *, plain: bool = False) -> str:
    """A wording with its slots filled and, unless `plain`, the noise of real messages around and in it.

    Args:
        text: the wording with `{slot}` holes; `name` and `city` must be among the slots.
        slots: canonical value per hole.
        rng: decides everything, so that equal states give equal messages.
        plain: without courtesies, typing errors and capitals.
    """
    if not plain:
        text = _noisy(text, rng)
    filled = _SLOT.sub(lambda hole: "\x00" + surface(hole[1], slots[hole[1]], rng), text).strip()
    return _ARTICLE.sub(lambda match: f"{match[1]}n ", filled).replace("\x00", "")


def join(first: str, second: str, split: str, rng: random.Random) -> str:
    """Two wordings of a split in one text, to be filled by `message` afterwards."""
    pattern = rng.choice(_context()["joins"][split])
    if not second.startswith(("I ", "I'", "{")):
        pattern = pattern.replace("{lower}", second[:1].lower() + second[1:])
    return pattern.replace("{a}", first).replace("{b}", second).replace("{lower}", second)


def _noisy(text: str, rng: random.Random) -> str:
    if rng.random() < 0.40:
        text = f"{_courtesy('before', text, rng)} {text}"
    if rng.random() < 0.10:
        text = text.rstrip(".!?")
    elif rng.random() < 0.04:
        text = text.rstrip(".!?") + rng.choice(("!!", "??", "...", "!!!"))
    if rng.random() < 0.38:
        text = f"{text} {_courtesy('after', text, rng)}"
    chance = rng.random()
    if chance < 0.13:
        text = _outside_slots(text, str.lower)
    elif chance < 0.15:
        text = _outside_slots(text, str.upper)
    if rng.random() < 0.16:
        text = _outside_slots(text, lambda part: _mistyped(part, rng, 0.05))
    return text


def _courtesy(place: str, text: str, rng: random.Random) -> str:
    """Never longer than the text it goes with: two short messages must not be alike for their courtesies alone."""
    return rng.choice([one for one in _context()[place] if len(one) <= max(24, len(text))])


def _outside_slots(text: str, change: Callable[[str], str]) -> str:
    parts = re.split(r"(\{\w+\})", text)
    return "".join(part if part.startswith("{") else change(part) for part in parts)


def _mistyped(text: str, rng: random.Random, rate: float) -> str:
    """Letters of longer words swapped, dropped, doubled or hit beside, about `rate` of the words, at least one."""
    words = text.split(" ")
    long = [at for at, word in enumerate(words) if len(word) > 3 and word.isalpha()]
    if not long:
        return text
    for at in rng.sample(long, max(1, round(rate * len(long)))):
        word = words[at]
        spot = rng.randint(1, len(word) - 2)
        kind = rng.randrange(4)
        if kind == 0:
            word = word[:spot] + word[spot + 1] + word[spot] + word[spot + 2 :]
        elif kind == 1:
            word = word[:spot] + word[spot + 1 :]
        elif kind == 2:
            word = word[:spot] + word[spot] + word[spot:]
        else:
            near = _KEYS.find(word[spot].lower())
            beside = _KEYS[max(0, near - 1) : near + 2].replace(" ", "")
            word = word[:spot] + rng.choice(beside or word[spot]) + word[spot + 1 :]
        words[at] = word
    return " ".join(words)
