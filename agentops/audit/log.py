"""The audit log a process writes: records from any thread or event loop, durable when the call returns.

Invariant: an index is returned only after the record's bytes were flushed to the disk; a tenant's records keep the
order in which they were handed in. One writer thread flushes everything that waits at once (group commit), whatever
tenant it is of. Of a record it reads "tenant" (whose log: `logs`) and "type" (not the log's own), nothing else.
"""

import asyncio
import atexit
import concurrent.futures
import os
import re
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from agentops.audit import frames, names, notes
from agentops.audit.canonical import canonical, digest_value
from agentops.audit.logs import Logs
from agentops.audit.publishing import Publisher
from agentops.audit.subjects import SubjectKeys
from agentops.errors import AuditError
from agentops.graph import Clock, RealClock
from agentops.types import Json, Principal

BATCH = 1024  # records of one flush
POSTED_S = 0.02  # records that nobody waits for wait this long for others to share their flush
BATCH_BYTES = 4 * 1024 * 1024  # of them: a log must stay far below what a reader takes for a log
BACKLOG = 100_000  # records that wait before `post` refuses
BACKLOG_BYTES = 256 * 1024 * 1024  # of them
_SIMULATED = b"agentops simulation"
_ORIGIN = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


class Audit(Protocol):
    """Where decisions and effects are recorded: `AuditLog` on disk, `MemoryAudit` in simulation."""

    async def append(self, record: Mapping[str, Json]) -> int:
        """Record and wait until it is durable; returns its index in the log."""
        ...

    def append_now(self, record: Mapping[str, Json]) -> int:
        """The same for synchronous callers; blocks the thread for one flush."""
        ...

    def post(self, record: Mapping[str, Json]) -> None:
        """Record without waiting: durable with the next flush, before any later `append` returns."""
        ...

    def subject(self, tenant: str, user: str) -> str:
        """Random id that stands for a person in a record, until their key is erased."""
        ...

    def digest(self, value: Json, tenant: str, user: str) -> str:
        """Digest that stands for a value of this person in a record, under their own key."""
        ...


Waiter = asyncio.Future[int] | concurrent.futures.Future[int]  # a caller in an event loop, or in a thread
Settled = tuple[Waiter, int | AuditError]
Item = tuple[str, int, bytes, Waiter | None]  # tenant, Unix milliseconds, canonical JSON, who waits


