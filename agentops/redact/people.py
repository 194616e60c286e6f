"""Names of persons, where the text itself says that it names one.

Invariant: only words next to a phrase that announces a name are taken (introduction, greeting, title, sign-off), and
the owner of an e-mail address in the same text; this is no name recogniser, other names are not covered.
"""

import re
from collections.abc import Iterator, Sequence

MAX_ADDRESSES = 50  # of one text whose owners are looked for
_WORD = r"\p{Lu}[\p{L}'’\-]+"
# Each pattern's group "v" holds up to four words; `trimmed` cuts it at the first that cannot be part of a name.
INTRODUCED = (
    r"(?:(?i:\b(?:i am|i['’]?m|this is|it['’]?s|here is|call me|ich bin|hier ist)) "
    r"|(?i:\b(?:full name|name|customer)\s*[:=]) ?)"
    rf"(?P<v>{_WORD}(?: (?:\p{{Lu}}[\p{{L}}'’.\-]*|van|von|de|der|den|da|di|la|le|bin|al)){{0,3}})"
)
MY_NAME = (
    r"(?i)\b(?:my (?:full |first |last |sur)?name(?: is|['’]s|:)|mein name(?: ist|:)|the name['’]s):? +"
    r"(?P<v>[\p{L}][\p{L}'’\-]*(?:[ .]+[\p{L}][\p{L}'’\-]*){0,3})"
)
TITLED = (
    r"\b(?:Mr|Mrs|Ms|Miss|Mx|Dr|Prof|Herr|Frau|Herrn)\.? +"
    rf"(?P<v>(?:(?:van|von|de|der|den|da|di|la|le|bin|al) ){{0,2}}{_WORD}(?:[ \-]{_WORD}){{0,2}})"
)
GREETED = (
    r"(?m)(?:^|[.!?] |\")(?i:dear|hi|hello|hey|hallo|liebe|lieber|thank you|thanks),? +"
    rf"(?P<v>{_WORD}(?: {_WORD}){{0,2}}) ?[,!.:]"
)
SIGNED = (
    r"(?m)(?i:best|regards|wishes|cheers|sincerely|yours|thanks|thank you|grüße|gruß)[,.!]?\s*\n\s*"
    rf"(?P<v>{_WORD}(?: \p{{Lu}}[\p{{L}}'’.\-]*){{0,3}})\s*(?:$|\")"
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_STOP = _words("""
    i'm i'd i've i'll it'll mr mrs ms miss mx dr prof herr frau herrn
    a about above absolutely after afternoon again agent all also am american an and another any april are as
    assistant at august back basic be because been being british business but by calling can can't cannot
    certainly chatting confirmed confused correct could currently customer day december did disappointed do
    does doing done dutch economy english european evening every everyone extremely familiar february fine
    first folks for french frequent friday from fully german glad going gold good great guys had happy have
    having he hello here hey hi hoping how i if ill important in interested into is it it's italian january
    july june just like looking madam march may member monday morning my need never new no not noted november
    now october of off ok okay on one only or our out perfect please premium quite ready really regarding
    regular ridiculous right saturday september service she shopping silver simply sir so some sorry spanish
    still sunday support sure team that that's the their them then there they this thursday to today tomorrow
    too traveling traveller travelling trying tuesday two unable unacceptable understood unhappy unsure until
    up urgent using very waiting want wanting was we wednesday welcome well were what when where which who why
    will wishing with wondering writing yes yesterday you your
""")
_ROLES = _words("""
    account admin alert alerts billing bot care client contact customer customers enquiries feedback finance
    hello help helpdesk hostmaster hr info invoice jobs legal mail marketing me news newsletter no noreply
    office order orders postmaster press privacy reply returns root sales security service shop spam support
    team test user webmaster welcome www
""")
_PARTICLES = _words("van von de der den da di la le bin al")


def trimmed(words: str, capitals: bool = False) -> str:
    """The leading part of `words` that can be a name; "" when none can.

    Args:
        words: what follows the phrase that announced a name.
        capitals: whether it may be in capitals; after a short phrase ("I AM MISSING …") those are no name.
    """
    end = 0
    for count, match in enumerate(re.finditer(r"[^\s.]+\.?", words)):
        word = match[0].rstrip(".")
        if word.isupper() and len(word) > 1 and not capitals and not count:
            break
        if word.lower().replace("’", "'") in _STOP or (count and not word[0].isupper() and not words.islower()):
            if word.lower() not in _PARTICLES:
                break
            continue  # a particle counts only with the word after it
        end = match.end()
        if match[0].endswith(".") and len(word) > 2:
            break  # the sentence ended here; an initial would be shorter
    return words[:end].rstrip(" .,")


def owners(text: str, addresses: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Where owners of e-mail addresses are named in `text`: capitalised words that are parts of a local part."""
    parts: dict[str, None] = {}
    for address in addresses[:MAX_ADDRESSES]:
        for part in re.split(r"[^a-z]+", address.partition("@")[0].lower()):
            if 3 <= len(part) <= 40 and part not in _ROLES and part not in _STOP:
                parts[part] = None
    if parts:
        for match in re.finditer(rf"(?<![\w.@\-])(?:{'|'.join(parts)})(?![\w@\-])", text, re.IGNORECASE):
            if match[0][0].isupper():
                yield match.span()
