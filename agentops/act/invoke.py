"""Calls a tool's function: under its deadline, once more where that is safe, and whatever happens becomes an Outcome.

Invariant: a tool's exception never passes this module, and nothing of it reaches model or customer but the text of a
ToolError. Only tools that declare themselves idempotent are tried again, once, after a time-out or a lost connection,
with the same idempotency key. It decides and records nothing.
"""

import logging
import secrets
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from agentops.act.deadline import within
from agentops.act.tool import Context
from agentops.errors import ToolError
from agentops.types import CallStatus, Json, Tool

if TYPE_CHECKING:  # built by the conductors; a tool's module must not load the recognisers
    from agentops.redact import Redactor

MAX_RESULT = 256 * 1024  # bytes of JSON
MAX_ERROR = 2_000  # characters of a ToolError
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended. `refused`: the tool said no cleanly, so nothing was done."""

    status: CallStatus
    value: Json = None
    error: str = ""
    refused: bool = False
    encoded: bytes = b""  # the value as JSON


async def invoke(tool: Tool, context: Context, arguments: Mapping[str, Json], redactor: "Redactor") -> Outcome:
    """Run `tool` until its time-out or the run's deadline, whichever comes first on the context's clock.

    Returns:
        status ok with a JSON value of at most 256 kB, or timeout or error with a text that is safe to show.
    """
    name, clock = tool.spec.name, context.clock
    outcome = Outcome("timeout", error=f"{name}: there was no time left for it")
    for _ in range(2 if tool.spec.idempotent else 1):
        limit = min(tool.spec.timeout_s, context.run.deadline - clock.now())
        if limit <= 0:
            break
        try:
            return _checked(name, await within(clock, limit, _called(tool, context, arguments)))
        except TimeoutError:
            outcome = Outcome("timeout", error=f"{name} did not answer in time")
        except ConnectionError:
            outcome = Outcome("error", error=f"{name}: the service behind it could not be reached; try again later")
        except ToolError as error:
            text = redactor.text(str(error), context.run.principal.tenant)
            return Outcome("error", error=text[:MAX_ERROR], refused=True)
        except Exception as error:  # noqa: BLE001 - whatever project code raises must end this call only
            return internal_error(name, error, redactor)
    return outcome


def internal_error(name: str, error: BaseException, redactor: "Redactor") -> Outcome:
    """An outcome that names nothing but an id, under which the log has the error's type and place."""
    id = secrets.token_hex(4)
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    place = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))
    message = redactor.text(str(error)[:MAX_ERROR])
    _LOG.error("tool %s failed (%s): %s: %s at %s", name, id, type(error).__name__, message, place)
    return Outcome("error", error=f"{name}: internal error ({id})")


async def _called(tool: Tool, context: Context, arguments: Mapping[str, Json]) -> Json:
    try:
        return await tool.function(context, **arguments)
    except SystemExit as error:
        raise RuntimeError("the tool tried to end the process") from error


def _checked(name: str, value: Json) -> Outcome:
    """A result as JSON within bounds. Tuples become lists; NaN and infinity, which JSON lacks, become null."""
    try:
        encoded = orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        raise RuntimeError(f"the result has no JSON form: {error}") from None
    if len(encoded) > MAX_RESULT:
        return Outcome(
            "error", error=f"{name}: the result has {len(encoded)} bytes, at most {MAX_RESULT}: ask for less"
        )
    return Outcome("ok", orjson.loads(encoded), encoded=encoded)