class AuditLog:
    """Append-only logs in `folder`: one per tenant and process, and a system log that commits to all of them."""

    def __init__(self, folder: Path, origin: str, clock: Clock = RealClock(), anchors: Sequence[str] = ()) -> None:
        """Take up a system log of `origin` that no other process writes, or start one; tenants' logs follow on use.

        Args:
            folder: holds the logs, their checkpoints and the one key; created with mode 0700.
            origin: who writes, `[a-z0-9_-]`, for example the service's name.
            clock: stamps the records.
            anchors: where the system log's head is published, at most once a minute (`anchors.open_anchor`).

        Raises:
            AuditError: the log was tampered with, the key is unusable, or the folder cannot be written.
        """
        if not _ORIGIN.fullmatch(origin):
            raise AuditError(f"origin {origin!r} is not allowed: use lower-case letters, digits, _ and -, at most 63")
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._key = notes.load_or_create_key(folder)
        except OSError as error:
            raise AuditError(f"the audit folder {str(folder)!r} cannot be used: {error.strerror}") from None
        self.folder = folder
        self.origin = origin
        self.subjects = SubjectKeys(folder / "subjects.db")
        self._clock = clock
        self._pid = os.getpid()
        self._publisher = Publisher(folder, notes.public_bytes(self._key), anchors)
        self._logs = Logs(folder, origin, self._key, self._now_ms)
        self._queue: deque[Item] = deque()
        self._waiting = 0  # bytes in the queue
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._checkpoint_wanted: list[Waiter] = []
        self._calling: asyncio.AbstractEventLoop | None = None  # will tell the writer that a caller waits
        self._hurried = False  # the writer was told
        self._closing = False
        # Failures nobody waited for (of a posted record, of a checkpoint: ""), told to the tenant's next caller.
        self._trouble: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, name=f"audit-{origin}", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    async def append(self, record: Mapping[str, Json]) -> int:
        """Write one record and wait until it is on disk; returns its index in its tenant's log (0-based).

        Raises:
            AuditError: no canonical form, over 1 MiB, the log is closed, or the disk refused: then it was not written.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[int] = loop.create_future()
        self._put(record, waiter)
        if self._calling is not loop:  # once for all who hand in a record in this turn of the loop: they share a flush
            self._calling = loop
            loop.call_soon(self._hurry)
        return await waiter

    def append_now(self, record: Mapping[str, Json]) -> int:
        """As `append`, for synchronous callers: blocks this thread for one flush."""
        waiter: concurrent.futures.Future[int] = concurrent.futures.Future()
        self._put(record, waiter)
        self._hurry()
        return waiter.result()

    def post(self, record: Mapping[str, Json]) -> None:
        """Hand in a record without waiting: it is durable with the next flush, and before any later `append` returns.

        Raises:
            AuditError: as `append`; or 100,000 records or 256 MiB wait; or an earlier posted record could not be
                written.
        """
        if len(self._queue) >= BACKLOG or self._waiting >= BACKLOG_BYTES:
            raise AuditError(f"{len(self._queue)} audit records wait for the disk: slow down or wait for `append`")
        self._put(record, None)

    def subject(self, tenant: str, user: str) -> str:
        """The person's public id (`SubjectKeys`).

        Raises:
            StoreError: the subjects' keys cannot be used.
        """
        return self.subjects.subject(tenant, user).id

    def digest(self, value: Json, tenant: str, user: str) -> str:
        """Keyed digest of a value of this person; meaningless once their key is erased.

        Raises:
            AuditError: the value has no canonical form.
            StoreError: the subjects' keys cannot be used.
        """
        return digest_value(self.subjects.subject(tenant, user).key, value)

    def erase(self, tenant: str, user: str, by: Principal | None = None) -> str:
        """Erase the person's key for good and record that, by their id alone.

        "subject.erasing" is durable before anything is destroyed: an erasure that is cut off half-way, or finished by
        another try, leaves no id that nobody can explain.

        Args:
            tenant: the person's.
            user: the person.
            by: who had it done; recorded by their own id.

        Returns:
            the id; "" when there was no key.

        Raises:
            AuditError: the erasure cannot be recorded.
            StoreError: the key cannot be erased: try again.
        """
        who = {"by": self.subject(by.tenant, by.user)} if by is not None else {}
        if known := self.subjects.known(tenant, user):
            self.append_now({"type": "subject.erasing", "tenant": tenant, "subject": known, **who})
        id = self.subjects.erase(tenant, user)
        if id:
            self.append_now({"type": "subject.erased", "tenant": tenant, "subject": id, **who})
        return id

    def checkpoint(self) -> None:
        """Sign the present state; returns when the checkpoint is on disk.

        Raises:
            AuditError: the log is closed or the disk refused.
        """
        waiter: concurrent.futures.Future[int] = concurrent.futures.Future()
        with self._wake:
            self._refuse_if_closed()
            self._checkpoint_wanted.append(waiter)
            self._wake.notify()
        waiter.result()

    def close(self) -> None:
        """Flush what waits, checkpoint and release the log. Safe to call twice.

        Raises:
            AuditError: the last records or the checkpoint could not be written.
        """
        if self._closing or os.getpid() != self._pid:
            return
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()
        self._publisher.close()
        self.subjects.close()
        atexit.unregister(self.close)
        if self._trouble:
            raise AuditError(next(iter(self._trouble.values())))

    def __enter__(self) -> "AuditLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)

    def _refuse_if_closed(self, tenant: str = "") -> None:
        if self._closing:
            raise AuditError("the audit log is closed: open a new AuditLog")
        if os.getpid() != self._pid:
            raise AuditError("the audit log belongs to another process: open one after the fork")
        if self._trouble and (trouble := self._trouble.pop(tenant, "") or self._trouble.pop("", "")):
            raise AuditError(f"the audit log failed earlier: {trouble}")

    def _put(self, record: Mapping[str, Json], waiter: Waiter | None) -> None:
        if str(record.get("type", "")).startswith("log."):
            raise AuditError(f"record type {record['type']!r} is the log's own: choose another prefix than 'log.'")
        data = canonical(dict(record))
        if len(data) > frames.MAX_RECORD - 64:
            raise AuditError(f"a record of {len(data)} bytes is too long: at most 1 MiB; store a digest instead")
        tenant = names.tenant_of(record.get("tenant", ""))
        item = (tenant, self._now_ms(), data, waiter)
        with self._lock:
            self._refuse_if_closed(tenant)
            if not self._queue:  # it begins to count POSTED_S
                self._wake.notify()
            self._queue.append(item)
            self._waiting += len(data)

    def _hurry(self) -> None:
        """Somebody waits: the writer must not wait for more."""
        with self._lock:
            self._calling, self._hurried = None, True
            self._wake.notify()

    def _run(self) -> None:
        """The writer thread: flush whatever waits, sign what is due, until closed and empty."""
        while True:
            with self._wake:
                while not (self._queue or self._checkpoint_wanted or self._closing):
                    due = self._logs.next_due()
                    wait = None if due is None else due - time.monotonic()
                    if wait is not None and wait <= 0:
                        break
                    self._wake.wait(None if wait is None else max(0.01, wait))
                until = time.monotonic() + POSTED_S
                while self._queue and not (self._hurried or self._checkpoint_wanted or self._closing or self._full()):
                    if (left := until - time.monotonic()) <= 0:
                        break
                    self._wake.wait(left)
                self._hurried = False
                batch = self._taken()
                wanted = self._checkpoint_wanted if not batch else []
                if wanted:
                    self._checkpoint_wanted = []
                finished = self._closing and not batch
            if batch:
                self._flush(batch)
            self._sign(wanted, bool(wanted) or finished)
            if finished:
                self._logs.close()
                return

    def _full(self) -> bool:
        return len(self._queue) >= BATCH or self._waiting >= BATCH_BYTES

    def _taken(self) -> list[Item]:
        """The next records to flush at once, out of the queue."""
        batch: list[Item] = []
        size = 0
        while self._queue and len(batch) < BATCH and size < BATCH_BYTES:
            item = self._queue.popleft()
            size += len(item[2])
            batch.append(item)
        self._waiting -= size
        return batch

    def _flush(self, batch: list[Item]) -> None:
        of_tenant: dict[str, list[Item]] = {}
        for item in batch:
            of_tenant.setdefault(item[0], []).append(item)
        try:
            results = self._logs.append(
                {tenant: [(at_ms, data) for _, at_ms, data, _ in items] for tenant, items in of_tenant.items()}
            )
        except Exception as caught:  # noqa: BLE001 - whatever went wrong, no caller may wait for ever
            failed = AuditError(f"the audit log failed: {type(caught).__name__}: {caught}")
            results = dict.fromkeys(of_tenant, failed)
        loops: dict[asyncio.AbstractEventLoop, list[Settled]] = {}
        for tenant, items in of_tenant.items():
            result = results[tenant]
            for number, (_, _, _, waiter) in enumerate(items):
                settled = result if isinstance(result, AuditError) else result + number
                if isinstance(waiter, asyncio.Future):
                    loops.setdefault(waiter.get_loop(), []).append((waiter, settled))
                elif waiter is not None:
                    _settle([(waiter, settled)])
                elif isinstance(settled, AuditError):
                    self._trouble[tenant] = str(settled)
        for loop, waiters in loops.items():
            try:
                loop.call_soon_threadsafe(_settle, waiters)
            except RuntimeError:
                continue  # the loop was closed: nobody waits any more, the records are written all the same

    def _sign(self, waiters: list[Waiter], everything: bool) -> None:
        due = self._logs.next_due()
        result: int | AuditError = 0
        if everything or (due is not None and due <= time.monotonic()):
            try:
                if self._logs.sign(everything):
                    self._publisher.signed(self._logs.system.name)
            except AuditError as caught:
                result = caught
            except Exception as caught:  # noqa: BLE001 - the writer thread must live
                result = AuditError(f"the audit log failed: {type(caught).__name__}: {caught}")
        if isinstance(result, AuditError) and not waiters:
            self._trouble[""] = str(result)
        _settle([(waiter, result) for waiter in waiters])


class MemoryAudit:
    """Records in memory, for simulation and tests. The same canonical form is required, nothing is durable."""

    def __init__(self) -> None:
        self.records: list[dict[str, Json]] = []

    async def append(self, record: Mapping[str, Json]) -> int:
        """Keep the record; returns its index."""
        return self.append_now(record)

    def append_now(self, record: Mapping[str, Json]) -> int:
        """Keep the record; returns its index.

        Raises:
            AuditError: the record has no canonical form.
        """
        canonical(dict(record))
        self.records.append(dict(record))
        return len(self.records) - 1

    def post(self, record: Mapping[str, Json]) -> None:
        """Keep the record."""
        self.append_now(record)

    def subject(self, tenant: str, user: str) -> str:
        """The same id in every process: simulated people are nobody."""
        return digest_value(_SIMULATED, [tenant, user])[-32:]

    def digest(self, value: Json, tenant: str, user: str) -> str:
        """Digest under a fixed key."""
        return digest_value(_SIMULATED, [tenant, user, value])


def _settle(waiters: Sequence[Settled]) -> None:
    """Wake callers with the index of their record, or with why it was not written."""
    for waiter, result in waiters:
        if waiter.done():  # cancelled meanwhile
            continue
        if isinstance(result, AuditError):
            waiter.set_exception(AuditError(str(result)))  # its own: a traceback is not shared
        else:
            waiter.set_result(result)
