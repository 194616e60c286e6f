"""What a data set may never contain: the texts of frozen and sealed evaluation sets, and near copies of them.

Invariant: a text is excluded when it has the same wording as a protected text (numbers and pseudonyms aside), or when
at least 80 % of a protected text's word 3-grams or character 5-grams are in it. The overlap is counted exactly: a
pair that reaches it is never missed. A protected text itself is written nowhere, only the set's name and digest.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from agentops.harvest.similar import THRESHOLD, normal

EMBEDDABLE_WORDS, EMBEDDABLE_LETTERS = 8, 40  # grams; a protected text this long also counts inside a longer text
RULE = (
    "same wording (numbers and pseudonyms masked), or 80 % of a protected text's word 3-grams or character 5-grams; "
    f"one under {EMBEDDABLE_WORDS} word or {EMBEDDABLE_LETTERS} character grams must cover 80 % of the row as well"
)


class _Index:
    """Which protected texts have 80 % of their grams in a text: an exact count over an inverted index."""

    def __init__(self, grams: Callable[[str], set[str]], embeddable: int, texts: Mapping[str, str]) -> None:
        """`texts` maps a protected text to the name of its set; `embeddable` is the size from which parts count."""
        self._grams = grams
        found = [(grams(text), name) for text, name in texts.items()]
        found = [(one, name) for one, name in found if one]
        self._names = [name for _, name in found]
        sizes = np.array([len(one) for one, _ in found], dtype=np.int64)
        self._needed = np.array([_needed(size) for size in sizes], dtype=np.int64)
        self._whole = sizes < embeddable  # short ones count only when they are most of the text
        postings: dict[str, list[int]] = {}
        for at, (one, _) in enumerate(found):
            for gram in one:
                postings.setdefault(gram, []).append(at)
        self._postings = {gram: np.array(places, dtype=np.int64) for gram, places in postings.items()}

    def match(self, text: str) -> str:
        """Name of the set of the first protected text that `text` overlaps with, or ""."""
        grams = self._grams(text)
        places = [self._postings[gram] for gram in grams if gram in self._postings]
        if not places:
            return ""
        common = np.bincount(np.concatenate(places), minlength=len(self._names))
        enough = (common >= self._needed) & (~self._whole | (common >= _needed(len(grams))))
        return self._names[int(enough.argmax())] if enough.any() else ""


class Exclusion:
    """Protected evaluation sets by name, each a collection of request texts."""

    def __init__(self, sets: Mapping[str, Iterable[str]]) -> None:
        self._sets = {name: sorted(set(texts)) for name, texts in sorted(sets.items())}

    def describe(self) -> dict[str, dict[str, str | int]]:
        """Per set: number of texts and a digest that says which version it was."""
        return {
            name: {"texts": len(texts), "digest": "sha256:" + hashlib.sha256("\0".join(texts).encode()).hexdigest()}
            for name, texts in self._sets.items()
        }

    def matcher(self, redact: Callable[[str], str]) -> Callable[[str], str]:
        """A function from a text to the name of the set it overlaps with, or "".

        Args:
            redact: what the rows' texts went through; a protected text is compared as it is and as it would look
                redacted, else an address in it would hide the copy.
        """
        exact: dict[str, str] = {}
        for name, texts in self._sets.items():
            for text in texts:
                for form in (normal(text, mask=True), normal(redact(text), mask=True)):
                    if form:
                        exact.setdefault(form, name)
        words = _Index(_words, EMBEDDABLE_WORDS, exact)
        letters = _Index(_letters, EMBEDDABLE_LETTERS, exact)

        def match(text: str) -> str:
            form = normal(text, mask=True)
            return exact.get(form) or words.match(form) or letters.match(form)

        return match


def _needed(count: int) -> int:
    """Least number of `count` grams that makes 80 %."""
    return -int(-count * THRESHOLD // 1)


def _words(text: str) -> set[str]:
    words = text.split(" ")
    return {" ".join(words[at : at + 3]) for at in range(max(1, len(words) - 2))} if text else set()


def _letters(text: str) -> set[str]:
    return {text[at : at + 5] for at in range(max(1, len(text) - 4))} if text else set()
