"""Numbers that identify people or accounts: payment cards (Luhn), IBANs (mod 97), phone numbers, US SSNs.

Invariant: time is linear in the text, and what fails its check digit or shape is not touched: order ids, amounts,
dates, times and versions survive. Spans are character positions in the text that was given.
"""

import re
from collections.abc import Callable, Iterator

RUN = r"[+(]{0,2}[0-9](?:[ .()\-/\x{2010}-\x{2015}\x{a0}]{0,3}[0-9]){6,}"
WRAPPED = r"[0-9]{4}[ \t]{0,3}\r?\n[ \t]{0,3}[0-9]{4}"
IBAN = r"(?i)\b[A-Z]{2}[0-9]{2}(?:[ \-]?[A-Z0-9]){11,30}"

# Lengths from the SWIFT IBAN registry.
_IBAN_LENGTHS = {
    entry[:2]: int(entry[2:])
    for line in (
        "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28 EE20 EG29",
        "ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 LB28",
        "LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 PT25",
        "QA29 RO24 RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 YE30",
    )
    for entry in line.split()
}
_CARD = re.compile(
    r"4\d{12}(?:\d{3}){0,2}|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}|3[47]\d{13}"
    r"|3(?:0[0-5]|[689]\d)\d{11}(?:\d{2})?|6(?:011|4[4-9]\d|5\d\d)\d{12}(?:\d{3})?|35(?:2[89]|[3-8]\d)\d{12}"
    r"|62\d{14,17}|(?:50|5[6-9]|6[0-9])\d{10,17}"
)
_LINE_END = re.compile(r"[0-9]{4,19}(?:[ \-][0-9]{4,19}){0,4}[ \t]{0,3}\r?$")
_LINE_START = re.compile(r"[ \t]{0,3}[0-9]{4,19}(?:[ \-][0-9]{4,19}){0,4}")
_DATE = re.compile(
    r"(?<!\d)(?:(?:19|20)\d\d[-/.](?:0?[1-9]|1[0-2])[-/.](?:0?[1-9]|[12]\d|3[01])"
    r"|(?:0?[1-9]|[12]\d|3[01])[-/.](?:0?[1-9]|[12]\d|3[01])[-/.](?:19|20)?\d\d)(?!\d)"
)
_SSN = re.compile(r"(?<!\d)(?!000|666|9)\d{3}([- ])(?!00)\d\d\1(?!0000)\d{4}(?!\d)")
_NANP = re.compile(
    r"(?<!\d)(?:\+?1[ .\-]?)?(?:\([2-9]\d\d\)[ .\-]?|[2-9]\d\d[ .\-])\d{3}[ .\-]\d{4}(?!\d)"
)  # 555 is accepted: invented numbers in texts use it
_INTERNATIONAL = re.compile(r"(?:\+|(?<!\d)00)[ (]{0,2}[1-9](?:[ .()\-/‐-―\xa0]{0,3}\d){6,14}(?!\d)")
_NATIONAL = re.compile(r"(?<![\d.,])\(?0(?:[ .()\-/]{0,3}\d){7,12}(?!\d)")
_BARE = re.compile(r"(?<![\d.,])\d(?:[ .\-]?\d){6,14}(?!\d)")
_CONTEXT = re.compile(
    r"(?i)(?:phone|telephone|tel|mobile|cell|fax|whats ?app|sms|text|call|reach|ring|dial|handy|telefon|rufnummer"
    r"|number)"
    r"[^\w+(]*(?:me|us|him|her|back|on|at|to|is|no|nr|number|under|unter)?[^\w+(]*(?:is|at|on|:)?[^\w+(]{0,3}$"
)


def in_run(
    text: str, start: int, end: int, regions: tuple[str, ...], wanted: Callable[[str], bool]
) -> Iterator[tuple[str, int, int]]:
    """(kind, start, end) of what a run of digits and separators holds. Kinds: CARD, SSN, PHONE."""
    run = text[start:end]
    if _DATE.fullmatch(run):
        return
    taken = bytearray(len(run))

    def take(span: tuple[int, int]) -> bool:
        free = not any(taken[span[0] : span[1]])
        taken[span[0] : span[1]] = b"\x01" * (span[1] - span[0])
        return free

    for span in _cards(run) if wanted("CARD") else ():
        take(span)
        yield "CARD", start + span[0], start + span[1]
    for match in _DATE.finditer(run):
        take(match.span())
    for match in _SSN.finditer(run) if wanted("SSN") else ():
        if take(match.span()):
            yield "SSN", start + match.start(), start + match.end()
    if wanted("PHONE"):
        for span in _phones(run, text[max(0, start - 40) : start], regions):
            if take(span):
                yield "PHONE", start + span[0], start + span[1]


