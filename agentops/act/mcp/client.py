"""The MCP servers of a project: connections opened on first use, and again, ever more rarely, when they end.

Invariant: a connection serves one tenant, unless its pack shares it, and code gets one of its own. Work happens outside
the caller's context, which as a tool may open no socket and start no process. It decides on no call: the gateway does.
"""

import asyncio
import contextvars
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from agentops.act.mcp.connection import Connection, Deployment
from agentops.act.mcp.lock import Definition, State
from agentops.act.mcp.remote import Declared, Server
from agentops.act.sandbox.egress import Egress
from agentops.act.sandbox.secrets import Secrets
from agentops.act.tool import Context
from agentops.errors import MCPError, SandboxError, ToolError
from agentops.types import Json, Tool

MAX_CONNECTIONS = 32  # at a time; the one that was used longest ago makes room
_BACKOFF_S, _MAX_BACKOFF_S, _PATIENCE_S = 0.25, 30.0, 1.0
T = TypeVar("T")
Changed = Callable[[str, Declared, State, str], None]  # tenant, tool, state, live digest


class Servers:
    """Every MCP server of a project.

    Args:
        root: the project's folder.
        secrets: of the deployment.
        egress: finds and checks addresses.
        changed: is told when a tool's live definition stops, or starts again, to be the pinned one.
    """

    def __init__(self, root: Path, secrets: Secrets, egress: Egress, changed: Changed) -> None:
        self._with, self._changed = Deployment(root, secrets, egress), changed
        self._slots: dict[tuple[str, str], _Slot] = {}
        self._tools: dict[str, dict[str, Declared]] = {}
        self._singles: set[Connection] = set()

    def bound(self, tools: Mapping[str, Tool]) -> dict[str, Tool]:
        """`tools` with the functions of those of MCP packs bound to this object's connections."""
        for tool in tools.values():
            if isinstance(tool.function, Declared):
                self._tools.setdefault(tool.spec.pack, {})[tool.function.definition.name] = tool.function
        return {
            name: replace(tool, function=_bind(tool.function, self)) if isinstance(tool.function, Declared) else tool
            for name, tool in tools.items()
        }

    async def call(self, tool: Declared, ctx: Context, arguments: Mapping[str, Json]) -> Json:
        """Call a pinned tool.

        Raises:
            ToolError: its definition is not the pinned one now, the server says it failed, or what it answers does not
                fit; the text may be the server's.
            ConnectionError: the server cannot be reached, or went away.
            SandboxError: the isolation, or a secret, is not to be had.
        """
        return await _apart(self._call(tool, ctx, arguments))

    async def listing(self, server: Server) -> list[Definition]:
        """What a server offers now, over a connection of its own.

        Raises:
            MCPError: it cannot be reached or does not speak the protocol.
        """
        connection = self._new(server, "", {})
        self._singles.add(connection)
        try:
            await _apart(connection.open())
            return connection.offered
        except (ConnectionError, SandboxError) as error:
            said = f"; it printed: {connection.said!r}" if server.command else ""
            raise MCPError(f"the MCP server of pack {server.pack!r} cannot be asked: {error}{said}") from None
        finally:
            self._singles.discard(connection)
            await connection.close()

    async def close(self) -> None:
        """End every connection and every process."""
        slots, self._slots = list(self._slots.values()), {}
        open_ones = [slot.connection for slot in slots if slot.connection is not None]
        await asyncio.gather(*(one.close() for one in (*open_ones, *self._singles)))

    async def _call(self, tool: Declared, ctx: Context, arguments: Mapping[str, Json]) -> Json:
        if tool.spec.effect == "exec":  # a process of its own for code
            connection = self._new(tool.server, ctx.run.principal.tenant, {tool.definition.name: tool})
            self._singles.add(connection)
            try:
                await connection.open()
                return await connection.call(tool, ctx, arguments)
            finally:
                self._singles.discard(connection)
                await connection.close()
        tenant = "" if tool.server.shared else ctx.run.principal.tenant
        slot = self._slots.setdefault((tool.server.pack, tenant), _Slot())
        slot.used = time.monotonic()
        slot.busy += 1
        try:
            connection = await self._connected(slot, tool.server, tenant)
            found = await connection.call(tool, ctx, arguments)
        except ToolError:
            slot.failures = 0
            raise
        finally:
            slot.busy -= 1
        slot.failures = 0
        return found

    async def _connected(self, slot: "_Slot", server: Server, tenant: str) -> Connection:
        """The slot's connection, opened when there is none. Opening outlives a caller who gives up."""
        if slot.connection is not None and slot.connection.over:
            ended, slot.connection = slot.connection, None  # first: others may come while it is closed
            await ended.close()
        if slot.connection is None:
            wait = slot.not_before - time.monotonic()
            if wait > _PATIENCE_S:
                raise ConnectionError(f"the MCP server of pack {server.pack!r} failed again and again")
            await asyncio.sleep(max(0.0, wait))
        if slot.connection is None:
            slot.failures += 1
            slot.not_before = time.monotonic() + min(_MAX_BACKOFF_S, _BACKOFF_S * 2 ** min(slot.failures, 10))
            slot.connection = self._new(server, tenant, self._tools[server.pack])
            await self._make_room()
        connection = slot.connection
        if connection is None:  # it ended meanwhile, and others saw it first
            raise ConnectionError(f"the MCP server of pack {server.pack!r} went away")
        await connection.open()
        return connection

    async def _make_room(self) -> None:
        held = [slot for slot in self._slots.values() if slot.connection is not None]
        idle = sorted((slot for slot in held if not slot.busy), key=lambda slot: slot.used)
        for slot in idle[: max(0, len(held) - MAX_CONNECTIONS)]:
            connection, slot.connection = slot.connection, None
            if connection is not None:
                await connection.close()

    def _new(self, server: Server, tenant: str, tools: Mapping[str, Declared]) -> Connection:
        return Connection(server, tools, partial(self._changed, tenant), self._with)


@dataclass(slots=True)
class _Slot:
    """One server for one tenant, over all its connections."""

    connection: Connection | None = None
    failures: int = 0
    not_before: float = 0.0
    used: float = 0.0
    busy: int = 0


@dataclass(frozen=True, slots=True)
class _Bound(Declared):
    """A pinned tool with its connections."""

    servers: Servers = field(kw_only=True)

    async def __call__(self, ctx: Context, **arguments: Any) -> Json:
        return await self.servers.call(self, ctx, arguments)


def _bind(tool: Declared, servers: Servers) -> _Bound:
    return _Bound(tool.server, tool.definition, tool.spec, servers=servers)


async def _apart(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, done in a context of its own; a caller's cancellation cancels it."""
    return await asyncio.get_running_loop().create_task(work, context=contextvars.Context())
