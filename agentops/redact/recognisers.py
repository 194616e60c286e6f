"""What is personal or secret in one text: every recogniser, over the text and its decoded view.

Invariant: the work is linear in the length of the text. One RE2 set decides in a single pass which recognisers have any
candidate; texts with none (most) cost that pass only, about 100 MB/s. Nothing is replaced here.
"""

import base64
import binascii
import bisect
import re
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import re2

from agentops.redact import numbers, people, secrets
from agentops.redact.views import view

KINDS = (
    "EMAIL", "PHONE", "CARD", "CARD_CODE", "IBAN", "SSN", "JWT", "PEM", "KEY", "URL_LOGIN", "SECRET", "NAME", "KNOWN",
)  # fmt: skip
EMAIL = (
    r"(?P<v>[\p{L}\p{N}_](?:[\p{L}\p{N}._%+'\-]|\p{M})*\"?"
    r"(?:@|\s?[\[({]\s?(?i:at|@)\s?[\])}]\s?)"
    r"(?:[\p{L}\p{N}](?:[\p{L}\p{N}\-]|\p{M})*(?:(?:\.|\s?[\[({]\s?(?i:dot|\.)\s?[\])}]\s?)[\p{L}\p{N}](?:[\p{L}\p{N}\-]|\p{M})*)+"
    r"|\[[0-9A-Fa-f:.]{3,45}\]))"
)
PLACEHOLDER = re.compile(r"<[A-Z][A-Z0-9_]{1,30}:[0-9a-f]{8}>")
_ENCODED = r"[0-9A-Za-z+/_\-]{12,}={0,2}"
_PRINTABLE = string.printable.encode()
_ORDINARY = re.compile(r"(?:[A-Z]?[a-z]+|[A-Z]+|[0-9]+)(?:[-_/+]+(?:[A-Z]?[a-z]+|[A-Z]+|[0-9]+))*")  # words, paths
_DEPTH = 2  # base64 inside base64


@dataclass(frozen=True, slots=True)
class Finding:
    """A piece of text that must not be kept; character positions in the text that was given."""

    kind: str
    start: int
    end: int
    value: str = ""  # as recognised (decoded); what a pseudonym is made from. Never show or log it.

    def __repr__(self) -> str:
        return f"Finding({self.kind!r}, {self.start}, {self.end})"


@dataclass(frozen=True, slots=True)
class Rules:
    """What a deployment wants recognised."""

    kinds: frozenset[str] = frozenset(KINDS)
    allowed_domains: frozenset[str] = frozenset()  # addresses and URLs there are not personal
    patterns: tuple[tuple[str, str], ...] = ()  # (kind, RE2 regular expression); group "v" or the whole match
    regions: tuple[str, ...] = ("GB", "DE", "FR", "ES", "IT", "NL")  # for numbers written with a leading 0
    personal_fields: frozenset[str] = frozenset()  # keys of JSON objects whose values are personal


