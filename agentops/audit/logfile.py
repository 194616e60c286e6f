"""One log on disk: taken under a lock, recovered, appended to, checkpointed.

Invariant: a record counts only after `fdatasync`; the tree, the link and the file move forward together or not at all.
A torn end (a crash while writing) is moved aside and recorded; anything else that does not fit is tampering and the
log refuses to be written. It knows nothing of threads or queues.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agentops.audit import frames, names, notes
from agentops.audit.canonical import canonical
from agentops.errors import AuditError
from agentops.types import Json

ROTATE_BYTES = 16 * 1024 * 1024  # a log that grew past this is closed: taking it up again re-reads all of it
HEADS_AT_ONCE = 1000  # heads in one record: about 100 kB


class LogFile:
    """The log `name` in `folder`, locked for this object until `close`."""

    def __init__(self, folder: Path, name: str, tenant: str, key: Ed25519PrivateKey, descriptor: int) -> None:
        """Recover the log behind `descriptor` (open for reading and writing, already locked).

        Raises:
            AuditError: the log or its checkpoint was changed or cut; names file and offset.
        """
        self.folder = folder
        self.name = name
        self.tenant = tenant
        self.path = folder / f"{name}.log"
        self.failed = ""  # not empty: why nothing more may be written
        self._key = key
        self._descriptor = descriptor
        public = notes.public_bytes(key)
        data = _read_all(descriptor, self.path)
        checkpoint = read_checkpoint(folder, name, public)
        signed = 0 if checkpoint is None else checkpoint.size
        self._secret = notes.seal_secret(key)
        walk = frames.walk(data, name, public, (signed,), self._secret, signed)
        problem = judge(walk, checkpoint, name)
        if problem:
            raise AuditError(
                f"{problem}. Nothing was written; keep the folder as it is and run `agentops audit verify`"
            )
        self._tree, self._link, self._end = walk.tree, walk.link, walk.end
        self.checkpoint_size = signed
        self.noted = signed  # the checkpoint's size that `Logs` has taken to the system log
        self.signed_root = b"" if checkpoint is None else checkpoint.root
        opened: dict[str, Json] = {"type": "log.open", "log": name, "key": notes.key_id(public).hex()}
        self._opening = [{**opened, "pid": os.getpid(), **({"tenant": tenant} if tenant else {})}]
        if walk.tail != "clean":
            self._opening.append(self._quarantine(data[walk.end :]))
        self._opened = False

    @property
    def size(self) -> int:
        """Records written and flushed."""
        return self._tree.size

    @property
    def full(self) -> bool:
        return self._end >= ROTATE_BYTES

    def append(self, records: Sequence[tuple[int, bytes]], at_ms: int, own: bool = False) -> int:
        """Write (milliseconds, canonical JSON) pairs and flush once; returns the index of the first.

        Raises:
            AuditError: the disk refused; nothing of this batch is in the log.
        """
        if not self._opened:
            self._open(at_ms)
        return self._write(records, own)

    def checkpoint(self, at_ms: int) -> None:
        """Sign the present root and replace the checkpoint beside the log.

        Raises:
            AuditError: the disk refused; the earlier checkpoint stands.
        """
        if self.size == self.checkpoint_size or self.failed:
            return
        root = self._tree.root()
        note = notes.sign(notes.Checkpoint(self.name, self.size, root, at_ms), self._key)
        try:
            notes.replace_durably(self.folder / f"{self.name}.checkpoint", note)
        except OSError as error:
            raise AuditError(f"the checkpoint of {self.name!r} cannot be written: {error.strerror}") from None
        self.checkpoint_size, self.signed_root = self.size, root

    def close(self) -> None:
        """Release the lock. Does not checkpoint."""
        os.close(self._descriptor)

    def resume(self) -> bool:
        """Take the log up again after `close` without reading it; False when another process has it or went on with it.

        A change made meanwhile at the same length does not pass: the next checkpoint signs what was written, not what
        lies there.
        """
        if self.failed:
            return False
        try:
            descriptor = _lock(self.path, os.O_RDWR | os.O_APPEND)
            if descriptor is None:
                return False
            if os.fstat(descriptor).st_size != self._end:
                os.close(descriptor)
                return False
        except OSError:
            return False
        self._descriptor = descriptor
        return True

    def _open(self, at_ms: int) -> None:
        """Write what happened at opening; a system log adds the others' heads: none of them can vanish unnoticed."""
        opening = list(self._opening)
        if not self.tenant:
            heads = {
                other: [checkpoint.size, checkpoint.root.hex()]
                for other in names.system_names(self.folder)
                if other != self.name
                and (checkpoint := readable_checkpoint(self.folder, other, notes.public_bytes(self._key))) is not None
            }
            known = list(heads.items())
            for first in range(0, len(known), HEADS_AT_ONCE):
                opening.append({"type": "log.heads", "heads": dict(known[first : first + HEADS_AT_ONCE])})
        self._write([(at_ms, canonical(record)) for record in opening], own=True)
        if not self.checkpoint_size:  # before a caller's first record: from then on, no checkpoint means tampering
            self.checkpoint(at_ms)
        self._opened = True

    def _write(self, records: Sequence[tuple[int, bytes]], own: bool) -> int:
        if self.failed:
            raise AuditError(self.failed)
        link = self._link
        parts: list[bytes] = []
        links: list[bytes] = []
        for at_ms, record in records:
            data, link = frames.frame(link, frames.envelope(at_ms, record, own), self._secret)
            parts.append(data)
            links.append(link)
        batch = b"".join(parts)
        try:
            view = memoryview(batch)
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            self._roll_back()
            raise AuditError(f"the audit log {self.path.name!r} cannot be written: {error.strerror}") from None
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            # After a failed flush the kernel may have dropped the pages: what is on disk is unknown until re-read.
            self.failed = (
                f"the audit log {self.path.name!r} could not be flushed ({error.strerror}): restart to recover"
            )
            raise AuditError(self.failed) from None
        first = self._tree.size
        self._tree.extend(links)
        self._link = link
        self._end += len(batch)
        return first

    def _roll_back(self) -> None:
        try:
            os.ftruncate(self._descriptor, self._end)
        except OSError as error:
            self.failed = f"the audit log {self.path.name!r} holds half a batch ({error.strerror}): restart to recover"

    def _quarantine(self, tail: bytes) -> dict[str, Json]:
        """Move a torn end aside, cut the log there, and return the record that says so."""
        aside = self.path.with_name(f"{self.path.stem}.torn-{self._end}-{secrets.token_hex(4)}")
        notes.write_durably(aside, tail, 0o600)
        notes.sync_folder(aside.parent)
        os.ftruncate(self._descriptor, self._end)
        os.fsync(self._descriptor)
        sha256 = hashlib.sha256(tail).hexdigest()
        return {"type": "log.recovered", "offset": self._end, "bytes": len(tail), "sha256": sha256, "file": aside.name}


