"""Small shared state: keys with versions, and ordered logs. SQLite on one machine, Redis for many.

Invariant: every write gives a key a version never used before in this store, so `compare_and_set` cannot be fooled by
a value that was deleted and written again. Both backends behave alike (one hypothesis machine tests them against one
model). Values are bytes; their meaning belongs to the caller. This is not a cache: nothing expires.
"""

from pathlib import Path
from typing import Protocol

from agentops.errors import StoreError

MAX_KEY_BYTES = 1024
MAX_VALUE_BYTES = 16 * 1024 * 1024


class State(Protocol):
    """Thread-safe and multi-process; every method raises StoreError when the backend cannot answer."""

    @property
    def local(self) -> bool:
        """Whether a `get` takes microseconds, without a network: an event loop may then ask by itself."""
        ...

    def get(self, key: str) -> tuple[bytes, int] | None:
        """Value and version, or None."""
        ...

    def put(self, key: str, value: bytes) -> int:
        """Write unconditionally; returns the new version."""
        ...

    def compare_and_set(self, key: str, value: bytes | None, version: int, durable: bool = True) -> bool:
        """Write only if the key still has `version`. Version 0: it must not exist. Value None: delete it.

        Not `durable`: it outlives every process, but a power cut may take the last moments back (SQLite: no fsync).
        """
        ...

    def scan(self, prefix: str) -> list[tuple[str, bytes, int]]:
        """Every (key, value, version) whose key starts with `prefix`, in byte order of the keys."""
        ...

    def append(self, stream: str, value: bytes) -> int:
        """Add to the end of an ordered log; returns its position, 1-based without gaps."""
        ...

    def read(self, stream: str, after: int = 0, limit: int = 1000) -> list[tuple[int, bytes]]:
        """At most `limit` (position, value) entries that come after position `after`."""
        ...

    def close(self) -> None:
        """Release connections. Any later call raises StoreError."""
        ...


def open_state(home: Path, redis_url: str | None) -> State:
    """The state of a deployment: Redis when a URL is given, else `home`/state.db.

    Raises:
        StoreError: the backend cannot be reached or opened.
    """
    if redis_url:
        from agentops.store.state_redis import RedisState

        return RedisState(redis_url)
    from agentops.store.state_sqlite import SqliteState

    return SqliteState(home / "state.db")


def checked_key(key: str) -> bytes:
    """A key or stream name as bytes.

    Raises:
        StoreError: empty, too long or not valid Unicode.
    """
    try:
        data = key.encode()
    except UnicodeEncodeError:
        raise StoreError(f"state key {key[:80]!r} is not valid Unicode") from None
    if not 1 <= len(data) <= MAX_KEY_BYTES:
        raise StoreError(f"a state key has 1 to {MAX_KEY_BYTES} bytes, got {len(data)}: {key[:80]!r}")
    return data


def checked_prefix(prefix: str) -> bytes:
    """A scan prefix as bytes; empty means every key."""
    return checked_key(prefix) if prefix else b""


def checked_value(value: bytes) -> bytes:
    """A value within bounds.

    Raises:
        StoreError: not bytes, or too large.
    """
    if not isinstance(value, bytes):
        raise StoreError(f"a state value is bytes, got {type(value).__name__}: encode it first")
    if len(value) > MAX_VALUE_BYTES:
        raise StoreError(f"a state value has at most {MAX_VALUE_BYTES} bytes, got {len(value)}: store a reference")
    return value


def checked_window(after: int, limit: int) -> tuple[int, int]:
    """Bounds of a log read.

    Raises:
        StoreError: negative position, or a limit outside 1 to 100,000.
    """
    if after < 0 or not 1 <= limit <= 100_000:
        raise StoreError(f"read a log with after >= 0 and limit 1 to 100000, got after={after!r}, limit={limit!r}")
    return after, limit