class Recognisers:
    """Compiled rules.

    Args:
        rules: kinds, patterns and domains.
        known_secrets: exact secrets; also found encoded.
        known_values: names, addresses and other personal values; compared without regard to case.
    """

    def __init__(self, rules: Rules, known_secrets: tuple[str, ...] = (), known_values: tuple[str, ...] = ()) -> None:
        self._rules = rules
        simple = {
            "KEY": secrets.CLOUD_KEY,
            "JWT": secrets.JWT,
            "PEM": secrets.PEM,
            "URL_LOGIN": secrets.URL_USERINFO,
            "CARD_CODE": secrets.CARD_CODE,
        }
        self._finders: list[Callable[[str, bytes | str], Iterator[Finding]]] = []
        gate = re2.Set.SearchSet(_options())

        def add(pattern: str, finder: Callable[[str, bytes | str], Iterator[Finding]]) -> None:
            gate.Add(pattern)
            self._finders.append(finder)

        for kind, pattern in _known(known_secrets, known_values):
            add(pattern, _plain(kind, pattern))
        for kind, pattern in simple.items():
            if kind in rules.kinds:
                add(pattern, _plain(kind, pattern))
        if "EMAIL" in rules.kinds:
            add(r"@|[\[({]\s?(?i:at)\s?[\])}]", self._emails)
        if rules.kinds & {"CARD", "PHONE", "SSN"}:
            add(numbers.RUN, self._numbers)
        if "CARD" in rules.kinds:
            add(numbers.WRAPPED, _wrapped_cards)
        if "IBAN" in rules.kinds:
            add(numbers.IBAN, _ibans)
        if "SECRET" in rules.kinds:
            add(secrets.ASSIGNED, _assigned)
            add(secrets.SPOKEN, _plain("SECRET", secrets.SPOKEN, lambda v: secrets.looks_secret(v, ":")))
            add(secrets.HEADER, _plain("SECRET", secrets.HEADER))
        if "NAME" in rules.kinds:
            for pattern in (people.INTRODUCED, people.MY_NAME, people.TITLED, people.GREETED, people.SIGNED):
                add(pattern, _names(pattern, capitals=pattern in (people.MY_NAME, people.TITLED, people.SIGNED)))
        for kind, pattern in rules.patterns:
            add(pattern, _plain(kind, pattern))
        self._encoded_at = len(self._finders)
        gate.Add(r"[0-9A-Za-z+/_\-]{12}")
        gate.Compile()
        self._gate = gate
        self._encoded = _compile(_ENCODED)

    def find(self, text: str) -> list[Finding]:
        """Everything found, in order, not overlapping."""
        found = self._find(text, _DEPTH)
        return _merged(found, text) if found else []

    def any(self, text: str) -> bool:
        """Whether anything would be found in a text that is its own decoded view."""
        return next(self._direct(text, _DEPTH), None) is not None

    def _find(self, text: str, depth: int) -> list[Finding]:
        found = list(self._direct(text, depth))
        decoded = view(text)
        if decoded is not None:
            for finding in self._direct(decoded.text, depth):
                start, end = decoded.span(finding.start, finding.end)
                found.append(Finding(finding.kind, start, end, finding.value))
        return found

    def _direct(self, text: str, depth: int) -> Iterator[Finding]:
        if len(text) < 4:
            return
        data = text.encode("utf-8", "replace")
        # For ASCII, byte and character positions are the same: RE2's own offsets are used without conversion.
        subject: bytes | str = data if len(data) == len(text) else text
        for index in self._gate.Match(data) or ():
            if index == self._encoded_at:
                yield from self._hidden(text, subject, depth)
            else:
                yield from self._finders[index](text, subject)

    def _emails(self, text: str, subject: bytes | str) -> Iterator[Finding]:
        addresses: list[str] = []
        for start, end in _spans(_EMAIL, subject):
            value = text[start:end]
            domain = value.rpartition("@")[2].lower().rstrip(".")
            if any(domain == one or domain.endswith("." + one) for one in self._rules.allowed_domains):
                continue
            yield Finding("EMAIL", start, end, value.lower())
            addresses.append(value)
        if "NAME" in self._rules.kinds:
            for start, end in people.owners(text, addresses):
                yield Finding("NAME", start, end, text[start:end].lower())

    def _numbers(self, text: str, subject: bytes | str) -> Iterator[Finding]:
        for start, end in _spans(_RUN, subject):
            for kind, a, b in numbers.in_run(text, start, end, self._rules.regions, self._rules.kinds.__contains__):
                yield Finding(kind, a, b, re.sub(r"\D", "", text[a:b]))

    def _hidden(self, text: str, subject: bytes | str, depth: int) -> Iterator[Finding]:
        """Base64 and hex runs whose decoded text has a finding; the whole run is replaced."""
        if depth <= 0:
            return
        for start, end in _spans(self._encoded, subject):
            run = text[start:end].rstrip("=")
            for decoded in _decodings(run):
                inner = self._find(decoded, depth - 1)
                if inner:
                    told = max(_merged(inner, decoded), key=lambda one: one.end - one.start, default=inner[0])
                    yield Finding(told.kind, start, end, told.value)
                    break


