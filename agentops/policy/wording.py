"""Whether a value stands in a text, and what a text is put together from.

Invariant: every function is a plain look-up without a model: a value counts as said only when its own words are there,
and an address counts only whole. It knows no source and keeps nothing.
"""

import re
import unicodedata
from collections.abc import Iterator

MAX_TOKENS = 80  # of a text that is looked at piece by piece
_SPACE = re.compile(r"\s+")
_WORDY = re.compile(r"\w")
_DIGITS = re.compile(r"\d{1,8}")
_MONTH = (
    "january|february|march|april|may|june|july|august|september|october|november|december"
    "|jan|feb|mar|apr|jun|jul|aug|sep|sept|oct|nov|dec"
)
# A number is no part of a date, a time or a larger number: not 10 in 2024-10, 3.10 and "June 10", but 10 in 10.00.
_NOT_BEFORE = r"(?<!\w)(?<!\d[.,:/-])" + "".join(rf"(?<!{month} )(?<!{month}\. )" for month in _MONTH.split("|"))
_NOT_AFTER = rf"(?!\w)(?![,:/-]\d)(?!\.(?!0{{1,2}}(?!\d))\d)(?! (?:of )?(?:{_MONTH})(?!\w))"
_TOKEN = re.compile(r"\d{4}-\d\d-\d\d|\d{1,2}:\d\d|[^\W_]+")
_DATED = re.compile(r"\d{4}-\d\d-\d\d|\d{1,2}:\d\d")
_DATE_ALONE = re.compile(rf"(?<![\w:/.-])(?:{_DATED.pattern})(?![\w:/-])")
_FIGURES = re.compile(rf"\d{{1,4}}|(?:{_DATED.pattern})(?: (?:{_DATED.pattern}))*")
# Each begins where a word begins and has bounded parts, so that a text of any kind is gone through once.
_ADDRESS = re.compile(
    r"(?<!\w)\w{1,32}://[^\s<>\"']+|(?<!\w)www\.[^\s<>\"']+"  # URLs
    r"|(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,126}"  # mail
    r"|(?<![\w.-])(?:[\w-]{1,63}\.){1,126}[^\W\d_][\w-]{1,62}(?:[:/][^\s<>\"']*)?"  # hosts by name and by number
    r"|(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])"
    r"|(?<!\w)[a-z]{2}\d{2}(?: ?[a-z0-9]{4}){2,7}(?: ?[a-z0-9]{1,4})?(?!\w)"  # IBANs
    r"|(?<!\w)\d(?:[ -]?\d){8,40}"  # accounts, cards, telephones
)
_FILE = re.compile(r"[^/:@]+\.(?:csv|docx?|html?|jpe?g|json|md|odt|pdf|png|pptx?|rtf|txt|xlsx?|xml|yaml)")
_INVISIBLE = re.compile("[\u00ad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")


def plain(text: str) -> str:
    """One spelling of what reads alike: compatibility forms, letter case, white space, nothing invisible."""
    return _SPACE.sub(" ", _INVISIBLE.sub("", unicodedata.normalize("NFKC", text)).casefold()).strip()


def within(text: str, said: str) -> bool:
    """Whether `text` stands in `said` (both plain) as whole words.

    "7" is not in "17:30", "ann" not in "joanne". A short number is not in a date, a time or a larger number either: who
    says "June 13" does not name item 13.
    """
    if text not in said:
        return False
    if _DIGITS.fullmatch(text) is not None:
        return re.search(_NOT_BEFORE + text + _NOT_AFTER, said) is not None
    left, right = "(?<!\\w)" if _WORDY.match(text[0]) else "", "(?!\\w)" if _WORDY.match(text[-1]) else ""
    return re.search(left + re.escape(text) + right, said) is not None


def amounts(cents: int) -> tuple[str, ...]:
    """How people write an amount of minor units: 120000 is "1200", "1200.0", "1200.00", "1,200" or "1,200.00"."""
    whole, rest = divmod(cents, 100)
    forms = [f"{whole}.{rest:02}", f"{whole:,}.{rest:02}"]
    if rest % 10 == 0:
        forms += [f"{whole}.{rest // 10}", f"{whole:,}.{rest // 10}"]
    if rest == 0:
        forms += [str(whole), f"{whole:,}"]
    return tuple(forms)


def addresses(text: str) -> list[str]:
    """Mail addresses, links, names of hosts and long numbers in a plain text: what it could send somebody to."""
    found = (match[0].rstrip(".,;:!?)]}'") for match in _ADDRESS.finditer(_DATE_ALONE.sub(";", text)))
    return [address for address in found if not _FILE.fullmatch(address)]


def figures(text: str) -> bool:
    """Whether a plain text is a short number, or dates and times: they stand in too many texts to tell whose."""
    return _FIGURES.fullmatch(text) is not None


def tokens(text: str) -> str:
    """The words, numbers, dates and times of a plain text, each between spaces."""
    return f" {' '.join(_TOKEN.findall(text))} "


def pieces(text: str, said: list[str]) -> Iterator[int]:
    """For each piece that `text` is put together from, the index of the first of `said` (as `tokens`) that has it.

    A piece is a run of at least two words, a date or a time. Words of at most three letters may lie between pieces, as
    long as the pieces are more. -1 comes for what is found nowhere, and for texts too long or too short to say.
    """
    words = tokens(text).split()
    position, covered = 0, 0
    if not 2 <= len(words) <= MAX_TOKENS:
        yield -1
        return
    while position < len(words):
        length, index = _longest(words, position, said)
        if length:
            yield index
            covered += length
        elif len(words[position]) > 3:
            yield -1
            return
        position += length or 1
    if 2 * covered < len(words):
        yield -1


def _longest(words: list[str], start: int, said: list[str]) -> tuple[int, int]:
    """Length of the longest run from `start` that some text has, and which text; (0, -1) when it is no piece."""
    best, where = 0, -1
    for index, text in enumerate(said):
        end = start
        while end < len(words) and f" {' '.join(words[start : end + 1])} " in text:
            end += 1
        if end - start > best:
            best, where = end - start, index
    piece = best > 1 or (best == 1 and _DATED.fullmatch(words[start]) is not None)
    return (best, where) if piece else (0, -1)
