"""Where conversations that wait for a person are kept: a LangGraph checkpointer over SQLite, encrypted at rest.

Invariant: nothing is written unencrypted and nothing unencrypted is ever read back, so a changed database file can make
a thread unreadable but cannot plant objects in it. When a thread is deleted is the runtime's business.
"""

import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import aiosqlite
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from agentops.errors import StoreError

CIPHER = "aes256gcm"


class AesGcm:
    """LangGraph's CipherProtocol: AES-256-GCM, a fresh 12-byte nonce before each text."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        nonce = os.urandom(12)
        return CIPHER, nonce + self._cipher.encrypt(nonce, plaintext, CIPHER.encode())

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        """Raises StoreError: another cipher, another key or changed bytes."""
        if ciphername != CIPHER:
            raise StoreError(f"a waiting conversation is encrypted with {ciphername!r}, expected {CIPHER!r}")
        try:
            return self._cipher.decrypt(ciphertext[:12], ciphertext[12:], CIPHER.encode())
        except InvalidTag:
            raise StoreError("a waiting conversation was changed or its key (threads.key) is another one") from None


class Sealed(EncryptedSerializer):
    """EncryptedSerializer that refuses what is not encrypted instead of reading it."""

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        if not data[0].endswith(f"+{CIPHER}"):
            raise StoreError(f"a waiting conversation is stored as {data[0]!r}, not encrypted: refused")
        return super().loads_typed(data)


def key(path: Path) -> bytes:
    """The 32-byte key at `path`, created readable by its owner only.

    Raises:
        StoreError: the file does not hold 32 bytes.
    """
    if not path.exists():
        fresh = path.with_name(f".tmp-{uuid4().hex}")
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(os.urandom(32))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(fresh, path)  # whole or not at all: another process that starts now reads 32 bytes
        fresh.unlink()
    found = path.read_bytes()
    if len(found) != 32:
        raise StoreError(f"{path.name} holds {len(found)} bytes, expected 32: restore it from a backup")
    return found


def prune(home: Path, before: float) -> int:
    """Delete conversations that have waited since before a time (seconds since the epoch); returns how many.

    LangGraph names checkpoints with UUIDs of version 6, which hold the time they were written.

    Raises:
        StoreError: the database cannot be used.
    """
    path = home / "threads.db"
    if not path.exists():
        return 0
    try:
        with closing(sqlite3.connect(path, timeout=10.0)) as db, db:
            rows = db.execute("SELECT thread_id, max(checkpoint_id) FROM checkpoints GROUP BY thread_id").fetchall()
            old = [(thread,) for thread, newest in rows if _written_at(newest) < before]
            for table in ("checkpoints", "writes"):
                db.executemany(f"DELETE FROM {table} WHERE thread_id = ?", old)  # noqa: S608 - names from above
    except sqlite3.Error as error:
        raise StoreError(f"{str(path)!r} cannot be used ({error}): restore it or move it away") from None
    return len(old)


def _written_at(id: str) -> float:
    """Seconds since the epoch of a version 6 UUID (RFC 9562, 5.6): 100 ns steps since 1582-10-15."""
    bits = UUID(id).int
    return ((bits >> 80 << 12) | (bits >> 64 & 0xFFF)) / 1e7 - 12_219_292_800


@asynccontextmanager
async def checkpointer(home: Path) -> AsyncIterator[AsyncSqliteSaver]:
    """An open saver on `home/threads.db`."""
    sealed = Sealed(AesGcm(key(home / "threads.key")), JsonPlusSerializer())
    path = home / "threads.db"
    async with aiosqlite.connect(path) as connection:
        os.chmod(path, 0o600)
        saver = AsyncSqliteSaver(connection, serde=sealed)
        try:
            await saver.setup()
        except sqlite3.Error as error:
            raise StoreError(f"{str(path)!r} cannot be used ({error}): restore it or move it away") from None
        yield saver