def acquire(folder: Path, origin: str, tenant: str, key: Ed25519PrivateKey) -> LogFile:
    """A log of `tenant` ("" = a system log) by `origin` that no process writes, recovered; else a new one.

    Raises:
        AuditError: the log that would be continued was tampered with, or the folder cannot be written.
    """
    prefix = names.prefix(tenant)
    own = re.compile(re.escape(prefix + origin) + r"-[0-9a-f]{12}")
    try:
        for name in names.tenant_names(folder, tenant):
            path = folder / f"{name}.log"
            if own.fullmatch(name) and path.exists() and path.stat().st_size < ROTATE_BYTES:
                descriptor = _lock(path, os.O_RDWR | os.O_APPEND)
                if descriptor is not None:
                    return _recover(folder, name, tenant, key, descriptor)
        place = (folder / prefix).resolve()
        if not place.is_dir():
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            notes.sync_folder(place.parent)
            notes.sync_folder(folder)
        while True:
            name = f"{prefix}{origin}-{secrets.token_hex(6)}"
            descriptor = _lock(folder / f"{name}.log", os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL)
            notes.sync_folder(place)
            if descriptor is not None:
                return _recover(folder, name, tenant, key, descriptor)
    except OSError as error:
        raise AuditError(f"the audit folder {str(folder)!r} cannot be used: {error.strerror}") from None


