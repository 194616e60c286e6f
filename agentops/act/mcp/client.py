"""Connections to MCP servers: opened on first use, held to the lock, opened again when they end.

Invariant: a tool is called only while its server's live definition is the pinned one; a connection serves one tenant
(unless its pack shares it); what a server asks of us - sampling, elicitation, roots - is refused, and what it says of
itself reaches no model. Work happens outside the caller's context, which as a tool may open no socket. It decides on no
call: the gateway does.
"""

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import anyio
from mcp import Client
from mcp import MCPError as Refusal
from mcp_types import CONNECTION_CLOSED, Implementation, ToolListChangedNotification
from mcp_types import Tool as Offered

from agentops.act.mcp import http, lock, results, stdio
from agentops.act.mcp.lock import Definition, State
from agentops.act.mcp.remote import Declared, Server
from agentops.act.sandbox.egress import Egress
from agentops.act.sandbox.secrets import Secrets
from agentops.act.tool import Context
from agentops.errors import MCPError, SandboxError, ToolError
from agentops.types import Json, Tool

START_S = 20.0  # until a server has started and listed its tools, also on a busy machine
RECHECK_S = 60.0  # a server that does not tell of changes is asked again after so long
IDLE_HTTP_S = 300.0  # longest silence of an answer over HTTP; a call's own deadline is shorter
MAX_CONNECTIONS = 32  # at a time; the one that was used longest ago makes room
MAX_PAGES, MAX_TOOLS = 20, 1_000  # of one listing
_BACKOFF_S, _MAX_BACKOFF_S, _PATIENCE_S = 0.25, 30.0, 1.0
_LOG = logging.getLogger(__name__)
logging.getLogger("mcp").setLevel(logging.CRITICAL)  # its records quote what servers and callers sent
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
        self._root, self._secrets, self._egress, self._changed = root, secrets, egress, changed
        self._slots: dict[tuple[str, str], _Slot] = {}
        self._tools: dict[str, dict[str, Declared]] = {}
        self._singles: set[_Connection] = set()

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
            raise MCPError(f"the MCP server of pack {server.pack!r} cannot be asked: {error}") from None
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

    async def _connected(self, slot: "_Slot", server: Server, tenant: str) -> "_Connection":
        """The slot's connection, opened when there is none. Opening outlives a caller who gives up."""
        if slot.connection is not None and slot.connection.over:
            await slot.connection.close()
            slot.connection = None
        if slot.connection is None:
            wait = slot.not_before - time.monotonic()
            if wait > _PATIENCE_S:
                raise ConnectionError(f"the MCP server of pack {server.pack!r} failed again and again")
            await asyncio.sleep(max(0.0, wait))
        if slot.connection is None:
            slot.failures += 1
            slot.not_before = time.monotonic() + min(_MAX_BACKOFF_S, _BACKOFF_S * 2 ** min(slot.failures, 10))
            await self._make_room()
            slot.connection = self._new(server, tenant, self._tools[server.pack])
        connection = slot.connection
        await connection.open()
        return connection

    async def _make_room(self) -> None:
        held = sorted((s for s in self._slots.values() if s.connection and not s.busy), key=lambda slot: slot.used)
        for slot in held[: max(0, len(held) + 1 - MAX_CONNECTIONS)]:
            connection, slot.connection = slot.connection, None
            if connection is not None:
                await connection.close()

    def _new(self, server: Server, tenant: str, tools: Mapping[str, Declared]) -> "_Connection":
        return _Connection(server, tools, lambda tool, state, live: self._changed(tenant, tool, state, live), self)


@dataclass(slots=True)
class _Slot:
    """One server for one tenant, over all its connections."""

    connection: "_Connection | None" = None
    failures: int = 0
    not_before: float = 0.0
    used: float = 0.0
    busy: int = 0


