"""Workers: the processes that isolated tools run in, kept warm, confined, and killed when in doubt.

Invariant: a worker serves one tenant and one call at a time. It is used again only after a call that ended in order,
never when its tool asks for a fresh one or when it was told a secret; whatever else happens (time-out, cancellation, a
frame that breaks the protocol, too much output) ends it with all its descendants. It decides on no call: the gateway
does.
"""

import asyncio
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentops.act.sandbox.broker import Record
from agentops.act.sandbox.conversation import Call, Output, Services, Worker, converse
from agentops.act.sandbox.egress import Egress
from agentops.act.sandbox.level import detect, spawn
from agentops.act.sandbox.process import Sandboxed
from agentops.act.sandbox.profile import ENGINE, Profile
from agentops.act.sandbox.secrets import Secrets
from agentops.act.sandbox.wire import FROM_CHILD, FROM_PARENT, Channel
from agentops.act.tool import Context
from agentops.errors import SandboxError
from agentops.project import MOUNT
from agentops.types import Isolation, Json, Level, Tool

if TYPE_CHECKING:  # built by the conductors
    from agentops.redact import Redactor

START_S = 60.0  # until a new process has imported its pack, also on a busy machine
MAX_CALLS = 1_000  # of one worker
_CPU_S = 3_600  # of a worker's life: single calls are bounded by the clock
# This very engine, by its folder: the one above it, of a checkout, cannot be listed in there.
_BOOT = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("agentops", sys.argv[2] + "/__init__.py")
sys.modules["agentops"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["agentops"])
from agentops.act.sandbox.worker import main
main()
"""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Key:
    """What workers that can stand in for each other have in common."""

    module: str  # of the pack
    isolation: Isolation


@dataclass(slots=True)
class _Pool:
    slots: asyncio.Semaphore
    busy: int = 0
    idle: list[Worker] = field(default_factory=list)  # the one used last is last
    spare: "asyncio.Task[Worker] | None" = None  # belongs to no tenant yet


class Workers:
    """Implements the gateway's `Workers`.

    Args:
        root: the project's folder.
        redactor: for what processes print, and for pseudonyms of users.
        egress: connects for them.
        secrets: what the broker may inject.
        record: writes an audit record, or raises AuditError.
        max_workers: processes of one pack and isolation at a time, beside one spare.
        idle_s: seconds after which a process that nobody calls is ended.
    """

    def __init__(
        self,
        root: Path,
        redactor: "Redactor",
        egress: Egress,
        secrets: Secrets,
        record: Record,
        *,
        max_workers: int = 4,
        idle_s: float = 60.0,
    ) -> None:
        self._root = root.resolve()
        self._services = Services(redactor, egress, secrets, record)
        self._max, self._idle_s = max_workers, idle_s
        self._pools: dict[_Key, _Pool] = {}
        self._all: set[Worker] = set()
        self._starting: set[Future[Sandboxed]] = set()
        self._threads: ThreadPoolExecutor | None = None
        self._reaping: asyncio.TimerHandle | None = None

    @property
    def level(self) -> Level:
        """The isolation this machine achieves."""
        return detect()

    async def call(self, tool: Tool, context: Context, arguments: Mapping[str, Json], timeout_s: float) -> Json:
        """Run an isolated tool in a process of its own.

        Args:
            tool: defined in the project's tools folder, with an isolation.
            context: of the call; only what is safe to tell goes along.
            arguments: canonical ones.
            timeout_s: seconds of real time, waiting for a process included.

        Raises:
            ToolError: the tool refuses.
            ConnectionError: a service it asked for did not answer.
            SandboxError: the isolation is not to be had, or the process broke the protocol.
            TimeoutError: the time is over; the process is being killed.
            RuntimeError: the tool failed.
        """
        key = _key(tool)
        pool = self._pools.setdefault(key, _Pool(asyncio.Semaphore(self._max)))
        call = Call(tool, context, arguments, time.monotonic() + timeout_s)
        async with asyncio.timeout(timeout_s), pool.slots:
            pool.busy += 1
            try:
                worker, in_order = await self._taken(key, pool, context.run.principal.tenant), False
                try:
                    outcome, in_order = await converse(worker, call, self._services)
                finally:
                    self._give_back(key, pool, worker, in_order)
            finally:
                pool.busy -= 1
                self._upkeep(key, pool)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

    def close(self) -> None:
        """End every process and wait until it is gone. A later call starts new ones."""
        for pool in self._pools.values():
            if pool.spare is not None:
                with suppress(RuntimeError):  # its event loop is closed, and ended it
                    pool.spare.cancel()
        self._pools.clear()
        for worker in tuple(self._all):
            self._end(worker)
        for start in self._starting:
            start.add_done_callback(_kill_late)
        if self._reaping is not None:
            self._reaping.cancel()
            self._reaping = None
        if self._threads is not None:
            self._threads.shutdown(wait=True)
            self._threads = None

    # ---------------------------------------------------------------- whose turn it is

    async def _taken(self, key: _Key, pool: _Pool, tenant: str) -> Worker:
        """A worker for `tenant` alone."""
        for worker in [one for one in reversed(pool.idle) if one.tenant == tenant]:
            pool.idle.remove(worker)
            if worker.channel.quiet():
                return worker
            self._end(worker)  # it ended, or spoke without being asked
        while len(pool.idle) + pool.busy > self._max:
            self._end(pool.idle.pop(0))  # another tenant's
        spare, pool.spare = pool.spare, None
        worker = None if spare is None or spare.cancelled() else await spare
        if worker is not None and not worker.channel.quiet():
            self._end(worker)
            worker = None
        worker = worker or await self._started(key)
        worker.tenant = tenant
        return worker

    def _give_back(self, key: _Key, pool: _Pool, worker: Worker, in_order: bool) -> None:
        closed = self._pools.get(key) is not pool
        if closed or not in_order or key.isolation.fresh or worker.calls >= MAX_CALLS:
            self._end(worker)
        else:
            worker.idle_since = time.monotonic()
            pool.idle.append(worker)

    def _upkeep(self, key: _Key, pool: _Pool) -> None:
        """Start a spare, so that the next new process is there when it is needed, and see to idle ones later."""
        if self._pools.get(key) is not pool:
            return
        if pool.spare is None:
            pool.spare = asyncio.ensure_future(self._started(key))
            pool.spare.add_done_callback(_looked_at)
        loop = asyncio.get_running_loop()
        if self._reaping is None or self._reaping.when() < loop.time():  # an earlier event loop's is never called
            self._reaping = loop.call_later(self._idle_s, self._reap)

    def _reap(self) -> None:
        """End what was idle for too long, and the spares of pools that nobody uses."""
        self._reaping = None
        old = time.monotonic() - self._idle_s
        for pool in self._pools.values():
            while pool.idle and pool.idle[0].idle_since <= old:
                self._end(pool.idle.pop(0))
            if not pool.idle and not pool.busy and pool.spare is not None:
                spare, pool.spare = pool.spare, None
                if spare.done() and not spare.cancelled() and spare.exception() is None:
                    self._end(spare.result())
                else:
                    spare.cancel()
        if self._all:
            self._reaping = asyncio.get_running_loop().call_later(self._idle_s, self._reap)

    # ---------------------------------------------------------------- processes

    async def _started(self, key: _Key) -> Worker:
        """A new worker that has imported its pack.

        Raises:
            SandboxError: the isolation is not to be had, or the import failed.
        """
        limits = key.isolation
        profile = Profile(
            read=readable(self._root, limits), memory_mb=limits.memory_mb, processes=limits.processes, cpu_s=_CPU_S
        )
        ours, theirs = socket.socketpair()
        read, write = os.pipe()
        argv = [sys.executable, "-I", "-c", _BOOT, str(theirs.fileno()), str(ENGINE)]
        pass_fds = (theirs.fileno(),)
        start = self._submit(
            lambda: spawn(argv, profile, least=limits.least, stdout=write, stderr=write, pass_fds=pass_fds)
        )
        start.add_done_callback(lambda _: (theirs.close(), os.close(write)))
        self._starting.add(start)
        try:
            sandboxed = await asyncio.wrap_future(start)
        except BaseException:
            start.add_done_callback(_kill_late)
            ours.close()
            os.close(read)
            raise
        finally:
            self._starting.discard(start)
        worker = Worker(sandboxed, Channel(ours, receives=FROM_CHILD, sends=FROM_PARENT), Output(read))
        self._all.add(worker)
        try:
            async with asyncio.timeout(START_S):
                await worker.channel.send({"root": str(self._root), "module": key.module, "files": limits.files})
                ready = await worker.channel.receive()
            if ready != {"ready": True}:
                raise SandboxError(f"it cannot be imported in there: {self._services.clean(ready.get('failed'))}")
        except (SandboxError, TimeoutError) as error:
            printed = self._services.clean(worker.output.rest()[-500:])
            self._end(worker)
            reason = str(error) or f"it took more than {START_S:.0f} s"
            raise SandboxError(f"no process for {key.module!r}: {reason}; it printed: {printed!r}") from None
        except BaseException:
            self._end(worker)
            raise
        return worker

    def _end(self, worker: Worker) -> None:
        """End a worker and whatever it started, in a thread: it takes milliseconds until the last one is gone."""
        if worker in self._all:
            self._all.discard(worker)
            worker.channel.close()
            worker.output.close()
            self._submit(worker.sandboxed.kill).add_done_callback(_told)

    def _submit(self, work: Callable[[], Any]) -> "Future[Any]":
        if self._threads is None:
            self._threads = ThreadPoolExecutor(2, "agentops-workers")
        return self._threads.submit(work)


def readable(root: Path, isolation: Isolation) -> tuple[Path, ...]:
    """What a worker may read of the project: its tools and the folders that the isolation names.

    Raises:
        SandboxError: such a folder is outside the project, is not there, or holds policies or hidden files' folders.
    """
    found = [root / "tools"]
    for folder in isolation.files:
        path = (root / folder).resolve()
        closed = (root / "policies", *root.glob(".*"))
        hidden = any(path.is_relative_to(one) or one.is_relative_to(path) for one in closed)
        if hidden or not path.is_relative_to(root) or not path.exists():
            raise SandboxError(
                f"Isolation(files=…) names {folder!r}: name folders that exist in the project, but neither policies "
                "nor hidden ones"
            )
        found.append(path)
    return tuple(found)


def _key(tool: Tool) -> _Key:
    isolation, module = tool.spec.isolation, tool.function.__module__
    if isolation is None:
        raise SandboxError(f"tool {tool.spec.name!r} has no isolation: it runs in the gateway's process")
    if not module.startswith(f"{MOUNT}.tools."):
        raise SandboxError(f"tool {tool.spec.name!r} is defined in {module!r}: isolated tools belong into tools/")
    return _Key(".".join(module.split(".")[:3]), isolation)


def _kill_late(start: "Future[Sandboxed]") -> None:
    """Nobody waits for this process any more."""
    if not start.cancelled() and start.exception() is None:
        start.result().kill()


def _told(killed: "Future[None]") -> None:
    if not killed.cancelled() and (error := killed.exception()) is not None:
        _LOG.error("a tool's process was not ended in order: %s", error)


def _looked_at(spare: "asyncio.Task[Worker]") -> None:
    """Its error is told to the next call, which starts one again."""
    if not spare.cancelled() and spare.exception() is not None:
        _LOG.warning("no spare process: %s", spare.exception())
