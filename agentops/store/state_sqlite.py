"""State in one SQLite file (WAL): the default, for any number of processes on one machine.

Invariant: what a method returned is on disk (synchronous = FULL), but for what a caller said need not be; writers take
turns for at most `BUSY_S` seconds. It does not work over network file systems; use Redis there.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from agentops.errors import StoreError
from agentops.store.state import checked_key, checked_prefix, checked_value, checked_window

BUSY_S = 10.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (key BLOB PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS logs (
    stream BLOB NOT NULL, position INTEGER NOT NULL, value BLOB NOT NULL, PRIMARY KEY (stream, position)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counter (id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL);
INSERT OR IGNORE INTO counter VALUES (1, 0);
"""


class SqliteState:
    """`State` over a file; one connection, shared by the threads of a process under a lock."""

    local = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._closed = False
        self._durable = True
        self._pid = 0
        self._connection: sqlite3.Connection | None = None
        with self._transaction("BEGIN"):
            pass

    def get(self, key: str) -> tuple[bytes, int] | None:
        name = checked_key(key)
        with self._transaction("") as db:  # one statement is a transaction of its own
            return db.execute("SELECT value, version FROM entries WHERE key = ?", (name,)).fetchone()

    def put(self, key: str, value: bytes) -> int:
        name, data = checked_key(key), checked_value(value)
        with self._transaction("BEGIN IMMEDIATE") as db:
            return self._set(db, name, data)

    def compare_and_set(self, key: str, value: bytes | None, version: int, durable: bool = True) -> bool:
        name, data = checked_key(key), None if value is None else checked_value(value)
        with self._transaction("BEGIN IMMEDIATE", durable) as db:
            if not version and data is not None:
                new = db.execute(
                    "INSERT INTO entries SELECT ?, ?, version + 1 FROM counter WHERE id = 1 ON CONFLICT DO NOTHING",
                    (name, data),
                )
                if new.rowcount:
                    db.execute("UPDATE counter SET version = version + 1")
                return bool(new.rowcount)
            row = db.execute("SELECT version FROM entries WHERE key = ?", (name,)).fetchone()
            if (row[0] if row else 0) != version:
                return False
            if data is None:
                db.execute("DELETE FROM entries WHERE key = ?", (name,))
            else:
                self._set(db, name, data)
            return True

    def scan(self, prefix: str) -> list[tuple[str, bytes, int]]:
        start = checked_prefix(prefix)
        with self._transaction("BEGIN") as db:
            rows = db.execute(
                # 0xff never occurs in UTF-8, so it bounds every key with this prefix.
                "SELECT key, value, version FROM entries WHERE key >= ? AND key < ? ORDER BY key",
                (start, start + b"\xff"),
            ).fetchall()
        return [(key.decode(), value, version) for key, value, version in rows]

    def append(self, stream: str, value: bytes) -> int:
        name, data = checked_key(stream), checked_value(value)
        with self._transaction("BEGIN IMMEDIATE") as db:
            (last,) = db.execute("SELECT coalesce(max(position), 0) FROM logs WHERE stream = ?", (name,)).fetchone()
            db.execute("INSERT INTO logs VALUES (?, ?, ?)", (name, last + 1, data))
            return last + 1

    def read(self, stream: str, after: int = 0, limit: int = 1000) -> list[tuple[int, bytes]]:
        name, (start, count) = checked_key(stream), checked_window(after, limit)
        with self._transaction("BEGIN") as db:
            return db.execute(
                "SELECT position, value FROM logs WHERE stream = ? AND position > ? ORDER BY position LIMIT ?",
                (name, start, count),
            ).fetchall()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._connection = None

    @staticmethod
    def _set(db: sqlite3.Connection, name: bytes, data: bytes) -> int:
        (version,) = db.execute("UPDATE counter SET version = version + 1 RETURNING version").fetchone()
        db.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", (name, data, version))
        return version

    @contextmanager
    def _transaction(self, begin: str, durable: bool = True) -> Generator[sqlite3.Connection]:
        with self._lock:
            try:
                db = self._connected()
                if not begin:
                    yield db
                    return
                if durable is not self._durable:  # a commit without fsync is 50 times as fast, and as atomic
                    db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                    self._durable = durable
                db.execute(begin)
                try:
                    yield db
                except BaseException:
                    db.execute("ROLLBACK")
                    raise
                db.execute("COMMIT")
            except (sqlite3.Error, OSError) as error:
                self._end()
                raise StoreError(
                    f"the state in {str(self._path)!r} cannot be used ({error}): check the file and its folder; "
                    "if it is damaged, move it aside and a new one is made (approvals and rollouts are in it)"
                ) from None

    def _end(self) -> None:
        """Undo what a failed commit left open, so that the next transaction can begin."""
        if self._connection is not None and self._connection.in_transaction:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")

    def _connected(self) -> sqlite3.Connection:
        if self._closed:
            raise StoreError(f"the state in {str(self._path)!r} was closed")
        if self._connection is None or self._pid != os.getpid():  # a forked child must not use its parent's handle
            self._connection, self._durable = self._open(), True
            self._pid = os.getpid()
        return self._connection

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # arguments of approvals are in it
        deadline = time.monotonic() + BUSY_S
        while True:
            db = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            try:
                # Switching to WAL ignores the busy timeout when two processes open a new file at once.
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = FULL")
                db.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}COMMIT;")
                return db
            except sqlite3.OperationalError as error:
                db.close()
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            except sqlite3.DatabaseError:
                db.close()
                raise
