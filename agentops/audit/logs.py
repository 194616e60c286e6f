"""The logs one process writes: one for each tenant and a system log that signs their heads. For one thread's use.

Invariant: a tenant's records go to that tenant's logs and nowhere else, and whenever a log was signed, its new head is
written to the system log, which is signed after it: the system log's head commits to every tenant's log. What is wrong
with one tenant's log (changed, unreadable) refuses that tenant's records only. It queues nothing and wakes nobody.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agentops.audit import logfile, names, notes
from agentops.audit.canonical import canonical
from agentops.audit.logfile import LogFile
from agentops.errors import AuditError

CHECKPOINT_RECORDS = 4096
CHECKPOINT_SECONDS = 5.0
OPEN_LOGS = 256  # file descriptors; the least recently used is closed
PARKED_LOGS = 10_000  # closed logs that can be taken up without reading them again
SIGN_AT_ONCE = 16  # checkpoints between two flushes: with 300 busy tenants nobody waits for 300 checkpoints
RETRY_SECONDS = 10.0  # how long a log that was refused is not read again
FLUSHERS = 8  # threads that write and flush different logs at once

Records = Sequence[tuple[int, bytes]]  # (Unix milliseconds, canonical JSON)


class Logs:
    """The open logs of `folder`: the system log, and tenants' as they are needed."""

    def __init__(self, folder: Path, origin: str, key: Ed25519PrivateKey, now_ms: Callable[[], int]) -> None:
        """Take up a system log.

        Raises:
            AuditError: it was tampered with, or the folder cannot be written.
        """
        self.folder = folder
        self._origin = origin
        self._key = key
        self._now_ms = now_ms
        self._open: OrderedDict[str, LogFile] = OrderedDict()  # tenant -> its log, least recently used first
        self._parked: OrderedDict[str, LogFile] = OrderedDict()
        self._refused: dict[str, tuple[float, str]] = {}  # tenant -> until when, why
        self._due: dict[str, float] = {}  # tenant ("" = system) -> monotonic time of its next checkpoint
        self._heads: dict[str, dict[str, list]] = {}  # tenant -> heads that the system log does not have yet
        self._pool = ThreadPoolExecutor(FLUSHERS, thread_name_prefix="audit-flush")
        self.system = logfile.acquire(folder, origin, "", key)
        self._catch_up()

    def append(self, batch: Mapping[str, Records]) -> dict[str, int | AuditError]:
        """Write and flush each tenant's records; the index of its first, or why none of them was written."""
        results: dict[str, int | AuditError] = {}
        tenants = list(batch)
        for first in range(0, len(tenants), OPEN_LOGS):
            results |= self._append({tenant: batch[tenant] for tenant in tenants[first : first + OPEN_LOGS]})
        return results

    def _append(self, batch: Mapping[str, Records]) -> dict[str, int | AuditError]:
        results: dict[str, int | AuditError] = dict(self._take_up([tenant for tenant in batch if tenant]))
        if "" in batch:
            try:
                self._rotate_system()
            except AuditError as error:
                results[""] = error
        ready: list[tuple[LogFile, Records]] = []
        for tenant, records in batch.items():
            if tenant not in results:
                ready.append((self._open[tenant] if tenant else self.system, records))
        for (file, _), result in zip(ready, self._each(_append, ready), strict=True):
            results[file.tenant] = result
            self._remember(file)
        self._shrink()
        return results

    def next_due(self) -> float | None:
        """Monotonic time of the next checkpoint, None when all is signed."""
        return min(self._due.values(), default=None)

    def sign(self, everything: bool = False) -> bool:
        """Sign the logs that are due (or all), then write their heads to the system log and sign that.

        Returns:
            Whether the system log has a new signed head.

        Raises:
            AuditError: the disk refused; what was not signed is due again in a few seconds.
        """
        now = time.monotonic()
        due = [tenant for tenant, at in self._due.items() if everything or at <= now]
        system_due = "" in due
        tenants = [tenant for tenant in due if tenant][: None if everything else SIGN_AT_ONCE]
        errors = [error for error in self._sign([self._open[tenant] for tenant in tenants]) if error]
        signed = False
        if self._heads or system_due:
            try:
                self._write_heads()
                before = self.system.checkpoint_size
                self.system.checkpoint(self._now_ms())
                signed = self.system.checkpoint_size > before
                self._due.pop("", None)
            except AuditError as error:
                self._due[""] = now + CHECKPOINT_SECONDS
                errors.append(error)
        if errors:
            raise errors[0]
        return signed

    def close(self) -> None:
        """Release all logs. Does not sign."""
        self._pool.shutdown()
        for file in (*self._open.values(), self.system):
            file.close()
        self._open.clear()

    def _each(self, work: Callable, items: Sequence) -> list:
        """`work` on every item; several logs are flushed at once, because a flush waits for the disk."""
        started: list[Future] = []
        with suppress(RuntimeError):  # at the interpreter's end no thread can be started: one after the other
            for item in items if len(items) > 1 else ():
                started.append(self._pool.submit(work, *item))
        return [future.result() for future in started] + [work(*item) for item in items[len(started) :]]

    def _take_up(self, tenants: Sequence[str]) -> dict[str, AuditError]:
        """Have a writable log open for each of these; why not, for those that have none."""
        refused: dict[str, AuditError] = {}
        wanted: list[tuple[str, LogFile | None]] = []
        for tenant in tenants:
            file = self._open.get(tenant)
            until, why = self._refused.get(tenant, (0.0, ""))
            if file is not None and not (file.full and self._drop([file])):
                self._open.move_to_end(tenant)
            elif time.monotonic() < until:
                refused[tenant] = AuditError(why)
            else:
                wanted.append((tenant, self._parked.pop(tenant, None)))
        for (tenant, _), found in zip(wanted, self._each(self._acquire, wanted), strict=True):
            if isinstance(found, LogFile):
                self._open[tenant] = found
                self._refused.pop(tenant, None)
            else:
                refused[tenant] = found
                self._refused[tenant] = (time.monotonic() + RETRY_SECONDS, str(found))
        return refused

    def _rotate_system(self) -> None:
        if self.system.full:
            self.system.checkpoint(self._now_ms())
            successor = logfile.acquire(self.folder, self._origin, "", self._key)
            self.system.close()
            self.system = successor

    def _acquire(self, tenant: str, parked: LogFile | None) -> LogFile | AuditError:
        try:
            if parked is not None and not parked.full and parked.resume():
                return parked
            return logfile.acquire(self.folder, self._origin, tenant, self._key)
        except AuditError as error:
            return error

    def _remember(self, file: LogFile) -> None:
        """Note when a log must be signed, and a head it signed by itself (a new log's first)."""
        if file.tenant and file.checkpoint_size != file.noted:
            self._note(file)
        grown = file.size - file.checkpoint_size
        if grown >= CHECKPOINT_RECORDS:
            self._due[file.tenant] = 0.0
        elif grown:
            self._due.setdefault(file.tenant, time.monotonic() + CHECKPOINT_SECONDS)

    def _note(self, file: LogFile) -> None:
        head = [file.checkpoint_size, file.signed_root.hex()]
        self._heads.setdefault(file.tenant, {})[file.name] = head
        self._due.setdefault("", time.monotonic() + CHECKPOINT_SECONDS)
        file.noted = file.checkpoint_size

    def _sign(self, files: Sequence[LogFile]) -> list[AuditError | None]:
        at_ms = self._now_ms()
        errors = self._each(_checkpoint, [(file, at_ms) for file in files])
        for file, error in zip(files, errors, strict=True):
            if error:
                self._due[file.tenant] = time.monotonic() + CHECKPOINT_SECONDS
            else:
                self._due.pop(file.tenant, None)
                if file.checkpoint_size != file.noted:
                    self._note(file)
        return errors

    def _write_heads(self) -> None:
        """One record for each tenant: a proof of one tenant's head shows nothing of another's."""
        if not self._heads:
            return
        self._rotate_system()
        at_ms = self._now_ms()
        records = [canonical({"type": "log.heads", "heads": heads}) for heads in self._heads.values()]
        self.system.append([(at_ms, record) for record in records], at_ms, own=True)
        self._heads.clear()

    def _drop(self, files: Sequence[LogFile]) -> list[LogFile]:
        """Sign and close logs that are full or idle; returns those, the others stay open: the disk refused."""
        files = [file for file in files if not file.failed]
        dropped = [file for file, error in zip(files, self._sign(files), strict=True) if error is None]
        for file in dropped:
            del self._open[file.tenant]
            file.close()
        return dropped

    def _shrink(self) -> None:
        for file in self._drop(list(self._open.values())[: max(0, len(self._open) - OPEN_LOGS)]):
            self._parked[file.tenant] = file
            if len(self._parked) > PARKED_LOGS:
                self._parked.popitem(last=False)

    def _catch_up(self) -> None:
        """Heads that a crash may have kept from the system log: of logs signed since this one was last written."""
        if self.system.size == 0:
            return
        since = self.system.path.stat().st_mtime_ns
        public = notes.public_bytes(self._key)
        for name in names.log_names(self.folder):
            path = self.folder / f"{name}.checkpoint"
            if name.startswith(names.TENANTS) and path.exists() and path.stat().st_mtime_ns >= since:
                checkpoint = logfile.readable_checkpoint(self.folder, name, public)
                if checkpoint is not None:
                    # keyed by folder: here the tenant's name is not known, and one record is one tenant's
                    self._heads.setdefault(name.rpartition("/")[0], {})[name] = [checkpoint.size, checkpoint.root.hex()]


def _append(file: LogFile, records: Records) -> int | AuditError:
    try:
        return file.append(records, records[0][0])
    except AuditError as error:
        return error
    except Exception as error:  # noqa: BLE001 - whatever went wrong, no caller may wait for ever
        return AuditError(f"the audit log failed: {type(error).__name__}: {error}")


def _checkpoint(file: LogFile, at_ms: int) -> AuditError | None:
    try:
        file.checkpoint(at_ms)
    except AuditError as error:
        return error
    return None