def _compile(pattern: str) -> "re2._Regexp":
    return re2.compile(pattern, _options())


def _options() -> re2.Options:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 64 << 20  # a set that runs out of memory reports no match: give it room
    return options


def _plain(
    kind: str, pattern: str, wanted: Callable[[str], bool] = lambda _: True
) -> Callable[[str, bytes | str], Iterator[Finding]]:
    compiled = _compile(pattern)
    group = _group(compiled, "v")

    def find(text: str, subject: bytes | str) -> Iterator[Finding]:
        for start, end in _spans(compiled, subject, group):
            value = text[start:end]
            if end > start and not PLACEHOLDER.search(value) and wanted(value):
                yield Finding(kind, start, end, value)

    return find


def _assigned(text: str, subject: bytes | str) -> Iterator[Finding]:
    for match in _ASSIGNED.finditer(subject):
        operator = text[slice(*match.span(_OPERATOR))]
        for group in _VALUES:
            start, end = match.span(group)
            value = text[start:end] if start >= 0 else ""
            if (
                value
                and not PLACEHOLDER.search(value)
                and secrets.looks_secret(value, operator if group == _BARE else "")
            ):
                yield Finding("SECRET", start, end, value)


def _names(pattern: str, capitals: bool) -> Callable[[str, bytes | str], Iterator[Finding]]:
    compiled = _compile(pattern)
    group = _group(compiled, "v")

    def find(text: str, subject: bytes | str) -> Iterator[Finding]:
        for start, end in _spans(compiled, subject, group):
            name = people.trimmed(text[start:end], capitals)
            if len(name) >= 2:
                yield Finding("NAME", start, start + len(name), " ".join(name.lower().split()))

    return find


def _ibans(text: str, _: bytes | str) -> Iterator[Finding]:
    position = 0
    # Python's `re`: this pattern has one way to match, and RE2 would encode the whole text anew for every search.
    while match := _IBAN.search(text, position):
        start = match.start()
        end = numbers.iban_end(text, start)
        if end:
            yield Finding("IBAN", start, end, re.sub(r"[^0-9A-Z]", "", text[start:end].upper()))
        position = end or start + 4


def _wrapped_cards(text: str, _: bytes | str) -> Iterator[Finding]:
    for start, end in numbers.wrapped_cards(text):
        yield Finding("CARD", start, end, re.sub(r"\D", "", text[start:end]))


def _group(compiled: "re2._Regexp", name: str) -> int:
    """Number of a named group; 0 (the whole match) without it. RE2's matches take numbers only."""
    return dict(compiled.groupindex).get(name, 0)


def _spans(compiled: "re2._Regexp", subject: bytes | str, group: int = 0) -> Iterator[tuple[int, int]]:
    for match in compiled.finditer(subject):
        span = match.span(group)
        if span[0] >= 0:
            yield span


def _decodings(run: str) -> Iterator[str]:
    """What a run of base64 or hex digits may say; only what is mostly printable."""
    if run.islower() or run.isupper() or run.isdigit():
        # Base64 of nine readable characters has both cases; this may only be hexadecimal.
        if len(run) % 2 == 0 and not run.strip(string.hexdigits):
            yield from _text(bytes.fromhex(run))
        return
    if _ORDINARY.fullmatch(run):
        return
    standard = run.replace("-", "+").replace("_", "/")
    for skip in range(4):  # the encoded text may follow other characters of the alphabet ("id/ZGFu…")
        piece = standard[skip:]
        piece = piece[: len(piece) - (1 if len(piece) % 4 == 1 else 0)]
        try:
            yield from _text(base64.b64decode(piece + "=" * (-len(piece) % 4)))
        except (binascii.Error, ValueError):
            continue


