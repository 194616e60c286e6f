"""Connections and HTTP requests that the gateway's process makes for isolated tools, which have no network.

Invariant: a connection goes only to an address that was checked, and to that very address: a name is resolved once, all
of its addresses must be public, and what DNS says a moment later changes nothing. A destination that is declared as an
address is taken as it is. No proxy, no cookie, no redirect is followed and nothing is decompressed; every answer is
bounded in bytes and seconds. Which destinations a tool may ask for is the broker's business.
"""

import asyncio
import functools
import ipaddress
import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentops import parsers
from agentops.act.lookup import Resolver, system_resolver
from agentops.errors import PolicyError, SandboxError
from agentops.parsers import Url

if TYPE_CHECKING:  # loaded with the first request: a tool's process has no use for it
    import httpx

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})
MAX_BODY = 512 * 1024  # bytes of a request's body
MAX_RESPONSE = 1024 * 1024  # bytes of a response's body
RESOLVE_S, CONNECT_S, FETCH_S = 2.0, 5.0, 30.0
_MAX_HEADERS = 64
_MAX_HEADER_BYTES = 16 * 1024
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}\Z")  # RFC 9110, 5.6.2
_TEXT = re.compile(r"[\x20-\x7e]*\Z")
_OURS = frozenset(  # set by the broker or about the connection
    {
        *("host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade"),
        *("expect", "accept-encoding", "proxy-authorization", "proxy-connection", "proxy-authenticate"),
    }
)
_HIDDEN = frozenset({"set-cookie", "set-cookie2", "www-authenticate-info", "authentication-info"})


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response: names of headers in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def destination(text: str) -> Url:
    """Read "host:port", as manifests declare destinations. One destination has one spelling.

    Raises:
        SandboxError: it is written in any other way.
    """
    try:
        found = parsers.url(f"http://{text}/")
    except PolicyError:
        found = None
    if found is None or found.endpoint != text:
        raise SandboxError(
            f'destination {text[:100]!r} is not acceptable: "host:port" with a lower-case ASCII name, a dotted IPv4 '
            'address or a bracketed short IPv6 address, like "api.example.com:443"'
        )
    return found


class Egress:
    """Connects and fetches.

    Args:
        resolver: finds a host's addresses.
        private: networks where names may lead beside the public internet: the deployment's own services.
    """

    def __init__(self, resolver: Resolver = system_resolver, private: Sequence[Network] = ()) -> None:
        self._resolver, self._private = resolver, tuple(private)

    async def address(self, place: Url, pins: Mapping[str, str]) -> str:
        """The address to connect to.

        Args:
            place: a declared destination.
            pins: "host:port" -> address, where the policy's decision rested on one.

        Raises:
            SandboxError: one of its addresses is not public, or it has none.
        """
        if place.literal:
            return place.host  # somebody wrote this address down on purpose
        if (pinned := pins.get(place.endpoint)) is not None:
            found = [pinned]
        else:
            try:
                async with asyncio.timeout(RESOLVE_S):
                    found = list(await self._resolver(place.host, place.port))
            except OSError:  # a TimeoutError is one
                found = []
        if not found:
            raise SandboxError(f"{place.endpoint} has no address")
        if not all(parsers.public(one) or self._own(one) for one in found):
            raise SandboxError(
                f"{place.endpoint} has an address that is not public: if this is meant, add its network to "
                "private_networks in [tool.agentops], or declare the address itself"
            )
        return found[0]

    def _own(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(found.version == network.version and found in network for network in self._private)

    async def connect(self, address: str, port: int) -> socket.socket:
        """A connected, non-blocking TCP socket.

        Raises:
            ConnectionError: nobody answers there.
        """
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        end = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            async with asyncio.timeout(CONNECT_S):
                await asyncio.get_running_loop().sock_connect(end, (address, port))
        except OSError:  # a TimeoutError is one
            end.close()
            raise ConnectionError("no connection") from None
        except BaseException:
            end.close()
            raise
        return end

    async def fetch(self, method: str, url: Url, address: str, headers: Mapping[str, str], body: bytes) -> Response:
        """One request to `address`, with the Host header and the TLS name of `url`.

        Args:
            method: one of METHODS.
            url: what is asked for.
            address: what `address` returned for it.
            headers: checked ones.
            body: at most MAX_BODY bytes.

        Raises:
            SandboxError: the response is compressed or larger than MAX_RESPONSE.
            ConnectionError: no connection, no valid certificate, or no HTTP answer within FETCH_S seconds.
        """
        import httpx

        default = {"http": 80, "https": 443}[url.scheme] == url.port
        given = {
            "Accept": "*/*",
            "User-Agent": "agentops",
            **headers,
            "Host": url.endpoint.rpartition(":")[0] if default else url.endpoint,
            "Accept-Encoding": "identity",
            "Connection": "close",
        }
        extensions = {} if url.literal else {"sni_hostname": url.host}
        # One client a request: a pooled connection was verified for one host and would serve another at its address.
        async with httpx.AsyncClient(verify=_tls(), trust_env=False, follow_redirects=False, timeout=FETCH_S) as client:
            client.headers.clear()
            place = httpx.URL(url.text).copy_with(host=address)
            request = client.build_request(method, place, headers=given, content=body or None, extensions=extensions)
            try:
                async with asyncio.timeout(FETCH_S):
                    response = await client.send(request, stream=True)
                    try:
                        return await _bounded(response)
                    finally:
                        await response.aclose()
            except (httpx.HTTPError, TimeoutError) as error:
                raise ConnectionError(f"no answer ({type(error).__name__})") from None


def checked_headers(given: Mapping[str, str]) -> dict[str, str]:
    """Headers a tool may set.

    Raises:
        SandboxError: too many, not printable ASCII, twice the same, or one that the broker sets.
    """
    if len(given) > _MAX_HEADERS or sum(len(name) + len(text) for name, text in given.items()) > _MAX_HEADER_BYTES:
        raise SandboxError(f"a request has at most {_MAX_HEADERS} headers of {_MAX_HEADER_BYTES} bytes together")
    lower = [name.lower() for name in given]
    for name, text in given.items():
        if not _TOKEN.match(name) or not _TEXT.match(text):
            raise SandboxError(f"header {name[:64]!r} is not printable ASCII on one line")
        if name.lower() in _OURS or lower.count(name.lower()) > 1:
            raise SandboxError(f"header {name!r} is set by the broker, or was given twice")
    return dict(given)


async def _bounded(response: "httpx.Response") -> Response:
    if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise SandboxError("the server compressed its answer although it was asked not to: it is not opened")
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MAX_RESPONSE:
            raise SandboxError(f"the answer has more than {MAX_RESPONSE} bytes: ask for less")
    shown = {name: text for name, text in response.headers.items() if name not in _HIDDEN}
    return Response(response.status_code, shown, bytes(body))


@functools.cache
def _tls() -> ssl.SSLContext:
    """Certificates are verified against the system's authorities, or those of SSL_CERT_FILE."""
    import httpx

    return httpx.create_ssl_context()
