"""Where a call's arguments come from: the user's own words, what trusted tools said, what outsiders wrote, or nowhere.

A model hands over plain values, without the way they took. So values are looked up: in the request, then in what the
run has read. Invariant: a value that is found nowhere is "derived", never better; and "untrusted" once outsiders' words
were read that are not remembered here. It decides nothing; policies do (`context.source`).
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from agentops.types import Json, Labels, Source

MAX_READ = 2_000_000  # characters remembered of one run
MAX_UNREAD = 32  # results kept as they came: most runs never look anything up
MAX_LEAVES = 2_000  # values of one argument that are looked up
ORDER: tuple[Source, ...] = ("request", "trusted", "derived", "untrusted")
_SPACE = re.compile(r"\s+")
_WORDY = re.compile(r"\w")


@dataclass(slots=True)
class Provenance:
    """What one run was asked and has read. Not for several runs: each has its own."""

    request: str
    trusted: list[str] = field(default_factory=list)
    untrusted: list[str] = field(default_factory=list)
    size: int = 0  # characters read
    complete: bool = True  # False: outsiders' words were read that are not here
    unread: list[tuple[Json, Labels]] = field(default_factory=list)  # results that no look-up has needed yet

    def __post_init__(self) -> None:
        self.request = _plain(self.request)

    def read(self, value: Json, labels: Labels) -> None:
        """Remember a result (or the text of an error): what later arguments may have been taken from."""
        self.unread.append((value, labels))
        if len(self.unread) >= MAX_UNREAD:
            self._read_all()

    def _read_all(self) -> None:
        unread, self.unread = self.unread, []
        for value, labels in unread:
            self._read(value, labels)

    def _read(self, value: Json, labels: Labels) -> None:
        text = "\n".join(_plain(leaf) for leaf in _leaves(value))
        outside = labels.integrity == "untrusted"
        if self.size + len(text) > MAX_READ:
            self.complete = self.complete and not outside
            return
        self.size += len(text)
        (self.untrusted if outside else self.trusted).append(text)

    def sources(
        self, arguments: Mapping[str, Json], defaults: Mapping[str, Json], known: Mapping[str, Source]
    ) -> dict[str, Source]:
        """The source of each argument: of the worst value in it.

        Args:
            arguments: canonical arguments of a call.
            defaults: the tool's own default values: an argument that has its default is "trusted".
            known: sources that the caller knows exactly; they are taken as they are.
        """
        self._read_all()
        found: dict[str, Source] = {}
        for name, value in arguments.items():
            if name in known:
                found[name] = known[name]
            elif name in defaults and type(defaults[name]) is type(value) and defaults[name] == value:
                found[name] = "trusted"
            else:
                found[name] = self._worst(value)
        return found

    def _worst(self, value: Json) -> Source:
        worst = 0
        for number, leaf in enumerate(_leaves(value), 1):
            worst = max(worst, ORDER.index(self._source(leaf)))
            if number > MAX_LEAVES or worst == len(ORDER) - 1:
                return "untrusted"
        return ORDER[worst]

    def _source(self, leaf: str) -> Source:
        text = _plain(leaf)
        if not text:
            return "trusted"  # nothing was said
        if _within(text, self.request):
            return "request"
        if any(_within(text, said) for said in self.trusted):
            return "trusted"
        if not self.complete or any(_within(text, said) for said in self.untrusted):
            return "untrusted"
        return "derived"


def _leaves(value: Json) -> Iterator[str]:
    """Every text, number and truth in `value` as text; keys of objects count too: they can carry words."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, bool):
            yield "true" if item else "false"
        elif isinstance(item, int | float):
            yield f"{item:g}" if isinstance(item, float) and abs(item) < 1e6 else str(item)
        elif isinstance(item, Mapping):
            pending += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple):
            pending += item


def _plain(text: str) -> str:
    """One spelling of what reads alike: compatibility forms, letter case and white space."""
    return _SPACE.sub(" ", unicodedata.normalize("NFKC", text).casefold()).strip()


def _within(text: str, said: str) -> bool:
    """Whether `text` stands in `said` as whole words: "7" is not in "17:30", nor "ann" in "joanne"."""
    start = said.find(text)
    while start >= 0:
        before, after = said[start - 1 : start], said[start + len(text) : start + len(text) + 1]
        left = _WORDY.match(text[0]) is None or not before or _WORDY.match(before) is None
        right = _WORDY.match(text[-1]) is None or not after or _WORDY.match(after) is None
        if left and right:
            return True
        start = said.find(text, start + 1)
    return False