def wrapped_cards(text: str) -> Iterator[tuple[int, int]]:
    """Spans of card numbers that go over one line break, in groups of four digits or more."""
    for found in re.finditer("\n", text):
        place = found.start()
        lead = _LINE_END.search(text, max(0, place - 32), place)
        tail = _LINE_START.match(text, place + 1, place + 33)
        if lead and tail:
            for first, last in _cards(text[lead.start() : tail.end()]):
                if lead.start() + first < place < lead.start() + last:
                    yield lead.start() + first, lead.start() + last


def iban_end(text: str, start: int) -> int:
    """End of the IBAN that starts at `start`, or 0 when there is none (country, length or mod 97 is wrong)."""
    length = _IBAN_LENGTHS.get(text[start : start + 2].upper(), 0)
    compact: list[str] = []
    position = start
    while position < len(text) and len(compact) < length:
        character = text[position].upper()
        if character.isascii() and character.isalnum():
            compact.append(character)
        elif character not in " -" or len(compact) % 4:
            return 0  # written in groups of four, or it is prose that happens to add up
        position += 1
    if not length or len(compact) < length or (position < len(text) and text[position].isalnum()):
        return 0
    rearranged = "".join(compact[4:] + compact[:4])
    return position if int("".join(str(int(character, 36)) for character in rearranged)) % 97 == 1 else 0


def _cards(run: str) -> Iterator[tuple[int, int]]:
    """Spans of card numbers that begin and end at a boundary between digits and separators."""
    positions = [index for index, character in enumerate(run) if character.isdigit()]
    if len(positions) < 12:
        return
    digits = "".join(run[index] for index in positions)
    # Luhn sums of the digits before i, doubling those at even or at odd places: any window costs two subtractions.
    even, odd = [0], [0]
    for place, character in enumerate(digits):
        plain = int(character)
        doubled = plain * 2 - 9 if plain > 4 else plain * 2
        even.append(even[-1] + (doubled if place % 2 == 0 else plain))
        odd.append(odd[-1] + (plain if place % 2 == 0 else doubled))
    place = 0
    while place + 12 <= len(digits):
        if (place and positions[place - 1] == positions[place] - 1) or digits[place] not in "23456":
            place += 1
            continue
        for length in range(min(19, len(digits) - place), 11, -1):
            last = place + length
            if last < len(digits) and positions[last] == positions[last - 1] + 1:
                continue
            sums = odd if last % 2 else even  # the digit before the last one is doubled
            if (sums[last] - sums[place]) % 10 == 0 and _CARD.fullmatch(digits, place, last):
                yield positions[place], positions[last - 1] + 1
                place = last - 1
                break
        place += 1


def _phones(run: str, before: str, regions: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    for match in _NANP.finditer(run):
        yield match.span()
    for match in _INTERNATIONAL.finditer(run):
        if _possible("+" + re.sub(r"\D", "", match[0]).removeprefix("00")):
            yield match.span()
    for match in _NATIONAL.finditer(run):
        if any(character.isdigit() for character in run[: match.start()]):
            break  # the middle of a longer number is no phone number
        separated = not match[0].isdigit()
        if (separated or _CONTEXT.search(before)) and any(_valid(match[0], region) for region in regions):
            yield match.span()
    match = _BARE.match(run)
    if match and _CONTEXT.search(before):
        yield match.span()


def _possible(number: str) -> bool:
    """Whether the length fits the country (an invented 555 number is possible, not valid)."""
    import phonenumbers

    try:
        return phonenumbers.is_possible_number(phonenumbers.parse(number))
    except phonenumbers.NumberParseException:
        return False


def _valid(number: str, region: str) -> bool:
    import phonenumbers

    try:
        return phonenumbers.is_valid_number(phonenumbers.parse(number, region))
    except phonenumbers.NumberParseException:
        return False
