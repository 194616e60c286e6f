"""A cache for reads that is safe to share: keyed by tenant and rights, single-flight, made stale by writes.

Invariant: a value is served only to a caller whose tenant, rights, tool version, policy set and arguments equal those
it was computed for, and never after a write that declared it stale. Errors are never stored. It authorises nothing:
the gateway decides before it asks.
"""

from agentops.cache.key import Cache, CacheKey, scope
from agentops.cache.memory import MemoryCache

__all__ = ["Cache", "CacheKey", "MemoryCache", "open_cache", "scope"]


def open_cache(redis_url: str | None) -> Cache:
    """The shared cache when a Redis is configured, else one in this process.

    A Redis that cannot be reached is no error: calls go on without a cache until it is back.

    Raises:
        ConfigError: `redis_url` is not a Redis address.
    """
    if not redis_url:
        return MemoryCache()
    from agentops.cache.shared import RedisCache  # the client takes a third of a second to import

    return RedisCache(redis_url)
