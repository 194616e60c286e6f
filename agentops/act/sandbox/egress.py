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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentops.act.sandbox.destinations import Destination, Target, is_public
from agentops.errors import SandboxError

if TYPE_CHECKING:  # loaded with the first request: a tool's process has no use for it
    import httpx

Resolver = Callable[[str, int], Sequence[str]]

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


def system_resolver(host: str, port: int) -> list[str]:
    """The addresses of `host` by the system's resolver, IPv4 first: it is reachable from more places."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(
        dict.fromkeys(str(entry[4][0]) for entry in sorted(found, key=lambda entry: entry[0] != socket.AF_INET))
    )


class Egress:
    """Connects and fetches. One per process; `close` ends its resolver threads.

    Args:
        resolver: name and port -> addresses; may block, runs in a thread.
    """

    def __init__(self, resolver: Resolver = system_resolver) -> None:
        self._resolver = resolver
        self._threads: ThreadPoolExecutor | None = None

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    async def address(self, place: Destination, pins: Mapping[str, str]) -> str:
        """The address to connect to.

        Args:
            place: a declared destination.
            pins: "host:port" -> address, where the policy's decision rested on one.

        Raises:
            SandboxError: one of its addresses is not public, or it has none.
        """
        if place.address is not None:
            return place.host  # somebody wrote this address down on purpose
        if (pinned := pins.get(place.name)) is not None:
            found: Sequence[str] = [pinned]
        else:
            found = await self._resolved(place)
        try:
            addresses = [ipaddress.ip_address(one) for one in found]
        except ValueError:
            addresses = []
        if not addresses:
            raise SandboxError(f"{place.name} has no address")
        if not all(map(is_public, addresses)):
            raise SandboxError(
                f"{place.name} has an address that is not public: declare the address itself if this is meant"
            )
        return str(addresses[0])

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

    async def fetch(
        self, method: str, target: Target, address: str, headers: Mapping[str, str], body: bytes
    ) -> Response:
        """One request to `address`, with the Host header and the TLS name of `target`.

        Args:
            method: one of METHODS.
            target: where to.
            address: what `address` returned for it.
            headers: checked ones.
            body: at most MAX_BODY bytes.

        Raises:
            SandboxError: the response is compressed or larger than MAX_RESPONSE.
            ConnectionError: no connection, no valid certificate, or no HTTP answer within FETCH_S seconds.
        """
        import httpx

        place = target.destination
        default = {"http": 80, "https": 443}[target.scheme] == place.port
        given = {
            "Accept": "*/*",
            "User-Agent": "agentops",
            **headers,
            "Host": place.authority if default else place.name,
            "Accept-Encoding": "identity",
            "Connection": "close",
        }
        url = httpx.URL(scheme=target.scheme, host=address, port=place.port, raw_path=target.path.encode("ascii"))
        extensions = {"sni_hostname": place.host} if place.address is None else {}
        # One client a request: a pooled connection was verified for one host and would serve another at its address.
        async with httpx.AsyncClient(
            verify=_tls(), trust_env=False, follow_redirects=False, timeout=FETCH_S, headers=None
        ) as client:
            client.headers.clear()
            request = client.build_request(method, url, headers=given, content=body or None, extensions=extensions)
            try:
                async with asyncio.timeout(FETCH_S):
                    response = await client.send(request, stream=True)
                    try:
                        return await _bounded(response)
                    finally:
                        await response.aclose()
            except (httpx.HTTPError, TimeoutError) as error:
                raise ConnectionError(f"no answer ({type(error).__name__})") from None

    async def _resolved(self, place: Destination) -> Sequence[str]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(4, "agentops-resolve")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(RESOLVE_S):
                return await loop.run_in_executor(self._threads, self._resolver, place.host, place.port)
        except (OSError, UnicodeError):
            return []


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
