"""State of one process that nothing outlives: for simulated episodes, of which thousands start and end a minute."""

import threading
from bisect import bisect_left

from agentops.errors import StoreError
from agentops.store.state import checked_key, checked_prefix, checked_value, checked_window


class MemoryState:
    """`State` in a dictionary, with the same bounds and errors as the durable ones."""

    local = True

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._entries: dict[bytes, tuple[bytes, int]] = {}
        self._logs: dict[bytes, list[bytes]] = {}
        self._version = 0
        self._closed = False

    def get(self, key: str) -> tuple[bytes, int] | None:
        with self._open():
            return self._entries.get(checked_key(key))

    def put(self, key: str, value: bytes) -> int:
        with self._open():
            return self._set(checked_key(key), checked_value(value))

    def compare_and_set(self, key: str, value: bytes | None, version: int, durable: bool = True) -> bool:
        name, data = checked_key(key), None if value is None else checked_value(value)
        with self._open():
            if self._entries.get(name, (b"", 0))[1] != version:
                return False
            if data is not None:
                self._set(name, data)
            else:
                self._entries.pop(name, None)
            return True

    def scan(self, prefix: str) -> list[tuple[str, bytes, int]]:
        start = checked_prefix(prefix)
        with self._open():
            keys = sorted(self._entries)
            found = keys[bisect_left(keys, start) :]
            return [(key.decode(), *self._entries[key]) for key in found if key.startswith(start)]

    def append(self, stream: str, value: bytes) -> int:
        with self._open():
            log = self._logs.setdefault(checked_key(stream), [])
            log.append(checked_value(value))
            return len(log)

    def read(self, stream: str, after: int = 0, limit: int = 1000) -> list[tuple[int, bytes]]:
        start, count = checked_window(after, limit)
        with self._open():
            log = self._logs.get(checked_key(stream), [])
            return list(enumerate(log[start : start + count], start + 1))

    def close(self) -> None:
        self._closed = True

    def _set(self, name: bytes, data: bytes) -> int:
        self._version += 1
        self._entries[name] = (data, self._version)
        return self._version

    def _open(self) -> threading.RLock:
        if self._closed:
            raise StoreError("the state in memory was closed")
        return self._lock
