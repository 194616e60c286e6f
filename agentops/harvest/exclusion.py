"""What a data set may never contain: the texts of frozen and sealed evaluation sets, and near copies of them.

Invariant: a text is excluded when it has the same wording as a protected text (numbers and pseudonyms aside), or when
at least 80 % of a protected text's word 3-grams or character 5-grams are in it. The overlap is counted exactly: a
pair that reaches it is never missed. A protected text itself is written nowhere, only the set's name and digest.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from agentops.harvest.similar import THRESHOLD, normal

EMBEDDABLE_WORDS, EMBEDDABLE_LETTERS = 8, 40  # grams; a protected text this long also counts inside a longer text
EVIDENCE = 2  # rare grams two texts must share before all are compared: fastest of 1, 2, 4, 6 on 2,000 short texts
RULE = (
    "same wording (numbers and pseudonyms masked), or 80 % of a protected text's word 3-grams or character 5-grams; "
    f"one under {EMBEDDABLE_WORDS} word or {EMBEDDABLE_LETTERS} character grams must cover 80 % of the row as well"
)


@dataclass(slots=True)
class _Index:
    """Exact containment search: a text that holds 80 % of a protected set holds some of its rarest grams."""

    grams: Callable[[str], set[str]]
    embeddable: int
    protected: list[tuple[frozenset[str], str]] = field(default_factory=list)
    rare: dict[str, list[int]] = field(default_factory=dict)

    def build(self, texts: Mapping[str, str]) -> None:
        entries = [(frozenset(self.grams(text)), name) for text, name in texts.items()]
        frequency = Counter(gram for grams, _ in entries for gram in grams)
        for grams, name in entries:
            if not grams:
                continue
            # Of n grams at most n - ceil(.8 n) may be absent, so of the (that + k) rarest k must be present.
            prefix = len(grams) - _needed(len(grams)) + min(EVIDENCE, _needed(len(grams)))
            for gram in sorted(grams, key=lambda gram: (frequency[gram], gram))[:prefix]:
                self.rare.setdefault(gram, []).append(len(self.protected))
            self.protected.append((grams, name))

    def match(self, text: str) -> str:
        grams = self.grams(text)
        hits = Counter(index for gram in grams if gram in self.rare for index in self.rare[gram])
        for index, count in sorted(hits.items()):
            protected, name = self.protected[index]
            if count < min(EVIDENCE, _needed(len(protected))):
                continue
            common = len(protected & grams)
            enough = common >= _needed(len(protected))
            if enough and (len(protected) >= self.embeddable or common >= _needed(len(grams))):
                return name
        return ""


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
        words, letters = _Index(_words, EMBEDDABLE_WORDS), _Index(_letters, EMBEDDABLE_LETTERS)
        words.build(exact)
        letters.build(exact)

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
