"""The FastAPI application: chat completions in OpenAI's shape, feedback, approvals.

Invariant: every route but /healthz needs a valid credential; a caller sees and changes only its own tenant. Bodies are
bounded before they are parsed. It holds no state of its own beyond the runtime it serves.
"""

import asyncio
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Header, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from agentops.errors import PolicyError, available, require
from agentops.parsers import json_value
from agentops.policy import DECIDE, ApiKeys, Approval
from agentops.runtime import Answer, Runtime, new_request
from agentops.server.auth import Callers, Refusals
from agentops.server.bodies import MAX_BODY, StrictRoute
from agentops.server.errors import HEADERS, error, handle_errors
from agentops.trace import trajectory, write_feedback
from agentops.types import Feedback, Principal
from agentops.workspace import Workspace

MAX_TEXT = 16_000  # characters of one message
REMEMBERED = 10_000  # traces whose owner is known without asking the lake
CORRECTOR = "staff"  # role whose corrections are stored

Text = Annotated[str, Field(max_length=MAX_TEXT)]
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:@-]{1,128}$")]


class Part(BaseModel):
    """One part of a message; only text parts are understood."""

    model_config = ConfigDict(extra="ignore")
    type: Literal["text"]
    text: Text


class ChatMessage(BaseModel):
    model_config = ConfigDict(extra="ignore")
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[Part] | None = None

    @property
    def text(self) -> str:
        return "\n".join(part.text for part in self.content) if isinstance(self.content, list) else self.content or ""


class ChatBody(BaseModel):
    model_config = ConfigDict(extra="ignore")  # OpenAI clients send sampling options that mean nothing here
    model: str = Field("agentops", max_length=128)
    messages: list[ChatMessage] = Field(min_length=1, max_length=200)
    stream: bool = False
    metadata: dict[str, Annotated[str, Field(max_length=512)]] = Field(default_factory=dict, max_length=16)


class FeedbackBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    trace_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    score: Literal[-1, 0, 1] = 0
    comment: Text = ""
    corrected_answer: Text = ""
    corrected_labels: list[Identifier] = Field(default_factory=list, max_length=8)


class DecisionBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    approve: bool
    reason: Text = ""


