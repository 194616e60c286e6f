"""The process that isolated tools run in; `pool` starts it with `main`, and the channel's descriptor as argument 1.

Invariant: it speaks over the one descriptor it was given, runs one call at a time, and ends when the other side does.
A tool gets its arguments, names of tenant and (pseudonymous) user, and the broker; no world, no scopes, no words of the
user. Nothing here protects anything: the operating system confines this process, and the gateway trusts none of it.
"""

import asyncio
import importlib
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import orjson

from agentops.act.sandbox.client import Client
from agentops.act.sandbox.wire import FROM_CHILD, FROM_PARENT, Channel
from agentops.act.tool import Context, Marked
from agentops.errors import SandboxError, ToolError
from agentops.graph import RealClock
from agentops.types import AgentSpec, Principal, Run, Tool


def main() -> None:
    """Serve calls until the channel closes."""
    sys.stdout.reconfigure(line_buffering=True, errors="replace")  # pyrefly: ignore[missing-attribute]
    end = socket.socket(fileno=int(sys.argv[1]))
    end.set_inheritable(False)
    asyncio.run(_serve(Channel(end, receives=FROM_PARENT, sends=FROM_CHILD, descriptors=True)))


async def _serve(channel: Channel) -> None:
    begin = await channel.receive()
    root = Path(begin["root"])
    try:
        _mount(root, begin["module"].partition(".")[0])
        importlib.import_module(begin["module"])
    except Exception as error:  # noqa: BLE001 - whatever a project's module raises is told
        await channel.send({"failed": f"{type(error).__name__}: {error}"[:500]})
        return
    client = Client(channel, root, tuple(begin["files"]))
    await channel.send({"ready": True})
    running: asyncio.Task[None] | None = None
    while True:
        try:
            message = await channel.receive()
        except SandboxError:
            os._exit(0)  # the gateway is gone: nobody waits for what still runs
        if "reply" in message:
            client.answered(message)
        elif running is None or running.done():
            running = asyncio.ensure_future(_answer(channel, client, message))


def _mount(root: Path, mounted: str) -> None:
    """As `agentops.project` does it; but only `tools` is here, and the project's own folder cannot be listed."""
    for name, path in ((mounted, root), (f"{mounted}.tools", root / "tools")):
        module = ModuleType(name)
        module.__path__ = [str(path)]
        sys.modules[name] = module
    vars(sys.modules[mounted])["tools"] = sys.modules[f"{mounted}.tools"]


async def _answer(channel: Channel, client: Client, message: Mapping[str, Any]) -> None:
    answer: dict[str, Any]
    try:
        answer = _encoded(await _run(client, message))
    except ToolError as error:
        answer = {"error": str(error), "kind": "tool"}
    except SandboxError as error:
        answer = {"error": str(error), "kind": "refused"}
    except TimeoutError:
        answer = {"error": "", "kind": "timeout"}
    except ConnectionError:
        answer = {"error": "", "kind": "lost"}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool's fault ends its call, not the process
        answer = {"error": f"{type(error).__name__}: {error}", "kind": "fault"}
    try:
        await channel.send({"call": message["call"], **answer})
    except (TypeError, SandboxError) as error:  # no JSON, or too large
        await channel.send(
            {"call": message["call"], "error": f"{type(error).__name__}: {error}"[:500], "kind": "fault"}
        )


def _encoded(value: Any) -> dict[str, Any]:
    """A result as JSON; parts with labels of their own become objects that `pool` knows."""
    marked = False

    def other(part: Any) -> Any:
        nonlocal marked
        if isinstance(part, Marked):
            marked = True
            return {
                "$marked": part.value,
                "integrity": part.labels.integrity,
                "confidentiality": part.labels.confidentiality,
            }
        if is_dataclass(part) and not isinstance(part, type):
            return asdict(part)
        raise TypeError(f"{type(part).__name__} is no JSON")

    encoded = orjson.dumps(value, default=other, option=orjson.OPT_PASSTHROUGH_DATACLASS)
    return {"value": orjson.Fragment(encoded), "marked": marked}


async def _run(client: Client, message: Mapping[str, Any]) -> Any:
    tool = getattr(importlib.import_module(message["module"]), message["tool"], None)
    if not isinstance(tool, Tool) or tool.spec.digest != message["digest"]:
        raise SandboxError(f"tool {message['tool']!r} is not the one that was loaded at the start: restart")
    clock, who = RealClock(), message["run"]
    run = Run(
        id=who["id"],
        session="",
        principal=Principal(who["tenant"], who["user"]),
        agent=AgentSpec(who["agent"], frozenset(), frozenset()),
        deadline=clock.now() + message["seconds"],
        trace_id=who["trace"],
    )
    context = Context(run, None, clock, who["call"], who["key"], broker=client)
    return await tool.function(context, **message["arguments"])
