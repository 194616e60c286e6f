"""The simulated company behind the tools: one SQLite database, seeded, with the latencies of its services.

Invariant: a world is a function of its seed and of what was written to it since. `fork` always starts from the seeded
state, whatever happened to the file meanwhile, and `changes` says exactly what was written. The calendar stands still
at `TODAY`, so that a return window is open or closed for good and every expected end state stays right.
It decides nothing about rights: ownership is in `access.py`, permission in the policies.
"""

import asyncio
import functools
import hashlib
import json
import math
import os
import sqlite3
import threading
import tomllib
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import date
from pathlib import Path
from statistics import NormalDist
from typing import Any

from agentops.errors import StoreError, ToolError
from agentops.graph import Clock
from agentops.types import Json

from . import seeding

SEED = 7  # the world every suite of this project was written for
TODAY: date = seeding.TODAY
VERSION = 1  # raise it whenever a schema.sql changes: an older file is refused, not misread

# What tools may change: table -> (natural key of a row, columns that an observer would notice). Ids and times that
# the world makes up itself are left out, so two runs of one plan give one answer.
MUTABLE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "orders": (("order_id",), ("status", "address")),
    "order_events": (("order_id",), ("kind", "detail")),
    "refunds": (("order_id",), ("amount_cents", "reason", "status")),
    "stock": (("sku",), ("available", "reserved")),
    "reservations": (("customer_id", "sku"), ("quantity",)),
    "outbox": (("document_id",), ("email",)),
}


class World:
    """An open database, the clock its services live on and the seed of their latencies."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        clock: Clock,
        seed: int,
        *,
        world_seed: int,
        latency: bool = True,
        seeded: bool = False,  # nothing was written to the database before
    ) -> None:
        self.clock = clock
        self.seed = seed
        self.world_seed = world_seed
        self._latency = latency
        self._connection = connection
        self._lock = threading.RLock()
        self._calls: dict[str, int] = {}
        self._seeded = seeded

    @property
    def untouched(self) -> bool:
        """Certainly as seeded: a private copy through which no row was ever written. False when it is not known."""
        return self._seeded and self._connection.total_changes == 0

    @contextmanager
    def read(self) -> Generator[sqlite3.Connection]:
        """A consistent look at the database. Do not await inside."""
        with self._lock:
            yield self._connection

    @asynccontextmanager
    async def write(self) -> AsyncGenerator[sqlite3.Connection]:
        """One immediate transaction: everything in it happens, or nothing. Do not await inside.

        Raises:
            StoreError: another process kept the database locked for more than two seconds.
        """
        for attempt in range(200):
            self._lock.acquire()
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                break
            except sqlite3.OperationalError as error:
                self._lock.release()
                if "locked" not in str(error) and "busy" not in str(error):
                    raise
                if attempt == 199:
                    raise StoreError("the world's database stays locked by another process; try again") from None
                await asyncio.sleep(0.01)  # real time on purpose: the lock belongs to another process
        try:
            yield self._connection
            self._connection.execute("COMMIT")
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        finally:
            self._lock.release()

    async def once(
        self, key: str, who: str, tool: str, arguments: Mapping[str, Json], work: Callable[[sqlite3.Connection], Json]
    ) -> Json:
        """Do `work` in one transaction, and at most once for an idempotency key of a user.

        Args:
            key: the idempotency key; "" = no protection.
            who: the user the key belongs to.
            tool: name of the tool, part of what the key stands for.
            arguments: the call's arguments: the same key with others is refused.
            work: gets the connection, returns the tool's result; a ToolError undoes everything and is not remembered.

        Returns:
            the result of the first successful call with this key.

        Raises:
            ToolError: `work` refused, or the key was used for another call.
        """
        call = canonical({"tool": tool, "arguments": dict(arguments)})
        async with self.write() as db:
            if key:
                row = db.execute(
                    "SELECT call, result FROM idempotency WHERE key = ? AND who = ?", (key, who)
                ).fetchone()
                if row is not None:
                    if row["call"] != call:
                        raise ToolError(f"{tool}: this request was already used for a different change")
                    return json.loads(row["result"])
            result = work(db)
            if key:
                db.execute("INSERT INTO idempotency VALUES (?, ?, ?, ?)", (key, who, call, json.dumps(result)))
            return result

    async def latency(self, tool: str, arguments: Mapping[str, Json], clock: Clock | None = None) -> None:
        """Wait as long as the simulated service takes: lognormal, a function of seed, tool, arguments and nth call."""
        if not self._latency:
            return
        call = canonical([tool, dict(arguments)])
        if len(self._calls) > 100_000:  # a live world lives for months
            self._calls.clear()
        nth = self._calls[call] = self._calls.get(call, 0) + 1
        await (clock or self.clock).sleep(sample_s(self.seed, tool, call, nth))

    def close(self) -> None:
        self._connection.close()


def create(path: Path, seed: int = SEED) -> None:
    """Write the seeded database to `path`, atomically. An existing world of the same seed is left as it is.

    Raises:
        StoreError: `path` holds something else; it is not touched.
    """
    if path.exists():
        found = world_seed(path)
        if found != seed:
            raise StoreError(f"{str(path)!r} holds the world of seed {found}, not {seed!r}: choose another path")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with open(temporary, "wb") as file:
            file.write(snapshot(seed))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def connect(path: Path, clock: Clock, seed: int = 0, latency: bool = True) -> World:
    """Open the database at `path`: what the live tools work on. `seed` is that of the latencies.

    Raises:
        StoreError: there is no world, or one of another version; says what to do.
    """
    found = world_seed(path)
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0.0)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA foreign_keys = ON")
    with suppress(sqlite3.OperationalError):  # locked just now: another process is switching it on
        connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    return World(connection, clock, seed, world_seed=found, latency=latency)


def fork(path: Path, clock: Clock, seed: int) -> World:
    """A private in-memory copy of the *seeded* state of the world at `path`; `seed` is that of its latencies."""
    found = world_seed(path)
    return World(_in_memory(found), clock, seed, world_seed=found, seeded=True)


def changes(world: World, path: Path | None = None) -> list[dict[str, Json]]:
    """What was written to `world` since it was seeded, in canonical order.

    Args:
        world: a live or forked world.
        path: the database it came from; only checked, the seeded state is known from the world itself.

    Returns:
        one `{"table", "key", "op": "insert"|"update"|"delete", "columns"}` per row; updates hold only the columns that
        changed, with their new values. Equal end states give equal lists.

    Raises:
        StoreError: `path` is a world of another seed.
    """
    if path is not None and (found := world_seed(path)) != world.world_seed:
        raise StoreError(f"{str(path)!r} is the world of seed {found}, this one has seed {world.world_seed}")
    found_changes: list[dict[str, Json]] = []
    if world.untouched:
        return found_changes
    seeded = _seeded_rows(world.world_seed)
    with world.read() as db:
        for table, (key, columns) in MUTABLE.items():
            now = _rows(db, table, key, columns)
            before = seeded[table]
            if now == before:
                continue
            for rowid in now.keys() | before.keys():
                name, old, new = (now.get(rowid) or before[rowid])[0], before.get(rowid), now.get(rowid)
                if old == new:
                    continue
                if old is not None and new is not None:
                    op, shown = "update", {c: n for c, o, n in zip(columns, old[1], new[1], strict=True) if o != n}
                else:
                    op, row = ("insert", new) if new is not None else ("delete", old)
                    shown = dict(zip(columns, row[1], strict=True)) if row is not None else {}
                found_changes.append({"table": table, "key": name, "op": op, "columns": shown})
    return sorted(found_changes, key=canonical)


def canonical(value: Json) -> str:
    """JSON with sorted keys: the same value always gives the same text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def world_seed(path: Path) -> int:
    """The seed the world at `path` was created from.

    Raises:
        StoreError: no file, not a world, or a world of another version.
    """
    if not path.is_file():
        raise StoreError(f"there is no world at {str(path)!r}: create it first (tools/world.py, create)")
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            row = connection.execute("SELECT value FROM meta WHERE key = 'seed'").fetchone()
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{str(path)!r} is not a world: {error}; move it away and create a new one") from None
    if version != VERSION or row is None:
        raise StoreError(
            f"{str(path)!r} has schema version {version}, this project needs {VERSION}: "
            "move it away and create a new one"
        )
    return int(row[0])


