"""Serves what one call of an isolated tool asks of the outside: connections, HTTP requests, secrets.

Invariant: the tool's process is hostile. It gets only destinations and secrets that the tool's Isolation names, each
request is checked in full before anything happens, and every one, refused ones too, is an audit record without path,
query, header or body; what cannot be recorded is not handed over. Credentials go into requests here and are blotted out
of what comes back. Connections are relayed, not handed over: when the call ends they end, whoever kept a descriptor,
and nobody can point one at another address. It runs no tool.
"""

import asyncio
import base64
import binascii
import logging
import socket
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from agentops.act.sandbox.egress import MAX_BODY, METHODS, Egress, Response, checked_headers, destination
from agentops.act.sandbox.secrets import Secret, Secrets
from agentops.act.sandbox.wire import Channel
from agentops.errors import AuditError, PolicyError, SandboxError
from agentops.parsers import Url, url
from agentops.types import Isolation, Json

Record = Callable[[dict[str, Json]], None]  # writes an audit record; raises AuditError
MAX_ASKS = 64  # in one call; one more is refused, twice as many end the process
MAX_RELAYED = 64 * 1024 * 1024  # bytes each way of one connection
_AT_ONCE = 8
_CHUNK = 64 * 1024
_BLOT = b"***"
_LOG = logging.getLogger(__name__)

_FIELDS = {
    "connect": {"host": str, "port": int},
    "fetch": {"method": str, "url": str, "headers": dict, "body": str, "secret": str},
    "secret": {"name": str},
}


@dataclass(frozen=True, slots=True)
class Asked:
    """The call on whose behalf the broker acts."""

    isolation: Isolation
    pins: Mapping[str, str]
    labels: Mapping[str, Json]  # of its audit records: tenant, run, trace, call, key, tool