class _Connection:
    """One connection, from its start to its end, in a task of its own."""

    def __init__(
        self,
        server: Server,
        tools: Mapping[str, Declared],
        changed: Callable[[Declared, State, str], None],
        servers: Servers,
    ) -> None:
        self._server, self._tools, self._changed, self._servers = server, tools, changed, servers
        self._seen = stdio.Seen()
        self._task: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._client: Client | None = None
        self._states: dict[str, State] = {}
        self._checked = 0.0  # when; 0 = not, or the server told of a change
        self._checking = asyncio.Lock()
        self.offered: list[Definition] = []

    @property
    def over(self) -> bool:
        """Whether it cannot be used any more."""
        return self._seen.over or (self._task is not None and self._task.done())

    async def open(self) -> None:
        """Wait until it is open.

        Raises:
            ConnectionError: the server cannot be reached or does not speak the protocol.
            SandboxError: it cannot be run as declared.
        """
        if self._task is None:
            self._task = asyncio.create_task(self._serve(), context=contextvars.Context())
        await asyncio.shield(self._opened)

    async def close(self) -> None:
        """End it and wait until its process is gone."""
        self._leave.set()
        if self._task is not None:
            if not self._opened.done():
                self._task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(self._task, return_exceptions=True)
        if self._opened.done() and not self._opened.cancelled():
            self._opened.exception()  # looked at, also when nobody waited

    async def call(self, tool: Declared, ctx: Context, arguments: Mapping[str, Json]) -> Json:
        name = tool.spec.name
        state = await self._state(tool)
        if state != "ok":
            raise ToolError(
                f"{name}: its server's definition is {state} since it was pinned, so it is not called: "
                f"a person must look at it (agentops tools pin {tool.server.pack})"
            )
        assert self._client is not None
        meta: Any = {"agentops/idempotency_key": ctx.idempotency_key}
        try:
            result = await self._client.call_tool(tool.definition.name, dict(arguments), meta=meta)
        except Refusal as refusal:
            if refusal.code == CONNECTION_CLOSED:
                self._seen.over = True
                raise ConnectionError("the MCP server went away") from None
            raise results.failed(f"{name}: its server refused the call (code {refusal.code})") from None
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            self._seen.over = True
            raise ConnectionError("the MCP server went away") from None
        except Exception as error:  # noqa: BLE001 - the library raises many kinds for what a server may say
            _LOG.warning("MCP server of pack %s broke the protocol: %s", tool.server.pack, type(error).__name__)
            raise results.failed(f"{name}: its server answered what the protocol does not allow") from None
        return results.value(name, tool.definition, result)

    # ---------------------------------------------------------------- its life

    async def _serve(self) -> None:
        """Connect, compare, and stay until `close`."""
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(START_S):
                    self._client = await stack.enter_async_context(await self._made(stack))
                    await self._check()
                self._opened.set_result(None)
                await self._leave.wait()
        except BaseException as error:
            if not self._opened.done():
                self._opened.set_exception(self._reason(error))
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self._seen.over = True

    async def _made(self, stack: AsyncExitStack) -> Client:
        parts, server = self._servers, self._server
        if server.command:
            transport = stdio.confined(parts._root, server, _environment(server, parts._secrets), self._seen)
        else:
            client = http.client(server, parts._secrets, parts._egress, IDLE_HTTP_S)
            transport = http.streams(server, await stack.enter_async_context(client))
        info = Implementation(name="agentops", version="1")
        return Client(transport, message_handler=self._heard, client_info=info, cache=None)

    def _reason(self, error: BaseException) -> Exception:
        """Why it did not open, as one of the two errors that callers know."""
        for one in _leaves(error):
            if isinstance(one, SandboxError):
                return one
        kinds = ", ".join(sorted({type(one).__name__ for one in _leaves(error)}))
        said = self._seen.said.decode(errors="replace").strip().splitlines()
        if said:
            _LOG.debug("MCP server of pack %s printed %d lines before it ended", self._server.pack, len(said))
        late = f"it took more than {START_S:.0f} s" if isinstance(error, TimeoutError) else kinds
        return ConnectionError(f"the MCP server of pack {self._server.pack!r} did not open ({late})")

    async def _heard(self, message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._checked = 0.0

    # ---------------------------------------------------------------- its tools

    async def _state(self, tool: Declared) -> State:
        """How a tool's live definition stands to the pinned one, asked again when that is old."""
        async with self._checking:
            if time.monotonic() - self._checked > RECHECK_S:
                try:
                    async with asyncio.timeout(START_S):
                        await self._check()
                except (Refusal, TimeoutError, anyio.ClosedResourceError, anyio.BrokenResourceError):
                    self._seen.over = True
                    raise ConnectionError("the MCP server went away") from None
        return self._states.get(tool.definition.name, "missing")

    async def _check(self) -> None:
        """List the server's tools and compare them with the pinned ones."""
        assert self._client is not None
        begun = time.monotonic()
        self._checked = begun  # a change that is told meanwhile makes it old again
        offered: list[Definition] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await self._client.list_tools(cursor=cursor)
            offered += map(_definition, page.tools)
            cursor = page.next_cursor
            if cursor is None:
                break
        if cursor is not None or len(offered) > MAX_TOOLS:
            raise SandboxError(f"the MCP server of pack {self._server.pack!r} lists more than {MAX_TOOLS} tools")
        self.offered = offered
        live = {one.name: one.digest for one in offered}
        states = lock.compare({name: tool.definition for name, tool in self._tools.items()}, offered)
        before, self._states = self._states, states
        for name, state in states.items():
            if before.get(name) != state:
                self._changed(self._tools[name], state, live.get(name, ""))


@dataclass(frozen=True, slots=True)
class _Bound(Declared):
    """A pinned tool with its connections."""

    servers: Servers = field(kw_only=True)

    async def __call__(self, ctx: Context, **arguments: Any) -> Json:
        return await self.servers.call(self, ctx, arguments)


def _bind(tool: Declared, servers: Servers) -> _Bound:
    return _Bound(tool.server, tool.definition, tool.spec, servers=servers)


def _definition(tool: Offered) -> Definition:
    """What a server says of a tool; what has no definition we can hold it to gets one that equals no other."""
    shown = {
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "outputSchema": tool.output_schema,
        "annotations": tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations else None,
    }
    try:
        return lock.definition(shown)
    except MCPError:
        return Definition({"name": tool.name[:128]}, lock.UNUSABLE)


def _environment(server: Server, secrets: Secrets) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in server.isolation.secrets:
        secret = secrets.get(name, server.isolation.secrets)
        if not secret.readable:
            raise SandboxError(f"secret {name!r} is not readable: an MCP server gets it only with readable = true")
        found[name.upper()] = secret.value
    return found


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _leaves(one)]
    return [error]


async def _apart(work: Any) -> Any:
    """The result of `work`, done in a context of its own; a caller's cancellation cancels it."""
    return await asyncio.get_running_loop().create_task(work, context=contextvars.Context())
