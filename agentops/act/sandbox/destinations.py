"""Where a tool may connect to: "host:port" texts, URLs, and which addresses are on the public internet.

Invariant: one destination has one spelling. What is written any other way (upper case, a trailing dot, an address in
octal, a user name before the host) is refused, not repaired, so an exact comparison with the declared hosts is enough.
It resolves no name and opens no connection.
"""

import ipaddress
import re
from dataclasses import dataclass

from agentops.errors import SandboxError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_LABEL = r"(?!-)[a-z0-9-]{1,63}(?<!-)"
_HOST = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*\Z")
_NUMBER = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)\Z")  # a last label that some resolvers read as an address
_PORT = re.compile(r"[1-9][0-9]{0,4}\Z")
_URL = re.compile(  # RFC 3986 without user, fragment and anything that is not printable ASCII
    r"(?P<scheme>https?)://(?P<host>[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)?(?P<query>\?[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*)?\Z"
)
_PORTS = {"http": 80, "https": 443}
MAX_URL = 8_192  # characters

# IPv6 ranges that carry an IPv4 address, with the bits to shift it down by (RFC 4291, 3056, 6052).
_EMBEDDED = (
    (ipaddress.IPv6Network("::/96"), 0),
    (ipaddress.IPv6Network("::ffff:0:0/96"), 0),
    (ipaddress.IPv6Network("2002::/16"), 80),
    (ipaddress.IPv6Network("64:ff9b::/96"), 0),
)
_CLOSED = tuple(  # not "private" to Python 3.11, and no public service either
    map(ipaddress.ip_network, ("64:ff9b:1::/48", "2001::/23", "2001:db8::/32", "3fff::/20", "5f00::/16", "fec0::/10"))
)


@dataclass(frozen=True, slots=True)
class Destination:
    """A host in its only spelling (a name, or an address without brackets) and a port."""

    host: str
    port: int

    @property
    def address(self) -> Address | None:
        """The host as an address, when it is one."""
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None

    @property
    def authority(self) -> str:
        """The host as a URL and a Host header write it."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def name(self) -> str:
        """As it is declared: "api.example.com:443", "127.0.0.1:8080", "[::1]:443"."""
        return f"{self.authority}:{self.port}"


@dataclass(frozen=True, slots=True)
class Target:
    """A URL in its parts."""

    scheme: str
    destination: Destination
    path: str  # with the query; never logged


def destination(text: str) -> Destination:
    """Read "host:port".

    Raises:
        SandboxError: it is not in the one spelling there is.
    """
    host, _, port = text.rpartition(":")
    return _destination(host, port, text)


def target(url: str) -> Target:
    """Read an http(s) URL.

    Raises:
        SandboxError: a user name, a fragment, another scheme, a character that is not printable ASCII or not a URL's,
            or a host that is not in its one spelling.
    """
    found = _URL.match(url) if len(url) <= MAX_URL else None
    if found is None:
        raise SandboxError(
            "the URL is not acceptable: http or https, a lower-case host, no user name, no fragment, other characters "
            f"percent-encoded, at most {MAX_URL} characters"
        )
    port = found["port"] or str(_PORTS[found["scheme"]])
    place = _destination(found["host"], port, f"{found['host']}:{port}")
    return Target(found["scheme"], place, (found["path"] or "/") + (found["query"] or ""))


def is_public(address: Address) -> bool:
    """Whether `address` is globally routable unicast; addresses inside an IPv6 address count as well."""
    if address.version == 6:
        for network, shift in _EMBEDDED:
            if address in network:
                return is_public(ipaddress.IPv4Address((int(address) >> shift) & 0xFFFFFFFF))
    if any(address.version == network.version and address in network for network in _CLOSED):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _destination(host: str, port: str, shown: str) -> Destination:
    try:
        if not _PORT.match(port) or int(port) > 65535:
            raise ValueError
        if host.startswith("[") and host.endswith("]"):
            address = ipaddress.IPv6Address(host[1:-1])
            if str(address) != host[1:-1] or address.ipv4_mapped is not None or address.scope_id is not None:
                raise ValueError
            return Destination(str(address), int(port))
        if not _HOST.match(host):
            raise ValueError
        if _NUMBER.match(host.rpartition(".")[2]) and str(ipaddress.IPv4Address(host)) != host:
            raise ValueError
        return Destination(host, int(port))
    except ValueError:
        raise SandboxError(
            f'destination {shown[:100]!r} is not acceptable: "host:port" with a lower-case ASCII name, a dotted IPv4 '
            'address or a bracketed short IPv6 address, like "api.example.com:443"'
        ) from None
