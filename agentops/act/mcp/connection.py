"""One connection to an MCP server, from its start to its end: opened, held to the lock, called over.

Invariant: a tool is called only while its server's live definition is the pinned one. What a server asks of us -
sampling, elicitation, roots - is refused, and what it says of itself reaches no model. A connection that ended, or
whose server broke the protocol, is never used again; who opens the next one, `client` decides.
"""

import asyncio
import contextvars
import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from agentops.types import Json

START_S = 20.0  # until a server has started and listed its tools, also on a busy machine
RECHECK_S = 60.0  # a server that does not tell of changes is asked again after so long
IDLE_HTTP_S = 300.0  # longest silence of an answer over HTTP; a call's own deadline is shorter
MAX_UNANSWERED = 3  # calls in a row, after which a server counts as stuck and is started again
MAX_PAGES, MAX_TOOLS = 20, 1_000  # of one listing
_LOG = logging.getLogger(__name__)
logging.getLogger("mcp").setLevel(logging.CRITICAL)  # its records quote what servers and callers sent


@dataclass(frozen=True, slots=True)
class Deployment:
    """What connections are made with."""

    root: Path  # of the project
    secrets: Secrets
    egress: Egress


class Connection:
    """One connection, from its start to its end, in a task of its own."""

    def __init__(
        self,
        server: Server,
        tools: Mapping[str, Declared],
        changed: Callable[[Declared, State, str], None],
        deployment: Deployment,
    ) -> None:
        """Args:
        server: what to connect to.
        tools: its pinned tools, by the server's names.
        changed: is told when a tool's live definition stops, or starts again, to be the pinned one.
        deployment: what it is connected with.
        """
        self._server, self._tools, self._changed, self._with = server, tools, changed, deployment
        self._seen = stdio.Seen()
        self._task: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._client: Client | None = None
        self._states: dict[str, State] = {}
        self._checked = -math.inf  # when; that: never, or the server told of a change
        self._unanswered = 0  # calls in a row that ended without an answer
        self._checking = asyncio.Lock()
        self.offered: list[Definition] = []

    @property
    def over(self) -> bool:
        """Whether it cannot be used any more."""
        return self._seen.over or (self._task is not None and self._task.done())

    @property
    def said(self) -> str:
        """The end of what its process printed beside the protocol, without secrets: for who administers it."""
        text = self._seen.said.decode(errors="replace").strip()[-500:]
        for value in self._with.secrets.values:
            text = text.replace(value, "***")
        return text

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
            self._unanswered = 0
        except asyncio.CancelledError:
            self._unanswered += 1
            self._seen.over |= self._unanswered >= MAX_UNANSWERED
            raise
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
        parts, server = self._with, self._server
        if server.command:
            transport = stdio.confined(parts.root, server, _environment(server, parts.secrets), self._seen)
        else:
            client = http.client(server, parts.secrets, parts.egress, IDLE_HTTP_S)
            transport = http.streams(server, await stack.enter_async_context(client))
        info = Implementation(name="agentops", version="1")
        return Client(transport, message_handler=self._heard, client_info=info, cache=None)

    def _reason(self, error: BaseException) -> Exception:
        """Why it did not open, as one of the two errors that callers know."""
        for one in _leaves(error):
            if isinstance(one, SandboxError):
                return one
        kinds = ", ".join(sorted({type(one).__name__ for one in _leaves(error)}))
        late = f"it took more than {START_S:.0f} s" if isinstance(error, TimeoutError) else kinds
        return ConnectionError(f"the MCP server of pack {self._server.pack!r} did not open ({late})")

    async def _heard(self, message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._checked = -math.inf

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
