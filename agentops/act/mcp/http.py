"""The transport to an MCP server elsewhere: streamable HTTP to one host, and to an address that was checked.

Invariant: every request goes to the declared host, at an address that is public (or was written down as an address);
no redirect is followed, no proxy or cookie is used, and an answer is bounded. The token goes nowhere else.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import httpx2
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client

from agentops.act.mcp.remote import Server
from agentops.act.sandbox.egress import Egress
from agentops.act.sandbox.secrets import Secrets
from agentops.errors import SandboxError
from agentops.parsers import Url, url

MAX_BODY = 1024 * 1024  # bytes of one answer, or of one event
MAX_EVENTS = 16 * 1024 * 1024  # bytes of one stream of events
CONNECT_S = 5.0


def client(server: Server, secrets: Secrets, egress: Egress, timeout_s: float) -> httpx2.AsyncClient:
    """A client that reaches the server's host and nothing else.

    Raises:
        SandboxError: the token is not declared, has no value, or does not go to this host.
    """
    place = url(server.url)
    headers = {"Accept-Encoding": "identity", "User-Agent": "agentops"}
    if server.token:
        secret = secrets.get(server.token, (server.token,))
        if place.endpoint not in secret.hosts:
            raise SandboxError(f"secret {server.token!r} does not go to {place.endpoint}: see policies/secrets.toml")
        headers[secret.header] = secret.injected()
    return httpx2.AsyncClient(
        transport=_OneHost(place, egress),
        headers=headers,
        timeout=httpx2.Timeout(timeout_s, connect=CONNECT_S),
        follow_redirects=False,
        max_redirects=0,  # the library follows redirects within an origin unless there are none to follow
        trust_env=False,
    )


def streams(server: Server, http: httpx2.AsyncClient) -> AbstractAsyncContextManager[TransportStreams]:
    """An MCP transport over `http`, which stays the caller's to close."""
    return streamable_http_client(server.url, http_client=http, max_sse_event_size=MAX_BODY)


class _OneHost(httpx2.AsyncBaseTransport):
    """Sends to the checked address of one host, under that host's name."""

    def __init__(self, place: Url, egress: Egress) -> None:
        self._place, self._egress = place, egress
        self._inner = httpx2.AsyncHTTPTransport(trust_env=False, retries=0)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        asked = url(str(request.url))
        if (asked.scheme, asked.endpoint) != (self._place.scheme, self._place.endpoint):
            raise httpx2.UnsupportedProtocol("the MCP server sent us to another host")
        try:
            address = await self._egress.address(self._place, {})
        except SandboxError as error:
            raise httpx2.ConnectError(str(error)) from None
        request.url = request.url.copy_with(host=address)
        if not self._place.literal:
            request.extensions = {**request.extensions, "sni_hostname": self._place.host}
        response = await self._inner.handle_async_request(request)
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            await response.aclose()
            raise httpx2.RemoteProtocolError("the MCP server compressed its answer although it was asked not to")
        response.headers.pop("set-cookie", None)
        events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Bounded(response.stream, MAX_EVENTS if events else MAX_BODY)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    """A body that ends with an error once it is too long."""

    def __init__(self, inner: httpx2.AsyncByteStream, limit: int) -> None:
        self._inner, self._limit = inner, limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        total = 0
        async for chunk in self._inner:
            total += len(chunk)
            if total > self._limit:
                raise httpx2.ReadError("the MCP server's answer is too long")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()
