"""The broker as a tool's process sees it: `ctx.fetch`, `ctx.connect`, `ctx.secret` and `ctx.open` lead here.

Invariant: it only asks; every check that counts is made on the other side of the channel. It has no network itself.
"""

import asyncio
import base64
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from agentops.act.files import open_beneath
from agentops.act.sandbox.wire import Channel
from agentops.errors import SandboxError
from agentops.types import Json


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP response: names of headers in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def json(self) -> Json:
        return json.loads(self.body)


class Client:
    """Asks the broker. One per process."""

    def __init__(self, channel: Channel, root: Path, files: tuple[str, ...]) -> None:
        self._channel, self._root, self._files = channel, root, files
        self._waiting: dict[int, asyncio.Future[tuple[Mapping[str, Any], int]]] = {}
        self._last = 0

    async def fetch(self, method: str, url: str, headers: Mapping[str, str], body: bytes, secret: str) -> Reply:
        encoded = base64.b64encode(body).decode()
        asked = {"method": method, "url": url, "headers": dict(headers), "body": encoded, "secret": secret}
        answer, _ = await self._ask("fetch", asked)
        return Reply(answer["status"], answer["headers"], base64.b64decode(answer["body"]))

    async def connect(self, host: str, port: int) -> socket.socket:
        _, descriptor = await self._ask("connect", {"host": host, "port": port})
        return socket.socket(fileno=descriptor)

    async def secret(self, name: str) -> str:
        answer, _ = await self._ask("secret", {"name": name})
        return answer["value"]

    def open(self, path: str) -> BinaryIO:
        for folder in self._files:
            if path == folder or path.startswith(f"{folder}/"):
                return os.fdopen(open_beneath(self._root / folder, path[len(folder) + 1 :] or "."), "rb")
        raise SandboxError(f"file {path[:200]!r} is not beneath a folder of the tool's Isolation(files=…)")

    def answered(self, message: Mapping[str, Any]) -> None:
        """Hand an answer of the broker to whoever waits for it."""
        descriptor = self._channel.descriptor() if message.get("connected") else -1
        waiting = self._waiting.pop(message["reply"], None)
        if waiting is None or waiting.done():  # nobody waits any more
            if descriptor >= 0:
                os.close(descriptor)
        elif "error" in message:
            kind = ConnectionError if message["kind"] == "lost" else SandboxError
            waiting.set_exception(kind(message["error"]))
        else:
            waiting.set_result((message, descriptor))

    async def _ask(self, what: str, fields: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
        self._last += 1
        waiting = self._waiting[self._last] = asyncio.get_running_loop().create_future()
        await self._channel.send({"ask": self._last, "what": what, **fields})
        return await waiting
