"""What an error looks like over HTTP: one status per class of error, OpenAI's shape, and headers every answer has.

Invariant: what went wrong on our side is logged under an id and told to nobody; what the caller did wrong is told in
one sentence that repeats no secret they sent. It raises nothing and decides nothing.
"""

import logging
import secrets
from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from agentops import errors
from agentops.errors import AgentopsError

RETRY_AFTER_S = 5
STATUS: Mapping[type[AgentopsError], int] = {
    errors.PolicyError: 409,  # the state does not allow it; who may not at all gets 401 or 403 where it is found out
    errors.GateFailed: 409,
    errors.TraceError: 422,
    errors.ToolError: 422,
    errors.MCPError: 502,
    errors.StoreError: 503,
    errors.AuditError: 503,  # what cannot be recorded is not done
    errors.ModelError: 503,
    errors.ReleaseError: 503,
    errors.SandboxError: 503,
    errors.ConfigError: 500,
    errors.ProjectError: 500,
    errors.RouteError: 500,
    errors.PlanError: 500,
    errors.HarvestError: 500,
    errors.TrainError: 500,
    errors.EvaluateError: 500,
    errors.MissingExtra: 500,
}
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_TYPES = {401: "authentication_error", 403: "permission_error"}
_LOG = logging.getLogger(__name__)


def error(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An error in OpenAI's shape."""
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    retry = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else {}
    body = {"error": {"message": message, "type": kind, "code": status}}
    return JSONResponse(body, status, {**HEADERS, **retry, **(headers or {})})


def handle_errors(app: FastAPI) -> None:
    """Install the handlers of every error a route can end with."""

    @app.exception_handler(AgentopsError)
    async def deliberate(_: Request, raised: AgentopsError) -> JSONResponse:
        status = next((STATUS[kind] for kind in type(raised).__mro__ if kind in STATUS), 500)
        return error(status, str(raised)) if status < 500 else _ours(status, raised)

    @app.exception_handler(HTTPException)
    async def http(_: Request, raised: HTTPException) -> JSONResponse:
        return error(raised.status_code, raised.detail, raised.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, raised: RequestValidationError) -> JSONResponse:
        first = raised.errors()[0]  # its place and rule, not its input
        place = ".".join(str(part)[:64] for part in first["loc"])
        return error(422, f"{place}: {first['msg']}")

    @app.exception_handler(Exception)
    async def unforeseen(_: Request, raised: Exception) -> JSONResponse:
        return _ours(500, raised)


def _ours(status: int, raised: Exception) -> JSONResponse:
    id = secrets.token_hex(4)
    told = str(raised) if isinstance(raised, AgentopsError) else ""  # the text of others may hold anything
    _LOG.error("a request failed (%s): %s: %s", id, type(raised).__name__, told)
    again = "try again later; " if status == 503 else ""
    return error(status, f"the service cannot do this now: {again}its operator finds the reason under {id}")
