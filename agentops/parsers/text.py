"""Text that stands for something else (an order number, a path): one spelling, nothing invisible.

Invariant: what passes has no control, format (zero-width, bidi), surrogate, private or unassigned character, and is its
own compatibility form (NFKC), so two texts that read alike are the same bytes. Free text does not pass here: it is
decided on and handed over exactly as it came.
"""

import unicodedata

from agentops.errors import PolicyError


def identifier(text: str, name: str = "text") -> str:
    """`text` itself, when it has one spelling.

    Raises:
        PolicyError: an invisible character, or a compatibility form such as full-width digits.
    """
    if text.isascii():
        if text.isprintable():
            return text
    elif unicodedata.is_normalized("NFKC", text) and not any(_invisible(character) for character in text):
        return text
    raise PolicyError(f"{name!r} holds invisible or look-alike characters: only plain characters (NFKC) are read")


def _invisible(character: str) -> bool:
    return unicodedata.category(character)[0] == "C" or unicodedata.category(character) in ("Zl", "Zp")
