"""The transport to an MCP server that runs here: newline-delimited JSON-RPC with a confined process.

Invariant: the process has no network, no environment but its declared secrets, and nothing of the project but the
folder of its pack and declared files; it ends, with all its descendants, when the transport is left. A line that is
longer than MAX_LINE or is no plain JSON-RPC message ends the connection: nothing after it is believed.
"""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import orjson
from mcp.client._transport import TransportStreams
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from pydantic import ValidationError

from agentops.act.mcp.remote import Server
from agentops.act.sandbox import Profile, Sandboxed, spawn
from agentops.errors import PolicyError, SandboxError
from agentops.parsers import json_value

MAX_LINE = 1024 * 1024  # bytes
STUCK_S = 10.0  # longest wait for a server to read what it is sent
MAX_SAID = 2_000  # bytes of its standard error that are kept for an operator
_CPU_S = 3_600  # of a server's life: single calls are bounded by the clock


@dataclass(slots=True)
class Seen:
    """What is seen of a server's process from outside."""

    said: bytes = b""  # the end of its standard error
    over: bool = False  # it has ended, or broke the protocol


@asynccontextmanager
async def confined(root: Path, server: Server, env: Mapping[str, str], seen: Seen) -> AsyncGenerator[TransportStreams]:
    """An MCP transport (`mcp.client.Transport`) over a confined process.

    Args:
        root: the project's folder.
        server: one with a command.
        env: its secrets, by name of the variable.
        seen: is told what the process prints beside the protocol, and of its end.

    Raises:
        SandboxError: the program is not there, or the isolation is not to be had.
    """
    limits = server.isolation
    argv = _command(server)
    profile = Profile(
        read=_readable(root, server, argv[0]), memory_mb=limits.memory_mb, processes=limits.processes, cpu_s=_CPU_S
    )
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    errors_in, errors_out = os.pipe()

    def launch() -> Sandboxed:
        return spawn(argv, profile, least=limits.least, stdin=theirs_in, stdout=theirs_out, stderr=errors_out, env=env)

    starting = asyncio.ensure_future(asyncio.to_thread(launch))
    try:
        process = await asyncio.shield(starting)
    except BaseException:
        starting.add_done_callback(_kill_late)
        for end in (ours_in, ours_out, errors_in):
            os.close(end)
        raise
    finally:
        starting.add_done_callback(lambda _: [os.close(end) for end in (theirs_in, theirs_out, errors_out)])
    loop = asyncio.get_running_loop()
    reader, errors = asyncio.StreamReader(limit=MAX_LINE), asyncio.StreamReader()
    ends = [os.fdopen(ours_in, "rb", 0), os.fdopen(errors_in, "rb", 0), os.fdopen(ours_out, "wb", 0)]
    incoming, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), ends[0])
    printed, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(errors), ends[1])
    outgoing, flow = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, ends[2])
    writer = asyncio.StreamWriter(outgoing, flow, None, loop)
    to_session, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_server, from_session = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        async with to_session:  # closing it tells the session that the connection is over
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                while (message := await _message(reader)) is not None:
                    await to_session.send(SessionMessage(message))
            seen.over = True

    async def write() -> None:
        async with from_session:
            async for message in from_session:
                text = message.message.model_dump(mode="json", by_alias=True, exclude_unset=True)
                writer.write(orjson.dumps(text) + b"\n")
                try:
                    await asyncio.wait_for(writer.drain(), STUCK_S)
                except (ConnectionError, TimeoutError):
                    seen.over = True
                    to_session.close()
                    return

    async def listen() -> None:
        while data := await errors.read(4096):
            seen.said = (seen.said + data)[-MAX_SAID:]

    speaking = [asyncio.ensure_future(work()) for work in (read, write)]
    listening = asyncio.ensure_future(listen())
    try:
        yield from_server, to_server
    finally:
        for task in speaking:
            task.cancel()
        for end in (incoming, outgoing):
            end.close()
        for stream in (to_session, from_server, to_server, from_session):
            stream.close()
        killing = asyncio.ensure_future(asyncio.to_thread(process.kill))
        with anyio.CancelScope(shield=True):
            await asyncio.gather(*speaking, return_exceptions=True)
            await killing
            await asyncio.wait((listening,), timeout=1.0)  # its last words are in the pipe
        listening.cancel()
        printed.close()


async def _message(reader: asyncio.StreamReader):
    """The next message; None when the server has ended, or has said what is none."""
    try:
        line = await reader.readuntil(b"\n")
        return jsonrpc_message_adapter.validate_python(json_value(line, MAX_LINE), by_name=False)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, PolicyError, ValidationError):
        return None


def _command(server: Server) -> list[str]:
    """The command with absolute paths: files of the pack's folder, and a program from there or from PATH."""
    program, *rest = server.command
    if program in ("python", "python3"):
        found = sys.executable  # the one that this project's packages are installed for
    elif "/" in program:
        found = str((server.folder / program).resolve())
    else:
        found = shutil.which(program) or ""
        if not found:
            raise SandboxError(f"the MCP server of pack {server.pack!r} needs {program!r}, which is not on PATH")
    here = server.folder
    return [found, *(str(here / word) if (here / word).is_file() else word for word in rest)]


def _readable(root: Path, server: Server, program: str) -> tuple[Path, ...]:
    """Its pack, its program and the declared folders: no policies, no hidden files, no other pack."""
    found = [server.folder.resolve()]
    if program != sys.executable:
        found.append(Path(program).resolve())
    closed = (root / "policies", *root.glob(".*"))
    for name in server.isolation.files:
        path = (root / name).resolve()
        hidden = any(path.is_relative_to(one) or one.is_relative_to(path) for one in closed)
        if hidden or not path.is_relative_to(root) or not path.exists():
            raise SandboxError(
                f"the MCP server of pack {server.pack!r} may read {name!r}: name folders that exist in the project, "
                "but neither policies nor hidden ones"
            )
        found.append(path)
    return tuple(found)


def _kill_late(started: "asyncio.Future[Sandboxed]") -> None:
    if not started.cancelled() and started.exception() is None:
        asyncio.get_running_loop().run_in_executor(None, started.result().kill)
