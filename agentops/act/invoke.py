"""Calls a tool's function: under its deadline, once more where that is safe, and whatever happens becomes an Outcome.

Invariant: a tool's exception never passes this module, and nothing of it reaches model or customer but the text of a
ToolError. Only tools that declare themselves idempotent are tried again, once, after a time-out or a lost connection,
with the same idempotency key. It decides and records nothing.
"""

import logging
import secrets
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from agentops.act.deadline import within
from agentops.act.protocols import Workers
from agentops.act.sandbox.guard import in_tool
from agentops.act.tool import Context, Marked, Remote
from agentops.errors import SandboxError, ToolError
from agentops.types import CallStatus, Json, Labels, Tool

if TYPE_CHECKING:  # built by the conductors; a tool's module must not load the recognisers
    from agentops.redact import Redactor

MAX_RESULT = 256 * 1024  # bytes of JSON
MAX_ERROR = 2_000  # characters of a ToolError
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended. `refused`: it was not begun, or the tool said no cleanly, so nothing was done."""

    status: CallStatus
    value: Json = None
    error: str = ""
    refused: bool = False
    encoded: bytes = b""  # the value as JSON
    plain: Json = None  # the value without what is marked in it
    marked: tuple[tuple[Json, Labels], ...] = ()  # parts of the value with labels of their own

    def stored(self) -> Json:
        """An ok outcome as JSON, for a cache: labels travel with the value."""
        marked = [[value, labels.integrity, labels.confidentiality] for value, labels in self.marked]
        return {"value": self.value, "plain": self.plain, "marked": marked} if marked else {"value": self.value}

    @classmethod
    def restored(cls, stored: Json) -> "Outcome":
        """The outcome that `stored` was made of."""
        value = stored["value"]
        encoded = orjson.dumps(value)
        marked = tuple((part, Labels(*labels)) for part, *labels in stored.get("marked", ()))
        plain = stored["plain"] if marked else orjson.loads(encoded)
        return cls("ok", value, encoded=encoded, plain=plain, marked=marked)


async def invoke(
    tool: Tool, context: Context, arguments: Mapping[str, Json], redactor: "Redactor", workers: Workers | None = None
) -> Outcome:
    """Run `tool` until its time-out or the run's deadline, whichever comes first on the context's clock.

    Returns:
        status ok with a JSON value of at most 256 kB, or timeout or error with a text that is safe to show.
    """
    name, clock = tool.spec.name, context.clock
    outcome = Outcome("timeout", error=f"{name}: there was no time left for it", refused=True)
    encoded = orjson.dumps(arguments)  # each try gets its own: what one tool changed in them was not decided on
    for _ in range(2 if tool.spec.idempotent else 1):
        limit = min(tool.spec.timeout_s, context.run.deadline - clock.now())
        if limit <= 0:
            break
        try:
            return _checked(
                name, await within(clock, limit, _called(tool, context, orjson.loads(encoded), workers, limit))
            )
        except TimeoutError:
            outcome = Outcome("timeout", error=f"{name} did not answer in time")
        except ConnectionError:
            outcome = Outcome("error", error=f"{name}: the service behind it could not be reached; try again later")
        except SandboxError as error:
            _LOG.warning("%s was not run: %s", name, error)
            return Outcome("error", error=f"{name}: it cannot be run safely here")
        except ToolError as error:
            text = redactor.text(str(error), context.run.principal.tenant)
            return Outcome("error", error=text[:MAX_ERROR], refused=error.clean)
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


async def _called(
    tool: Tool, context: Context, arguments: Mapping[str, Json], workers: Workers | None, limit: float
) -> Json:
    if tool.spec.isolation is not None and not isinstance(tool.function, Remote):
        if workers is None:
            raise SandboxError(f"{tool.spec.name} runs only in a process of its own, and none can be started here")
        return await workers.call(tool, context, arguments, limit)
    try:
        with in_tool():
            return await tool.function(context, **arguments)
    except SystemExit as error:
        raise RuntimeError("the tool tried to end the process") from error


def _checked(name: str, value: Json) -> Outcome:
    """A result as JSON within bounds. Tuples become lists; NaN and infinity, which JSON lacks, become null."""
    marked: list[tuple[Json, Labels]] = []

    def note(part: Marked) -> Json:
        marked.append((part.value, part.labels))
        return part.value

    try:
        encoded = _dumped(value, note)
        plain = _dumped(value, lambda _: None) if marked else encoded
        parts = tuple((orjson.loads(_dumped(part, lambda inner: inner.value)), labels) for part, labels in marked)
    except orjson.JSONEncodeError as error:
        raise RuntimeError(f"the result has no JSON form: {error}") from None
    if len(encoded) > MAX_RESULT:
        return Outcome(
            "error", error=f"{name}: the result has {len(encoded)} bytes, at most {MAX_RESULT}: ask for less"
        )
    decoded = orjson.loads(encoded)
    # Not the same object twice: what was read is remembered as it was, whatever the caller does with the value.
    return Outcome("ok", decoded, encoded=encoded, plain=orjson.loads(plain), marked=parts)


def _dumped(value: Json, marked: Callable[[Marked], Json]) -> bytes:
    """`value` as JSON, with what `marked` makes of each marked part in its place."""

    def other(part: Any) -> Json:
        if isinstance(part, Marked):
            return marked(part)
        if is_dataclass(part) and not isinstance(part, type):
            return {field.name: getattr(part, field.name) for field in fields(part)}
        raise TypeError(f"{type(part).__name__} is no JSON")

    return orjson.dumps(value, default=other, option=orjson.OPT_PASSTHROUGH_DATACLASS)
