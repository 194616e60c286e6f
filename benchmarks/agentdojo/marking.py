"""Which fields of a result outsiders wrote: what the author of a tool knows of the system behind it.

A manifest names the fields (`outside`), the fields that hold addresses (`addresses`), and the form of names that are
too short to carry words (`names`). Invariant: what is not declared the system's own is marked as an outsider's before
it leaves the tool. Nothing here knows a task or an attack.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentops.act import Labels, Marked
from agentops.types import Json


@dataclass(frozen=True)
class Marking:
    """What a manifest says of one tool's results."""

    outside: frozenset[str]
    addresses: frozenset[str]  # marked unless the user has written to, or shared a file with, that address
    names: re.Pattern[str] | None  # items of a plain list that look like this are names, all others are marked
    mark: Labels


def marked(value: Json, marking: Marking, known: frozenset[str]) -> Json:
    """`value` with everything that outsiders can write marked as theirs."""
    if isinstance(value, Mapping):
        return {key: _field(key, item, marking, known) for key, item in value.items()}
    if isinstance(value, list):
        return [marked(item, marking, known) for item in value]
    if isinstance(value, str) and marking.names is not None and not marking.names.fullmatch(value):
        return Marked(value, marking.mark)
    return value


def known(environment: Any) -> frozenset[str]:
    """Addresses that the user has chosen before: their own, whom they wrote to, whom they share their files with.

    Who only wrote to the user, or shared something with them, is not among them: anybody can do that.
    """
    inbox, drive = getattr(environment, "inbox", None), getattr(environment, "cloud_drive", None)
    if inbox is None:
        return frozenset()
    found = {inbox.account_email}
    for mail in inbox.sent:
        found.update((*mail.recipients, *mail.cc, *mail.bcc))
    for file in drive.files.values() if drive is not None else ():
        if file.owner == inbox.account_email:
            found.update(file.shared_with)
    return frozenset(map(str, found))


def _field(key: str, item: Json, marking: Marking, known: frozenset[str]) -> Json:
    if key in marking.outside:
        return Marked(item, marking.mark)
    if key not in marking.addresses:
        return marked(item, marking, known)
    if isinstance(item, list):
        return [_field(key, one, marking, known) for one in item]
    if isinstance(item, Mapping):  # address -> permission: a mark cannot stand for a key
        strange = {one: right for one, right in item.items() if one not in known}
        familiar = {one: right for one, right in item.items() if one in known}
        return Marked(item, marking.mark) if strange or not familiar else familiar
    return item if item in known else Marked(item, marking.mark)
