"""The world behind the tools: one small SQLite database that is created from a seed.

A world module has four functions. `create` writes the seeded database, `connect` opens the live one, `fork` gives a
simulated episode its own copy, and `changes` says what was written since the seed: that is how success is decided.
Replace the tables by your systems; keep the four functions.
"""

import csv
import sqlite3
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentops.graph import Clock

SEED = 1  # the suites in pipelines/ are written for this world
CATALOGUE = Path(__file__).parent / "books" / "books.csv"
SCHEMA = """
CREATE TABLE books (book_id TEXT PRIMARY KEY, title TEXT, author TEXT, price_cents INTEGER, available INTEGER);
CREATE TABLE reservations (user TEXT, book_id TEXT, quantity INTEGER, PRIMARY KEY (user, book_id));
CREATE TABLE done (key TEXT PRIMARY KEY);
"""
# What tools may change: table -> (key of a row, columns that an observer would notice).
WATCHED = {"books": (("book_id",), ("available",)), "reservations": (("user", "book_id"), ("quantity",))}


class World:
    """An open database. Do not await while reading or writing."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        connection.row_factory = sqlite3.Row
        self._connection = connection
        self._lock = threading.RLock()

    @contextmanager
    def read(self) -> Generator[sqlite3.Connection]:
        with self._lock:
            yield self._connection

    @contextmanager
    def write(self) -> Generator[sqlite3.Connection]:
        """One transaction: everything in it happens, or nothing."""
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        self._connection.close()


def create(path: Path, seed: int = SEED) -> None:
    """Write the seeded database to `path`."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    _seed(connection)
    connection.close()


def connect(path: Path, clock: Clock, seed: int = 0, latency: bool = True) -> World:
    """Open the live world. This one is fast and needs neither clock nor seed; yours may simulate slow services."""
    return World(sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0))


def fork(path: Path, clock: Clock, seed: int) -> World:
    """A private copy of the seeded world, in memory: for one simulated episode."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    _seed(connection)
    return World(connection)


def changes(world: World, path: Path) -> list[dict[str, Any]]:
    """What was written since the seed: table, key, op and the columns that changed, in a fixed order."""
    fresh = sqlite3.connect(":memory:", isolation_level=None)
    _seed(fresh)
    found: list[dict[str, Any]] = []
    with world.read() as db:
        for table, (key, columns) in WATCHED.items():
            before, now = _rows(fresh, table, key, columns), _rows(db, table, key, columns)
            for name in sorted(before.keys() | now.keys()):
                old, new = before.get(name), now.get(name)
                if old != new:
                    op = "insert" if old is None else "delete" if new is None else "update"
                    found.append({"table": table, "key": name, "op": op, "columns": new or old})
    fresh.close()
    return found


def _seed(connection: sqlite3.Connection) -> None:
    connection.executescript(SCHEMA)
    with open(CATALOGUE, encoding="utf-8", newline="") as file:
        rows = [tuple(row.values()) for row in csv.DictReader(file)]
    connection.executemany("INSERT INTO books VALUES (?, ?, ?, ?, ?)", rows)


def _rows(db: sqlite3.Connection, table: str, key: tuple[str, ...], columns: tuple[str, ...]) -> dict[str, dict]:
    """Key -> watched columns. The names come from WATCHED, never from outside."""
    found = db.execute(f"SELECT {', '.join((*key, *columns))} FROM {table}")  # noqa: S608
    width = len(key)
    return {"/".join(map(str, row[:width])): dict(zip(columns, row[width:], strict=True)) for row in map(tuple, found)}
