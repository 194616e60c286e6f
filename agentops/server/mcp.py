"""Our governed tools for other agents, over the Model Context Protocol: streamable HTTP at /mcp, or stdio.

Invariant: a caller sees only tools that its scopes and the named agent's ceiling allow, and each call goes through the
gateway: policies, budgets, labels, approvals and audit as for any other. What another agent sends was composed by a
model whose reading nobody here knows, so every call is labelled untrusted. An error says nothing of the inside.

A call is a request of its own: an agent's `max_calls` does not bound how often another agent calls, the user's daily
limits do. The same call in the same session has the same idempotency key, so that repeating it after an approval does
it once; `_meta["agentops/idempotency_key"]` names another.
"""

import hashlib
import json
import logging
import re
import secrets
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import mcp_types as protocol
from mcp import MCPError as Refusal
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agentops import __version__
from agentops.act.tool import arguments as canonical_arguments
from agentops.config import Settings, loopback
from agentops.errors import AgentopsError, PolicyError, ToolError
from agentops.policy.approvals import RECALLED
from agentops.protocols import Gateway
from agentops.trace import names
from agentops.types import AgentSpec, Json, Labels, Principal, Run, Tool, ToolCall, ToolResult
from agentops.workspace import Workspace

KEY = "agentops/idempotency_key"
_GIVEN_KEY = re.compile(r"[A-Za-z0-9_.:@-]{1,128}")
_CALLER = "agentops.caller"  # in an ASGI scope
_LOCAL = ("localhost", "127.0.0.1", "[::1]")
_LOG = logging.getLogger(__name__)
logging.getLogger("mcp").setLevel(logging.CRITICAL)  # its records quote what callers sent
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf another agent calls, under which ceiling, in which conversation."""

    who: Principal
    agent: AgentSpec
    session: str


def caller(workspace: Workspace, who: Principal, agent: str, session: str = "") -> Caller:
    """A caller. Without a session it has one for itself: the same user through the same agent.

    Args:
        workspace: the project.
        who: authenticated.
        agent: one of the project's agents.
        session: as the caller names it; another user's of the same name is another one.

    Raises:
        PolicyError: there is no such agent.
    """
    found = workspace.project.agents.get(agent)
    if found is None:
        known = ", ".join(sorted(workspace.project.agents)) or "none"
        raise PolicyError(f"agent {agent[:64]!r} does not exist: name one of the project's ({known})")
    return Caller(who, found, _digest("mcp", who.tenant, who.user, agent, session))


class Governed:
    """The project's tools as an MCP server.

    Args:
        workspace: the project.
        gateway: the only door to its tools.
        calling: whose call a request is.
    """

    def __init__(
        self, workspace: Workspace, gateway: Gateway, calling: Callable[[ServerRequestContext[Any, Any]], Caller]
    ) -> None:
        self._workspace, self._gateway, self._calling = workspace, gateway, calling
        self.server: Server[Any] = Server(
            "agentops", version=__version__, on_list_tools=self._list, on_call_tool=self._call
        )

    async def _list(
        self, ctx: ServerRequestContext[Any, Any], _: protocol.PaginatedRequestParams | None
    ) -> protocol.ListToolsResult:
        async def listed() -> protocol.ListToolsResult:
            return protocol.ListToolsResult(tools=[_shown(tool) for tool in self._visible(self._calling(ctx)).values()])

        return await _guarded(listed())

    async def _call(
        self, ctx: ServerRequestContext[Any, Any], params: protocol.CallToolRequestParams
    ) -> protocol.CallToolResult:
        return await _guarded(self._called(self._calling(ctx), params))

    def _visible(self, by: Caller) -> dict[str, Tool]:
        """The tools this caller may be allowed to use; the policies decide on each call."""
        scopes = by.who.scopes & by.agent.scopes
        tools = self._workspace.project.tools
        return {name: tools[name] for name in sorted(by.agent.tools & set(tools)) if tools[name].spec.scopes <= scopes}

    async def _called(self, by: Caller, params: protocol.CallToolRequestParams) -> protocol.CallToolResult:
        workspace = self._workspace
        run_id, call_id = f"{RECALLED}{uuid.uuid4().hex}", uuid.uuid4().hex
        tool = self._visible(by).get(params.name)
        if tool is None:  # whether it exists for others is not told
            unknown = {"type": "tool.decision", "run": run_id, "tool": "?", "decision": "unknown-tool"}
            workspace.audit.post({**unknown, "tenant": by.who.tenant})
            return _error("there is no such tool", {"agentops/status": "denied"})
        given = params.arguments or {}
        call = ToolCall(call_id, params.name, given, idempotency_key=_key(by, tool, given, params.meta))
        attributes = {
            names.TENANT: by.who.tenant,
            names.USER: workspace.redactor.pseudonym("USER", by.who.user, by.who.tenant),
            names.CONVERSATION: by.session,
            names.REQUEST: run_id,
        }
        with workspace.tracing.span(f"mcp {params.name}", "mcp", attributes) as span:
            run = Run(
                id=run_id,
                session=by.session,
                principal=by.who,
                agent=by.agent,
                deadline=workspace.clock.now()
                + min(by.agent.max_seconds, 0.9 * workspace.project.settings.request_timeout_s),
                trace_id=format(span.get_span_context().trace_id, "032x"),
                labels=Labels("untrusted", "public"),
            )
            return _answer(await self._gateway.call(run, call))


def serve_http(workspace: Workspace, gateway: Gateway) -> StreamableHTTPSessionManager:
    """The endpoint's manager: stateless, one JSON answer a request. Its `run` must surround every request."""
    governed = Governed(workspace, gateway, lambda ctx: _of_scope(ctx.request))
    return StreamableHTTPSessionManager(governed.server, json_response=True, stateless=True)


