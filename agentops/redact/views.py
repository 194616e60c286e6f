"""A text as a careful reader would see it: decoded, in plain ASCII digits, without invisible characters.

Invariant: every character of a view knows the piece of the original it came from, so what is found in the view can be
replaced in the original. Views are for finding only; they are never written anywhere.
"""

import html
import re
import unicodedata
from dataclasses import dataclass

_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff]"
)
_FOREIGN_DIGIT = re.compile(r"(?![0-9])\d")
_ENCODED = re.compile(
    r"(?P<url>(?:%[0-9A-Fa-f]{2})+)"
    r"|\\(?P<uni>u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|[nrtbf\"'/\\])"
    r"|(?P<entity>&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z]{2,10});)"
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "b": " ", "f": " ", '"': '"', "'": "'", "/": "/", "\\": "\\"}
_ROUNDS = 3  # encodings inside encodings: "%2540" needs two


@dataclass(frozen=True, slots=True)
class View:
    """`text[i]` came from `original[starts[i]:ends[i]]`."""

    text: str
    starts: list[int]
    ends: list[int]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Where `text[start:end]` lies in the original; `end > start`."""
        return self.starts[start], self.ends[end - 1]


def view(text: str) -> View | None:
    """The decoded view of `text`, or None when it would be the text itself."""
    if plain(text):
        return None
    current = View(text, list(range(len(text))), list(range(1, len(text) + 1)))
    for _ in range(_ROUNDS):
        following = _decoded(_folded(current))
        if following.text == current.text:
            break
        current = following
    return None if current.text == text else current


def plain(text: str) -> bool:
    """Whether `text` is its own decoded view, told without building one."""
    return not ("%" in text or "\\" in text or "&" in text or (not text.isascii() and _needs_folding(text)))


def _needs_folding(text: str) -> bool:
    return (
        not unicodedata.is_normalized("NFKC", text)
        or _INVISIBLE.search(text) is not None
        or _FOREIGN_DIGIT.search(text) is not None
    )


def _folded(source: View) -> View:
    """Compatibility forms, digits of other scripts and invisible characters resolved, character by character."""
    if source.text.isascii() or not _needs_folding(source.text):
        return source
    pieces: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for index, character in enumerate(source.text):
        if character.isascii():
            piece = character
        elif _INVISIBLE.match(character):
            continue
        elif character.isdecimal():
            piece = str(unicodedata.decimal(character))
        else:
            piece = unicodedata.normalize("NFKC", character)
        pieces.append(piece)
        starts.extend([source.starts[index]] * len(piece))
        ends.extend([source.ends[index]] * len(piece))
    return View("".join(pieces), starts, ends)


def _decoded(source: View) -> View:
    """URL, backslash and HTML escapes resolved once."""
    if not _ENCODED.search(source.text):
        return source
    pieces: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    last = 0

    def copy(until: int) -> None:
        pieces.append(source.text[last:until])
        starts.extend(source.starts[last:until])
        ends.extend(source.ends[last:until])

    for match in _ENCODED.finditer(source.text):
        copy(match.start())
        last = match.end()
        if match["url"]:
            _percent(match["url"], match.start(), source, pieces, starts, ends)
            continue
        escape = match["uni"]
        if escape is None:
            decoded = html.unescape(match["entity"])
        elif len(escape) > 1:
            decoded = chr(int(escape[1:], 16))
            if "\ud800" <= decoded <= "\udfff":
                decoded = "�"
        else:
            decoded = _ESCAPES[escape]
        pieces.append(decoded)
        starts.extend([source.starts[match.start()]] * len(decoded))
        ends.extend([source.ends[match.end() - 1]] * len(decoded))
    copy(len(source.text))
    return View("".join(pieces), starts, ends)


def _percent(run: str, at: int, source: View, pieces: list[str], starts: list[int], ends: list[int]) -> None:
    """A run of %XX as UTF-8; each character covers exactly its own %XX groups."""
    decoded = bytes.fromhex(run.replace("%", "")).decode("utf-8", "surrogateescape")
    offset = at
    for character in decoded:
        width = 3 if "\udc80" <= character <= "\udcff" else 3 * len(character.encode())
        pieces.append("�" if width == 3 and character > "\x7f" else character)
        starts.append(source.starts[offset])
        ends.append(source.ends[offset + width - 1])
        offset += width
