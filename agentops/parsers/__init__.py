"""Strict parsers of outside values: one canonical spelling, or a refusal.

Invariant: a parser raises PolicyError or returns a fixed point, `parse(parse(x)) == parse(x)`, that every other reader
(urllib, httpx, ipaddress, a mail system, the kernel) understands alike. What is ambiguous is refused, not guessed.
Nothing here looks up a name, opens a file or knows a policy, and a refusal never repeats the value.
"""

from agentops.parsers.address import ip_address, public
from agentops.parsers.jsonvalue import json_value
from agentops.parsers.names import domain, email, email_domain, names_email
from agentops.parsers.path import file_path, root_path
from agentops.parsers.text import identifier
from agentops.parsers.web import URL_MARK, Url, url

__all__ = [
    "URL_MARK",
    "Url",
    "domain",
    "email",
    "email_domain",
    "file_path",
    "identifier",
    "ip_address",
    "json_value",
    "names_email",
    "public",
    "root_path",
    "url",
]