def create_app(
    workspace: Workspace,
    keys: ApiKeys | None,
    open_runtime: Callable[[Workspace], AbstractAsyncContextManager[Runtime]],
) -> FastAPI:
    """The application. `open_runtime` is entered at start-up and left at shutdown.

    Args:
        workspace: the project that is served.
        keys: API keys; None where only tokens of its issuers count.
        open_runtime: opens what serves requests.

    Raises:
        ConfigError: there are neither keys nor issuers.
    """
    refusals = Refusals(workspace)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_runtime(workspace) as runtime, AsyncExitStack() as others:
            app.state.runtime = runtime
            if available("mcp"):
                from agentops.server.mcp import serve_http

                app.state.mcp = serve_http(workspace, runtime.gateway)
                await others.enter_async_context(app.state.mcp.run())
            reporting = asyncio.create_task(refusals.keep())
            yield
            reporting.cancel()
            refusals.flush()
            workspace.tracing.flush()

    app = FastAPI(title="agentops", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.router.route_class = StrictRoute
    app.state.owners = OrderedDict()
    app.state.refusals = refusals

    @app.middleware("http")
    async def bounded(request: Request, call_next: Any) -> Response:
        length = request.headers.get("content-length", "0")
        sized = length.isdecimal() and len(length) < 10 and int(length) <= MAX_BODY
        if request.headers.get("transfer-encoding") or not sized:
            return error(413, f"the body must declare a Content-Length of at most {MAX_BODY} bytes")
        response = await call_next(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    handle_errors(app)
    Caller = Annotated[Principal, Depends(Callers(workspace, keys, refusals))]

    def remember(answer: Answer, tenant: str, user: str) -> None:
        owners: OrderedDict[str, tuple[str, str]] = app.state.owners
        owners[answer.trace_id] = (tenant, workspace.redactor.pseudonym("USER", user, tenant))
        while len(owners) > REMEMBERED:
            owners.popitem(last=False)

    @app.get("/healthz")
    async def health() -> dict[str, Any]:
        now = workspace.policy.status()  # anybody may read this: how many problems there are, not which
        in_force = {"digest": now.digest[:19], "since": int(now.since), "problems": len(now.problems)}
        return {"status": "ok", "policy": in_force}

    @app.get("/v1/models")
    async def models(who: Caller) -> dict[str, Any]:
        return {"object": "list", "data": [{"id": "agentops", "object": "model", "owned_by": who.tenant}]}

    @app.post("/v1/chat/completions")
    async def chat(
        body: ChatBody,
        who: Caller,
        x_agentops_session: Annotated[Identifier | None, Header()] = None,
        idempotency_key: Annotated[Identifier | None, Header()] = None,
    ) -> Response:
        if body.messages[-1].role != "user" or not body.messages[-1].text.strip():
            raise HTTPException(422, "the last message must be the user's and not empty")
        history = tuple({"role": message.role, "content": message.text} for message in body.messages[:-1])
        request_id = _repeated(who, idempotency_key, body) if idempotency_key else ""
        named = x_agentops_session or body.metadata.get("session", "")
        session = _digest(who, "session", named) if named else ""
        request = new_request(body.messages[-1].text, who, session, history, request_id)
        answer = await app.state.runtime.ask(request)
        remember(answer, who.tenant, who.user)
        shaped = completion(answer, body.model)
        return (
            StreamingResponse(_chunks(shaped), media_type="text/event-stream") if body.stream else JSONResponse(shaped)
        )

    @app.post("/v1/feedback", status_code=201)
    async def feedback(body: FeedbackBody, who: Caller) -> dict[str, str]:
        user = workspace.redactor.pseudonym("USER", who.user, who.tenant)
        staff = CORRECTOR in who.roles
        owner = app.state.owners.get(body.trace_id)
        if owner is None:
            found = await asyncio.to_thread(trajectory, workspace.lake, body.trace_id)
            owner = (found.tenant, found.user) if found else None
        if owner is None or owner[0] != who.tenant or (owner[1] != user and not staff):
            raise HTTPException(404, f"no trace {body.trace_id!r} of this caller")
        if (body.corrected_answer or body.corrected_labels) and not staff:
            raise HTTPException(403, f"a correction teaches the models: it needs the role {CORRECTOR!r}")
        given = Feedback(
            body.trace_id,
            body.score,
            workspace.clock.now(),
            user,
            body.comment,
            body.corrected_answer,
            tuple(body.corrected_labels),
        )
        write_feedback(workspace.lake, [given], workspace.project.settings.service, workspace.redactor, who.tenant)
        return {"status": "stored", "trace_id": body.trace_id}

    @app.get("/v1/approvals")
    async def approvals(who: Caller) -> dict[str, Any]:
        found = [item for item in workspace.approvals.list(tenant=who.tenant) if may_decide(item, who)]
        return {"object": "list", "data": [waiting(item) for item in found]}

    @app.post("/v1/approvals/{approval_id}")
    async def decide(approval_id: Identifier, body: DecisionBody, who: Caller) -> dict[str, Any]:
        if DECIDE not in who.scopes:  # before it is looked up: who decides nothing learns of nothing
            raise HTTPException(403, "deciding approvals needs a role that is an approver")
        try:
            found = workspace.approvals.get(approval_id, who.tenant)
        except PolicyError as missing:
            raise HTTPException(404, str(missing)) from None
        if not may_decide(found, who):
            raise HTTPException(403, f"approval {approval_id!r} is for {found.approver}, and not for who asked for it")
        if found.recalled:  # another agent's: nothing of it waits here
            return {"approval": waiting(workspace.approvals.decide(approval_id, body.approve, who, body.reason))}
        if found.status == "pending" and not await app.state.runtime.waits(found.run):
            raise HTTPException(
                409, "the request waits on another machine, or its conversation is gone: decide it there"
            )
        decided = workspace.approvals.decide(approval_id, body.approve, who, body.reason)
        answer = await app.state.runtime.resume(decided.run)
        remember(answer, decided.tenant, decided.user)
        return {"approval": waiting(decided), "request": extension(answer)}

    @app.post("/mcp")
    async def mcp(
        request: Request,
        who: Caller,
        agent: Annotated[str, Query(max_length=64)] = "",
        x_agentops_agent: Annotated[str, Header(max_length=64)] = "",
        x_agentops_session: Annotated[Identifier | None, Header()] = None,
    ) -> Response:
        require("mcp", "mcp")
        from agentops.server import mcp as governed

        if governed.rebound(workspace.project.settings, request):
            raise HTTPException(421, "this server is not known by that name, and not for web pages")
        body = await request.body()
        try:
            json_value(body, MAX_BODY)
            by = governed.caller(workspace, who, x_agentops_agent or agent, x_agentops_session or "")
        except PolicyError as wrong:
            raise HTTPException(400, str(wrong)) from None
        return governed.Endpoint(app.state.mcp, by, body)

    return app


def _repeated(who: Principal, key: str, body: ChatBody) -> str:
    """The id of a request that may come again: equal for the same user, key and messages, and it names nobody.

    It is the session too when none is given: effects are done once per step, plan and session.
    """
    return _digest(who, "request", key, [[message.role, message.text] for message in body.messages])


def _digest(who: Principal, *named: Any) -> str:
    """What a caller names, as a value of its own: the same name by another user or tenant is another thing."""
    return hashlib.sha256(json.dumps([who.tenant, who.user, *named]).encode()).hexdigest()


def may_decide(item: Approval, who: Principal) -> bool:
    """Whether `who` has every role the approval needs and neither asked nor is a service that did."""
    asked = who.user in (item.user, *item.actors)
    return DECIDE in who.scopes and set(item.approver.split("+")) <= who.roles and not asked


def waiting(item: Approval) -> dict[str, Any]:
    """An approval as an approver sees it."""
    shown = ("id", "status", "tool", "arguments", "reason", "user", "agent", "requested_at", "expires_at")
    return {name: getattr(item, name) for name in shown}


def completion(answer: Answer, model: str) -> dict[str, Any]:
    """An Answer in the shape of an OpenAI chat completion, with ours under `agentops`."""
    return {
        "id": f"chatcmpl-{answer.trace_id}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": answer.text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        "agentops": extension(answer),
    }


def extension(answer: Answer) -> dict[str, Any]:
    """What an OpenAI client does not need and an operator wants."""
    return {
        "trace_id": answer.trace_id,
        "request_id": answer.request_id,
        "status": answer.status,
        "routes": [
            {"label": r.label, "confidence": round(r.confidence, 4), "stage": r.stage, "agent": r.agent}
            for r in answer.routes
        ],
        "tools": [{"tool": r.tool, "status": r.status, "cached": r.cached} for r in answer.results],
        "approvals": list(answer.approvals),
        "arm": answer.assignment.arm if answer.assignment else None,
        "latency_ms": round(1000 * (answer.ended_at - answer.started_at), 2),
    }


async def _chunks(shaped: dict[str, Any]) -> AsyncIterator[str]:
    """The completion as server-sent events: one content chunk, one final chunk, [DONE]."""
    base = {key: shaped[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    content = shaped["choices"][0]["message"]["content"]
    first = {"index": 0, "delta": {"role": "assistant", "content": content}, "finish_reason": None}
    yield f"data: {json.dumps({**base, 'choices': [first]})}\n\n"
    last = {"index": 0, "delta": {}, "finish_reason": "stop"}
    yield f"data: {json.dumps({**base, 'choices': [last], 'agentops': shaped['agentops']})}\n\n"
    yield "data: [DONE]\n\n"
