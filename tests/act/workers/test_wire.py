"""Frames survive any splitting, and nothing but frames gets through."""

import asyncio
import os
import socket
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentops.act.sandbox.wire import Channel
from agentops.errors import SandboxError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(), lambda inner: st.lists(inner), max_leaves=10
)


def pair(receives: int = 10_000) -> tuple[socket.socket, Channel]:
    raw, end = socket.socketpair()
    return raw, Channel(end, receives=receives, sends=10_000)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.dictionaries(st.text(), JSON, max_size=4), min_size=1, max_size=5), st.integers(1, 50))
def test_frames_arrive_whole_and_in_order_however_they_are_split(messages: list[dict[str, Any]], size: int) -> None:
    import orjson

    async def go() -> None:
        raw, channel = pair()
        data = b"".join(struct.pack(">I", len(body)) + body for body in map(orjson.dumps, messages))

        async def trickle() -> None:
            for start in range(0, len(data), size):
                await asyncio.get_running_loop().sock_sendall(raw, data[start : start + size])
                await asyncio.sleep(0)

        raw.setblocking(False)
        sending = asyncio.ensure_future(trickle())
        assert [await channel.receive() for _ in messages] == messages
        await sending
        assert channel.quiet()
        channel.close()
        raw.close()

    asyncio.run(go())


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_other_bytes_are_an_error_and_nothing_else(data: bytes) -> None:
    async def go() -> None:
        raw, channel = pair()
        with raw:
            raw.sendall(data)
        try:
            while True:
                assert isinstance(await channel.receive(), dict)
        except SandboxError:
            pass
        channel.close()

    asyncio.run(go())


def test_a_large_frame_is_refused_before_it_is_read() -> None:
    async def go() -> None:
        raw, channel = pair(receives=100)
        raw.sendall(struct.pack(">I", 101))
        with pytest.raises(SandboxError, match="101 bytes"):
            await channel.receive()
        raw.close()
        channel.close()

    asyncio.run(go())


def test_a_side_that_expects_no_descriptor_gets_none() -> None:
    async def go() -> None:
        raw, channel = pair()
        before = set(os.listdir("/proc/self/fd"))
        socket.send_fds(raw, [struct.pack(">I", 2) + b"{}"], [0] * 8)
        assert await channel.receive() == {}
        assert set(os.listdir("/proc/self/fd")) <= before
        with pytest.raises(SandboxError, match="no descriptor"):
            channel.descriptor()
        raw.close()
        channel.close()

    asyncio.run(go())


def test_a_descriptor_arrives_with_its_frame_also_when_the_socket_is_full() -> None:
    async def go() -> None:
        ours, theirs = socket.socketpair()
        sender = Channel(ours, receives=100, sends=1_000_000)
        receiver = Channel(theirs, receives=1_000_000, sends=100, descriptors=True)
        read, write = os.pipe()
        big = asyncio.ensure_future(sender.send({"x": "y" * 900_000}))
        small = asyncio.ensure_future(sender.send({"fd": 1}, write))
        await asyncio.sleep(0.05)
        assert len((await receiver.receive())["x"]) == 900_000
        assert await receiver.receive() == {"fd": 1}
        await asyncio.gather(big, small)
        os.close(write)
        copy = receiver.descriptor()
        os.write(copy, b"hello")
        os.close(copy)
        assert os.read(read, 10) == b"hello"
        os.close(read)
        sender.close()
        receiver.close()

    asyncio.run(go())


def test_one_that_is_gone_or_talks_out_of_turn_is_not_quiet() -> None:
    raw, channel = pair()
    assert channel.quiet()
    raw.sendall(b"x")
    assert not channel.quiet()
    raw.close()
    assert not channel.quiet()
    channel.close()
