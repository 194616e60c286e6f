"""Domain names and e-mail addresses.

Invariant: what is returned is ASCII, its domain in lower case without a trailing dot, with at least two labels and an
alphabetic last one. Internationalised names are refused in both spellings, Unicode and `xn--`: people approve what they
read, and a Cyrillic letter reads like a Latin one.
"""

import re

from agentops.errors import PolicyError

_LOCAL = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*")
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_LAST = re.compile(r"[a-z]{2,63}")


def hostname(text: str) -> str:
    """A host name in lower case without a trailing dot, or "" when it is none (RFC 1123; one label is enough)."""
    if not text.isascii() or len(text) > 254:
        return ""
    name = text.lower().removesuffix(".")
    labels = name.split(".")
    if len(name) > 253 or not all(_LABEL.fullmatch(label) and not label.startswith("xn--") for label in labels):
        return ""
    return name


def domain(text: str, name: str = "domain") -> str:
    """A domain name: lower case, no trailing dot.

    Raises:
        PolicyError: not one plain domain name; it is not repeated in the message.
    """
    found = hostname(text)
    labels = found.split(".")
    if len(labels) < 2 or not _LAST.fullmatch(labels[-1]):
        raise PolicyError(f"{name!r} is not one plain domain name (name.tld, ASCII, no xn--)")
    return found


def email(text: str, name: str = "address") -> str:
    """An e-mail address with its domain in lower case; the local part stays as it is.

    Only what every mail system reads alike is accepted: one `@`, ASCII, no quotes, comments, display names, address
    literals or punycode. `a@evil.test@corp.example`, or a Cyrillic letter that looks like `a`, is refused, not parsed.

    Raises:
        PolicyError: the address is ambiguous; it is not repeated in the message.
    """
    local, at, host = text.partition("@")
    plain = len(text) <= 254 and at and len(local) <= 64 and _LOCAL.fullmatch(local) and not host.endswith(".")
    labels = hostname(host).split(".") if plain else [""]
    if len(labels) < 2 or not _LAST.fullmatch(labels[-1]):
        raise PolicyError(f"{name!r} is not one plain e-mail address (user@domain.tld, ASCII, no quotes)")
    return f"{local}@{'.'.join(labels)}"


def email_domain(address: str) -> str:
    """The domain of what `email` returned."""
    return address.rpartition("@")[2]


def names_email(argument: str) -> bool:
    """Whether an argument with this name is an e-mail address, whatever its declared format."""
    return argument == "email" or argument.endswith("_email")
