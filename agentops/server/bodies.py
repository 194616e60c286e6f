"""Bodies of requests, read so that no proxy in front and no other reader sees another value.

Invariant: a body with a name twice in an object, with NaN or half a surrogate pair is answered with 422 and reaches no
handler. How large a body may be is checked before it gets here.
"""

import json
from collections.abc import Callable
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from agentops.errors import PolicyError
from agentops.parsers import json_value

MAX_BODY = 1_000_000  # bytes


class StrictRoute(APIRoute):
    """A route whose JSON bodies are parsed by `agentops.parsers.json_value`."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        """The handler, given a request that parses strictly."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handler(_StrictRequest(request.scope, request.receive))

        return strict


class _StrictRequest(Request):
    async def json(self) -> Any:
        try:
            return json_value(await self.body(), MAX_BODY)
        except PolicyError as error:
            raise json.JSONDecodeError(str(error), "", 0) from None  # which FastAPI answers with 422
