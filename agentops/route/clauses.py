"""Where a message might change its subject: sentence ends, and the ways people start a second matter.

Invariant: every piece is a substring of the message, in order, and the number of pieces is bounded. This module knows
no labels: whether pieces are about different things is the router's decision.
"""

import re
from dataclasses import dataclass

MAX_CHARACTERS = 2_000  # of a message that is looked at; longer ones are mostly pasted text
MAX_PIECES = 8
MIN_WORDS = 3  # a shorter piece ("Hi there!", "order 12") belongs to its neighbour

_ANYWHERE = (
    r"besides that|another thing|one more thing|on another note|while you(?: a|')re at it|"
    r"(?:first|second|third|next)(?:ly)? (?:question|thing|point)"
)
_AT_START = (
    r"also|and also|besides|in addition|additionally|apart from that|by the way|separately|p\.? ?s\.?|oh,? and|"
    r"(?:first|second|third)(?:ly)?(?=[:,])"
)
# A new matter is announced: a line break, an item number, or a phrase people use for it.
_STRONG = re.compile(
    r"\s*\n\s*(?:(?:[-*•]|\d{1,2}[.)])\s+)?"
    r"|(?:^|(?<=\s))\(?\d{1,2}\)\s+"
    rf"|(?:^|(?<=\s))(?:and\s+)?(?:{_ANYWHERE})\s*[:,]?\s+"
    rf"|(?:^|(?<=[.!?;:,]\s))(?:{_AT_START})\s*[:,]?\s+",
    re.IGNORECASE,
)
_WEAK = re.compile(r"(?<=[.!?;])\s+|,\s+and\s+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a message. `strong`: the message announces a new matter before it."""

    start: int
    end: int
    strong: bool


def pieces(text: str) -> tuple[Piece, ...]:
    """The pieces of a message: none for a blank text, one when it has no boundary, at most MAX_PIECES."""
    text = text[:MAX_CHARACTERS]
    cuts = [(found.start(), found.end(), True) for found in _STRONG.finditer(text)]
    cuts += [(found.start(), found.end(), False) for found in _WEAK.finditer(text)]
    out: list[Piece] = []
    start, strong = 0, False
    for left, right, announced in [*sorted(cuts), (len(text), len(text), False)]:
        if left > start and (left == len(text) or len(out) < MAX_PIECES - 1):
            if len(text[start:left].split()) >= MIN_WORDS or not out:
                out.append(Piece(start, left, strong))
                strong = False
            else:  # too short to stand alone
                out[-1] = Piece(out[-1].start, left, out[-1].strong)
            start = right
        elif left <= start:
            start = max(start, right)
        else:
            continue  # the last piece takes what is left, boundaries included
        strong = strong or announced
    if len(out) > 1 and len(text[out[0].start : out[0].end].split()) < MIN_WORDS and not out[1].strong:
        out[:2] = [Piece(out[0].start, out[1].end, out[0].strong)]
    return tuple(
        Piece(piece.start, piece.start + len(text[piece.start : piece.end].rstrip()), piece.strong)
        for piece in out
        if text[piece.start : piece.end].strip()
    )
