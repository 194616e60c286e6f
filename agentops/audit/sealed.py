"""Records that hold personal values, encrypted under the key of the person they are about, kept for a few days.

Invariant: `post` never waits and never raises; what it cannot keep is counted, and the count is stored and read back.
What lies on disk can be read only with the person's key: once `SubjectKeys.erase` has destroyed it, nobody can. A file
cut off anywhere gives every record before the cut.

A file is a sequence of frames `length | subject | time | nonce | AES-256-GCM`, one file per process and UTC day in
`date=YYYY-MM-DD/`. Subject, time and day are authenticated with the content. No audit log: nothing waits for the disk,
so a power cut loses the last seconds, and whole files can vanish unnoticed.
"""

import logging
import os
import secrets
import shutil
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from agentops.audit.canonical import hmac_sha256
from agentops.audit.subjects import Subject, SubjectKeys
from agentops.graph import Clock, RealClock
from agentops.types import Json

MAGIC = b"\xa6AS\x01"  # the last byte is the format: AES-256-GCM under HMAC-SHA-256 of the subject's key and the day
HEAD = struct.Struct(">I16sQ12s")  # bytes after the length field, subject, Unix milliseconds, nonce
KEEP_DAYS = 7
MAX_RECORD = 1024 * 1024  # bytes
MAX_WAITING = 64 * 1024 * 1024  # bytes handed in and not written yet
GATHER_S = 0.2  # records of this long are written at once
_LOST = bytes(16)  # in place of a subject: a frame that says how many records were not kept
_LOG = logging.getLogger(__name__)

Waiting = tuple[int, Subject, bytes]  # Unix milliseconds, whose, content


