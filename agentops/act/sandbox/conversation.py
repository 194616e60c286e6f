"""One call with one worker: what it is told, what its answer may be, what it prints.

Invariant: the process is hostile. An answer counts only when it is for this call and in one of two forms; everything it
says is cleaned before it is logged; printing without end ends the call. It starts and ends no process: `pool` does.
"""

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentops.act.sandbox.broker import Asked, Broker, Record
from agentops.act.sandbox.egress import Egress
from agentops.act.sandbox.process import Sandboxed
from agentops.act.sandbox.secrets import Secrets
from agentops.act.sandbox.wire import Channel
from agentops.act.tool import Context, Marked
from agentops.errors import SandboxError, ToolError
from agentops.types import Json, Labels, Tool

if TYPE_CHECKING:  # built by the conductors
    from agentops.redact import Redactor

MAX_OUTPUT = 64 * 1024  # bytes kept of what one call prints
MAX_FLOOD = 16 * 1024 * 1024  # bytes one call may print
_MARK = {"$marked", "integrity", "confidentiality"}
_INTEGRITY, _CONFIDENTIALITY = ("trusted", "untrusted"), ("public", "internal", "personal", "secret")
_LOG = logging.getLogger(__name__)


class Output:
    """What a process prints: read while it is called, kept in part.

    Args:
        descriptor: the read end of its pipe, owned from now on.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._kept, self._seen = bytearray(), 0
        self.flooded = asyncio.Event()

    def watch(self) -> None:
        """Begin to read what a call prints."""
        self._kept.clear()
        self._seen, self.flooded = 0, asyncio.Event()
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)

    def unwatch(self) -> str:
        """Stop reading. What was printed, in part."""
        asyncio.get_running_loop().remove_reader(self._descriptor)
        return self.rest()

    def rest(self) -> str:
        """What was printed until now, in part, without waiting."""
        self._take()
        return self._kept.decode("utf-8", "replace")

    def close(self) -> None:
        os.close(self._descriptor)

    def _read(self) -> None:
        if not self._take() or self._seen > MAX_FLOOD:
            asyncio.get_running_loop().remove_reader(self._descriptor)
        if self._seen > MAX_FLOOD:
            self.flooded.set()

    def _take(self) -> int:
        try:
            data = os.read(self._descriptor, MAX_OUTPUT)
        except BlockingIOError:
            return 0
        self._seen += len(data)
        self._kept += data[: MAX_OUTPUT - len(self._kept)]
        return len(data)


@dataclass(eq=False, slots=True)
class Worker:
    """A process and the ways to it."""

    sandboxed: Sandboxed
    channel: Channel
    output: Output
    tenant: str = ""  # "" until its first call
    calls: int = 0
    idle_since: float = 0.0  # of time.monotonic()


@dataclass(frozen=True, slots=True)
class Services:
    """What every conversation uses."""

    redactor: "Redactor"
    egress: Egress
    secrets: Secrets
    record: Record

    def clean(self, text: object, tenant: str = "") -> str:
        """What a hostile process wrote, fit for a log line."""
        return self.redactor.text(" ".join(str(text).split())[:500], tenant)


@dataclass(frozen=True, slots=True)
class Call:
    """What is to be run."""

    tool: Tool
    context: Context
    arguments: Mapping[str, Json]
    end: float  # of time.monotonic()


async def converse(worker: Worker, call: Call, services: Services) -> tuple[Json | Exception, bool]:
    """What the tool returned or raised, and whether the process may serve another call.

    What it raised is a ToolError (it refuses), ConnectionError (a service did not answer), TimeoutError (it gave up
    waiting), SandboxError (the broker refused it) or RuntimeError (it failed).

    Raises:
        SandboxError: the process broke the protocol, printed without end, or is gone.
    """
    worker.calls += 1
    tool, context = call.tool, call.context
    assert tool.spec.isolation is not None
    labels = {
        "tenant": context.run.principal.tenant,
        "run": context.run.id,
        "trace": context.run.trace_id,
        "call": context.call_id,
        "key": context.idempotency_key,
        "tool": tool.spec.name,
    }
    asked = Asked(tool.spec.isolation, context.pins, labels)
    broker = Broker(worker.channel, asked, services.egress, services.secrets, services.record)
    worker.output.watch()
    flood = asyncio.ensure_future(worker.output.flooded.wait())
    answer = asyncio.ensure_future(_answer(worker, broker, call, services))
    try:
        await asyncio.wait((answer, flood), return_when=asyncio.FIRST_COMPLETED)
        if flood.done():
            raise SandboxError(f"{tool.spec.name} printed more than {MAX_FLOOD} bytes")
        if broker.gives_away(answer.result()):
            raise SandboxError(f"{tool.spec.name} returned a secret that it was told")
        return _outcome(answer.result(), services), broker.spotless
    finally:
        flood.cancel()
        answer.cancel()
        printed = worker.output.unwatch()
        if printed and _LOG.isEnabledFor(logging.DEBUG):
            _LOG.debug("%s printed: %s", tool.spec.name, services.redactor.text(printed, labels["tenant"]))
        await broker.close()


def _outcome(answer: Mapping[str, Any], services: Services) -> Json | Exception:
    if set(answer) == {"call", "value", "marked"} and isinstance(answer["marked"], bool):
        return _with_labels(answer["value"]) if answer["marked"] else answer["value"]
    text, kind = answer.get("error"), answer.get("kind")
    if set(answer) == {"call", "error", "kind"} and isinstance(text, str):
        if kind == "tool":
            return ToolError(text)
        if kind == "timeout":
            return TimeoutError()
        if kind == "lost":
            return ConnectionError("a service did not answer")
        if kind == "refused":
            return SandboxError(services.clean(text))
        if kind == "fault":
            return RuntimeError(services.clean(text))
    raise SandboxError("the tool's process answered in a wrong form")


async def _answer(worker: Worker, broker: Broker, call: Call, services: Services) -> dict[str, Any]:
    tool, context, run = call.tool, call.context, call.context.run
    told = {
        "id": run.id,
        "trace": run.trace_id,
        "tenant": run.principal.tenant,
        "user": services.redactor.pseudonym("USER", run.principal.user, run.principal.tenant),
        "agent": run.agent.name,
        "call": context.call_id,
        "key": context.idempotency_key,
    }
    await worker.channel.send(
        {
            "call": worker.calls,
            "module": tool.function.__module__,
            "tool": tool.spec.name,
            "digest": tool.spec.digest,
            "arguments": dict(call.arguments),
            "run": told,
            "seconds": call.end - time.monotonic(),
        }
    )
    while "ask" in (answer := await worker.channel.receive()):
        broker.ask(answer)
    if type(answer.get("call")) is not int or answer["call"] != worker.calls:
        raise SandboxError(f"the process of {tool.spec.name!r} answered another call")
    return answer


def _with_labels(value: Json) -> Json:
    """`value` with its marked parts as Marked. A tool can only add labels, so a false mark does no harm."""
    if isinstance(value, dict):
        if set(value) == _MARK:
            integrity, confidentiality = value["integrity"], value["confidentiality"]
            if integrity not in _INTEGRITY or confidentiality not in _CONFIDENTIALITY:
                raise SandboxError("a tool's process marked a value with labels that do not exist")
            return Marked(value["$marked"], Labels(integrity, confidentiality))
        return {name: _with_labels(item) for name, item in value.items()}
    return [_with_labels(item) for item in value] if isinstance(value, list) else value