def _text(data: bytes) -> Iterator[str]:
    sample = data[:4096]
    if len(sample.translate(None, _PRINTABLE)) <= 0.2 * len(sample):
        yield data.decode("utf-8", "replace")


def _known(known_secrets: tuple[str, ...], known_values: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    forms = sorted({form for secret in known_secrets for form in _forms(secret)}, key=len, reverse=True)
    if forms:
        yield "SECRET", "|".join(map(re2.escape, forms))
    values = sorted({value.strip() for value in known_values if value.strip()}, key=len, reverse=True)
    if values:
        loose = "|".join(r"\s+".join(map(re2.escape, value.split())) for value in values)
        yield "KNOWN", rf"(?i)\b(?:{loose})\b"


def _forms(secret: str) -> Iterator[str]:
    """Plain, hex, and base64 in its three alignments. URL and JSON forms are met in the decoded view."""
    data = secret.encode("utf-8", "replace")
    yield secret
    yield data.hex()
    yield data.hex().upper()
    for shift in range(3):
        # Only the characters that do not depend on what stands before and after.
        encoded = base64.b64encode(b"\0" * shift + data).decode().rstrip("=")
        inner = encoded[(0, 2, 3)[shift] : len(encoded) - (1 if (len(data) + shift) % 3 else 0)]
        yield inner
        yield inner.replace("+", "-").replace("/", "_")


def _merged(found: list[Finding], text: str) -> list[Finding]:
    """Overlaps joined into one that keeps the kind of the longest; placeholders already in the text are left alone."""
    kept: list[Finding] = []
    done = [match.span() for match in PLACEHOLDER.finditer(text)] if "<" in text else []
    ends = [end for _, end in done]
    logins = sorted(one.end for one in found if one.kind == "URL_LOGIN")
    if logins:  # "name:password@host" also looks like an address; the host is to stay
        found = [one for one in found if one.kind != "EMAIL" or not _any_between(logins, one.start, one.end)]
    for finding in sorted(found, key=lambda one: (one.start, -one.end)):
        start = _after_escape(text, finding.start)
        place = bisect.bisect_left(ends, finding.end)
        if start >= finding.end or (place < len(done) and done[place][0] <= start):
            continue
        finding = Finding(finding.kind, start, finding.end, finding.value)
        if kept and finding.start < kept[-1].end:
            last = kept[-1]
            longest = max(last, finding, key=lambda one: one.end - one.start)
            kept[-1] = Finding(longest.kind, last.start, max(last.end, finding.end), longest.value)
        else:
            kept.append(finding)
    return kept


def _any_between(ordered: list[int], low: int, high: int) -> bool:
    """Whether some number is above `low` and at most `high`."""
    place = bisect.bisect_right(ordered, low)
    return place < len(ordered) and ordered[place] <= high


def _after_escape(text: str, start: int) -> int:
    """`start`, moved past the letter of an escape such as `\\n` that a pattern took for the first letter."""
    if start and start < len(text) and text[start - 1] == "\\" and text[start] in "nrtbfux":
        backslashes = len(text[:start]) - len(text[:start].rstrip("\\")) if start < 64 else 1
        if backslashes % 2:
            return start + {"u": 5, "x": 3}.get(text[start], 1)
    return start


_EMAIL = _compile(EMAIL)
_RUN = _compile(numbers.RUN)
_IBAN = re.compile(numbers.IBAN, re.ASCII)
_ASSIGNED = _compile(secrets.ASSIGNED)
_OPERATOR, _BARE = _group(_ASSIGNED, "op"), _group(_ASSIGNED, "bare")
_VALUES = (_group(_ASSIGNED, "dq"), _group(_ASSIGNED, "sq"), _BARE)