class SealedRecords:
    """The encrypted records in `folder`. Thread-safe; each process writes files of its own."""

    def __init__(self, folder: Path, subjects: SubjectKeys, clock: Clock = RealClock(), keep_days: int = KEEP_DAYS):
        """Nothing is made before the first record.

        Args:
            folder: holds the days' folders; created with mode 0700.
            subjects: keys of the people.
            clock: stamps the records.
            keep_days: whole days (UTC) before today that are kept; older ones are removed when a day's file is begun,
                and by `prune`: a process that writes nothing removes nothing by itself.
        """
        self._folder, self._subjects, self._clock, self._keep_days = folder, subjects, clock, keep_days
        self._wake = threading.Condition()
        self._queue: list[Waiting] = []
        self._size = 0
        self._lost = 0  # not written down yet
        self._flushes: list[Future[None]] = []
        self._closing = False
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._day = ""
        self._file: IO[bytes] | None = None
        self._quiet_until = 0.0

    def post(self, tenant: str, user: str, record: Mapping[str, Json]) -> None:
        """Keep `record` about this person: JSON, dataclasses and sets. Never waits, never raises."""
        try:
            # The key is taken now: looked up later it could be one made after an erasure.
            subject = self._subjects.subject(tenant, user)
            data = orjson.dumps({"tenant": tenant, "user": user, "record": record}, default=_plain)
            item = (int(self._clock.now() * 1000), subject, data)
        except Exception as error:  # noqa: BLE001 - a call never fails because of a copy of its decision
            self._lose(1, f"{type(error).__name__}")
            return
        with self._wake:
            full = self._size + len(data) > MAX_WAITING or len(data) > MAX_RECORD
            usable = not self._closing and self._pid == os.getpid()
            if usable and not full:
                self._queue.append(item)
                self._size += len(data)
                if len(self._queue) == 1:  # the writer sleeps; later ones are gathered
                    self._start()
                    self._wake.notify()
        if full or not usable:
            self._lose(1, "the queue is full or the record too long" if full else "closed, or of another process")

    def flush(self) -> None:
        """Return when everything posted so far is on disk (or counted as lost)."""
        done: Future[None] = Future()
        with self._wake:
            if self._thread is None or self._closing or self._pid != os.getpid():
                return
            self._flushes.append(done)
            self._wake.notify()
        done.result()

    def close(self) -> None:
        """Write what waits and close the file. Safe to call twice."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join()
        self._thread = None

    def read(self, since: float, until: float, tenant: str = "") -> "Reading":
        """Records of `since` <= time < `until` (Unix seconds), of one tenant when it is named; see `Reading`."""
        return Reading(self._folder, self._subjects, since, until, tenant)

    def prune(self) -> int:
        """Remove the days that are not to be kept any more; returns how many were removed."""
        oldest = _day(self._clock.now() - timedelta(days=self._keep_days).total_seconds())
        old = [folder for folder in self._folder.glob("date=*") if folder.name[5:] < oldest]
        for folder in old:
            shutil.rmtree(folder, ignore_errors=True)  # another process may be doing the same
        return len(old)

    def _lose(self, count: int, why: str) -> None:
        with self._wake:
            self._lost += count
            speak = time.monotonic() >= self._quiet_until
            if speak:
                self._quiet_until = time.monotonic() + 60
        if speak:
            _LOG.warning("decision records are not kept: %s", why)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="sealed-records", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._queue or self._flushes or self._closing)
                self._wake.wait_for(lambda: self._flushes or self._closing, GATHER_S)
                batch, self._queue, self._size = self._queue, [], 0
                flushes, self._flushes = self._flushes, []
                closing = self._closing
            self._write(batch, durable=bool(flushes) or closing)
            for done in flushes:
                done.set_result(None)
            if closing:
                self._leave()
                return

    def _write(self, batch: list[Waiting], durable: bool) -> None:
        written = 0
        try:
            for day, items in _by_day(batch).items():
                file = self._opened(day, items[0][0])
                with self._wake:
                    lost, self._lost = self._lost, 0
                frames = [_frame(day, *item) for item in items]
                if lost:
                    frames.append(HEAD.pack(HEAD.size - 4 + 8, _LOST, items[0][0], bytes(12)) + struct.pack(">Q", lost))
                try:
                    file.write(b"".join(frames))
                    file.flush()
                except OSError:
                    with self._wake:
                        self._lost += lost
                    raise
                written += len(items)
            if durable and self._file is not None:
                os.fdatasync(self._file.fileno())
        except OSError as error:
            # Half a frame may be its end: the next records get a file of their own. Of this batch some may be read.
            self._leave()
            self._lose(len(batch) - written, os.strerror(error.errno or 0))

    def _opened(self, day: str, at_ms: int) -> IO[bytes]:
        if self._file is None or self._day != day:
            self._leave()
            folder = self._folder / f"date={day}"
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.prune()
            folder.mkdir(exist_ok=True, mode=0o700)
            path = folder / f"{at_ms}-{os.getpid()}-{secrets.token_hex(4)}.sealed"
            self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
            self._file.write(MAGIC)
            self._day = day
        return self._file

    def _leave(self) -> None:
        file, self._file, self._day = self._file, None, ""
        if file is not None:
            try:
                file.close()
            except OSError:
                pass  # what its buffer still held was counted as lost


class Reading:
    """Iterates over `{"at", "tenant", "user", "record"}` in the order of days and files; the counts grow meanwhile."""

    def __init__(self, folder: Path, subjects: SubjectKeys, since: float, until: float, tenant: str) -> None:
        self._folder, self._subjects = folder, subjects
        self._since, self._until, self._tenant = since, until, tenant
        self.erased = 0  # records whose person was erased: nobody can read them
        self.torn = 0  # files whose end was cut off, by a crash or because it is being written
        self.damaged = 0  # records that were changed, and files that hold something else
        self.lost = 0  # records that their process could not keep

    def __iter__(self) -> Iterator[dict[str, Json]]:
        first, last = _day(self._since), _day(self._until)
        for folder in sorted(self._folder.glob("date=*")):
            if first <= folder.name[5:] <= last:
                for path in sorted(folder.glob("*.sealed")):
                    try:
                        with path.open("rb") as file:
                            yield from self._records(file, folder.name[5:])
                    except FileNotFoundError:
                        continue  # its day was pruned meanwhile

    def _records(self, file: IO[bytes], day: str) -> Iterator[dict[str, Json]]:
        ciphers: dict[bytes, AESGCM | None] = {}
        magic = file.read(len(MAGIC))
        if magic != MAGIC:
            self.torn += MAGIC.startswith(magic)
            self.damaged += not MAGIC.startswith(magic)
            return
        while head := file.read(HEAD.size):
            if len(head) < HEAD.size:
                self.torn += 1
                return
            length, subject, at_ms, nonce = HEAD.unpack(head)
            rest = length - (HEAD.size - 4)
            if not 8 <= rest <= MAX_RECORD + 1024:
                self.damaged += 1
                return
            content = file.read(rest)
            if len(content) < rest:
                self.torn += 1
                return
            if not self._since <= at_ms / 1000 < self._until:
                continue
            if subject == _LOST:
                self.lost += int.from_bytes(content[:8], "big")
                continue
            if subject not in ciphers:
                found = self._subjects.find(subject.hex())
                ciphers[subject] = _cipher(found, day) if found else None
            cipher = ciphers[subject]
            if cipher is None:
                self.erased += 1
                continue
            try:
                opened = orjson.loads(cipher.decrypt(nonce, content, _bound(subject, day, at_ms)))
            except (InvalidTag, orjson.JSONDecodeError):
                self.damaged += 1
                continue
            if not self._tenant or opened["tenant"] == self._tenant:
                yield {"at": at_ms / 1000, **opened}


def _plain(value: object) -> Json:
    """What orjson does not know: sets as sorted lists, mappings as dicts."""
    if isinstance(value, frozenset | set):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(min(max(seconds, 0.0), 253402300799.0), UTC).strftime("%Y-%m-%d")


def _by_day(batch: list[Waiting]) -> dict[str, list[Waiting]]:
    days: dict[str, list[Waiting]] = {}
    for item in batch:
        days.setdefault(_day(item[0] / 1000), []).append(item)
    return days


def _frame(day: str, at_ms: int, subject: Subject, data: bytes) -> bytes:
    name, nonce = bytes.fromhex(subject.id), secrets.token_bytes(12)
    content = _cipher(subject, day).encrypt(nonce, data, _bound(name, day, at_ms))
    return HEAD.pack(HEAD.size - 4 + len(content), name, at_ms, nonce) + content


def _cipher(subject: Subject, day: str) -> AESGCM:
    # A key of its own for every day: far below the 2^32 random nonces that one key allows (NIST SP 800-38D, 8.3).
    return AESGCM(hmac_sha256(subject.key, b"agentops sealed record\n" + day.encode()))


def _bound(subject: bytes, day: str, at_ms: int) -> bytes:
    return subject + day.encode() + struct.pack(">Q", at_ms)
