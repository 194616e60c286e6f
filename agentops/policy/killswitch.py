"""The kill switch: stops a tool, an agent, a user, a tenant or everything, in every replica, with the next call.

Invariant: a call that begins after `kill` returned, anywhere, is stopped: each call waits for a read of the shared
state that began after the call did. Calls that wait at the same time share one read. A state that does not answer stops
everything but reads at once, and reads `STALE_S` after the last answer; a switch that is damaged, or older than one
seen before (a store that lost writes), stops everything. It does not cut off a call that runs already.
"""

import asyncio
import re
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import TypeAdapter, ValidationError

from agentops.audit import Audit
from agentops.errors import PolicyError, StoreError
from agentops.graph import Clock
from agentops.policy.names import SUBJECT
from agentops.store import State
from agentops.types import Principal, Run, ToolSpec

ROLE = "operator"  # who may use the switch
STALE_S = 30.0  # reads go on for so long on the last answer
MAX_KILLS = 256  # in force at once
MAX_REASON = 200  # characters
MAX_BYTES = 256 * 1024  # of the stored switch
ATTEMPTS = 50
_KEY = "kill"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_FORMS = "all, tool:NAME, agent:NAME, user:TENANT/USER or tenant:NAME"


@dataclass(frozen=True, slots=True)
class Kill:
    """One thing that is stopped."""

    target: str
    reason: str  # shown to whoever is refused
    at: float  # seconds since the epoch
    by: str  # tenant/user of the operator; never shown to callers

    def covers(self, run: Run, spec: ToolSpec | None) -> bool:
        """Whether a call of this run falls under it. A user is stopped as a service that acts for others too.

        `spec`: of the tool; None: a language model is called.
        """
        kind, _, name = self.target.partition(":")
        who = run.principal
        match kind:
            case "all":
                return True
            case "tool":
                return spec is not None and name == spec.name
            case "agent":
                return name == run.agent.name
            case "tenant":
                return name == who.tenant
            case "user":
                return name in {f"{who.tenant}/{user}" for user in (who.user, *who.actors)}
        return True  # no such kind is ever written: fail closed

    @property
    def sentence(self) -> str:
        """Why a call is refused; names no person."""
        kind, _, name = self.target.partition(":")
        named = {"all": "everything", "user": "this user", "tenant": "this tenant"}
        since = datetime.fromtimestamp(self.at, UTC).strftime("%Y-%m-%d %H:%M UTC")
        return f"{named.get(kind, f'the {kind} {name}')} is stopped since {since}: {self.reason}"


@dataclass(frozen=True, slots=True)
class _Switch:
    """The stored value. `changed_at` only grows, so that a store that lost writes is noticed."""

    changed_at: float
    kills: tuple[Kill, ...]


_EMPTY = _Switch(0.0, ())
_STORED = TypeAdapter(_Switch)


@dataclass(slots=True)
class _Queue:
    """Reads of one event loop."""

    next: "asyncio.Task[_Switch] | None" = None  # for those who wait now
    under_way: "asyncio.Task[_Switch] | None" = None


class _Damaged(Exception):
    """The stored switch cannot be relied on; the text says why."""