async def serve_stdio(workspace: Workspace, gateway: Gateway, by: Caller) -> None:
    """Serve one local agent over standard input and output, until it closes them."""
    governed = Governed(workspace, gateway, lambda _: by)
    async with stdio_server() as (read, write):
        await governed.server.run(read, write, governed.server.create_initialization_options())


class Endpoint(Response):
    """Hands an authenticated request on to the manager."""

    def __init__(self, manager: StreamableHTTPSessionManager, by: Caller, body: bytes) -> None:
        super().__init__()
        self._manager, self._by, self._content = manager, by, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        replayed = False

        async def once() -> Mapping[str, Any]:
            nonlocal replayed
            if not replayed:
                replayed = True
                return {"type": "http.request", "body": self._content, "more_body": False}
            return await receive()

        await self._manager.handle_request({**scope, _CALLER: self._by}, once, send)  # pyrefly: ignore[bad-argument-type]


def rebound(settings: Settings, request: Request) -> bool:
    """Whether a request came through a name that is not this server's, or from a web page.

    A page in a browser can reach a server on its user's machine by a name of its own that it points there (DNS
    rebinding). Served to others, under names that only the operator's proxy knows, pages are refused by their Origin.
    """
    local = loopback(settings.host)
    allowed = {*_LOCAL, settings.host} if local else set()
    host = re.sub(r":\d+$", "", request.headers.get("host", ""))
    origin = request.headers.get("origin")
    if origin is not None and re.sub(r":\d+$", "", origin.partition("://")[2]) not in allowed:
        return True
    return local and host not in allowed


def _of_scope(request: Any) -> Caller:
    return request.scope[_CALLER]


async def _guarded(work: Awaitable[T]) -> T:
    """The result of `work`; whatever goes wrong is told under an id only."""
    try:
        return await work
    except Refusal:
        raise
    except Exception as error:  # noqa: BLE001 - the library would tell the caller its text
        id = secrets.token_hex(4)
        told = str(error) if isinstance(error, AgentopsError) else ""
        _LOG.error("a request over MCP failed (%s): %s: %s", id, type(error).__name__, told)
        raise Refusal(protocol.INTERNAL_ERROR, f"internal error ({id})") from None


def _key(by: Caller, tool: Tool, given: Mapping[str, Json], meta: Any) -> str:
    """The idempotency key: of what the caller names, else of the call itself. Never another session's or tool's.

    Raises:
        MCPError: of the library: what the caller names is no key.
    """
    named = (meta or {}).get(KEY)
    if named is not None:
        if not isinstance(named, str) or not _GIVEN_KEY.fullmatch(named):
            raise Refusal(protocol.INVALID_PARAMS, f"_meta[{KEY!r}] must be 1 to 128 of A-Z a-z 0-9 _ . : @ -")
        return _digest("key", by.session, tool.spec.name, named)
    try:
        same = canonical_arguments(tool, given)
    except ToolError:
        same = dict(given)  # refused by the gateway for the same reason
    return _digest("call", by.session, tool.spec.name, json.dumps(same, sort_keys=True))


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _shown(tool: Tool) -> protocol.Tool:
    spec = tool.spec
    hints = protocol.ToolAnnotations(
        read_only_hint=spec.effect == "read", idempotent_hint=spec.idempotent, open_world_hint=spec.effect == "egress"
    )
    return protocol.Tool(
        name=spec.name, description=spec.description, input_schema=dict(spec.parameters), annotations=hints
    )


def _answer(result: ToolResult) -> protocol.CallToolResult:
    meta = {
        "agentops/status": result.status,
        "agentops/labels": {
            "integrity": result.labels.integrity,
            "confidentiality": result.labels.confidentiality,
        },
    }
    if result.status == "ok":
        text = result.value if isinstance(result.value, str) else json.dumps(result.value, ensure_ascii=False)
        structured = result.value if isinstance(result.value, dict) else None
        content = protocol.TextContent(type="text", text=text)
        return protocol.CallToolResult(content=[content], structured_content=structured, _meta=meta)
    if result.status == "pending":
        approver = result.decision.approver if result.decision else ""
        return _error(
            f"{result.error}. Nothing was done yet: approval {result.approval_id} waits for {approver or 'a person'}. "
            "Once it is approved, call the tool again with the same arguments.",
            {**meta, "agentops/approval_id": result.approval_id},
        )
    return _error(result.error, meta)


def _error(text: str, meta: dict[str, Any]) -> protocol.CallToolResult:
    return protocol.CallToolResult(content=[protocol.TextContent(type="text", text=text)], is_error=True, _meta=meta)
