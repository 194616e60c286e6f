"""The cache within one process: least recently used entries go first, by number and by bytes.

Invariant: the bytes held never exceed the limit, a stale entry is never served, and callers never share an object.
It is for one event loop at a time (entries outlive it); replicas need `shared.RedisCache`.
"""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import orjson

from agentops.cache.flights import Flight, Flights, Tag
from agentops.cache.key import CacheKey
from agentops.types import CacheRule, Json

_OVERHEAD = 512  # bytes: what an entry's key, tags and bookkeeping take, roughly


@dataclass(frozen=True, slots=True)
class _Entry:
    value: bytes
    expires: float
    tags: frozenset[Tag]

    @property
    def size(self) -> int:
        return len(self.value) + _OVERHEAD


class MemoryCache:
    """A `Cache` in this process.

    Args:
        max_entries: number of values held.
        max_bytes: their size, in bytes of JSON plus a fixed overhead each.
        now: monotonic seconds; a simulation passes its clock's.
    """

    def __init__(
        self, max_entries: int = 10_000, max_bytes: int = 64 * 1024 * 1024, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._now = now
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._by_tag: dict[Tag, set[str]] = {}
        self._bytes = 0
        self._flights = Flights()

    async def get_or_call(
        self, key: CacheKey, rule: CacheRule, tags: tuple[str, ...], call: Callable[[], Awaitable[Json]]
    ) -> tuple[Json, bool]:
        """See `Cache.get_or_call`."""
        digest = key.digest()
        entry = self._entries.get(digest)
        if entry is not None:
            if entry.expires > self._now():
                self._entries.move_to_end(digest)
                return orjson.loads(entry.value), True
            self._drop(digest)
        bound = frozenset((key.tenant, tag) for tag in tags)

        async def compute(flight: Flight) -> bytes:
            began = self._now()
            value = orjson.dumps(await call())
            if not flight.stale:
                self._store(digest, _Entry(value, began + rule.ttl_s, bound))
            return value

        value, joined = await self._flights.share(digest, bound, compute)
        return orjson.loads(value), joined

    async def invalidate(self, tenant: str, tags: Iterable[str]) -> None:
        """See `Cache.invalidate`."""
        bound = [(tenant, tag) for tag in tags]
        self._flights.invalidate(bound)
        for tag in bound:
            for digest in tuple(self._by_tag.get(tag, ())):
                self._drop(digest)

    async def close(self) -> None:
        self._entries.clear()
        self._by_tag.clear()
        self._bytes = 0

    def _store(self, digest: str, entry: _Entry) -> None:
        self._drop(digest)
        if entry.size > self._max_bytes or entry.expires <= self._now():
            return
        self._entries[digest] = entry
        self._bytes += entry.size
        for tag in entry.tags:
            self._by_tag.setdefault(tag, set()).add(digest)
        while len(self._entries) > self._max_entries or self._bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, digest: str) -> None:
        entry = self._entries.pop(digest, None)
        if entry is None:
            return
        self._bytes -= entry.size
        for tag in entry.tags:
            digests = self._by_tag[tag]
            digests.discard(digest)
            if not digests:
                del self._by_tag[tag]
