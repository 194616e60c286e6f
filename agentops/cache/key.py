"""What a cached value is filed under, and the protocol of every cache.

Invariant: two keys are equal only if every part is: the parts are hashed as one canonical JSON list, so that no
concatenation of tenant and scope can equal another one.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from agentops.types import CacheRule, Json


@dataclass(frozen=True, slots=True)
class CacheKey:
    """Everything a read's result depends on, beside the world itself."""

    tenant: str
    scope: str  # `scope(user, scopes)`: who asks, with which rights
    tool_digest: str
    policy_digest: str
    arguments: Mapping[str, Json]  # canonical, as the policy saw them

    def digest(self) -> str:
        """64 hexadecimal characters: SHA-256 over the canonical JSON of all parts.

        Raises:
            ValueError: an argument has no JSON form (NaN, infinity, half a surrogate pair).
        """
        parts = [self.tenant, self.scope, self.tool_digest, self.policy_digest, self.arguments]
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()


def scope(user: str, scopes: Iterable[str]) -> str:
    """The part of a key that says who asks: a digest of the user and the sorted effective scopes."""
    return hashlib.sha256(json.dumps([user, sorted(scopes)]).encode()).hexdigest()


class Cache(Protocol):
    """A read-through cache of JSON values."""

    async def get_or_call(
        self, key: CacheKey, rule: CacheRule, tags: tuple[str, ...], call: Callable[[], Awaitable[Json]]
    ) -> tuple[Json, bool]:
        """The stored value, or the value of `call`, which is stored for `rule.ttl_s` seconds.

        Concurrent callers of one key share one call. It ends when nobody waits for it any more.

        Args:
            key: what the value depends on.
            rule: how long it may be reused; `tags` are its templates, filled in.
            tags: what makes the value stale, within the key's tenant.
            call: computes the value.

        Returns:
            the value (a private copy) and whether it came without running `call` for this caller.

        Raises:
            Exception: what `call` raised, to every caller that shared it; nothing is stored then.
        """
        ...

    async def invalidate(self, tenant: str, tags: Iterable[str]) -> None:
        """Make every value with one of `tags` stale, also one whose computation has begun and not ended."""
        ...

    async def close(self) -> None: ...
