"""Texts that say the same: normal forms, word shingles, MinHash with banding, exact Jaccard on what the bands propose.

Invariant: a pair is called similar only after its exact Jaccard similarity over word 3-shingles reached the threshold;
MinHash only proposes pairs. With 16 bands of 4 rows a pair at exactly .8 is missed with probability 2e-4, at .9 with
8e-8 (1 - (1 - s^4)^16, Leskovec et al., Mining of Massive Datasets, 3.4). Every hash is fixed: no run differs from
another. It reads no file and knows nothing of rows.
"""

import re
import unicodedata
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

THRESHOLD = 0.8
BANDS, ROWS = 16, 4
MAX_WORDS = 20_000  # of one text; a longer text is compared by its beginning
MAX_COMPARED = 256  # kept texts of one band a text is compared with: bounds the work on templated traffic

Shingles = NDArray[np.uint64]

_PSEUDONYM = re.compile(r"<([A-Z][A-Z_]*)(?::[0-9A-Za-z]+)?>")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
_APOSTROPHE = re.compile("['\u2019\u02bc]")
_WORD = re.compile(r"\w+")
_DIGITS = re.compile(r"\d+")
_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def normal(text: str, *, mask: bool = False) -> str:
    """`text` as its words, lower case, one space apart: equal for texts that differ only in form.

    Args:
        text: any text; pseudonyms such as `<EMAIL:7f3a9c>` count as the word of their kind.
        mask: write every run of digits as 0, so that only the wording is left ("order 12" equals "order 77").
    """
    text = _PSEUDONYM.sub(lambda match: f" {match[1].lower()} ", text)
    if not text.isascii():
        text = _INVISIBLE.sub("", unicodedata.normalize("NFKC", text))
    text = _APOSTROPHE.sub("", text).casefold().replace("_", " ")
    if mask:
        text = _DIGITS.sub("0", text)
    return " ".join(_WORD.findall(text))


def shingles(normalised: str, size: int = 3) -> Shingles:
    """Sorted unique 64-bit hashes of the word `size`-grams; a shorter text is one shingle; no word, none."""
    words = normalised.split(" ", MAX_WORDS)[:MAX_WORDS] if normalised else []
    hashes = np.array([zlib.crc32(word.encode("utf-8", "replace")) for word in words], dtype=np.uint64)
    size = min(size, len(hashes))
    if not size:
        return hashes
    mixed = np.zeros(len(hashes) - size + 1, dtype=np.uint64)
    for offset in range(size):
        mixed = _scramble(mixed + hashes[offset : offset + len(mixed)] + _GAMMA)
    return np.unique(mixed)


def jaccard(one: Shingles, other: Shingles) -> float:
    """Size of the intersection over that of the union, in [0, 1]; two empty sets are equal."""
    if not len(one) and not len(other):
        return 1.0
    common = len(np.intersect1d(one, other, assume_unique=True))
    return common / (len(one) + len(other) - common)


def keep_first(sets: Sequence[Shingles], threshold: float = THRESHOLD) -> list[int]:
    """For each set the index of the earlier kept one it repeats, or -1 when it is kept itself."""
    proposals = _Proposals(sets, threshold)
    found: list[int] = []
    for index in range(len(sets)):
        near = proposals.similar(index, proposals.candidates(index))
        found.append(near)
        if near < 0:
            proposals.add(index)
    return found


def clusters(sets: Sequence[Shingles], threshold: float = THRESHOLD) -> list[int]:
    """For each set the smallest index it is linked to through similar ones (single linkage)."""
    proposals = _Proposals(sets, threshold)
    parent = list(range(len(sets)))
    for index in range(len(sets)):
        candidates = proposals.candidates(index)
        while (near := proposals.similar(index, candidates)) >= 0:
            low, high = sorted((root(parent, near), root(parent, index)))
            parent[high] = low
            # One link to a cluster is enough: the rest of it need not be compared.
            candidates = [one for one in candidates if root(parent, one) != low]
        proposals.add(index)
    return [root(parent, index) for index in range(len(sets))]


def root(parent: list[int], index: int) -> int:
    """Representative of `index` in a union-find forest, with path halving."""
    while parent[index] != index:
        parent[index] = parent[parent[index]]
        index = parent[index]
    return index


def _scramble(values: Shingles) -> Shingles:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


_SEEDS = _scramble(_GAMMA * np.arange(1, BANDS * ROWS + 1, dtype=np.uint64))


class _Proposals:
    """Pairs worth comparing: sets that share a band of their MinHash signatures."""

    def __init__(self, sets: Sequence[Shingles], threshold: float) -> None:
        self.sets, self.threshold = sets, threshold
        self.signatures = np.zeros((len(sets), BANDS * ROWS), dtype=np.uint32)
        for index, one in enumerate(sets):
            if len(one):
                hashed = (one[None, :] ^ _SEEDS[:, None]) * np.uint64(0xD6E8FEB86659FD93)
                self.signatures[index] = (hashed >> np.uint64(32)).min(axis=1)
        self.bands: list[list[int]] = [[] for _ in sets]
        empty = np.array([len(one) == 0 for one in sets], dtype=bool)
        for band in range(BANDS):
            part = self.signatures[:, band * ROWS : (band + 1) * ROWS].astype(np.uint64)
            key = np.zeros(len(sets), dtype=np.uint64)
            for column in range(ROWS):
                key = _scramble(key + part[:, column] + _GAMMA)
            _, group, count = np.unique(key, return_inverse=True, return_counts=True)
            # Only a band that two sets share can propose a pair; most are alone and cost nothing further.
            for index in np.flatnonzero((count[group] > 1) & ~empty):
                self.bands[index].append(int(group[index]) * BANDS + band)
        self.members: dict[int, list[int]] = {}

    def add(self, index: int) -> None:
        for band in self.bands[index]:
            self.members.setdefault(band, []).append(index)

    def candidates(self, index: int) -> list[int]:
        """Added sets that share a band with `index`, in order; of each band the newest MAX_COMPARED."""
        return sorted({one for band in self.bands[index] for one in self.members.get(band, ())[-MAX_COMPARED:]})

    def similar(self, index: int, candidates: list[int]) -> int:
        """The first candidate that is similar to set `index`, or -1."""
        if not candidates:
            return -1
        agreement = (self.signatures[candidates] == self.signatures[index]).mean(axis=1)
        # Four standard deviations of the 64-hash estimate (.05 each): what lies below is not worth the exact count.
        for position in np.flatnonzero(agreement >= self.threshold - 0.2):
            if jaccard(self.sets[index], self.sets[candidates[position]]) >= self.threshold:
                return candidates[position]
        return -1