class Broker:
    """One call's broker. `close` ends all it opened."""

    def __init__(self, channel: Channel, asked: Asked, egress: Egress, secrets: Secrets, record: Record) -> None:
        self._channel, self._asked, self._egress, self._secrets, self._record = channel, asked, egress, secrets, record
        self._allowed = {destination(host).endpoint for host in asked.isolation.hosts}
        self._serving: set[asyncio.Task[None]] = set()
        self._relaying: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._count = 0
        self._told: set[str] = set()

    @property
    def spotless(self) -> bool:
        """Whether the process may serve another call: it was told no secret, and no answer to it is under way."""
        return not self._told and all(task.done() for task in self._serving)

    def gives_away(self, answer: Mapping[str, Any]) -> bool:
        """Whether an answer has a secret in it that the process was told."""
        encoded = orjson.dumps(answer) if self._told else b""
        return any(orjson.dumps(value)[1:-1] in encoded for value in self._told)

    def ask(self, message: Mapping[str, Any]) -> None:
        """Begin to serve one request of the process.

        Raises:
            SandboxError: it breaks the protocol.
        """
        id, kind = message.get("ask"), message.get("what")
        fields = _FIELDS.get(kind) if isinstance(kind, str) else None
        self._count += 1
        if type(id) is not int or not 0 < id < 2**31 or fields is None or set(message) - {"ask", "what"} != set(fields):
            raise SandboxError("the tool's process asked for what the protocol does not know")
        if any(type(message[name]) is not kind for name, kind in fields.items()) or self._count > 2 * MAX_ASKS:
            raise SandboxError("the tool's process asked in a wrong form, or far too often")
        task = asyncio.ensure_future(self._serve(id, str(kind), message, self._count > MAX_ASKS))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def close(self) -> None:
        """End requests and connections that are open. Raises nothing."""
        for tasks in (self._serving, self._relaying):  # one that is being served may still begin to relay
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, id: int, kind: str, message: Mapping[str, Any], over: bool) -> None:
        reply: dict[str, Any]
        try:
            if over:
                raise SandboxError(f"a call may ask the broker {MAX_ASKS} times")
            async with self._slots:
                if kind == "connect":
                    await self._connect(id, message["host"], message["port"])
                    return
                reply = await self._fetch(message) if kind == "fetch" else self._tell(message["name"])
        except SandboxError as error:
            reply = {"error": str(error), "kind": "refused"}
        except AuditError:
            reply = {"error": "it cannot be recorded, so it was not done", "kind": "refused"}
        except ConnectionError as error:
            reply = {"error": str(error), "kind": "lost"}
        except Exception as error:  # noqa: BLE001 - fail closed; whoever waits in there must be told
            _LOG.error("the broker failed on %s: %s at line %s", kind, type(error).__name__, _line(error))
            reply = {"error": "the broker failed", "kind": "refused"}
        try:
            await self._channel.send({"reply": id, **reply})
        except SandboxError:
            pass  # the process is gone: whoever reads the channel finds out

    # ---------------------------------------------------------------- connect

    async def _connect(self, id: int, host: str, port: int) -> None:
        text = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        seen: dict[str, Json] = {"action": "connect", "host": _shown(host), "port": port if 0 < port < 65536 else 0}
        try:
            place = self._permitted(destination(text))
            seen["host"] = place.host
            address = seen["address"] = await self._egress.address(place, self._asked.pins)
            remote = await self._egress.connect(address, port)
        except BaseException as error:
            self._note(seen, error)
            raise
        try:
            self._note(seen)
            ours, theirs = socket.socketpair()
            with theirs:
                ours.setblocking(False)
                relayed = asyncio.ensure_future(self._relay(ours, remote, dict(seen)))
                self._relaying.add(relayed)
                relayed.add_done_callback(lambda task: self._hung_up(task, ours, remote))
                await self._channel.send({"reply": id, "connected": True}, theirs.fileno())
        except BaseException:
            remote.close()
            raise

    def _hung_up(self, relayed: "asyncio.Task[None]", *ends: socket.socket) -> None:
        self._relaying.discard(relayed)
        for end in ends:
            end.close()

    async def _relay(self, ours: socket.socket, remote: socket.socket, seen: dict[str, Json]) -> None:
        counts = {"sent": 0, "received": 0}
        try:
            both = [
                asyncio.ensure_future(_pump(ours, remote, counts, "sent")),
                asyncio.ensure_future(_pump(remote, ours, counts, "received")),
            ]
            try:
                await asyncio.gather(*both)
            finally:
                for one in both:
                    one.cancel()
                await asyncio.gather(*both, return_exceptions=True)
        except (OSError, SandboxError):
            pass  # one side hung up or sent too much: both are closed
        finally:
            try:
                self._note({**seen, "action": "disconnect", **counts})
            except AuditError:
                pass  # that it was opened is recorded

    # ---------------------------------------------------------------- fetch

    async def _fetch(self, message: Mapping[str, Any]) -> dict[str, Any]:
        seen: dict[str, Json] = {"action": "fetch", "method": message["method"][:8], "host": "?", "port": 0}
        try:
            if message["method"] not in METHODS:
                seen["method"] = "?"
                raise SandboxError(f"the method must be one of {', '.join(sorted(METHODS))}")
            asked = _url(message["url"])
            seen |= {"host": _shown(asked.host), "port": asked.port}
            self._permitted(asked)
            seen["host"] = asked.host
            headers = _texts(message["headers"])
            body = _decoded(message["body"])
            seen["sent"] = len(body)
            secret = self._injectable(message["secret"], asked, headers) if message["secret"] else None
            if secret is not None:
                seen["secret"] = secret.name
                headers[secret.header] = secret.injected()
            address = seen["address"] = await self._egress.address(asked, self._asked.pins)
            response = await self._egress.fetch(message["method"], asked, address, headers, body)
            seen |= {"status": response.status, "received": len(response.body)}
        except BaseException as error:
            self._note(seen, error)
            raise
        self._note(seen)
        response = _blotted(response, secret) if secret is not None else response
        return {
            "status": response.status,
            "headers": dict(response.headers),
            "body": base64.b64encode(response.body).decode(),
        }

    def _injectable(self, name: str, asked: Url, headers: Mapping[str, str]) -> Secret:
        secret = self._secrets.get(name, self._asked.isolation.secrets)
        if asked.endpoint not in secret.hosts:
            raise SandboxError(f"secret {name!r} does not go to {asked.endpoint}: policies/secrets.toml has its hosts")
        if asked.scheme != "https" and not (asked.literal and (asked.host == "::1" or asked.host.startswith("127."))):
            raise SandboxError(f"secret {name!r} is not sent in plain text: use https")
        if secret.header.lower() in map(str.lower, headers):
            raise SandboxError(f"header {secret.header!r} is set by the secret {name!r}: leave it out")
        return secret

    # ---------------------------------------------------------------- secrets and records

    def _tell(self, name: str) -> dict[str, Any]:
        seen: dict[str, Json] = {"action": "secret", "secret": name if name in self._asked.isolation.secrets else "?"}
        try:
            secret = self._secrets.get(name, self._asked.isolation.secrets)
            if not secret.readable:
                raise SandboxError(f"secret {name!r} is not readable: use it with ctx.fetch(…, secret={name!r})")
        except SandboxError as error:
            self._note(seen, error)
            raise
        self._note(seen)
        self._told.add(secret.value)
        return {"value": secret.value}

    def _permitted(self, place: Url) -> Url:
        if place.endpoint not in self._allowed:
            raise SandboxError(f"{place.endpoint[:100]} is not in the tool's Isolation(hosts=…)")
        return place

    def _note(self, seen: Mapping[str, Json], error: BaseException | None = None) -> None:
        """Write the record of one action.

        Raises:
            AuditError: it is not written.
        """
        outcome = "ok" if error is None else "cancelled"
        if isinstance(error, SandboxError | ConnectionError):
            outcome = "denied" if isinstance(error, SandboxError) else "unreachable"
        self._record({"type": "tool.egress", **self._asked.labels, **seen, "outcome": outcome})


