"""Web addresses (RFC 3986, section 6), http and https only.

Invariant: host, port and path of what is returned mean the same to every reader: no user information, no odd spelling
of an IP address, no escape in the host, no default port, no dot segment, and no escape in the path that a server could
decode into a separator. The fragment, which no server sees, is dropped; the query is kept as written.
"""

import re
from dataclasses import dataclass

from agentops.errors import PolicyError
from agentops.parsers.address import ip_address
from agentops.parsers.names import hostname

MAX_URL = 2048  # characters
URL_MARK = "x-schemes"  # beside format "uri", in the JSON Schema of a web address that is parsed here
DEFAULT_PORTS = {"http": 80, "https": 443}
_URL = re.compile(r"(?i:(https?))://([^/?#]+)([^?#]*)(?:\?([^#]*))?(?:#.*)?")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(?::([1-9][0-9]{0,4}))?")
_PATH = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*")
_QUERY = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?\[\]-]|%[0-9A-Fa-f]{2})*")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_AMBIGUOUS = re.compile(r"%(?:[01][0-9A-Fa-f]|2[Ff]|5[Cc]|7[Ff]|25[0-9A-Fa-f]{2})")  # control, slash, backslash, twice
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")


@dataclass(frozen=True, slots=True)
class Url:
    """A canonical web address and its parts. `host`: a name, a dotted quad, or IPv6 without brackets."""

    text: str
    scheme: str
    host: str
    port: int
    path: str
    literal: bool  # the host is an IP address: nothing to look up

    @property
    def endpoint(self) -> str:
        """`host:port`, IPv6 in brackets: how hosts are written in manifests and pins."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def url(text: str, name: str = "url") -> Url:
    """The canonical form of a web address.

    Raises:
        PolicyError: not a plain http(s) address; names the rule, never the value.
    """
    refusal = f"{name!r} is not one plain web address"
    if len(text) > MAX_URL:
        raise PolicyError(f"{refusal}: at most {MAX_URL} characters")
    whole = _URL.fullmatch(text) if text.isascii() and text.isprintable() else None
    if whole is None:
        raise PolicyError(f"{refusal}: write http://host/path or https://host/path, in ASCII")
    scheme, authority, path, query = whole[1].lower(), whole[2], whole[3], whole[4]
    parts = _AUTHORITY.fullmatch(authority)
    if parts is None:
        raise PolicyError(f"{refusal}: only a host, and a port without leading zeros, without user, escape or space")
    host = _host(parts[1])
    if not host:
        raise PolicyError(f"{refusal}: the host must be a plain name (ASCII, no xn--), 192.0.2.1 or [2001:db8::1]")
    port = int(parts[2]) if parts[2] else DEFAULT_PORTS[scheme]
    if port > 65535:
        raise PolicyError(f"{refusal}: a port is at most 65535")
    path = _path(path)
    if not path or not _QUERY.fullmatch(query or ""):
        raise PolicyError(
            f"{refusal}: its path or query has a character, escape or dot segment that servers read differently"
        )
    literal = ":" in host or _NUMBER.fullmatch(host.rpartition(".")[2]) is not None
    shown = f"[{host}]" if ":" in host else host
    if port != DEFAULT_PORTS[scheme]:
        shown = f"{shown}:{port}"
    return Url(f"{scheme}://{shown}{path}{'?' + query if query else ''}", scheme, host, port, path, literal)


def _host(text: str) -> str:
    """A canonical host, or "". Many readers take a name whose last label is a number for an IP address: so do we."""
    if text[0] == "[":
        return _ip(text[1:-1]) if ":" in text else ""
    name = hostname(text)
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        return _ip(text)
    return name


def _ip(text: str) -> str:
    try:
        return ip_address(text)
    except PolicyError:
        return ""


def _path(text: str) -> str:
    """A canonical path, or "" when servers would read it differently."""
    if not _PATH.fullmatch(text):
        return ""
    if "%" in text:
        text = _ESCAPE.sub(_escape, text)
        if _AMBIGUOUS.search(text):
            return ""
    if "/." not in text:
        return text or "/"
    kept: list[str] = []
    segments = text.split("/")[1:]
    for segment in segments:
        if ";" in segment and segment.partition(";")[0] in (".", ".."):
            return ""  # `..;x` is `..` to some servers
        if segment == "..":
            if "" in segments[:-1]:
                return ""  # `a//../b`: servers that merge slashes first go up further
            kept = kept[:-1]
        elif segment != ".":
            kept.append(segment)
    return "/" + "/".join(kept) + ("/" if segments[-1] in (".", "..") and kept else "")


def _escape(match: re.Match[str]) -> str:
    character = chr(int(match[1], 16))
    return character if character in _UNRESERVED else match[0].upper()