class KillSwitch:
    """Kill, revive, ask. Thread-safe; any number of processes share one `State`.

    A state that is not local is asked from a thread, so that an event loop never waits for the network.
    """

    def __init__(self, state: State, clock: Clock, audit: Audit | None = None) -> None:
        """`audit`: where each use is recorded before it counts; None: nowhere (tests)."""
        self._state = state
        self._clock = clock
        self._audit = audit
        self._thread: ThreadPoolExecutor | None = None if state.local else ThreadPoolExecutor(1, "kill-switch")
        self._queues: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._known: _Switch | None = None  # the newest one read
        self._known_at = 0.0  # when the last read that was answered began
        self._known_bytes: bytes | None = None

    async def stopped(self, run: Run, spec: ToolSpec | None = None) -> str:
        """Why this call must not begin, as one safe sentence; "" when it may.

        Args:
            run: who calls, through which agent.
            spec: of the tool; None: a language model is called, which reads only.

        Raises:
            StoreError: the shared state cannot answer, and what was read before may not stand for it: try again later.
        """
        try:
            switch = await self._current()
        except _Damaged as damaged:
            return f"the kill switch {damaged}: nothing runs until an operator sets it again"
        except StoreError:
            stale = self._clock.now() - self._known_at > STALE_S
            effect = spec is not None and spec.effect != "read"
            if effect or self._known is None or stale:
                raise
            switch = self._known
        return next((kill.sentence for kill in switch.kills if kill.covers(run, spec)), "")

    def kill(self, target: str, by: Principal, reason: str) -> Kill:
        """Stop a target, or replace the reason why it is stopped. In force everywhere when this returns.

        Args:
            target: "all", "tool:NAME", "agent:NAME", "user:TENANT/USER" or "tenant:NAME".
            by: who does it; needs the role "operator".
            reason: shown to whoever is refused, so it must name no person; one line, at most `MAX_REASON` characters.

        Raises:
            PolicyError: a malformed target or reason, a missing role, or too many targets are stopped.
            AuditError: it cannot be recorded: nothing is stopped.
            StoreError: the shared state cannot answer: it may or may not be stopped; or the switch there is damaged.
                "all" replaces a damaged one.
        """
        self._check(target, by, reason)
        kill = Kill(target, reason.strip(), self._clock.now(), f"{by.tenant}/{by.user}")
        self._record("kill.set", target, by, kill.reason)

        def with_it(kills: tuple[Kill, ...]) -> tuple[Kill, ...]:
            others = tuple(one for one in kills if one.target != target)
            if len(others) >= MAX_KILLS:
                raise PolicyError(f"{MAX_KILLS} targets are stopped already: revive some, or stop a tenant or all")
            return (*others, kill)

        self._change(with_it, repair=target == "all")
        return kill

    def revive(self, target: str, by: Principal, reason: str) -> None:
        """Let a stopped target go on. Recorded like `kill`, with the same rules.

        Raises:
            PolicyError: as `kill`; or the target is not stopped.
            AuditError: it cannot be recorded: it stays stopped.
            StoreError: the shared state cannot answer.
        """
        self._check(target, by, reason)
        if target not in {kill.target for kill in self.active()}:
            raise PolicyError(f"{target!r} is not stopped; see `agentops kill --list`")
        self._record("kill.revive", target, by, reason.strip())
        self._change(lambda kills: tuple(one for one in kills if one.target != target))

    def active(self) -> list[Kill]:
        """What is stopped, oldest first.

        Raises:
            StoreError: the shared state cannot answer, or the switch in it is damaged.
        """
        return sorted(self._stored()[0].kills, key=lambda kill: kill.at)

    # ---------------------------------------------------------------- reading

    async def _current(self) -> _Switch:
        """The switch as a read gave it that began after this call."""
        if self._thread is None:
            return self._load()
        loop = asyncio.get_running_loop()
        queue = self._queues.setdefault(loop, _Queue())
        if queue.next is None:
            queue.next = loop.create_task(self._after(queue))
        return await asyncio.shield(queue.next)

    async def _after(self, queue: "_Queue") -> _Switch:
        """Wait for the read under way, then read: for all who asked meanwhile, not for those who ask from now on."""
        if queue.under_way is not None and not queue.under_way.done():
            await asyncio.wait([queue.under_way])
        queue.under_way, queue.next = queue.next, None
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._load)
        finally:
            queue.under_way = None

    def _load(self) -> _Switch:
        """Read and remember.

        Raises:
            StoreError: the state does not answer.
            _Damaged: it answers what cannot be relied on.
        """
        with self._lock:  # one after the other, or a slow read would take a newer one for a loss
            began = self._clock.now()
            found = self._state.get(_KEY)
            data = found[0] if found else None
            switch = self._known
            if switch is None or data != self._known_bytes:
                switch = _decoded(data)
                if self._known is not None and switch.changed_at < self._known.changed_at:
                    raise _Damaged("was lost or set back in the shared state")
            self._known, self._known_bytes, self._known_at = switch, data, began
            return switch

    # ---------------------------------------------------------------- writing

    def _stored(self, repair: bool = False) -> tuple[_Switch, int]:
        data, version = self._state.get(_KEY) or (None, 0)
        try:
            return _decoded(data), version
        except _Damaged as damaged:
            if repair:
                return _EMPTY, version
            raise StoreError(
                f"the kill switch {damaged}: run `agentops kill all`, then stop what must stay stopped, then "
                "`agentops revive all`"
            ) from None

    def _change(self, edit: Callable[[tuple[Kill, ...]], tuple[Kill, ...]], repair: bool = False) -> None:
        for _ in range(ATTEMPTS):
            switch, version = self._stored(repair)
            # Newer than every other one, also when this machine's clock is behind: replicas take an older one as loss.
            changed = _Switch(max(self._clock.now(), switch.changed_at + 0.001), edit(switch.kills))
            if self._state.compare_and_set(_KEY, _STORED.dump_json(changed), version):
                return
        raise StoreError(f"the kill switch was changed by others {ATTEMPTS} times in a row: try again")

    def _record(self, kind: str, target: str, by: Principal, reason: str) -> None:
        if self._audit is None:
            return
        what, _, name = target.partition(":")
        tenant, _, user = name.partition("/")
        self._audit.append_now(
            {
                "type": kind,
                "target": f"user:{tenant}/{self._audit.subject(tenant, user)}" if what == "user" else target,
                "tenant": by.tenant,
                "by": self._audit.subject(by.tenant, by.user),
                "reason": self._audit.digest(reason, by.tenant, by.user),
            }
        )

    def _check(self, target: str, by: Principal, reason: str) -> None:
        if by.actors:
            raise PolicyError("the kill switch is used in person, not through a service")
        if ROLE not in by.roles:
            raise PolicyError(f"the kill switch needs role {ROLE!r}; you have: {', '.join(sorted(by.roles)) or 'none'}")
        if not _valid(target):
            raise PolicyError(f"{target[:100]!r} cannot be stopped: use {_FORMS}")
        if not reason.strip() or len(reason) > MAX_REASON or not reason.isprintable():
            raise PolicyError(f"a reason is needed: one line of at most {MAX_REASON} characters that names no person")


def _valid(target: str) -> bool:
    kind, _, name = target.partition(":")
    if kind == "user":
        return all(SUBJECT.fullmatch(part) for part in name.split("/")) and name.count("/") == 1
    if kind == "tenant":
        return SUBJECT.fullmatch(name) is not None
    return target == "all" or (kind in ("tool", "agent") and _NAME.fullmatch(name) is not None)


def _decoded(data: bytes | None) -> _Switch:
    if data is None:
        return _EMPTY
    try:
        switch = _STORED.validate_json(data) if len(data) <= MAX_BYTES else None
    except ValidationError:
        switch = None
    if switch is None or not all(_valid(kill.target) for kill in switch.kills):
        raise _Damaged("is damaged in the shared state")
    return switch