@functools.lru_cache(maxsize=4)
def snapshot(seed: int) -> bytes:
    """The seeded database as the bytes of its file."""
    connection = seeding.build(seed, VERSION)
    try:
        return connection.serialize()
    finally:
        connection.close()


def sample_s(seed: int, tool: str, call: str, nth: int) -> float:
    """Seconds the nth identical `call` of `tool` takes: median * exp(sigma * z), z from a hash, at most 4 sigma."""
    median_ms, sigma = latencies().get(tool, (100.0, 0.5))
    word = hashlib.sha256(f"{seed}\0{call}\0{nth}".encode()).digest()
    uniform = (int.from_bytes(word[:7], "big") + 0.5) / 2**56
    z = max(-4.0, min(4.0, NormalDist().inv_cdf(uniform)))
    return median_ms / 1000 * math.exp(sigma * z)


@functools.cache
def latencies() -> dict[str, tuple[float, float]]:
    """Median (ms) and sigma of every tool, from the `[latency.TOOL]` tables of the packs."""
    found: dict[str, tuple[float, float]] = {}
    for file in sorted(Path(__file__).parent.glob("*/pack.toml")):
        for tool, table in tomllib.loads(file.read_text(encoding="utf-8")).get("latency", {}).items():
            found[tool] = (float(table["median_ms"]), float(table["sigma"]))
    return found


def _in_memory(seed: int) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.deserialize(snapshot(seed))
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


_Rows = dict[int, tuple[str, tuple[Any, ...]]]


@functools.lru_cache(maxsize=4)
def _seeded_rows(seed: int) -> dict[str, _Rows]:
    connection = _in_memory(seed)
    try:
        return {table: _rows(connection, table, key, columns) for table, (key, columns) in MUTABLE.items()}
    finally:
        connection.close()


def _rows(db: sqlite3.Connection, table: str, key: tuple[str, ...], columns: tuple[str, ...]) -> _Rows:
    """rowid -> (natural key, columns). The names come from MUTABLE, never from outside."""
    cursor = db.cursor()
    cursor.row_factory = None  # plain tuples
    cursor.execute(f"SELECT rowid, {', '.join((*key, *columns))} FROM {table}")  # noqa: S608
    width = 1 + len(key)
    if width == 2:
        return {row[0]: (row[1], row[width:]) for row in cursor}
    return {row[0]: ("/".join(row[1:width]), row[width:]) for row in cursor}