def _line(error: Exception) -> int:
    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1].lineno or 0


def _shown(host: str) -> str:
    """A host that was asked for and not declared: an address, or the end of a name; its start may carry data out."""
    try:
        asked = destination(f"[{host}]:1" if ":" in host else f"{host}:1")
    except SandboxError:
        return "?"
    return asked.host if asked.literal else ".".join(asked.host.split(".")[-2:])


def _url(text: str) -> Url:
    try:
        return url(text)
    except PolicyError as error:
        raise SandboxError(str(error)) from None


def _texts(given: Mapping[str, Any]) -> dict[str, str]:
    if not all(isinstance(text, str) for text in given.values()):
        raise SandboxError("headers are texts")
    return checked_headers(given)


def _decoded(body: str) -> bytes:
    try:
        data = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise SandboxError("the body is not base64") from None
    if len(data) > MAX_BODY:
        raise SandboxError(f"the body has {len(data)} bytes, at most {MAX_BODY}")
    return data


def _blotted(response: Response, secret: Secret) -> Response:
    """The response without the credential, which some services echo."""
    known = sorted({secret.value, secret.injected(), secret.injected().rpartition(" ")[2]}, key=len, reverse=True)
    body, headers = response.body, dict(response.headers)
    for text in filter(None, known):
        body = body.replace(text.encode(), _BLOT)
        headers = {name: value.replace(text, _BLOT.decode()) for name, value in headers.items()}
    return Response(response.status, headers, body)


Way = Literal["sent", "received"]


async def _pump(source: socket.socket, sink: socket.socket, counts: dict[str, int], way: Way) -> None:
    """Copy until `source` ends, then say so to `sink`."""
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(source, _CHUNK):
        counts[way] += len(data)
        if counts[way] > MAX_RELAYED:
            raise SandboxError("the connection carried too much")
        await loop.sock_sendall(sink, data)
    sink.shutdown(socket.SHUT_WR)
