"""Frames between the gateway and a tool's process: a length, then that many bytes of JSON, over one socket pair.

Invariant: nothing the other side sends is trusted. A frame is read only when its announced length is within the limit,
it must be one JSON object, and a descriptor is taken only by the side that expects one; the kernel closes any other.
It gives frames no meaning: `pool`, `broker` and `worker` do.
"""

import asyncio
import socket
import struct
from collections import deque
from typing import Any

import orjson

from agentops.errors import SandboxError

FROM_CHILD = 1024 * 1024  # bytes of one frame
FROM_PARENT = 4 * 1024 * 1024
_LENGTH = struct.Struct(">I")
_CHUNK = 64 * 1024
_RETRY_S = 0.005  # until a full socket takes a descriptor
ENDED = "the tool's process ended before it answered"


class Channel:
    """One end of the socket pair, which it owns.

    Args:
        end: a connected stream socket; it becomes non-blocking.
        receives: largest frame to accept, in bytes.
        sends: largest frame to send, in bytes.
        descriptors: whether the other side may hand descriptors over.
    """

    def __init__(self, end: socket.socket, *, receives: int, sends: int, descriptors: bool = False) -> None:
        end.setblocking(False)
        self._socket, self._receives, self._sends = end, receives, sends
        self._buffer = bytearray()
        self._handed: deque[int] | None = deque() if descriptors else None
        self._sending = asyncio.Lock()

    async def send(self, message: dict[str, Any], descriptor: int | None = None) -> None:
        """Send one frame, whole, and with it a copy of `descriptor`.

        Raises:
            SandboxError: it is larger than allowed (nothing was sent), or the other side is gone.
            TypeError: it has no JSON form (nothing was sent).
        """
        body = orjson.dumps(message)
        if len(body) > self._sends:
            raise SandboxError(f"a message has {len(body)} bytes, at most {self._sends} are allowed")
        frame = memoryview(_LENGTH.pack(len(body)) + body)
        async with self._sending:
            try:
                if descriptor is not None:
                    frame = frame[await self._send_with(frame, descriptor) :]
                await asyncio.get_running_loop().sock_sendall(self._socket, frame)
            except OSError:
                raise SandboxError(ENDED) from None

    async def receive(self) -> dict[str, Any]:
        """The next frame.

        Raises:
            SandboxError: the other side is gone, or sent what is no frame.
        """
        while True:
            if len(self._buffer) >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._buffer)
                if not 0 < length <= self._receives:
                    raise SandboxError(f"the tool's process sent a frame of {length} bytes, at most {self._receives}")
                if len(self._buffer) >= _LENGTH.size + length:
                    body = bytes(self._buffer[_LENGTH.size : _LENGTH.size + length])
                    del self._buffer[: _LENGTH.size + length]
                    return _object(body)
            try:
                data = await self._read()
            except OSError:
                data = b""
            if not data:
                raise SandboxError(ENDED)
            self._buffer += data

    def descriptor(self) -> int:
        """The oldest descriptor that was handed over and not taken yet.

        Raises:
            SandboxError: there is none.
        """
        if not self._handed:
            raise SandboxError("no descriptor came with the answer")
        return self._handed.popleft()

    def quiet(self) -> bool:
        """Whether the other side is there and said nothing that was not read."""
        if self._buffer:
            return False
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        self._socket.close()

    async def _send_with(self, frame: memoryview, descriptor: int) -> int:
        while True:
            try:
                return socket.send_fds(self._socket, [frame], [descriptor])
            except BlockingIOError:
                await asyncio.sleep(_RETRY_S)

    async def _read(self) -> bytes:
        while True:
            try:
                if self._handed is None:
                    return self._socket.recv(_CHUNK)
                data, handed, _, _ = socket.recv_fds(self._socket, _CHUNK, 8, socket.MSG_CMSG_CLOEXEC)
                self._handed.extend(handed)
                return data
            except BlockingIOError:
                await _readable(self._socket)


async def _readable(end: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(end, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(end)


def _object(body: bytes) -> dict[str, Any]:
    try:
        message = orjson.loads(body)
    except orjson.JSONDecodeError:
        message = None
    if not isinstance(message, dict):
        raise SandboxError("the tool's process sent a frame that is no JSON object")
    return message
