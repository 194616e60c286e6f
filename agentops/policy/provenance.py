"""Where a call's arguments come from: the user's own words, what trusted tools said, what outsiders wrote, or nowhere.

A model hands over plain values, without the way they took. So values are looked up: in the request, then in what the
run has read. A text that is put together from pieces of the request and of trusted data has the source of its worst
piece. Once outsiders' words were read, a text with an address (of mail, of the web, of an account) that neither the
user nor trusted data gave is "untrusted", whoever wrote the rest of it. Invariant: a value that is found nowhere is
"derived", never better; and "untrusted" once outsiders' words were read that are not remembered here. It decides
nothing; policies do (`context.source`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from agentops.policy.wording import addresses, amounts, figures, pieces, plain, tokens, within
from agentops.types import Json, Labels, Source

MAX_READ = 2_000_000  # characters remembered of one run
MAX_UNREAD = 32  # results kept as they came: most runs never look anything up
MAX_LEAVES = 2_000  # values of one argument that are looked up
ORDER: tuple[Source, ...] = ("request", "trusted", "derived", "untrusted")
MAX_WORDED = 200_000  # characters of trusted data that texts may be put together from


@dataclass(slots=True)
class Provenance:
    """What one run was asked and has read. Not for several runs: each has its own."""

    request: str
    trusted: list[str] = field(default_factory=list)
    untrusted: list[str] = field(default_factory=list)
    size: int = 0  # characters read
    complete: bool = True  # False: outsiders' words were read that are not here
    unread: list[tuple[Json, Labels]] = field(default_factory=list)  # results that no look-up has needed yet
    vouched: set[str] = field(default_factory=set)  # values of calls that a person has approved
    worded: list[str] = field(default_factory=list)  # words of the request and of trusted data, in this order

    def __post_init__(self) -> None:
        self.request = plain(self.request)

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
        text = "\n".join(plain(leaf) for leaf in _leaves(value))
        outside = labels.integrity == "untrusted"
        if self.size + len(text) > MAX_READ:
            self.complete = self.complete and not outside
            return
        self.size += len(text)
        (self.untrusted if outside else self.trusted).append(text)

    def vouch(self, arguments: Mapping[str, Json]) -> None:
        """Take the values of a call that a person approved, each as a whole, for trusted from now on."""
        self.vouched.update(plain(leaf) for value in arguments.values() for leaf in _leaves(value))

    def sources(
        self,
        arguments: Mapping[str, Json],
        defaults: Mapping[str, Json],
        known: Mapping[str, Source],
        amount: str = "",
    ) -> dict[str, Source]:
        """The source of each argument: of the worst value in it.

        Args:
            arguments: canonical arguments of a call.
            defaults: the tool's own default values: an argument that has its default is "trusted".
            known: sources that the caller knows exactly; they are taken as they are.
            amount: the argument that carries minor units: it is looked up as people write it.
        """
        self._read_all()
        found: dict[str, Source] = {}
        for name, value in arguments.items():
            if name in known:
                found[name] = known[name]
            elif name in defaults and type(defaults[name]) is type(value) and defaults[name] == value:
                found[name] = "trusted"
            elif name == amount and type(value) is int:
                found[name] = min((self._said(form) for form in amounts(value)), key=ORDER.index)
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
        text = plain(leaf)
        said = self._said(text)
        if said == "untrusted" and self.complete and figures(text):
            return "derived"
        if said != "derived":
            return said
        if self.untrusted and any(self._said(part) not in ("request", "trusted") for part in addresses(text)):
            return "untrusted"
        return self._composed(text)

    def _said(self, text: str) -> Source:
        """Where `text` stands as a whole."""
        if not text:
            return "trusted"  # nothing was said
        if within(text, self.request):
            return "request"
        if text in self.vouched or any(within(text, said) for said in self.trusted):
            return "trusted"
        if not self.complete or any(within(text, said) for said in self.untrusted):
            return "untrusted"
        return "derived"

    def _composed(self, text: str) -> Source:
        """Where the pieces of `text` come from, when all come from the request and from trusted data."""
        if not self.worded:
            self.worded.append(tokens(self.request))
        for said in self.trusted[len(self.worded) - 1 :]:
            full = sum(map(len, self.worded)) > MAX_WORDED
            self.worded.append("" if full else "\n".join(map(tokens, said.split("\n"))))
        worst: Source = "request"
        for index in pieces(text, self.worded):
            if index < 0:
                return "derived"
            if index > 0:
                worst = "trusted"
        return worst


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
