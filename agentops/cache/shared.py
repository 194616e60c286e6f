"""The cache that replicas share through Redis: one computation over all processes, handed over when its leader dies.

Invariant: a value read before a write is never served after it (see `scripts`), and a reply that belongs to another
key is never served: every reply names its key. Redis may vanish at any time: calls go on without it, each with a
bounded delay, and use it again when it is back. Writes that could not be announced are announced first then; until
that, other replicas may serve the old value for at most its time to live.
"""

import asyncio
import hashlib
import logging
import math
import secrets
import weakref
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar
from urllib.parse import quote

import orjson
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from agentops.cache import scripts
from agentops.cache.breaker import Breaker, Unavailable
from agentops.cache.flights import Flight, Flights, Tag
from agentops.cache.key import CacheKey
from agentops.errors import ConfigError
from agentops.types import CacheRule, Json

T = TypeVar("T")
MAX_VALUE_BYTES = 1024 * 1024  # a larger value is computed each time
_OWED_LIMIT = 10_000  # announcements kept while Redis is gone; beyond it whole tenants are made stale
_ALL = "*"  # a tag of every entry
_LOG = logging.getLogger(__name__)


class RedisCache:
    """A `Cache` that every process with the same Redis shares.

    Args:
        url: redis://, rediss:// or unix:// address.
        lease_s: a leader that shows no sign of life for this long is replaced. It renews while it computes.
        breaker: how long an operation may take, and the rest after a failure.

    Raises:
        ConfigError: `url` is not a Redis address; the address is not repeated, it may hold a password.
    """

    def __init__(self, url: str, lease_s: float = 2.0, breaker: Breaker | None = None) -> None:
        try:
            redis.asyncio.connection.parse_url(url)
        except ValueError:
            raise ConfigError(
                "AGENTOPS_REDIS_URL is not a Redis address: use redis://[user:password@]host:port/db, rediss:// or unix://"
            ) from None
        self._url = url
        self._lease_ms = max(1, round(lease_s * 1000))
        self.breaker = breaker or Breaker()
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Client] = weakref.WeakKeyDictionary()
        self._flights = Flights()
        self._owed: dict[Tag, object] = {}  # invalidations Redis has not confirmed, each with a mark of its own

    async def get_or_call(
        self, key: CacheKey, rule: CacheRule, tags: tuple[str, ...], call: Callable[[], Awaitable[Json]]
    ) -> tuple[Json, bool]:
        """See `Cache.get_or_call`. Callers in other processes do not get a leader's error: one of them calls again."""
        digest = key.digest()
        bound = frozenset((key.tenant, tag) for tag in (*tags, _ALL))

        async def compute(_: Flight) -> tuple[bytes, bool]:
            return await self._compute(_Place(key.tenant, digest, tags), rule, call)

        (value, hit), joined = await self._flights.share(digest, bound, compute)
        return orjson.loads(value), hit or joined

    async def invalidate(self, tenant: str, tags: Iterable[str]) -> None:
        """See `Cache.invalidate`. Never fails: what Redis could not be told is told when it is back."""
        bound = [(tenant, tag) for tag in tags]
        self._flights.invalidate(bound)
        self._owed.update((tag, object()) for tag in bound)
        if len(self._owed) > _OWED_LIMIT:
            self._owed = {(owed, _ALL): object() for owed, _ in self._owed}
        try:
            await self._announce()
        except Unavailable:
            _LOG.warning("cache: Redis does not answer; %d invalidation(s) wait for it", len(self._owed))

    async def close(self) -> None:
        """Close this event loop's connections."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.redis.aclose()

    async def _compute(
        self, place: "_Place", rule: CacheRule, call: Callable[[], Awaitable[Json]]
    ) -> tuple[bytes, bool]:
        token = secrets.token_hex(16)
        life_ms = math.ceil(rule.ttl_s * 1000)
        pause = 0.001
        while True:
            try:
                if self._owed:
                    await self._announce()
                answer, content = await self._begin(place, token, life_ms)
            except Unavailable:
                return orjson.dumps(await call()), False
            if answer == b"hit":
                return content, True
            if answer == b"lead":
                return await self._lead(place, token, content, life_ms, call), False
            await asyncio.sleep(pause)  # another process computes it
            pause = min(pause * 1.5, 0.02)

    async def _lead(
        self, place: "_Place", token: str, seen: bytes, life_ms: int, call: Callable[[], Awaitable[Json]]
    ) -> bytes:
        keeper = asyncio.create_task(self._keep(place, token.encode() + seen))
        value = b""
        try:
            value = orjson.dumps(await call())
            return value
        finally:
            keeper.cancel()
            store = bool(value) and len(value) <= MAX_VALUE_BYTES
            finish = asyncio.create_task(self._finish(place, token, seen, value, life_ms if store else 0))
            await asyncio.shield(finish)  # also when cancelled: the lease is given back at once

    async def _keep(self, place: "_Place", lease: bytes) -> None:
        """Renew the lease while its leader computes. Redis gone: the lease runs out, which is safe."""
        while True:
            await asyncio.sleep(self._lease_ms / 3000)
            try:
                await self._run(lambda client: client.renew(keys=[place.lease], args=[lease, self._lease_ms]))
            except Unavailable:
                continue

    async def _begin(self, place: "_Place", token: str, life_ms: int) -> tuple[bytes, bytes]:
        generation_ms = 2 * (life_ms + self._lease_ms) + 60_000
        fresh = secrets.token_hex(8)
        args = [place.digest, token, self._lease_ms, generation_ms, fresh]
        answer, content, digest = await self._run(lambda client: client.begin(keys=place.keys, args=args))
        if digest != place.digest.encode():
            raise Unavailable  # a reply that is not ours: never serve it
        return answer, content

    async def _finish(self, place: "_Place", token: str, seen: bytes, value: bytes, life_ms: int) -> None:
        args = [place.digest, token, seen, value, life_ms]
        try:
            await self._run(lambda client: client.finish(keys=place.keys, args=args))
        except Unavailable:
            return  # nothing stored; the lease runs out

    async def _announce(self) -> None:
        """End the generation of every owed tag."""
        owed = dict(self._owed)

        async def drop(client: "_Client") -> None:
            pipeline = client.redis.pipeline(transaction=False)
            for tenant, tag in owed:
                # Gone from Redis matches nothing: the next read makes a new one.
                pipeline.delete(_prefix(tenant) + "g:" + _short(tag))
            await pipeline.execute()

        await self._run(drop)
        for tag, mark in owed.items():
            if self._owed.get(tag) is mark:  # else owed anew meanwhile, by a write after this announcement
                del self._owed[tag]

    async def _run(self, operation: Callable[["_Client"], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = _Client(self._url)
        async with client.slots:  # outside the limit: a queue in this process is not a slow Redis
            return await self.breaker.run(lambda: operation(client))


class _Client:
    """One event loop's connections and scripts."""

    def __init__(self, url: str) -> None:
        self.redis: Any = redis.asyncio.Redis.from_url(
            url, socket_timeout=None, socket_connect_timeout=None, retry=Retry(NoBackoff(), 0)
        )
        self.slots = asyncio.Semaphore(32)
        self.begin = self.redis.register_script(scripts.BEGIN)
        self.finish = self.redis.register_script(scripts.FINISH)
        self.renew = self.redis.register_script(scripts.RENEW)


class _Place:
    """The Redis keys of one cached value."""

    __slots__ = ("digest", "keys", "lease")

    def __init__(self, tenant: str, digest: str, tags: tuple[str, ...]) -> None:
        prefix = _prefix(tenant)
        self.digest = digest
        self.lease = prefix + "l:" + digest
        generations = [prefix + "g:" + _short(tag) for tag in (*sorted(set(tags)), _ALL)]
        self.keys = [prefix + "e:" + digest, self.lease, *generations]


def _prefix(tenant: str) -> str:
    return "agentops:cache:{" + (quote(tenant, safe="") or "-") + "}:"  # an empty hash tag would be none


def _short(tag: str) -> str:
    return hashlib.sha256(tag.encode()).hexdigest()[:32]