def judge(walk: frames.Walk, checkpoint: notes.Checkpoint | None, name: str) -> str:
    """Why a log must not be continued or believed, or "". A torn end alone is no reason."""
    where = f"{name}.log, byte {walk.end}"
    if walk.tail == "damaged_inside":
        return f"{where}: a damaged record lies before good ones: the log was changed after it was written"
    if walk.tail == "forged":
        return (
            f"{where}: a record after the last checkpoint was not written with this log's key: it was added by others"
        )
    if walk.tail == "broken_link":
        return f"{where}: a record does not follow the one before it: records were removed, reordered or replaced"
    if checkpoint is None:
        if walk.tree.size > len(walk.control):  # not only the log's own records
            return f"{name}.checkpoint is missing: a log of {walk.tree.size} records must have one"
        return ""
    if walk.tree.size < checkpoint.size:
        return f"{where}: {walk.tree.size} records, but the signed checkpoint says {checkpoint.size}: the log was cut"
    if walk.roots[checkpoint.size] != checkpoint.root:
        return f"{name}.log: the first {checkpoint.size} records are not the ones the checkpoint signed"
    return ""


def read_log(folder: Path, name: str) -> bytes:
    """The bytes of a log as it lies there.

    Raises:
        AuditError: it is missing, no regular file, too large to be a log, or cannot be read.
    """
    path = folder / f"{name}.log"
    try:
        return _content(path)
    except FileNotFoundError:
        raise AuditError(f"{name}.log is missing, but its signed checkpoint is there: the log was removed") from None
    except OSError as error:
        raise AuditError(f"{name}.log cannot be read: {error.strerror}") from None


def read_checkpoint(folder: Path, name: str, public: bytes) -> notes.Checkpoint | None:
    """The signed checkpoint of a log, None when it has none.

    Raises:
        AuditError: it is not signed by this key, or is another log's.
    """
    signed = read_note(folder, name, public)
    return None if signed is None else signed[0]


def read_note(folder: Path, name: str, public: bytes) -> tuple[notes.Checkpoint, bytes] | None:
    """As `read_checkpoint`, with the bytes of the signed note.

    Raises:
        AuditError: as `read_checkpoint`, or it cannot be read.
    """
    try:
        note = _content(folder / f"{name}.checkpoint")
        checkpoint = notes.open_note(note, public)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AuditError(f"{name}.checkpoint cannot be read: {error.strerror}") from None
    except AuditError as error:
        raise AuditError(f"{name}.checkpoint: {error}") from None
    if checkpoint.log != name:
        raise AuditError(f"{name}.checkpoint: is the checkpoint of another log, {checkpoint.log!r}")
    return checkpoint, note


def readable_checkpoint(folder: Path, name: str, public: bytes) -> notes.Checkpoint | None:
    """Another log's checkpoint; a damaged one is that log's problem and is reported by `verify`."""
    with contextlib.suppress(AuditError):
        return read_checkpoint(folder, name, public)
    return None


def _recover(folder: Path, name: str, tenant: str, key: Ed25519PrivateKey, descriptor: int) -> LogFile:
    try:
        return LogFile(folder, name, tenant, key, descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def _lock(path: Path, flags: int) -> int | None:
    """An open descriptor that holds the file's lock, None when another process holds it."""
    descriptor = os.open(path, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _content(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe that was put there must not block
    try:
        return _read_all(descriptor, path)
    finally:
        os.close(descriptor)


def _read_all(descriptor: int, path: Path) -> bytes:
    status = os.fstat(descriptor)
    size = status.st_size
    if not stat.S_ISREG(status.st_mode):
        raise AuditError(f"{path.name} is not a regular file: nothing of ours lies there")
    if size > frames.MAX_LOG:
        raise AuditError(f"{path.name} has {size} bytes: a log ends at {frames.MAX_LOG}, so this is not one of ours")
    parts: list[bytes] = []
    offset = 0
    while offset < size:
        part = os.pread(descriptor, min(size - offset, 16 * 1024 * 1024), offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
    return b"".join(parts)
