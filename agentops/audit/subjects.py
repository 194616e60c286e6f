"""One secret key per (tenant, user): what personal values in records are digested and sealed under, until it is erased.

Invariant: once `erase` has returned, the key and the link from the person to their public id are in no file of this
store, and no process uses them later than `ERASED_WITHIN_S` afterwards. Records keep the random id and digests that
nobody can link or guess any more; the logs that hold them stay as they are and still verify.

SQLite (WAL, secure_delete) in one file of mode 0600, one on each machine: where several write audit logs, a person is
erased on each. Names are not stored: a row is found by a keyed hash of them. It erases nothing outside its file:
backups and snapshots of it must expire by themselves, and other stores have their own retention.
"""

import hmac
import os
import secrets
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from agentops.audit.canonical import canonical
from agentops.errors import StoreError

ERASED_WITHIN_S = 1.0  # every process looks at least this often whether another one erased a key
CACHED = 10_000  # subjects kept in memory
BUSY_S = 10.0  # longest wait for another process
_SCHEMA = """
CREATE TABLE IF NOT EXISTS subjects (who BLOB PRIMARY KEY, id TEXT NOT NULL UNIQUE, key BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS store (one INTEGER PRIMARY KEY CHECK (one = 1), pepper BLOB NOT NULL, erased INTEGER);
"""


@dataclass(frozen=True, slots=True)
class Subject:
    """A person in a tenant, as records know them."""

    id: str  # 32 hex digits, random: says nothing of whose it is
    key: bytes = field(repr=False)  # 32 random bytes


class SubjectKeys:
    """The keys in `path`. Thread-safe; any number of processes share the file."""

    def __init__(self, path: Path) -> None:
        """`path` and its folder (mode 0700) are made with the first key, not before."""
        self._path = path
        self._lock = threading.Lock()
        self._cache: OrderedDict[tuple[str, str], Subject] = OrderedDict()
        self._look_at = 0.0
        self._version = self._erased = -1
        self._pepper = b""
        self._connection: sqlite3.Connection | None = None
        self._pid = 0

    def subject(self, tenant: str, user: str) -> Subject:
        """The subject of this person, made (and durable) when there is none: microseconds when seen lately.

        Raises:
            StoreError: the file cannot be read or written.
        """
        with self._lock:
            if time.monotonic() >= self._look_at or self._pid != os.getpid():
                self._look()
            found = self._cache.get((tenant, user))
            if found is None:
                found = self._cache[tenant, user] = self._stored(tenant, user)
                while len(self._cache) > CACHED:
                    self._cache.popitem(last=False)
            self._cache.move_to_end((tenant, user))
            return found

    def find(self, id: str) -> Subject | None:
        """The subject with this public id; None when it was erased, or never was.

        Raises:
            StoreError: the file cannot be read.
        """
        with self._lock, self._used(begin="") as db:
            rows = db.execute("SELECT key FROM subjects WHERE id = ?", (id,)).fetchall()
        return Subject(id, rows[0][0]) if rows else None

    def known(self, tenant: str, user: str) -> str:
        """The id of this person; "" when there is no key. Makes none.

        Raises:
            StoreError: the file cannot be read.
        """
        with self._lock:
            who = self._who(tenant, user)
            with self._used(begin="") as db:
                rows = db.execute("SELECT id FROM subjects WHERE who = ?", (who,)).fetchall()
        return rows[0][0] if rows else ""

    def erase(self, tenant: str, user: str) -> str:
        """Destroy the person's key and id, in the file and its write-ahead log; when it returns, that is on disk.

        Returns:
            the id that records go on holding; "" when there is no key: never seen, or erased before.

        Raises:
            StoreError: the file cannot be written, or other processes kept its log in use: erase again.
        """
        with self._lock:
            self._cache.pop((tenant, user), None)
            with self._used() as db:
                rows = db.execute(
                    "DELETE FROM subjects WHERE who = ? RETURNING id", (self._who(tenant, user),)
                ).fetchall()
                if rows:
                    db.execute("UPDATE store SET erased = erased + 1")
            with self._used(begin="") as db:
                # Old pages with the key lie in the write-ahead log until it is emptied; also after an earlier failure.
                [(busy, _, _)] = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            if busy:
                raise StoreError(
                    f"the key was erased, but {str(self._path)!r} is in use and its log still holds a copy: erase again"
                )
        return rows[0][0] if rows else ""

    def close(self) -> None:
        """Forget the keys in memory and close the file; the next use opens it again."""
        with self._lock:
            self._cache.clear()
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._connection = None
            self._look_at = 0.0

    def _look(self) -> None:
        """Forget everything in memory when another process erased something."""
        with self._used(begin="") as db:
            [(version,)] = db.execute("PRAGMA data_version").fetchall()
            if version != self._version:  # somebody wrote: mostly a new subject
                [(erased,)] = db.execute("SELECT erased FROM store").fetchall()
                if erased != self._erased:
                    self._cache.clear()
                self._version, self._erased = version, erased
        self._look_at = time.monotonic() + ERASED_WITHIN_S

    def _stored(self, tenant: str, user: str) -> Subject:
        who = self._who(tenant, user)
        with self._used(begin="") as db:
            rows = db.execute("SELECT id, key FROM subjects WHERE who = ?", (who,)).fetchall()
        if not rows:
            made = (who, secrets.token_hex(16), secrets.token_bytes(32))
            with self._used() as db:
                db.execute("INSERT OR IGNORE INTO subjects VALUES (?, ?, ?)", made)
                rows = db.execute("SELECT id, key FROM subjects WHERE who = ?", (who,)).fetchall()
        return Subject(*rows[0])

    def _who(self, tenant: str, user: str) -> bytes:
        if not self._pepper:
            with self._used(begin="") as db:
                [(self._pepper,)] = db.execute("SELECT pepper FROM store").fetchall()
        return hmac.digest(self._pepper, canonical([tenant, user]), "sha256")

    @contextmanager
    def _used(self, begin: str = "BEGIN IMMEDIATE") -> Generator[sqlite3.Connection]:
        """The connection, in one transaction unless `begin` is empty."""
        try:
            if self._connection is None or self._pid != os.getpid():  # a forked child must not use its parent's handle
                self._cache.clear()
                self._connection, self._pid, self._version = self._opened(), os.getpid(), -1
            db = self._connection
            if not begin:
                yield db
                return
            db.execute(begin)
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise StoreError(
                f"the subjects' keys in {str(self._path)!r} cannot be used ({error}): check the file and its folder; "
                "without it no record of a person can be made"
            ) from None

    def _opened(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite gives its log the same mode
        deadline = time.monotonic() + BUSY_S
        while True:
            db = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            try:
                # Switching to WAL ignores the busy timeout when two processes open a new file at once.
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = FULL")
                db.execute("PRAGMA secure_delete = ON")  # of this connection: what is deleted is overwritten
                db.execute("PRAGMA temp_store = MEMORY")
                db.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}COMMIT;")
                db.execute("INSERT OR IGNORE INTO store VALUES (1, ?, 0)", (secrets.token_bytes(32),))
                # An erasure that was killed half-way left the key in the log. Not waited for: others may be writing.
                db.execute("PRAGMA busy_timeout = 0")
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                db.execute(f"PRAGMA busy_timeout = {int(BUSY_S * 1000)}")
                return db
            except sqlite3.OperationalError as error:
                db.close()
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            except sqlite3.DatabaseError:
                db.close()
                raise
